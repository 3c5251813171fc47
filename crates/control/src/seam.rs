//! What the engine asks for: replicas to deliver to.

use crate::control::Control;
use crate::names::Name;
use klambda_dispatch::Delivery;
use klambda_dispatch::functions::{Acquired, Functions, Handling, Hold, Lease, Unavailable};
use klambda_local::fleet::{self, Fleet};
use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll, Waker};

/// How long events wait before a function that cannot serve is asked again, unless something changes before.
const RETRY_MS: u64 = 5_000;
const FAILED_RETRY_MS: u64 = 30_000;

type Acquiring = Pin<Box<dyn Future<Output = Result<Lease, Unavailable>> + Send>>;

impl Functions for Control {
    fn acquire(&self, namespace: &str, name: &str) -> Acquired {
        let Some(platform) = self.running() else {
            let why = "functions are being started".to_owned();
            return Acquired::Unavailable(Unavailable { why, retry_after_ms: 200 });
        };
        let mut acquiring: Acquiring = Box::pin(lease(platform.fleet.clone(), Name::new(namespace, name)));
        // One that is warm is had at once.
        match acquiring.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
            Poll::Ready(Ok(lease)) => Acquired::Ready(lease),
            Poll::Ready(Err(unavailable)) => Acquired::Unavailable(unavailable),
            Poll::Pending => Acquired::Soon(acquiring),
        }
    }

    fn handle(&self, _: &str, _: &str, delivery: &Delivery) -> Option<Handling> {
        self.obey(delivery)
    }
}

struct Held(fleet::Lease);

impl Hold for Held {
    fn answered(&mut self) {
        self.0.answered();
    }
}

async fn lease(fleet: Fleet, name: Name) -> Result<Lease, Unavailable> {
    let lease = fleet.acquire(name.as_str()).await.map_err(|error| unavailable(&error))?;
    match lease.address() {
        Some(address) => Ok(Lease { address: address.clone(), held: Box::new(Held(lease)) }),
        None => Err(Unavailable { why: "it runs elsewhere".into(), retry_after_ms: RETRY_MS }),
    }
}

fn unavailable(error: &fleet::Error) -> Unavailable {
    let retry_after_ms = match error {
        fleet::Error::Failed(_) => FAILED_RETRY_MS,
        fleet::Error::TooManyWaiting(_) | fleet::Error::NoRoom(_) => 100,
        _ => RETRY_MS,
    };
    Unavailable { why: error.to_string(), retry_after_ms }
}
