//! Receivers are called, and answer.

use super::{Outside, State, Taken};
use crate::event::EventNo;
use crate::history::{Ending, OrderStatus, Request, SubNo};
use crate::rules::Place;

impl Outside {
    pub(super) fn started(&mut self, request: &Request) {
        self.time_is(request.now);
        let sub = &mut self.subs[request.sub as usize];
        sub.open += 1;
        let had_number = sub.had_number(request);
        let pair = sub.pair_mut(request.event);
        let dead = matches!(pair.state, State::Dead { held: false } | State::DeadMaybe | State::GoneMaybe)
            || std::mem::take(&mut pair.may_be_letter);
        // One that came back has fresh attempts. What goes on with the old ones never left its place.
        let outside = dead && had_number && request.attempt == 1;
        pair.aside = pair.aside || (outside && request.flag == OrderStatus::Late);
        pair.taken = Taken::Yes;
        pair.may_be_long_past = false;
        pair.owed = true;
        pair.open = true;
        pair.starts += 1;
        pair.was_late = request.flag == OrderStatus::Late;
        if matches!(pair.state, State::Dead { .. } | State::DeadMaybe) {
            pair.revived = pair.revived.saturating_sub(1);
        }
        if pair.state != State::Waiting {
            pair.set(State::Waiting, 0);
        }
        pair.called(request.attempt);
        if let (Place::Lane { key, sequence }, Some(number)) = (&request.place, request.number) {
            let key = key.clone();
            self.started_in_lane(request, &key, *sequence, number);
        }
    }

    fn started_in_lane(&mut self, request: &Request, key: &str, sequence: Option<u64>, number: u64) {
        let sub = &mut self.subs[request.sub as usize];
        let pair = sub.pair_mut(request.event);
        let first = pair.number != Some(number);
        let is_first_call = pair.starts == 1;
        let (aside, came, by_old_sequence) = (pair.aside, pair.taken_at, pair.by_old_sequence);
        pair.number = Some(number);
        pair.lane = Some(key.to_owned());
        let lane = sub.lane_mut(key);
        lane.open = Some(request.event);
        lane.current = Some(request.event);
        lane.numbers.insert(number, request.event);
        if lane.parked_on == Some(request.event) {
            lane.parked_on = None;
        }
        if aside {
            return;
        }
        lane.turn = lane.turn.max(number);
        lane.purged &= !is_first_call || request.flag == OrderStatus::Late;
        if let Some(sequence) = sequence {
            lane.leaves(request.event, sequence, came);
            if first && request.flag != OrderStatus::Late {
                lane.turned(sequence, by_old_sequence);
            } else if request.flag != OrderStatus::Late {
                // One before it may have had its turn again since, after a crash.
                lane.expected = lane.expected.map(|expected| expected.max(sequence.saturating_add(1)));
            }
        }
        self.certain_before(request.sub, key, number);
    }

    /// A lane only goes on when everything before is settled: acknowledgements that a crash made unsure were kept. Where
    /// limits drop, what waited again may have been dropped instead.
    fn certain_before(&mut self, sub: SubNo, key: &str, number: u64) {
        let sub = &mut self.subs[sub as usize];
        if sub.drops {
            return;
        }
        let Some(lane) = sub.lanes.get(key) else { return };
        for (before, event) in lane.numbers.range(..number).rev() {
            let pair = &mut sub.pairs[*event as usize];
            if pair.number != Some(*before) {
                break;
            }
            match pair.state {
                // A dead letter that was replayed may be one again, and so may what a person skipped: the lane does not wait
                // for it.
                State::AckedMaybe if pair.aside || pair.may_be_letter => {}
                State::AckedMaybe => pair.state = State::Acked,
                State::GoneMaybe | State::DeadMaybe => {}
                _ => break,
            }
        }
    }

