//! Tasks that make deliveries, one after the other. A task that is done waits for the next delivery instead of ending:
//! waking one costs a fraction of starting one.
//!
//! A few deliveries are made where the engine runs, which is soonest. Many are handed to threads of their own: while one
//! core talks to producers and runs the engine, another talks to targets.

use crate::calls::COUNTED_BYTES_MIN;
use crate::client::{self, Client};
use crate::engine::{Delivery, Ticket};
use crate::functions::Functions;
use bytes::Bytes;
use klambda_core::outcome::Outcome;
use klambda_crash::{Lock, Place, Point, contain_future};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};

/// More than this many do not wait; they end.
const IDLE_MAX: usize = 512;

/// From this many at once, other threads make them: waking one has its price.
const MANY: usize = 8;

/// Is told of every outcome.
pub type Done = Arc<dyn Fn(Ticket, Outcome) + Send + Sync>;

/// Is told when the bytes of a call that count are no longer in memory, unless its outcome was told before.
pub type Sent = Arc<dyn Fn(Ticket) + Send + Sync>;

/// What is open when this is dropped is given up.
pub struct Workers {
    here: Arc<Shared>,
    /// Rounds of deliveries; never more of them than the engine lets be open.
    elsewhere: mpsc::UnboundedSender<Vec<Delivery>>,
}

struct Shared {
    client: Client,
    idle: Lock<Vec<Arc<Worker>>>,
    done: Done,
    sent: Sent,
}

/// The record of a large event, which counts for as long as it is here.
struct Unsent {
    record: Vec<u8>,
    ticket: Ticket,
    sent: Sent,
}

impl AsRef<[u8]> for Unsent {
    fn as_ref(&self) -> &[u8] {
        &self.record
    }
}

impl Drop for Unsent {
    fn drop(&mut self) {
        (self.sent)(self.ticket);
    }
}

#[derive(Default)]
struct Worker {
    delivery: Lock<Option<Delivery>>,
    wake: Notify,
}

impl Workers {
    pub fn start(
        threads: usize,
        client: client::Options,
        functions: Arc<dyn Functions>,
        done: Done,
        sent: Sent,
    ) -> io::Result<Workers> {
        // Each side has connections of its own: a socket belongs to the runtime that opened it.
        let shared = || {
            let client = Client::with_functions(client, functions.clone());
            Arc::new(Shared { client, idle: Lock::default(), done: done.clone(), sent: sent.clone() })
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
        Point::HandOut.pass();
        round.into_iter().for_each(|delivery| hand_over(&shared, delivery));
    }
}

fn hand_over(shared: &Arc<Shared>, delivery: Delivery) {
    let idle = shared.idle.lock().pop();
    match idle {
        Some(worker) => {
            *worker.delivery.lock() = Some(delivery);
            worker.wake.notify_one();
        }
        None => {
            let worker = Arc::new(Worker { delivery: Lock::new(Some(delivery)), wake: Notify::new() });
            tokio::spawn(work(shared.clone(), worker));
        }
    }
}

async fn work(shared: Arc<Shared>, worker: Arc<Worker>) {
    loop {
        let Some(mut delivery) = worker.delivery.lock().take() else {
            worker.wake.notified().await;
            continue;
        };
        watch(&mut delivery, &shared.sent);
        let outcome = call(&shared.client, &mut delivery).await;
        (shared.done)(delivery.ticket, outcome);
        drop(delivery);
        let mut idle = shared.idle.lock();
        if idle.len() >= IDLE_MAX {
            return;
        }
        idle.push(worker.clone());
    }
}

/// A large event becomes a copy of its own: as a part of the log it would keep all that was written with it in memory.
fn watch(delivery: &mut Delivery, sent: &Sent) {
    if delivery.record.len() >= COUNTED_BYTES_MIN {
        let record = std::mem::take(&mut delivery.record).to_vec();
        delivery.record = Bytes::from_owner(Unsent { record, ticket: delivery.ticket, sent: sent.clone() });
    }
}

/// A call that panics is a failed attempt: to end the process for it would end it again after every restart.
async fn call(client: &Client, delivery: &mut Delivery) -> Outcome {
    let ticket = delivery.ticket;
    let call = pin!(async {
        Point::Call.pass();
        client.deliver(delivery).await
    });
    contain_future(Place::Call, call).await.unwrap_or_else(|panic| {
        tracing::error!(%panic, ticket = ticket.0, "A call of a target panicked.");
        Outcome::Internal(panic.to_string())
    })
}
