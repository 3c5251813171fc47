//! Gap policy: n+1 never starts before n, nor before there can be a decision about n: the gap's time is over, the
//! buffer is full, or a person skipped, reset or purged. What is passed over is flagged, and only what came after such
//! a decision is late; strict subscriptions do not deliver what is late unless it is replayed.
//!
//! Semantics: 8 and 9 (sequences, how a lane opens), 10 (the table), 11 (late), 12 (the gap timer), 13 (buffer limits),
//! 14 (reset).

use super::{Verdict, Violation};
use crate::history::{Entry, OrderStatus, Request};
use crate::outside::{Lane, Outside, Pair, State, Sub};
use crate::rules::Place;
use klambda_core::lane::State as LaneState;
use klambda_dispatch::Engine;
use klambda_dispatch::views::LaneQuery;

const NAME: &str = "gap policy";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let Place::Lane { key, sequence: Some(sequence) } = &request.place else { return Ok(()) };
    let sub = outside.sub(request.sub);
    let pair = sub.pair(request.event);
    let Some(lane) = sub.lane(key) else { return Ok(()) };
    // Only its first call says something about its turn; a replay has none.
    let replayed = pair.revived > 0 || pair.aside || pair.state != State::Waiting;
    if replayed || pair.number.is_some() || pair.starts > 0 || sub.drops || sub.read_history || sub.may_lag {
        return Ok(());
    }
    match request.flag {
        OrderStatus::Late => late(outside, request, &pair),
        _ => in_turn(outside, request, lane, *sequence),
    }
}

/// At the limit of its buffer no gap is waited for, whenever the lane came to it. A person can ask for one more timeout.
pub fn at_limit(outside: &Outside, engine: &Engine) -> Verdict {
    let query = LaneQuery {
        namespace: None,
        subscription: None,
        state: Some(LaneState::Gap),
        after: None,
        limit: 50,
    };
    let Ok(page) = engine.view_lanes(&query) else { return Ok(()) };
    for lane in page.items {
        let name = lane.subscription_name();
        let named = |sub: &&Sub| sub.there && sub.rules.name == name;
        let Some(sub) = outside.subs.iter().rfind(named) else { continue };
        let is_resumed = sub.lane(&lane.key).is_some_and(|lane| lane.resumed);
        let is_judged = sub.changes == 0 && sub.next_rules.is_none() && !is_resumed;
        if is_judged && lane.buffered >= sub.rules.buffer_max {
            let (name, key, n) = (&lane.subscription, &lane.key, lane.buffered);
            let text =
                format!("subscription {name} lane {key}: {n} wait for a gap, {} may", sub.rules.buffer_max);
            return Err(Violation::new(NAME, text));
        }
    }
    Ok(())
}

fn wrong(outside: &Outside, request: &Request, text: &str) -> Verdict {
    Err(Violation::of_request(NAME, outside, request, text))
}

fn late(outside: &Outside, request: &Request, pair: &Pair) -> Verdict {
    if !pair.may_be_late {
        return wrong(outside, request, "flagged late although it came in time");
    }
    if outside.sub(request.sub).rules.strict
        && outside.sub(request.sub).replays == 0
        && !is_unsettled(outside, request)
    {
        return wrong(outside, request, "late and delivered although the subscription is strict");
    }
    Ok(())
}

/// The rules may have changed since it came.
fn is_unsettled(outside: &Outside, request: &Request) -> bool {
    let sub = outside.sub(request.sub);
    sub.changes > 0 || sub.next_rules.is_some() || sub.catching_up
}

fn in_turn(outside: &Outside, request: &Request, lane: &Lane, sequence: u64) -> Verdict {
    let rules = &outside.sub(request.sub).rules;
    if let Some((lower, event)) = lane.by_sequence.first().filter(|(lower, _)| *lower < sequence) {
        let id = &outside.made(*event).id;
        let text = format!("sequence {sequence} starts before {lower} ({id}), which came in time");
        return wrong(outside, request, &text);
    }
    let Some(expected) = lane.expected.filter(|_| !lane.disturbed) else { return Ok(()) };
    if sequence < expected {
        let text = format!("sequence {sequence} starts although {expected} is next, and is not flagged late");
        return wrong(outside, request, &text);
    }
    if sequence == expected {
        return Ok(());
    }
    if request.flag != OrderStatus::Gap {
        return wrong(
            outside,
            request,
            &format!("sequence {sequence} starts, {expected} is next, and it is not flagged"),
        );
    }
    if !lane.gap_may_be_over(request.now, rules.gap_timeout_ms, rules.buffer_max) {
        let text =
            format!("sequence {sequence} starts before the time of the gap from {expected} on is over");
        return wrong(outside, request, &text);
    }
    Ok(())
}
