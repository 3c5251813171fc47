//! No double effect: completed work is not repeated. Receivers that deduplicate by id process each event once in any
//! case. This invariant limits the repetitions: after a kill of the process, only the event whose acknowledgement was
//! not passed to the kernel; after a power cut, only events acknowledged since the last sync. A producer that sends a
//! known event again gets `skipped`.
//!
//! Covers identity, known events, attempts, and the repetitions after a kill or a power cut.

use super::{Verdict, Violation};
use crate::history::{Entry, Request, Said};
use crate::outside::{Outside, State};

const NAME: &str = "no double effect";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        Entry::Started(request) => started(outside, request),
        Entry::Answered { token, event, answer: Said::Accepted { .. } } => {
            let before = outside.before(*token, *event);
            let is_known = !before.is_empty() && before.iter().all(|before| before.known_for_sure);
            // A webhook endpoint may accept the event again, for example because it was purged there.
            if is_known && !outside.is_for_endpoint(*event) {
                let id = &outside.made(*event).id;
                let text =
                    format!("event {id} was accepted again although every matching subscription knows it");
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
    if pair.called.open {
        return wrong("called while another call of the event is open");
    }
    // The log may contain an event twice, the second time after its id window. A subscription that reads the log long
    // after it delivered the first treats the second as a new event.
    let is_new_again =
        sub.life.read_history && outside.now.saturating_sub(pair.acked_at) >= sub.rules.window_ms;
    match pair.state {
        State::Acked if is_new_again => Ok(()),
        State::Acked => wrong("called again although its acknowledgement was durable"),
        _ => Ok(()),
    }
}
