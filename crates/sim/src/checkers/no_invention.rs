//! No invention: the engine delivers only events that were accepted and are durable, with the bytes that were sent,
//! and only to subscriptions that exist and whose filters match. It does not deliver events that were purged,
//! discarded or deleted, unless they were sent again.
//!
//! Covers acceptance, released ids, delivery attributes, durable decisions, purge and delete, filters, and new
//! subscriptions.

use super::{Verdict, Violation};
use crate::history::{Content, Entry, Request};
use crate::outside::{Outside, State, Taken};
use klambda_dispatch::dead_letters::DeadLetter;

const NAME: &str = "no invention";

/// A dead letter names an event that no producer sent.
pub fn unknown_letter(letter: &DeadLetter) -> Violation {
    let DeadLetter { entry, event_id, source, .. } = letter;
    let text =
        format!("the dead letter at position {} is of unknown event {event_id} of {source}", entry.position);
    Violation::new(NAME, text)
}

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        Entry::Started(request) => started(outside, request),
        _ => Ok(()),
    }
}

fn started(outside: &Outside, request: &Request) -> Verdict {
    let sub = outside.sub(request.sub);
    let pair = sub.pair(request.event);
    let wrong = |text: &str| Err(Violation::of_request(NAME, outside, request, text));
    if request.content == Content::Other {
        return wrong("the content differs from what was sent");
    }
    if request.host != Some(sub.rules.host) {
        return wrong("delivered to the wrong target");
    }
    if !sub.life.there {
        return wrong("delivered to a deleted subscription");
    }
    if pair.taken == Taken::No {
        return match pair.state {
            State::Gone => wrong("delivered after it was purged, discarded or deleted"),
            _ => wrong("delivered although this subscription never accepted it"),
        };
    }
    if pair.sent_op > outside.durable {
        return wrong("delivered before it was durable");
    }
    Ok(())
}
