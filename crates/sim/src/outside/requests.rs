//! Calls to receivers, and their responses.

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
            || std::mem::take(&mut pair.doubts.may_be_letter);
        // A replayed event has fresh attempts. An event that continues with the old attempts never left its place.
        let outside = dead && had_number && request.attempt == 1;
        pair.called.aside = pair.called.aside || (outside && request.flag == OrderStatus::Late);
        pair.taken = Taken::Yes;
        pair.doubts.may_be_long_past = false;
        pair.owed = true;
        pair.called.open = true;
        pair.called.starts += 1;
        pair.called.was_late = request.flag == OrderStatus::Late;
        if matches!(pair.state, State::Dead { .. } | State::DeadMaybe | State::GoneMaybe) {
            pair.failures.revived = pair.failures.revived.saturating_sub(1);
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
        let first = pair.called.number != Some(number);
        let is_first_call = pair.called.starts == 1;
        let (aside, came, by_old_sequence) = (pair.called.aside, pair.taken_at, pair.doubts.by_old_sequence);
        pair.called.number = Some(number);
        pair.called.lane = Some(key.to_owned());
        let lane = sub.lane_mut(key);
        lane.open = Some(request.event);
        lane.current = Some(request.event);
        lane.numbers.insert(number, request.event);
        if lane.parked.on == Some(request.event) {
            lane.parked.on = None;
        }
        if aside {
            return;
        }
        lane.turn = lane.turn.max(number);
        lane.sequence.purged &= !is_first_call || request.flag == OrderStatus::Late;
        if let Some(sequence) = sequence {
            lane.leaves(request.event, sequence, came);
            if first && request.flag != OrderStatus::Late {
                lane.turned(sequence, by_old_sequence);
            } else if request.flag != OrderStatus::Late {
                // After a crash, an earlier event may have had its turn again in the meantime.
                lane.sequence.expected =
                    lane.sequence.expected.map(|expected| expected.max(sequence.saturating_add(1)));
            }
        }
        self.certain_before(request.sub, key, number);
    }

    /// A lane continues only when everything before is settled. So acknowledgements that a crash made uncertain were
    /// kept. With limits that drop, the events that were pending again may have been dropped instead.
    fn certain_before(&mut self, sub: SubNo, key: &str, number: u64) {
        let sub = &mut self.subs[sub as usize];
        if sub.limits.drops {
            return;
        }
        let Some(lane) = sub.lanes.get(key) else { return };
        for (before, event) in lane.numbers.range(..number).rev() {
            let pair = &mut sub.pairs[*event as usize];
            if pair.called.number != Some(*before) {
                break;
            }
            match pair.state {
                // A replayed dead letter may be a dead letter again, and so may a skipped event. The lane does not
                // wait for them.
                State::AckedMaybe if pair.called.aside || pair.doubts.may_be_letter => {}
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
        // No sync makes an outcome durable that could not be written.
        let op = if stalled { u64::MAX } else { self.op };
        let now = self.now;
        let sequence = self.events[event as usize].readable_sequence();
        let sub = &mut self.subs[sub as usize];
        sub.open = sub.open.saturating_sub(1);
        let (attempts_max, replayed_at) = (sub.rules.retry.attempts, sub.replayed_at);
        let parks = sub.rules.ordering.is_ordered() && !sub.rules.failure_skips;
        let pair = sub.pair_mut(event);
        pair.called.open = false;
        let dead = match ending {
            Ending::Delivered => {
                pair.set(State::Acked, op);
                pair.acked_at = now;
                false
            }
            _ => pair.failed(op, ending == Ending::Fatal, attempts_max, parks),
        };
        if dead && replayed_at == now {
            pair.failures.revived += 1;
        }
        if dead && pair.failures.revived > 0 {
            // Another job replayed the event before it failed again, so it has fresh attempts.
            pair.fresh_attempts();
        } else if ending == Ending::Retry {
            pair.failures.retry_after = now + retry_after_ms;
        }
        // A job may replay the event immediately. Then it waits in its place, where a limit can drop it.
        let held_for_sure = !(sub.limits.drops && replayed_at == now);
        let pair = &sub.pairs[event as usize];
        let Some(lane) = pair.called.lane.as_ref().and_then(|key| sub.lanes.get_mut(key)) else { return };
        lane.open = None;
        if pair.state == (State::Dead { held: false }) && !stalled {
            lane.decided_op = op;
        }
        // If failures are skipped, an event that may have failed permanently does not park the lane.
        if pair.is_settled() || (dead && !parks) {
            lane.settle(event, pair.position, sequence, pair.taken_at);
        } else if dead && !pair.called.aside && held_for_sure {
            lane.parked.on = Some(event);
        } else if dead && !pair.called.aside {
            lane.parked.maybe = Some(event);
        }
    }

    /// No replica was ready: the call does not count, and the subscription pauses for a while.
    fn not_made(&mut self, sub: SubNo, event: EventNo, rests_ms: u64, stalled: bool) {
        self.op += 1;
        let now = self.now;
        let sub = &mut self.subs[sub as usize];
        sub.open = sub.open.saturating_sub(1);
        // If the engine learns of it later, the start of the pause is unknown.
        sub.rests_until = if stalled { 0 } else { now + rests_ms };
        let pair = sub.pair_mut(event);
        pair.called.open = false;
        let (lane, is_untried) = (pair.called.lane.clone(), pair.failures.ops.is_empty());
        if let Some(lane) = lane.and_then(|key| sub.lanes.get_mut(&key)) {
            lane.open = None;
            // The event gives up its turn, unless it failed before.
            lane.current = lane.current.filter(|current| *current != event || !is_untried);
        }
    }

    pub(super) fn unstalled(&mut self, sub: SubNo, event: EventNo) {
        self.op += 1;
        let (op, now) = (self.op, self.now);
        let pair = self.subs[sub as usize].pair_mut(event);
        if pair.state == State::Acked {
            // The id window starts when the acknowledgement is written.
            pair.acked_at = now;
        }
        if pair.state_op == u64::MAX {
            pair.state_op = op;
        }
        pair.failures.ops.iter_mut().filter(|failed| **failed == u64::MAX).for_each(|failed| *failed = op);
    }
}

impl super::Sub {
    /// True if the event had this number in this lane before.
    fn had_number(&self, request: &Request) -> bool {
        let Place::Lane { key, .. } = &request.place else { return false };
        let (Some(lane), Some(number)) = (self.lane(key), request.number) else { return false };
        lane.numbers.get(&number) == Some(&request.event)
    }
}

impl super::Lane {
    /// The first call of an event with this sequence. An event that got its place by an older sequence says nothing
    /// about the new one, unless it is exactly the expected one.
    fn turned(&mut self, sequence: u64, by_old_sequence: bool) {
        if by_old_sequence && self.sequence.expected != Some(sequence) {
            return self.forget_sequences();
        }
        self.sequence.expected = Some(sequence.saturating_add(1));
        self.sequence.lowest = Some(self.sequence.lowest.map_or(sequence, |lowest| lowest.min(sequence)));
        self.sequence.disturbed = false;
    }
}

impl super::Pair {
    /// Records a failed attempt. Returns true if it was the last attempt, or may have been.
    fn failed(&mut self, op: u64, fatal: bool, attempts_max: Option<u32>, parks: bool) -> bool {
        self.failures.ops.push(op);
        self.failures.sure += 1;
        let (least, most) = (self.failures.sure, self.failures.ops.len() as u32);
        let held = parks && !self.called.aside;
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
