//! Gap policy: n+1 never starts before n, or before there can be a decision about n: the gap timer expired, the
//! buffer is full, or a user skipped, reset or purged. The event after a gap is flagged, and an event is late only if
//! it arrived after such a decision. Strict subscriptions deliver late events only in a replay.
//!
//! Covers sequences, the opening of a lane, the handling of each arrival, late events, the gap timer, buffer limits
//! and reset.

use super::{Verdict, Violation};
use crate::history::{Entry, OrderStatus, Request};
use crate::outside::{Lane, Outside, Pair, State, Sub};
use crate::rules::Place;
use klambda_core::lane::State as LaneState;
use klambda_dispatch::Engine;
use klambda_dispatch::views::{Lane as View, LaneQuery};

const NAME: &str = "gap policy";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let Place::Lane { key, sequence: Some(sequence) } = &request.place else { return Ok(()) };
    let sub = outside.sub(request.sub);
    let pair = sub.pair(request.event);
    let Some(lane) = sub.lane(key) else { return Ok(()) };
    // Only the first call of an event shows whether it was its turn. A replay has no turn.
    let replayed = pair.failures.revived > 0 || pair.called.aside || pair.state != State::Waiting;
    if replayed
        || pair.called.number.is_some()
        || pair.called.starts > 0
        || sub.limits.drops
        || sub.life.read_history
        || sub.limits.may_lag
    {
        return Ok(());
    }
    match request.flag {
        OrderStatus::Late => late(outside, request, pair),
        _ => in_turn(outside, request, lane, *sequence),
    }
}

/// A lane whose buffer is at its limit does not wait for a gap, unless a user requested one more timeout.
pub fn at_limit(outside: &Outside, engine: &Engine) -> Verdict {
    let query = LaneQuery {
        within: Default::default(),
        subscription: None,
        state: Some(LaneState::Gap),
        after: None,
        limit: 50,
    };
    let Ok(page) = engine.view_lanes(&query) else { return Ok(()) };
    for lane in page.items {
        let name = lane.subscription_name();
        let named = |sub: &&Sub| sub.life.there && sub.rules.name == name;
        let Some(sub) = outside.subs.iter().rfind(named) else { continue };
        within_limit(sub, &lane)?;
    }
    Ok(())
}

/// Like `at_limit`, for lanes that have enough events to be at their limit. A list of all lanes takes long.
pub fn near_limit(outside: &Outside, engine: &Engine) -> Verdict {
    const LANES: usize = 50;
    for sub in outside.subs.iter().filter(|sub| sub.life.there && sub.rules.ordering.is_sequenced()) {
        let near = sub.lanes.iter().filter(|(_, lane)| lane.may_be_at_limit(sub.rules.gap.buffer_max));
        for (key, _) in near.take(LANES) {
            if let Ok(Some(lane)) = engine.view_lane(&sub.rules.name, key)
                && lane.state == LaneState::Gap.name()
            {
                within_limit(sub, &lane)?;
            }
        }
    }
    Ok(())
}

fn within_limit(sub: &Sub, lane: &View) -> Verdict {
    let is_resumed = sub.lane(&lane.key).is_some_and(|lane| lane.parked.resumed);
    let is_judged = sub.changes == 0 && sub.next_rules.is_none() && !is_resumed;
    if !is_judged || lane.buffered < sub.rules.gap.buffer_max {
        return Ok(());
    }
    let (name, key, n) = (&lane.subscription, &lane.key, lane.buffered);
    let text = format!(
        "subscription {name} lane {key}: {n} events wait for a gap, the limit is {}",
        sub.rules.gap.buffer_max
    );
    Err(Violation::new(NAME, text))
}

impl Lane {
    /// True if as many events as the buffer holds may wait for a sequence before them.
    fn may_be_at_limit(&self, buffer_max: u64) -> bool {
        let offered = &self.events.offered;
        let is_next = offered.first().is_some_and(|(first, _)| Some(*first) == self.sequence.expected);
        offered.len() as u64 >= buffer_max && !is_next
    }
}

fn wrong(outside: &Outside, request: &Request, text: &str) -> Verdict {
    Err(Violation::of_request(NAME, outside, request, text))
}

fn late(outside: &Outside, request: &Request, pair: &Pair) -> Verdict {
    if !pair.doubts.may_be_late {
        return wrong(outside, request, "flagged late although it arrived in time");
    }
    if outside.sub(request.sub).rules.strict
        && outside.sub(request.sub).replays == 0
        && !is_unsettled(outside, request)
    {
        return wrong(outside, request, "a late event was delivered although the subscription is strict");
    }
    Ok(())
}

/// The rules may have changed since the event arrived.
fn is_unsettled(outside: &Outside, request: &Request) -> bool {
    let sub = outside.sub(request.sub);
    sub.changes > 0 || sub.next_rules.is_some() || sub.life.catching_up
}

fn in_turn(outside: &Outside, request: &Request, lane: &Lane, sequence: u64) -> Verdict {
    let rules = &outside.sub(request.sub).rules;
    if let Some((lower, event)) = lane.events.by_sequence.first().filter(|(lower, _)| *lower < sequence) {
        let id = &outside.made(*event).id;
        let text = format!("sequence {sequence} starts before {lower} ({id}), which arrived in time");
        return wrong(outside, request, &text);
    }
    let Some(expected) = lane.sequence.expected.filter(|_| !lane.sequence.disturbed) else { return Ok(()) };
    if sequence < expected {
        let text = format!("sequence {sequence} starts without the late flag, expected {expected}");
        return wrong(outside, request, &text);
    }
    if sequence == expected {
        return Ok(());
    }
    if request.flag != OrderStatus::Gap {
        return wrong(
            outside,
            request,
            &format!("sequence {sequence} starts without the gap flag, expected {expected}"),
        );
    }
    if !lane.gap_may_be_over(request.now, rules.gap.timeout_ms, rules.gap.buffer_max) {
        let text = format!("sequence {sequence} starts before the timeout of the gap at {expected}");
        return wrong(outside, request, &text);
    }
    Ok(())
}
