//! Attempts: an attempt counts when its outcome is written, so its number is one more than the failures that are known;
//! a crash takes back no more than it may. After the last attempt, or one that no retry can help, an event is not tried
//! again unless a person asks. `Retry-After` is obeyed. A call for which
//! nobody was there is not an attempt.
//!
//! Semantics: 16 (attempts), 17 (what fails at once, Retry-After), 25 (a replay gives fresh attempts).

use super::{Verdict, Violation};
use crate::history::{Entry, Request};
use crate::outside::{Outside, State};

const NAME: &str = "attempts";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        // What a limit dropped and a producer sent again begins anew, unseen.
        Entry::Started(request) if !outside.sub(request.sub).drops => started(outside, request),
        _ => Ok(()),
    }
}

fn started(outside: &Outside, request: &Request) -> Verdict {
    let pair = outside.sub(request.sub).pair(request.event);
    let wrong = |text: &str| Err(Violation::of_request(NAME, outside, request, text));
    let (least, most) = (pair.failures_sure, pair.failed_ops.len() as u32);
    let dead = matches!(pair.state, State::Dead { .. });
    if dead && pair.revived == 0 {
        return wrong("called again although it had failed for good");
    }
    if !(least + 1..=most + 1).contains(&request.attempt) && !pair.is_settled() {
        return wrong(&format!("{least} to {most} failures are known"));
    }
    let rests_until = outside.sub(request.sub).rests_until;
    if request.now < rests_until {
        let early = rests_until - request.now;
        return wrong(&format!("called {early} ms too early: there was nobody to call"));
    }
    if request.now < pair.retry_after {
        return wrong(&format!("called {} ms too early", pair.retry_after - request.now));
    }
    Ok(())
}
