//! Feed: it lists every event that took a place in a workflow, in this order, once, with the number and the previous
//! event that are pushed. What it has shown stays, also after a power cut: an entry leaves only if it is purged, or if
//! retention removes an event that nobody waits for. A reader that continues where it stopped misses nothing.
//!
//! With retention, the oldest entries are lost at a time that is not visible from outside. So holes are judged only
//! without retention, or if the event certainly waits.

use super::{Verdict, Violation};
use crate::event::EventNo;
use crate::history::{Entry, Listed, Page, Webhook};
use crate::outside::Outside;
use crate::outside::endpoints::Endpoint;
use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included};

const NAME: &str = "feed";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Webhook { endpoint, what } = entry else { return Ok(()) };
    let endpoint = outside.endpoint(*endpoint);
    match what {
        Webhook::Shown(page) => shown(outside, endpoint, page),
        Webhook::Unavailable { since, passed } if !endpoint.retention => {
            let why = if *passed { "passed by retention" } else { "unknown" };
            wrong(endpoint, format!("entry {since} was shown, but now its event is {why}"))
        }
        _ => Ok(()),
    }
}

fn wrong(endpoint: &Endpoint, text: String) -> Verdict {
    Err(Violation::new(NAME, format!("endpoint {}: {text}", endpoint.name)))
}

fn wrong_entry(outside: &Outside, endpoint: &Endpoint, listed: &Listed, text: &str) -> Verdict {
    let Listed { feed, event, workflow, number, .. } = listed;
    let id = &outside.made(*event).id;
    let text = format!(
        "endpoint {}: entry {feed} (event {id}, workflow {workflow} number {number}): {text}",
        endpoint.name
    );
    let lane = Some((0, workflow.clone()));
    Err(Violation { lane, ..Violation::of_event(NAME, *event, text) })
}

fn shown(outside: &Outside, endpoint: &Endpoint, page: &Page) -> Verdict {
    let mut last = page.since;
    // What this page shows of each workflow.
    let mut newest: BTreeMap<&str, &Listed> = BTreeMap::new();
    for listed in &page.items {
        let wrong = |text: &str| wrong_entry(outside, endpoint, listed, text);
        if listed.feed <= last || listed.feed > page.up_to {
            return wrong("is not in the order of the feed");
        }
        last = listed.feed;
        if !listed.unchanged {
            return wrong("the content differs from what was sent");
        }
        if page.workflow.as_ref().is_some_and(|only| *only != listed.workflow) {
            return wrong("belongs to another workflow");
        }
        known(outside, endpoint, listed)?;
        let is_complete = page.since <= endpoint.feed.up_to && is_complete(endpoint, &listed.workflow);
        linked(outside, endpoint, listed, newest.insert(&listed.workflow, listed), is_complete)?;
    }
    nothing_vanished(outside, endpoint, page)
}

/// The entry and its place are the same as whenever they were seen before.
fn known(outside: &Outside, endpoint: &Endpoint, listed: &Listed) -> Verdict {
    let wrong = |text: &str| wrong_entry(outside, endpoint, listed, text);
    let at = (listed.workflow.clone(), listed.number);
    if endpoint.feed.entries.get(&listed.feed).is_some_and(|shown| *shown != at) {
        return wrong("was another one before");
    }
    let Some(place) = endpoint.place(&listed.workflow, listed.number) else { return Ok(()) };
    if place.event != listed.event || place.id != listed.id {
        return wrong(&format!("this number belongs to {}", outside.made(place.event).id));
    }
    // A call does not name an event that retention has removed.
    let is_unnamed = endpoint.retention && place.previous.is_none();
    if place.previous != listed.previous && !is_unnamed {
        return wrong(&format!("its previous event was {:?} and is {:?}", place.previous, listed.previous));
    }
    match place.listed {
        Some(other) if other != listed.feed => wrong(&format!("is listed twice, also as entry {other}")),
        _ => Ok(()),
    }
}

