//! The thread that sends spans.

use crate::exemplars::Exemplars;
use crate::otlp::{self, Exporter};
use crate::queue::Queue;
use crate::settings::{Error, Target};
use klambda_core::trace::Span;
use klambda_crash::{Guard, Lock};
use klambda_dispatch::traces::Tracer;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::time::{Duration, Instant};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::Notify;

/// How often a failure is logged.
const COMPLAINT_INTERVAL: Duration = Duration::from_secs(60);

/// A running export of traces. Clones share it.
#[derive(Clone)]
pub struct Export {
    tracer: Tracer,
    shared: Arc<Shared>,
}

struct Shared {
    queue: Arc<Queue>,
    stats: Arc<Stats>,
    exemplars: Lock<Exemplars>,
    is_ending: AtomicBool,
    ended: Notify,
}

/// What became of the spans.
#[derive(Debug, Default)]
pub struct Stats {
    exported: AtomicU64,
    dropped_full: AtomicU64,
    dropped_failed: AtomicU64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub exported: u64,
    /// The queue was full.
    pub dropped_full: u64,
    /// The collector did not take them.
    pub dropped_failed: u64,
}

impl Stats {
    pub(crate) fn dropped_full(&self, spans: usize) {
        self.dropped_full.fetch_add(spans as u64, Relaxed);
    }

    pub fn read(&self) -> Counts {
        Counts {
            exported: self.exported.load(Relaxed),
            dropped_full: self.dropped_full.load(Relaxed),
            dropped_failed: self.dropped_failed.load(Relaxed),
        }
    }
}

impl Export {
    /// Starts the thread. The collector need not be there yet.
    pub fn start(target: Target) -> Result<Export, Error> {
        let runtime = Builder::new_current_thread().enable_all().build().map_err(Error::Thread)?;
        let exporter = {
            let _inside = runtime.enter();
            otlp::exporter(&target)?
        };
        let stats = Arc::new(Stats::default());
        let queue = Arc::new(Queue::new(target.queue, target.batch, stats.clone()));
        let mut seed = [0; 8];
        getrandom::fill(&mut seed).map_err(Error::Randomness)?;
        let tracer = Tracer::new(target.sampler, u64::from_be_bytes(seed), queue.clone());
        let shared = Arc::new(Shared {
            queue,
            stats,
            exemplars: Lock::default(),
            is_ending: AtomicBool::new(false),
            ended: Notify::new(),
        });
        let (thread, endpoint) = (shared.clone(), target.endpoint.clone());
        let thread = std::thread::Builder::new()
            .name("klambda-traces".into())
            .spawn(move || run(&runtime, &thread, &exporter, &target));
        thread.map_err(Error::Thread)?;
        tracing::info!(endpoint, "Exporting traces");
        Ok(Export { tracer, shared })
    }

    pub fn tracer(&self) -> &Tracer {
        &self.tracer
    }

    pub fn stats(&self) -> &Stats {
        &self.shared.stats
    }

    pub fn exemplars(&self) -> Guard<'_, Exemplars> {
        self.shared.exemplars.lock()
    }

    /// Sends the spans that wait, and ends the thread. Gives up after `within`.
    pub async fn end(&self, within: Duration) {
        let ended = self.shared.ended.notified();
        self.shared.is_ending.store(true, Relaxed);
        self.shared.queue.wake();
        if tokio::time::timeout(within, ended).await.is_err() {
            tracing::warn!("Could not export the last traces in time");
        }
    }
}

fn run(runtime: &Runtime, shared: &Shared, exporter: &Exporter, target: &Target) {
    let mut complained: Option<Instant> = None;
    runtime.block_on(async {
        loop {
            let is_last = shared.is_ending.load(Relaxed);
            let spans = match is_last {
                true => shared.queue.take_now(),
                false => shared.queue.take(target.delay).await,
            };
            shared.send(spans, exporter, target.batch, &mut complained).await;
            if is_last {
                return shared.ended.notify_one();
            }
        }
    });
}

impl Shared {
    async fn send(
        &self,
        mut spans: Vec<Span>,
        exporter: &Exporter,
        batch: usize,
        complained: &mut Option<Instant>,
    ) {
        while !spans.is_empty() {
            let rest = spans.split_off(spans.len().min(batch));
            let sending = std::mem::replace(&mut spans, rest);
            let count = sending.len() as u64;
            self.exemplars.lock().add(&sending);
            match exporter.export(sending).await {
                Ok(()) => {
                    self.stats.exported.fetch_add(count, Relaxed);
                }
                Err(error) => {
                    self.stats.dropped_failed.fetch_add(count, Relaxed);
                    complain(&error, complained);
                }
            }
        }
    }
}

fn complain(error: &str, complained: &mut Option<Instant>) {
    if complained.is_none_or(|at| at.elapsed() >= COMPLAINT_INTERVAL) {
        *complained = Some(Instant::now());
        tracing::warn!(error, "Could not export traces; check the endpoint and the collector");
    }
}
