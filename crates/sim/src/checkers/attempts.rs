//! Attempts: an attempt counts when its outcome is written, so its number is one more than the number of known
//! failures. A crash undoes no more attempts than allowed. After its last attempt, or a failure that cannot be
//! retried, an event is not retried unless a user requests it. `Retry-After` is honored. A call without a ready
//! replica is not an attempt.
//!
//! Covers attempts, immediate failures, `Retry-After`, and the fresh attempts of a replay.

use super::{Verdict, Violation};
use crate::history::{Entry, Request};
use crate::outside::{Outside, State};

const NAME: &str = "attempts";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        // An event that a limit dropped and the producer sent again starts with fresh attempts, which is not visible
        // here.
        Entry::Started(request) if !outside.sub(request.sub).limits.drops => started(outside, request),
        _ => Ok(()),
    }
}

fn started(outside: &Outside, request: &Request) -> Verdict {
    let pair = outside.sub(request.sub).pair(request.event);
    let wrong = |text: &str| Err(Violation::of_request(NAME, outside, request, text));
    let (least, most) = (pair.failures.sure, pair.failures.ops.len() as u32);
    let dead = matches!(pair.state, State::Dead { .. });
    if dead && pair.failures.revived == 0 {
        return wrong("called again although it had failed permanently");
    }
    if !(least + 1..=most + 1).contains(&request.attempt) && !pair.is_settled() {
        return wrong(&format!("{least} to {most} failures are known"));
    }
    let rests_until = outside.sub(request.sub).rests_until;
    if request.now < rests_until {
        let early = rests_until - request.now;
        return wrong(&format!("called {early} ms too early: no replica was ready"));
    }
    if request.now < pair.failures.retry_after {
        return wrong(&format!("called {} ms too early", pair.failures.retry_after - request.now));
    }
    Ok(())
}