    pub(super) fn ended(
        &mut self,
        sub: SubNo,
        event: EventNo,
        ending: Ending,
        retry_after_ms: u64,
        stalled: bool,
    ) {
        if ending == Ending::NotMade {
            return self.not_made(sub, event, retry_after_ms, stalled);
        }
        self.op += 1;
        // What could not be written is not made durable by any sync.
        let op = if stalled { u64::MAX } else { self.op };
        let now = self.now;
        let made = self.events[event as usize].clone();
        let sub = &mut self.subs[sub as usize];
        sub.open = sub.open.saturating_sub(1);
        let (attempts_max, replayed_at) = (sub.rules.attempts, sub.replayed_at);
        let parks = sub.rules.ordering.is_ordered() && !sub.rules.failure_skips;
        let pair = sub.pair_mut(event);
        pair.open = false;
        let dead = match ending {
            Ending::Delivered => {
                pair.set(State::Acked, op);
                pair.acked_at = now;
                false
            }
            _ => pair.failed(op, ending == Ending::Fatal, attempts_max, parks),
        };
        if dead && replayed_at == now {
            pair.revived += 1;
        }
        if dead && pair.revived > 0 {
            // Another job took it up before it failed again: fresh attempts from here on.
            pair.fresh_attempts();
        } else if ending == Ending::Retry {
            pair.retry_after = now + retry_after_ms;
        }
        // A job may take it up at once; then it waits in its place, where a limit can drop it.
        let held_for_sure = !(sub.drops && replayed_at == now);
        let pair = sub.pair(event);
        let Some(lane) = pair.lane.as_ref().and_then(|key| sub.lanes.get_mut(key)) else { return };
        lane.open = None;
        if pair.state == (State::Dead { held: false }) && !stalled {
            lane.decided_op = op;
        }
        // One that may have failed for good holds nothing where failures are skipped.
        if pair.is_settled() || (dead && !parks) {
            lane.settle(event, pair.position, made.readable_sequence(), pair.taken_at);
        } else if dead && !pair.aside && held_for_sure {
            lane.parked_on = Some(event);
        } else if dead && !pair.aside {
            lane.parked_maybe = Some(event);
        }
    }

    /// There was nobody to call: it counts as not called, and its subscription rests.
    fn not_made(&mut self, sub: SubNo, event: EventNo, rests_ms: u64, stalled: bool) {
        self.op += 1;
        let now = self.now;
        let sub = &mut self.subs[sub as usize];
        sub.open = sub.open.saturating_sub(1);
        // Since when it rests is not known if the engine hears of it later.
        sub.rests_until = if stalled { 0 } else { now + rests_ms };
        let pair = sub.pair_mut(event);
        pair.open = false;
        let (lane, is_untried) = (pair.lane.clone(), pair.failed_ops.is_empty());
        if let Some(lane) = lane.and_then(|key| sub.lanes.get_mut(&key)) {
            lane.open = None;
            // It gives its turn back, unless it failed before.
            lane.current = lane.current.filter(|current| *current != event || !is_untried);
        }
    }

    pub(super) fn unstalled(&mut self, sub: SubNo, event: EventNo) {
        self.op += 1;
        let (op, now) = (self.op, self.now);
        let pair = self.subs[sub as usize].pair_mut(event);
        if pair.state == State::Acked {
            // The id's window begins when the acknowledgement is written.
            pair.acked_at = now;
        }
        if pair.state_op == u64::MAX {
            pair.state_op = op;
        }
        pair.failed_ops.iter_mut().filter(|failed| **failed == u64::MAX).for_each(|failed| *failed = op);
    }
}

impl super::Sub {
    /// The event had this number in this lane before.
    fn had_number(&self, request: &Request) -> bool {
        let Place::Lane { key, .. } = &request.place else { return false };
        let (Some(lane), Some(number)) = (self.lane(key), request.number) else { return false };
        lane.numbers.get(&number) == Some(&request.event)
    }
}

impl super::Lane {
    /// The first call of what has this sequence. One that had its place by an older sequence says nothing of this one,
    /// unless it is just what comes next.
    fn turned(&mut self, sequence: u64, by_old_sequence: bool) {
        if by_old_sequence && self.expected != Some(sequence) {
            return self.forget_sequences();
        }
        self.expected = Some(sequence.saturating_add(1));
        self.lowest = Some(self.lowest.map_or(sequence, |lowest| lowest.min(sequence)));
        self.disturbed = false;
    }
}

impl super::Pair {
    /// An attempt failed. Answers whether that was the last, or may have been.
    fn failed(&mut self, op: u64, fatal: bool, attempts_max: Option<u32>, parks: bool) -> bool {
        self.failed_ops.push(op);
        self.failures_sure += 1;
        let (least, most) = (self.failures_sure, self.failed_ops.len() as u32);
        let held = parks && !self.aside;
        if fatal || attempts_max.is_some_and(|max| least >= max) {
            self.set(State::Dead { held }, op);
            true
        } else if attempts_max.is_some_and(|max| most >= max) {
            self.set(State::DeadMaybe, op);
            true
        } else {
            false
        }
    }
}
