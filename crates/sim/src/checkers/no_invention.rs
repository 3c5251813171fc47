//! No invention: nothing is delivered that was not accepted, nothing before it is durable, nothing with other bytes
//! than were sent, nothing to a subscription whose filters or life it misses, and nothing that was purged, discarded or
//! deleted by a decision, unless it was sent again.
//!
//! Semantics: 1 (accepted means synced), 3 (released ids), 7 (our attributes overwrite the producer's), 18 (decisions
//! are synced before they take effect), 24 (purge, delete), 32 (filters), 33 (a new subscription knows nothing).

use super::{Verdict, Violation};
use crate::history::{Entry, Request};
use crate::outside::{Outside, State, Taken};

const NAME: &str = "no invention";

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
    if !request.unchanged {
        return wrong("its content is not what was sent");
    }
    if request.host != Some(sub.rules.host) {
        return wrong("delivered to a target that its rules do not name");
    }
    if !sub.there {
        return wrong("delivered to a subscription that was deleted");
    }
    if pair.taken == Taken::No {
        return match pair.state {
            State::Gone => wrong("delivered after it was purged, discarded or deleted"),
            _ => wrong("delivered although this subscription never took it"),
        };
    }
    if pair.sent_op > outside.durable {
        return wrong("delivered before it was durable");
    }
    Ok(())
}
