//! Limits the calls of webhook endpoints beside their lanes: for each endpoint, and for all of them together. An endpoint
//! that does not answer keeps no other one from being tried.

use crate::problem::Problem;
use klambda_crash::Lock;
use std::collections::HashMap;
use std::time::Duration;

/// Calls of one endpoint at a time.
const ENDPOINT_MAX: usize = 8;
/// Calls of all endpoints at a time.
const ALL_MAX: usize = 128;

/// The open calls by subscription. A subscription without a call has no entry.
#[derive(Default)]
pub struct Trials(Lock<HashMap<String, usize>>);

/// A place among the calls, until it is dropped.
pub struct Turn<'a> {
    trials: &'a Trials,
    subscription: String,
}

impl Trials {
    pub fn turn(&self, subscription: &str) -> Result<Turn<'_>, Problem> {
        let mut open = self.0.lock();
        let own = open.get(subscription).copied().unwrap_or(0);
        let reached = match () {
            () if own >= ENDPOINT_MAX => Some(format!("{own} test calls and resends of this endpoint")),
            () if open.values().sum::<usize>() >= ALL_MAX => {
                Some(format!("{ALL_MAX} test calls and resends"))
            }
            () => None,
        };
        if let Some(reached) = reached {
            let detail = format!("{reached} are already running, which is the limit");
            return Err(Problem::limit_reached(detail).retry_after(Duration::from_secs(1)));
        }
        *open.entry(subscription.to_owned()).or_default() += 1;
        Ok(Turn { trials: self, subscription: subscription.to_owned() })
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut open = self.trials.0.lock();
        if let Some(own) = open.get_mut(&self.subscription) {
            *own -= 1;
            if *own == 0 {
                open.remove(&self.subscription);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_that_hangs_leaves_places_for_others() {
        let trials = Trials::default();
        let mut turns: Vec<Turn<'_>> = (0..ENDPOINT_MAX).filter_map(|_| trials.turn("a").ok()).collect();
        assert!(turns.len() == ENDPOINT_MAX && trials.turn("a").is_err());
        for n in 0..ALL_MAX - ENDPOINT_MAX {
            turns.extend(trials.turn(&format!("b{n}")).ok());
        }
        assert!(turns.len() == ALL_MAX && trials.turn("c").is_err());
        turns.remove(0);
        turns.extend(trials.turn("a").ok());
        assert_eq!(turns.len(), ALL_MAX, "a place is free again");
        turns.clear();
        assert!(trials.0.lock().is_empty(), "nothing is kept without a call");
    }
}
