//! Nothing crosses from one namespace to another: who is called was sent the event in its own. That ids, keys and names
//! of one do not count in the other follows from the other invariants, since events of both are known by themselves.

use super::{Verdict, Violation};
use crate::history::Entry;
use crate::outside::Outside;

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    if outside.made(request.event).elsewhere == outside.sub(request.sub).rules.is_elsewhere() {
        return Ok(());
    }
    Err(Violation::of_request("isolation", outside, request, "it was sent in another namespace"))
}
