//! Shrinks a failing run: fewer events, troubles and keys, as long as the same invariant is violated.

use crate::mix::{Knobs, Trouble};
use crate::run::{RunOutcome, run};
use std::time::{Duration, Instant};

const TIME_MAX: Duration = Duration::from_secs(30);

pub fn shrink(mut best: RunOutcome) -> RunOutcome {
    let until = Instant::now() + TIME_MAX;
    loop {
        let before = best.knobs;
        for knobs in smaller(best.knobs) {
            if Instant::now() >= until {
                return best;
            }
            let tried = run(knobs);
            if invariant(&tried) == invariant(&best) {
                best = tried;
                break;
            }
        }
        if best.knobs == before {
            return best;
        }
    }
}

fn invariant(outcome: &RunOutcome) -> Option<&'static str> {
    outcome.violation.as_ref().map(|failed| failed.violation.invariant)
}

/// Smaller runs, the smallest first.
fn smaller(knobs: Knobs) -> Vec<Knobs> {
    let mut all = Vec::new();
    for (part, of) in [(1, 8), (1, 2), (3, 4), (7, 8)] {
        let events_max = knobs.events_max * part / of;
        if events_max < knobs.events_max && events_max > 0 {
            all.push(Knobs { events_max, ..knobs });
        }
    }
    for subscriptions_max in [1, 2, 3] {
        if subscriptions_max < knobs.subscriptions_max {
            all.push(Knobs { subscriptions_max, ..knobs });
        }
    }
    for keys_max in [1, 2, 5] {
        if keys_max < knobs.keys_max {
            all.push(Knobs { keys_max, ..knobs });
        }
    }
    for trouble in Trouble::ALL {
        if knobs.without & trouble.bit() == 0 {
            all.push(Knobs { without: knobs.without | trouble.bit(), ..knobs });
        }
    }
    all
}
