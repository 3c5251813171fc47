//! Edits: the next delivery of an edited dead letter carries the edit, and only to its subscription. A crash can undo
//! an edit only before it is durable. The program shows the edit and the original.
//!
//! An edit ends with its event. If the event may have left the subscription and come again, the original may be
//! delivered too.

use super::{Verdict, Violation};
use crate::history::{Content, Entry, Request};
use crate::outside::Outside;
use serde_json::Value;

const NAME: &str = "edits";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    match entry {
        Entry::Started(request) => started(outside, request),
        _ => Ok(()),
    }
}

fn started(outside: &Outside, request: &Request) -> Verdict {
    let edited = outside.edits.get(&(request.sub, request.event));
    let wrong = |text: &str| Err(Violation::of_request(NAME, outside, request, text));
    match (request.content, edited) {
        (Content::Original, Some(edited))
            if edited.floor > 0 && !outside.may_have_left(request.sub, request.event) =>
        {
            wrong(&format!("has its original content although edit {} is durable", edited.floor))
        }
        (Content::Edit(version), None) => {
            wrong(&format!("has edit {version}, which another subscription got"))
        }
        (Content::Edit(version), Some(edited)) if !edited.may_be(version) => {
            wrong(&format!("has edit {version} instead of {}", edited.floor))
        }
        _ => Ok(()),
    }
}

/// The view of a dead letter right after an edit.
pub fn is_shown(view: &Value, data: &str, original: Option<&str>) -> Verdict {
    let (event, before) = (&view["event"]["data"], &view["original"]["data"]);
    if *event != data || before.as_str() != original {
        let text =
            format!("dead letter {} shows {event} (original {before}) after an edit to {data}", view["id"]);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}
