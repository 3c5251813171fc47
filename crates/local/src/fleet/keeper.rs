//! Waits for the deadlines of all functions in one task.

use super::{Shared, State};
use std::sync::{Arc, Weak};
use std::time::Instant;
use tokio::sync::Notify;

pub async fn run(shared: Weak<Shared>, wake: Arc<Notify>) {
    while let Some(next) = shared.upgrade().map(|shared| keep(&shared)) {
        match next {
            Some(next) => {
                tokio::select! {
                    () = tokio::time::sleep_until(next.into()) => {}
                    () = wake.notified() => {}
                }
            }
            None => wake.notified().await,
        }
    }
}

/// Checks every function that is due, and returns the next deadline.
fn keep(shared: &Arc<Shared>) -> Option<Instant> {
    let mut state = shared.lock();
    let State { functions, scheduler, .. } = &mut *state;
    let now = Instant::now();
    while let Some((at, name)) = scheduler.due(now) {
        if let Some(function) = functions.get_mut(&name) {
            function.deadline_reached(at, shared, scheduler, now);
        }
    }
    scheduler.next_deadline()
}
