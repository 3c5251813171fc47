//! Order: first deliveries of a key are in order; a lane never has two open requests; no event passes a dead letter
//! that parks its lane; a number belongs to one event forever; `previousid` is the id of the previous event.
//!
//! Covers arrival order, one request per lane, repetitions in order, durable decisions, pauses, numbers, unordered
//! events, parked lanes, and the flag after a break.

use super::{Verdict, Violation};
use crate::event::EventNo;
use crate::history::{Entry, OrderStatus, Request};
use crate::outside::{Lane, Outside, Pair, State, Sub};
use crate::rules::Place;

const NAME: &str = "order";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let sub = outside.sub(request.sub);
    if outside.stopping {
        return wrong(outside, request, "started during shutdown");
    }
    if sub.rules.paused {
        return wrong(outside, request, "started although the subscription is paused");
    }
    let Place::Lane { key, sequence } = &request.place else {
        let has_place = request.number.is_some() || request.previous.is_some();
        return if has_place { wrong(outside, request, "an unordered event has a number") } else { Ok(()) };
    };
    let Some(number) = request.number else { return wrong(outside, request, "the event has no number") };
    let new = Lane::default();
    let lane = sub.lane(key).unwrap_or(&new);
    let pair = sub.pair(request.event);
    if lane.open.is_some() {
        return wrong(outside, request, "started while another request is open in its lane");
    }
    if lane.paused.is_some() {
        return wrong(outside, request, "started although its lane is paused");
    }
    if lane.decided_op > outside.durable {
        return wrong(outside, request, "started before a decision about its lane was durable");
    }
    numbers(outside, request, lane, pair, number)?;
    turns(outside, request, lane, pair, number)?;
    flags(outside, request, sub, lane, pair, number)?;
    if sequence.is_none() {
        arrivals(outside, request, sub, lane, pair)?;
    }
    Ok(())
}

fn wrong(outside: &Outside, request: &Request, text: &str) -> Verdict {
    Err(Violation::of_request(NAME, outside, request, text))
}

fn numbers(outside: &Outside, request: &Request, lane: &Lane, pair: &Pair, number: u64) -> Verdict {
    if number == 0 {
        return wrong(outside, request, "numbers begin at 1");
    }
    if let Some(other) = lane.numbers.get(&number).filter(|other| **other != request.event) {
        let text = format!("its number was already assigned to {}", outside.made(*other).id);
        return wrong(outside, request, &text);
    }
    let dropped = outside.sub(request.sub).limits.drops;
    if let Some(before) = pair.number_in(&request.place).filter(|before| *before != number && !dropped) {
        return wrong(outside, request, &format!("its number was previously {before}"));
    }
    let previous = request.previous.as_deref();
    if number == 1 && previous.is_some() {
        return wrong(outside, request, "the first event of a lane has a previousid");
    }
    let known = number.checked_sub(1).and_then(|before| lane.numbers.get(&before));
    match (known.map(|event| outside.made(*event).id.as_str()), previous) {
        (Some(known), Some(named)) if known != named => {
            wrong(outside, request, &format!("its previousid is {named}, but the previous event is {known}"))
        }
        (_, None)
            if number > 1 && number > lane.turn && !is_outside(pair) && request.flag != OrderStatus::Late =>
        {
            wrong(outside, request, "it has no previousid")
        }
        _ => Ok(()),
    }
}

/// True for a dead letter that is replayed from outside its lane.
fn is_outside(pair: &Pair) -> bool {
    pair.called.aside
        || pair.doubts.may_be_letter
        || matches!(pair.state, State::Dead { held: false } | State::DeadMaybe | State::GoneMaybe)
}

fn turns(outside: &Outside, request: &Request, lane: &Lane, pair: &Pair, number: u64) -> Verdict {
    if is_outside(pair) || (pair.doubts.may_be_late && pair.failures.revived > 0) {
        return Ok(());
    }
    if number < lane.turn {
        return wrong(outside, request, &format!("number {} already had its turn", lane.turn));
    }
    // An event that may have attempts left does not park the lane, and a limit can drop it.
    let sub = outside.sub(request.sub);
    let holds = |holder: &EventNo| !sub.limits.drops || sub.pair(*holder).state != State::DeadMaybe;
    if let Some(holder) = lane.parked.on.filter(|holder| *holder != request.event).filter(holds) {
        let text = format!("its lane is parked at {}", outside.made(holder).id);
        return wrong(outside, request, &text);
    }
    let before = lane.numbers.range(..number).next_back();
    let Some((_, event)) = before.filter(|(before, _)| **before + 1 == number) else { return Ok(()) };
    let previous = outside.sub(request.sub).pair(*event);
    let broken = match previous.state {
        State::Waiting
            if previous.called.number == Some(number - 1) && !outside.sub(request.sub).limits.drops =>
        {
            let text = format!("{} precedes it and is still pending", outside.made(*event).id);
            return wrong(outside, request, &text);
        }
        State::Dead { held: false } => true,
        _ => false,
    };
    if broken && request.flag == OrderStatus::None {
        return wrong(outside, request, "the previous event was given up, but the gap flag is missing");
    }
    Ok(())
}

/// The gap flag is allowed only if something is missing. Here nothing is: the previous event was called once and
/// delivered, and the sequence, if any, is the expected one.
fn flags(outside: &Outside, request: &Request, sub: &Sub, lane: &Lane, pair: &Pair, number: u64) -> Verdict {
    let Place::Lane { sequence, .. } = &request.place else { return Ok(()) };
    let is_judged = request.flag == OrderStatus::Gap
        && pair.called.starts == 0
        && pair.generation == 0
        && !lane.sequence.purged
        && !(sub.limits.drops || sub.life.read_history || sub.changes > 0);
    let is_next = sequence.is_none() || (lane.sequence.expected == *sequence && !lane.sequence.disturbed);
    if is_judged && is_next && is_whole_before(sub, lane, number) {
        return wrong(outside, request, "has the gap flag although nothing is missing before it");
    }
    Ok(())
}

/// A late event does not consume the gap flag, so the events before it are checked too.
fn is_whole_before(sub: &Sub, lane: &Lane, number: u64) -> bool {
    for before in (0..number).rev() {
        let Some(pair) = lane.numbers.get(&before).map(|event| sub.pair(*event)) else { return false };
        let is_whole = pair.state == State::Acked
            && pair.called.starts == 1
            && pair.called.number == Some(before)
            && !pair.called.aside
            && pair.failures.ops.is_empty();
        if !is_whole || !pair.called.was_late {
            return is_whole;
        }
    }
    false
}

/// Without a sequence, the order is the arrival order.
fn arrivals(outside: &Outside, request: &Request, sub: &Sub, lane: &Lane, pair: &Pair) -> Verdict {
    if is_outside(pair) || sub.limits.drops || request.flag == OrderStatus::Late {
        return Ok(());
    }
    let Some(position) = pair.position else { return Ok(()) };
    match lane.events.waiting.first_key_value() {
        Some((first, event)) if *first < position => {
            let text = format!("{} arrived before it and is still pending", outside.made(*event).id);
            wrong(outside, request, &text)
        }
        _ => Ok(()),
    }
}
