//! Gives the engine replicas to deliver to. This code uses neither the engine nor the lock.

use crate::control::Control;
use klambda_dispatch::Delivery;
use klambda_dispatch::functions::{self, Functions, Handling, Hold};
use klambda_functions::name::Name;
use klambda_functions::platform::{Acquired, Lease, Unavailable};

/// How long events wait before an unavailable function is asked again. A change of the function ends the wait early.
const RETRY_MS: u64 = 5_000;
const FAILED_RETRY_MS: u64 = 30_000;
const BUSY_RETRY_MS: u64 = 100;
const STARTING_RETRY_MS: u64 = 200;

impl Functions for Control {
    fn acquire(&self, namespace: &str, name: &str) -> functions::Acquired {
        let Some(platform) = self.running() else {
            let why = "the function platform is starting".to_owned();
            let retry_after_ms = STARTING_RETRY_MS;
            return functions::Acquired::Unavailable(functions::Unavailable { why, retry_after_ms });
        };
        let name = Name::new(namespace, name);
        match platform.acquire(&name) {
            // A warm replica is available immediately.
            Acquired::Ready(lease) => match self.counted(&name, lease) {
                Ok(lease) => functions::Acquired::Ready(lease),
                Err(unavailable) => functions::Acquired::Unavailable(unavailable),
            },
            Acquired::Soon(waiting) => {
                let control = self.clone();
                functions::Acquired::Soon(Box::pin(async move {
                    let lease = waiting.await.map_err(|why| unavailable(&why))?;
                    control.counted(&name, lease)
                }))
            }
            Acquired::Unavailable(why) => functions::Acquired::Unavailable(unavailable(&why)),
        }
    }

    fn handle(&self, _: &str, _: &str, delivery: &Delivery) -> Option<Handling> {
        self.run_command(delivery)
    }
}

impl Control {
    fn counted(
        &self,
        name: &Name,
        lease: Box<dyn Lease>,
    ) -> Result<functions::Lease, functions::Unavailable> {
        if lease.is_starting() {
            self.counting.cold_start(name);
        }
        local(lease)
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
        None => Err(functions::Unavailable {
            why: "the function runs at a URL, not on this server".into(),
            retry_after_ms: RETRY_MS,
        }),
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
