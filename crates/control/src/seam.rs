//! What the engine asks for: replicas to deliver to. Neither the engine nor the lock is touched here.

use crate::control::Control;
use klambda_dispatch::Delivery;
use klambda_dispatch::functions::{self, Functions, Handling, Hold};
use klambda_functions::name::Name;
use klambda_functions::platform::{Acquired, Lease, Unavailable};

/// How long events wait before a function that cannot serve is asked again, unless something changes before.
const RETRY_MS: u64 = 5_000;
const FAILED_RETRY_MS: u64 = 30_000;
const BUSY_RETRY_MS: u64 = 100;
const STARTING_RETRY_MS: u64 = 200;

impl Functions for Control {
    fn acquire(&self, namespace: &str, name: &str) -> functions::Acquired {
        let Some(platform) = self.running() else {
            let why = "functions are being started".to_owned();
            let retry_after_ms = STARTING_RETRY_MS;
            return functions::Acquired::Unavailable(functions::Unavailable { why, retry_after_ms });
        };
        match platform.acquire(&Name::new(namespace, name)) {
            // One that is warm is had at once.
            Acquired::Ready(lease) => match local(lease) {
                Ok(lease) => functions::Acquired::Ready(lease),
                Err(unavailable) => functions::Acquired::Unavailable(unavailable),
            },
            Acquired::Soon(waiting) => functions::Acquired::Soon(Box::pin(async move {
                waiting.await.map_err(|why| unavailable(&why)).and_then(local)
            })),
            Acquired::Unavailable(why) => functions::Acquired::Unavailable(unavailable(&why)),
        }
    }

    fn handle(&self, _: &str, _: &str, delivery: &Delivery) -> Option<Handling> {
        self.obey(delivery)
    }
}

struct Held(Box<dyn Lease>);

impl Hold for Held {
    fn answered(&mut self) {
        self.0.answered();
    }
}

fn local(lease: Box<dyn Lease>) -> Result<functions::Lease, functions::Unavailable> {
    match lease.endpoint().address().cloned() {
        Some(address) => Ok(functions::Lease { address, held: Box::new(Held(lease)) }),
        None => Err(functions::Unavailable { why: "it runs elsewhere".into(), retry_after_ms: RETRY_MS }),
    }
}

fn unavailable(why: &Unavailable) -> functions::Unavailable {
    let retry_after_ms = match why {
        Unavailable::Failed(_) => FAILED_RETRY_MS,
        Unavailable::Busy(_) => BUSY_RETRY_MS,
        Unavailable::NotDeployed(_) | Unavailable::Ending(_) => RETRY_MS,
    };
    functions::Unavailable { why: why.to_string(), retry_after_ms }
}
