//! Tasks that make deliveries, one after the other. A task that is done waits for the next delivery instead of ending:
//! waking one costs a fraction of starting one.

use crate::client::Client;
use crate::engine::{Delivery, Ticket};
use klambda_core::outcome::Outcome;
use std::sync::{Arc, Mutex, MutexGuard};
use tokio::sync::Notify;

/// More than this many do not wait; they end.
const IDLE_MAX: usize = 512;

pub struct Workers<F> {
    shared: Arc<Shared<F>>,
}

struct Shared<F> {
    client: Client,
    idle: Mutex<Vec<Arc<Worker>>>,
    done: F,
}

#[derive(Default)]
struct Worker {
    delivery: Mutex<Option<Delivery>>,
    wake: Notify,
}

impl<F: Fn(Ticket, Outcome) + Send + Sync + 'static> Workers<F> {
    /// `done` is told of every outcome.
    pub fn new(client: Client, done: F) -> Workers<F> {
        Workers { shared: Arc::new(Shared { client, idle: Mutex::default(), done }) }
    }

    pub fn deliver(&self, delivery: Delivery) {
        let idle = lock(&self.shared.idle).pop();
        match idle {
            Some(worker) => {
                *lock(&worker.delivery) = Some(delivery);
                worker.wake.notify_one();
            }
            None => {
                let worker = Arc::new(Worker { delivery: Mutex::new(Some(delivery)), wake: Notify::new() });
                tokio::spawn(work(self.shared.clone(), worker));
            }
        }
    }
}

async fn work<F: Fn(Ticket, Outcome)>(shared: Arc<Shared<F>>, worker: Arc<Worker>) {
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
