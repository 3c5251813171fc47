//! Isolation: an event is delivered only within the namespace in which it was sent. The other invariants imply that
//! ids, keys and names of one namespace do not count in another, because the events of both namespaces are tracked
//! separately.

use super::{Verdict, Violation};
use crate::history::Entry;
use crate::outside::Outside;

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    if outside.made(request.event).elsewhere == outside.sub(request.sub).rules.is_elsewhere() {
        return Ok(());
    }
    Err(Violation::of_request("isolation", outside, request, "the event was sent in another namespace"))
}
