//! No double effect: what the engine was told is done is not done again. Receivers that key on the id do each event
//! once whatever happens; what this holds is that repeats come only where they are allowed: after a process kill the
//! event whose acknowledgement had not been handed to the kernel, after a power cut what was acknowledged since the
//! last sync. And a producer that sends a known event again is told `skipped`.
//!
//! Semantics: 2 (identity), 3 (known events are skipped), 16, 18 (what a kill and a power cut may repeat).

use super::{Verdict, Violation};
use crate::history::{Entry, Request, Said};
use crate::outside::{Outside, State};

const NAME: &str = "no double effect";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        Entry::Started(request) => started(outside, request),
        Entry::Answered { token, event, answer: Said::Accepted { .. } } => {
            let before = outside.before(*token, *event);
            if !before.is_empty() && before.iter().all(|before| before.known_for_sure) {
                let id = &outside.made(*event).id;
                let text = format!(
                    "event {id} was accepted again although every subscription that wants it knows it"
                );
                return Err(Violation::of_event(NAME, *event, text));
            }
            Ok(())
        }
        _ => Ok(()),
    }
}

fn started(outside: &Outside, request: &Request) -> Verdict {
    let sub = outside.sub(request.sub);
    let pair = sub.pair(request.event);
    let wrong = |text: &str| Err(Violation::of_request(NAME, outside, request, text));
    if pair.open {
        return wrong("called while a call of it is open");
    }
    // The log may hold an event twice, the second time after its window. A subscription that reads the log long after it
    // delivered the first takes the second for a new event.
    let is_new_again = sub.read_history && outside.now.saturating_sub(pair.acked_at) >= sub.rules.window_ms;
    match pair.state {
        State::Acked if is_new_again => Ok(()),
        State::Acked => wrong("called again although its acknowledgement was safe"),
        _ => Ok(()),
    }
}
