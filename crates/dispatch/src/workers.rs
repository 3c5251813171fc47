//! Tasks that make deliveries, one after the other. A task that is done waits for the next delivery instead of ending:
//! waking one costs a fraction of starting one.
//!
//! A few deliveries are made where the engine runs, which is soonest. Many are handed to threads of their own: while one
//! core talks to producers and runs the engine, another talks to targets.

use crate::client::{self, Client};
use crate::engine::{Delivery, Ticket};
use crate::functions::Functions;
use klambda_core::outcome::Outcome;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};

/// More than this many do not wait; they end.
const IDLE_MAX: usize = 512;

/// From this many at once, other threads make them: waking one has its price.
const MANY: usize = 8;

/// Is told of every outcome.
pub type Done = Arc<dyn Fn(Ticket, Outcome) + Send + Sync>;

/// What is open when this is dropped is given up.
pub struct Workers {
    here: Arc<Shared>,
    /// Rounds of deliveries; never more of them than the engine lets be open.
    elsewhere: mpsc::UnboundedSender<Vec<Delivery>>,
}

struct Shared {
    client: Client,
    idle: Mutex<Vec<Arc<Worker>>>,
    done: Done,
}

#[derive(Default)]
struct Worker {
    delivery: Mutex<Option<Delivery>>,
    wake: Notify,
}

impl Workers {
    pub fn start(
        threads: usize,
        client: client::Options,
        functions: Arc<dyn Functions>,
        done: Done,
    ) -> io::Result<Workers> {
        // Each side has connections of its own: a socket belongs to the runtime that opened it.
        let shared = || {
            let client = Client::with_functions(client, functions.clone());
            Arc::new(Shared { client, idle: Mutex::default(), done: done.clone() })
        };
        let (elsewhere, rounds) = mpsc::unbounded_channel();
        let (runtime, there) = (runtime(threads)?, shared());
        std::thread::Builder::new().name("klambda-deliver".into()).spawn(move || {
            runtime.block_on(hand_out(there, rounds));
            runtime.shutdown_background();
        })?;
        Ok(Workers { here: shared(), elsewhere })
    }

    pub fn deliver(&self, round: Vec<Delivery>) {
        if round.len() < MANY {
            round.into_iter().for_each(|delivery| hand_over(&self.here, delivery));
        } else {
            let _ = self.elsewhere.send(round);
        }
    }
}

fn runtime(threads: usize) -> io::Result<Runtime> {
    let mut builder = match threads {
        0 | 1 => Builder::new_current_thread(),
        _ => Builder::new_multi_thread(),
    };
    if threads > 1 {
        builder.worker_threads(threads);
    }
    builder.event_interval(EVENT_INTERVAL).enable_all().thread_name("klambda-deliver").build()
}

/// Sockets are asked less often while tasks are ready: larger batches, fewer calls. Measured: 6% more events a second.
pub const EVENT_INTERVAL: u32 = 512;

async fn hand_out(shared: Arc<Shared>, mut rounds: mpsc::UnboundedReceiver<Vec<Delivery>>) {
    while let Some(round) = rounds.recv().await {
        round.into_iter().for_each(|delivery| hand_over(&shared, delivery));
    }
}

fn hand_over(shared: &Arc<Shared>, delivery: Delivery) {
    let idle = lock(&shared.idle).pop();
    match idle {
        Some(worker) => {
            *lock(&worker.delivery) = Some(delivery);
            worker.wake.notify_one();
        }
        None => {
            let worker = Arc::new(Worker { delivery: Mutex::new(Some(delivery)), wake: Notify::new() });
            tokio::spawn(work(shared.clone(), worker));
        }
    }
}

async fn work(shared: Arc<Shared>, worker: Arc<Worker>) {
    loop {
        let Some(delivery) = lock(&worker.delivery).take() else {
            worker.wake.notified().await;
            continue;
        };
        let outcome = shared.client.call(&delivery).await;
        (shared.done)(delivery.ticket, outcome);
        drop(delivery);
        let mut idle = lock(&shared.idle);
        if idle.len() >= IDLE_MAX {
            return;
        }
        idle.push(worker.clone());
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().expect("no one panics while holding it")
}