/// The entry names the one before it in its workflow, which is there.
fn linked(
    outside: &Outside,
    endpoint: &Endpoint,
    listed: &Listed,
    before: Option<&Listed>,
    is_complete: bool,
) -> Verdict {
    let wrong = |text: &str| wrong_entry(outside, endpoint, listed, text);
    if let Some(before) = before
        && listed.number <= before.number
    {
        return wrong("is not in the order of its workflow");
    }
    if (listed.number == 1) != listed.previous.is_none() {
        return wrong(&format!("its previous event is {:?}", listed.previous));
    }
    let number = listed.number - 1;
    let is_before = |before: &&Listed| before.number == number;
    let id = match before.filter(is_before) {
        Some(before) => Some(before.id),
        None => endpoint.place(&listed.workflow, number).map(|place| place.id),
    };
    match id {
        Some(id) if listed.previous != Some(id) => {
            wrong(&format!("its previous event is {:?}, but number {number} is {id}", listed.previous))
        }
        None if number > 0 && is_complete => wrong("the feed does not have the event before it"),
        _ => Ok(()),
    }
}

/// True if every entry of the workflow was shown so far.
fn is_complete(endpoint: &Endpoint, workflow: &str) -> bool {
    let is_purged = endpoint.workflow(workflow).is_some_and(|workflow| workflow.purged_through > 0);
    !endpoint.retention && !endpoint.feed.has_holes && !is_purged
}

fn nothing_vanished(outside: &Outside, endpoint: &Endpoint, page: &Page) -> Verdict {
    if page.since > page.up_to {
        return wrong(
            endpoint,
            format!("the feed ends at entry {}, before entry {}", page.up_to, page.since),
        );
    }
    let mut items = page.items.iter().map(|listed| listed.feed).peekable();
    for (feed, (workflow, number)) in
        endpoint.feed.entries.range((Excluded(page.since), Included(page.up_to)))
    {
        if page.workflow.as_ref().is_some_and(|only| only != workflow) {
            continue;
        }
        while items.next_if(|item| item < feed).is_some() {}
        if items.peek() == Some(feed) {
            continue;
        }
        let Some(place) = endpoint.place(workflow, *number) else { continue };
        let is_purged = endpoint.workflow(workflow).is_some_and(|workflow| workflow.purged_through >= *feed);
        let may_be_gone = match endpoint.retention {
            true => !endpoint.surely_waits(workflow, place),
            false => is_purged,
        };
        if !may_be_gone {
            let id = &outside.made(place.event).id;
            let text = format!("entry {feed} (event {id}, workflow {workflow} number {number}) has vanished");
            let lane = Some((0, workflow.clone()));
            return Err(Violation { lane, ..Violation::of_event(NAME, place.event, text) });
        }
    }
    Ok(())
}

/// Runs when nothing is pending and the whole feed was shown: every event is delivered or acknowledged, and every
/// accepted event is in the feed. `delivered`: the number of delivered events that the endpoint shows.
pub fn at_end(outside: &Outside, endpoint: &Endpoint, delivered: u64) -> Verdict {
    for (name, workflow) in &endpoint.workflows {
        for (number, place) in &workflow.places {
            let lost = |text: &str| {
                let id = &outside.made(place.event).id;
                let text =
                    format!("endpoint {} workflow {name}: event {id} number {number} {text}", endpoint.name);
                let lane = Some((0, name.clone()));
                Err(Violation { lane, ..Violation::of_event(NAME, place.event, text) })
            };
            if endpoint.surely_waits(name, place) {
                return lost("was never delivered");
            }
            if place.listed.is_none() && !endpoint.retention && workflow.purged_through == 0 {
                return lost("was sent, but is not in the feed");
            }
        }
    }
    if endpoint.retention {
        return Ok(());
    }
    if let Some(event) = endpoint.accepted.iter().find(|event| is_missing(endpoint, **event)) {
        let id = &outside.made(*event).id;
        let text = format!("endpoint {}: event {id} was accepted, but is not in the feed", endpoint.name);
        return Err(Violation::of_event(NAME, *event, text));
    }
    let entries = endpoint.feed.entries.len() as u64;
    if endpoint.is_lossless() && delivered != entries {
        return wrong(endpoint, format!("{delivered} events are delivered, but the feed has {entries}"));
    }
    Ok(())
}

/// A purged event has no entry.
fn is_missing(endpoint: &Endpoint, event: EventNo) -> bool {
    let mut workflows = endpoint.workflows.values();
    let is_purged = workflows.clone().any(|workflow| workflow.purged_through > 0);
    !is_purged && !workflows.any(|workflow| workflow.numbers.contains_key(&event))
}
