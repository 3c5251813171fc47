//! The loop between watches and reconciles. Every replica watches; only the leader reconciles.

use crate::cache::{Cache, Key};
use crate::metrics::Metrics;
use crate::queue::{Outcome, Queue};
use crate::reconcile::Reconciler;
use crate::watch::{Change, Watches};
use std::collections::HashSet;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{mpsc, watch};

/// Reconciles at a time.
const CONCURRENCY: usize = 32;
/// Every function is looked at again after this time, in case a watch missed a change.
const RESYNC: Duration = Duration::from_secs(600);

pub struct Controller {
    pub reconciler: Arc<Reconciler>,
    pub cache: Arc<Cache>,
    pub metrics: Arc<Metrics>,
    pub watches: Watches,
    pub changes: mpsc::Receiver<Change>,
    pub leading: watch::Receiver<bool>,
    pub stop: watch::Receiver<bool>,
}

/// The changing part of the loop.
struct Work {
    queue: Queue,
    running: usize,
    listed: HashSet<(crate::kinds::Kind, Option<String>)>,
    is_synced: bool,
    is_leading: bool,
}

impl Controller {
    /// Runs until `stop` fires, and then until the open reconciles end.
    pub async fn run(mut self) {
        let (ended, mut results) = mpsc::channel::<(Key, Outcome)>(CONCURRENCY);
        let mut stop = self.stop.clone();
        let mut work = Work {
            queue: Queue::default(),
            running: 0,
            listed: HashSet::new(),
            is_synced: false,
            is_leading: false,
        };
        loop {
            self.start_due(&mut work, &ended);
            self.metrics.queue(work.queue.len(Instant::now()));
            let next = work.queue.next().unwrap_or_else(|| Instant::now() + RESYNC);
            tokio::select! {
                Some(change) = self.changes.recv() => self.change(&mut work, change),
                Some((key, outcome)) = results.recv() => finish(&mut work, key, outcome),
                Ok(()) = self.leading.changed() => self.lead(&mut work),
                () = tokio::time::sleep_until(next.into()), if work.is_leading && work.running < CONCURRENCY => {}
                _ = stop.wait_for(|stop| *stop) => break,
            }
        }
        while work.running > 0 {
            let Some((key, outcome)) = results.recv().await else { break };
            finish(&mut work, key, outcome);
        }
    }

    fn start_due(&self, work: &mut Work, ended: &mpsc::Sender<(Key, Outcome)>) {
        if !work.is_leading || !work.is_synced {
            return;
        }
        while work.running < CONCURRENCY {
            let Some(key) = work.queue.take(Instant::now()) else { return };
            work.running += 1;
            let (reconciler, ended) = (self.reconciler.clone(), ended.clone());
            tokio::spawn(async move {
                let outcome = reconciler.reconcile(&key).await;
                let _ = ended.send((key, outcome)).await;
            });
        }
    }

    fn change(&mut self, work: &mut Work, change: Change) {
        match change {
            Change::Function(key) => {
                if work.is_leading {
                    work.queue.add(key, Instant::now());
                }
            }
            Change::Listed(kind, namespace) => {
                work.listed.insert((kind, namespace));
                self.check_synced(work);
            }
            Change::Everything => {
                self.watches.start(&self.stop);
                self.check_synced(work);
                self.add_all(work);
            }
        }
    }

    /// A reconcile with half a cache would create what exists already.
    fn check_synced(&self, work: &mut Work) {
        let lists = self.watches.lists();
        if !work.is_synced && lists > 0 && work.listed.len() >= lists {
            work.is_synced = true;
            self.metrics.synced();
            tracing::info!(functions = self.cache.keys().len(), "Caches are complete");
            self.add_all(work);
        }
    }

    fn lead(&mut self, work: &mut Work) {
        work.is_leading = *self.leading.borrow_and_update();
        self.metrics.leading(work.is_leading);
        match work.is_leading {
            true => self.add_all(work),
            false => work.queue.clear(),
        }
    }

    fn add_all(&self, work: &mut Work) {
        if work.is_leading {
            let now = Instant::now();
            self.cache.keys().into_iter().for_each(|key| work.queue.add(key, now));
        }
    }
}

fn finish(work: &mut Work, key: Key, outcome: Outcome) {
    work.running -= 1;
    let outcome = match outcome {
        Outcome::Done { wake } => Outcome::Done { wake: Some(wake.unwrap_or(RESYNC).min(RESYNC)) },
        other => other,
    };
    let random = getrandom::u64().unwrap_or_default();
    work.queue.done(key, outcome, Instant::now(), random);
}
