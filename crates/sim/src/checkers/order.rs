//! Order: first deliveries of a key are in order; never two requests open in a lane from our side; a dead letter that
//! holds its lane is not passed; a number belongs to one event, for ever; `previousid` names the event before.
//!
//! Semantics: 5 (arrival order), 15 (one request per lane), 18 (repeats in order, decisions are synced first), 19 and 24
//! (pauses), 20 (numbers), 21 (unordered events have none), 22 (a failed head parks its lane), 23 (what follows a break
//! is flagged).

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
        return wrong(outside, request, "started although the process is to end");
    }
    if sub.rules.paused {
        return wrong(outside, request, "started although the subscription is paused");
    }
    let Place::Lane { key, sequence } = &request.place else {
        let has_place = request.number.is_some() || request.previous.is_some();
        return if has_place { wrong(outside, request, "an unordered event has a number") } else { Ok(()) };
    };
    let Some(number) = request.number else { return wrong(outside, request, "it has no number") };
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
        return wrong(outside, request, "started before what was decided about its lane is durable");
    }
    numbers(outside, request, lane, &pair, number)?;
    turns(outside, request, lane, &pair, number)?;
    flags(outside, request, sub, lane, &pair, number)?;
    if sequence.is_none() {
        arrivals(outside, request, sub, lane, &pair)?;
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
        let text = format!("its number was given to {} before", outside.made(*other).id);
        return wrong(outside, request, &text);
    }
    let dropped = outside.sub(request.sub).drops;
    if let Some(before) = pair.number_in(&request.place).filter(|before| *before != number && !dropped) {
        return wrong(outside, request, &format!("its number was {before} before"));
    }
    let previous = request.previous.as_deref();
    if number == 1 && previous.is_some() {
        return wrong(outside, request, "the first of a lane names one before it");
    }
    let known = number.checked_sub(1).and_then(|before| lane.numbers.get(&before));
    match (known.map(|event| outside.made(*event).id.as_str()), previous) {
        (Some(known), Some(named)) if known != named => {
            wrong(outside, request, &format!("it names {named} as the one before, which is {known}"))
        }
        (_, None)
            if number > 1 && number > lane.turn && !is_outside(pair) && request.flag != OrderStatus::Late =>
        {
            wrong(outside, request, "it names no event before it")
        }
        _ => Ok(()),
    }
}

/// A dead letter that is replayed from outside its lane.
fn is_outside(pair: &Pair) -> bool {
    pair.aside
        || pair.may_be_letter
        || matches!(pair.state, State::Dead { held: false } | State::DeadMaybe | State::GoneMaybe)
}

fn turns(outside: &Outside, request: &Request, lane: &Lane, pair: &Pair, number: u64) -> Verdict {
    if is_outside(pair) || (pair.may_be_late && pair.revived > 0) {
        return Ok(());
    }
    if number < lane.turn {
        return wrong(outside, request, &format!("number {} began its turn before it", lane.turn));
    }
    // One that may have an attempt left holds nothing, and a limit can drop it.
    let sub = outside.sub(request.sub);
    let holds = |holder: &EventNo| !sub.drops || sub.pair(*holder).state != State::DeadMaybe;
    if let Some(holder) = lane.parked_on.filter(|holder| *holder != request.event).filter(holds) {
        let text = format!("its lane is parked at {}", outside.made(holder).id);
        return wrong(outside, request, &text);
    }
    let before = lane.numbers.range(..number).next_back();
    let Some((_, event)) = before.filter(|(before, _)| **before + 1 == number) else { return Ok(()) };
    let previous = outside.sub(request.sub).pair(*event);
    let broken = match previous.state {
        State::Waiting if previous.number == Some(number - 1) && !outside.sub(request.sub).drops => {
            let text = format!("{} is before it and still waits", outside.made(*event).id);
            return wrong(outside, request, &text);
        }
        State::Dead { held: false } => true,
        _ => false,
    };
    if broken && request.flag == OrderStatus::None {
        return wrong(outside, request, "the event before it was given up, and it is not flagged");
    }
    Ok(())
}

/// A gap is told of only where something is missing. Here nothing is: what is before it was called once and delivered,
/// and the sequence, if there is one, is the next.
fn flags(outside: &Outside, request: &Request, sub: &Sub, lane: &Lane, pair: &Pair, number: u64) -> Verdict {
    let Place::Lane { sequence, .. } = &request.place else { return Ok(()) };
    let is_judged = request.flag == OrderStatus::Gap
        && pair.starts == 0
        && pair.generation == 0
        && !lane.purged
        && !(sub.drops || sub.read_history || sub.changes > 0);
    let is_next = sequence.is_none() || (lane.expected == *sequence && !lane.disturbed);
    if is_judged && is_next && is_whole_before(sub, lane, number) {
        return wrong(outside, request, "flagged as after a gap, and nothing is missing before it");
    }
    Ok(())
}

/// A late event does not take the flag of what is missing before it, so it says nothing of that.
fn is_whole_before(sub: &Sub, lane: &Lane, number: u64) -> bool {
    for before in (0..number).rev() {
        let Some(pair) = lane.numbers.get(&before).map(|event| sub.pair(*event)) else { return false };
        let is_whole = pair.state == State::Acked
            && pair.starts == 1
            && pair.number == Some(before)
            && !pair.aside
            && pair.failed_ops.is_empty();
        if !is_whole || !pair.was_late {
            return is_whole;
        }
    }
    false
}

/// Without a sequence the order is that of arrival.
fn arrivals(outside: &Outside, request: &Request, sub: &Sub, lane: &Lane, pair: &Pair) -> Verdict {
    if is_outside(pair) || sub.drops || request.flag == OrderStatus::Late {
        return Ok(());
    }
    let Some(position) = pair.position else { return Ok(()) };
    match lane.waiting.first_key_value() {
        Some((first, event)) if *first < position => {
            let text = format!("{} came before it and still waits", outside.made(*event).id);
            wrong(outside, request, &text)
        }
        _ => Ok(()),
    }
}
