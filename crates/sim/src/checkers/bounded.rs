//! Bounded: memory, files, queues and open requests stay within what is configured, whatever waits.
//!
//! Semantics: 13 (buffers), 15 (slots), 27 (dead letters), 28 (backlogs), 31 (nothing per idle key).

use super::{Verdict, Violation};
use crate::history::Entry;
use crate::outside::Outside;
use klambda_dispatch::Engine;

const NAME: &str = "bounded";

pub struct Bounds {
    pub concurrency: u32,
    /// By the memory that is configured.
    pub lanes_max: usize,
    /// Of those that have nothing to do.
    pub idle_lanes_max: usize,
}

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let sub = outside.sub(request.sub);
    let limit = sub.next_rules.as_ref().map_or(0, |rules| rules.concurrency).max(sub.concurrency_before);
    let limit = limit.max(sub.rules.concurrency);
    if sub.open >= limit {
        let text = format!("{} requests are open already, {limit} may be", sub.open);
        return Err(Violation::of_request(NAME, outside, request, &text));
    }
    Ok(())
}

/// At the end of a round.
pub fn round(outside: &Outside, engine: &Engine, bounds: &Bounds) -> Verdict {
    let open: u32 = outside.subs.iter().map(|sub| sub.open).sum();
    if open > bounds.concurrency {
        return Err(Violation::new(NAME, format!("{open} requests are open, {} may be", bounds.concurrency)));
    }
    let lanes = engine.lanes_in_memory();
    if lanes > bounds.lanes_max {
        return Err(Violation::new(
            NAME,
            format!("{lanes} lanes are in memory, {} may be", bounds.lanes_max),
        ));
    }
    if lanes > bounds.idle_lanes_max && engine.idle_lanes_in_memory() > bounds.idle_lanes_max {
        let text = format!("more than {} lanes are in memory and have nothing to do", bounds.idle_lanes_max);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

/// When nothing is in flight: limits on what waits and on dead letters hold.
pub fn at_end(outside: &Outside, engine: &Engine) -> Verdict {
    for sub in outside.subs.iter().filter(|sub| sub.there) {
        let Some(view) = engine.view_subscription(&sub.rules.name) else { continue };
        let outside_lanes = view.status.dead_letters.saturating_sub(view.status.lanes.parked);
        if outside_lanes > sub.rules.letters_max.max(sub.rules.letters_max) {
            let text =
                format!("{}: {outside_lanes} dead letters, {} may be", sub.rules.name, sub.rules.letters_max);
            return Err(Violation::new(NAME, text));
        }
    }
    Ok(())
}
