//! Tasks that make deliveries. A finished task waits for the next delivery instead of ending, because waking a task
//! is much cheaper than starting one.
//!
//! A few deliveries at a time run on the engine's runtime, which has the lowest latency. Larger rounds go to other
//! threads, so that one core serves producers and the engine while another serves targets.

use crate::calls::COUNTED_BYTES_MIN;
use crate::client::{self, Client, Providers};
use crate::engine::{Delivery, Ticket};
use bytes::Bytes;
use klambda_core::outcome::CallOutcome;
use klambda_crash::{Lock, Place, Point, contain_future};
use std::io;
use std::pin::pin;
use std::sync::Arc;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Notify, mpsc};

/// At most this many idle tasks wait; others end.
const IDLE_MAX: usize = 512;

/// Rounds of at least this size go to the other threads, because waking a thread has a cost.
const MANY: usize = 8;

/// Called with every outcome.
pub type Done = Arc<dyn Fn(Ticket, CallOutcome) + Send + Sync>;

/// Called when the counted bytes of a call are no longer in memory. Has no effect after its outcome.
pub type Sent = Arc<dyn Fn(Ticket) + Send + Sync>;

/// Dropping this abandons open deliveries.
pub struct Workers {
    here: Arc<Shared>,
    /// Rounds of deliveries. The engine limits how many are open.
    elsewhere: mpsc::UnboundedSender<Vec<Delivery>>,
}

struct Shared {
    client: Client,
    idle: Lock<Vec<Arc<Worker>>>,
    done: Done,
    sent: Sent,
}

/// The record of a large event, counted as long as it exists.
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
        providers: Providers,
        done: Done,
        sent: Sent,
    ) -> io::Result<Workers> {
        // Each side has its own connections, because a socket belongs to the runtime that opened it.
        let shared = || {
            let client = Client::with_providers(client, providers.clone());
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

/// Polls sockets less often while tasks are ready, which gives larger batches and fewer system calls. Measured: 6%
/// more events per second.
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

/// Copies a large event. As a slice of the log it would keep everything in memory that was written with it.
fn watch(delivery: &mut Delivery, sent: &Sent) {
    if !delivery.following.is_empty() {
        // The bytes of a batch count until its call ends.
        delivery.record = Bytes::copy_from_slice(&delivery.record);
        delivery.copy_following();
    } else if delivery.record.len() >= COUNTED_BYTES_MIN {
        let record = std::mem::take(&mut delivery.record).to_vec();
        delivery.record = Bytes::from_owner(Unsent { record, ticket: delivery.ticket, sent: sent.clone() });
    }
}

/// A call that panics is a failed attempt. Ending the process would repeat the panic after every restart.
async fn call(client: &Client, delivery: &mut Delivery) -> CallOutcome {
    let ticket = delivery.ticket;
    let call = pin!(async {
        Point::Call.pass();
        client.deliver(delivery).await
    });
    contain_future(Place::Call, call).await.unwrap_or_else(|panic| {
        tracing::error!(%panic, ticket = ticket.0, "Panic during a call of a target");
        CallOutcome::Internal(panic.to_string())
    })
}
