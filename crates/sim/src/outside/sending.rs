//! Producers send events and receive responses.

use super::pair::Events;
use super::{Before, Outside, Pair, State, Sub, Taken};
use crate::event::{EventNo, ProducedEvent};
use crate::history::{Said, SubNo};
use crate::rules::Place;

impl Outside {
    pub(super) fn sent(&mut self, token: u64, event: EventNo) {
        self.op += 1;
        let (op, now) = (self.op, self.now);
        let made = &self.events[event as usize];
        let mut befores = Vec::new();
        for (n, sub) in self.subs.iter_mut().enumerate() {
            if sub.life.there && !sub.life.draining && sub.rules.matches(made) {
                befores.push(sub.offered(n as SubNo, made, op, now));
            }
        }
        self.pending.insert((token, event), befores);
    }

    pub(super) fn answered(&mut self, token: u64, event: EventNo, answer: Said) {
        if !self.endpoints.is_empty() && matches!(answer, Said::Accepted { .. } | Said::Taken) {
            self.endpoints_have(event);
        }
        let made = &self.events[event as usize];
        if let Said::Accepted { position } = answer {
            self.positions.insert(position, event);
        }
        for before in self.pending.remove(&(token, event)).unwrap_or_default() {
            let sub = &mut self.subs[before.sub as usize];
            let pair = sub.pair_mut(event);
            pair.pending = pair.pending.saturating_sub(1);
            if pair.generation != before.generation {
                continue;
            }
            match answer {
                Said::Accepted { position } => sub.accepted(made, before, position),
                Said::Skipped { .. } if before.taken == Taken::No => sub.untaken(made),
                Said::Skipped { .. } => sub.owes(event),
                Said::Rejected if before.taken == Taken::No => sub.untaken(made),
                Said::Taken => sub.took_reply(made, before),
                Said::Rejected | Said::Unavailable => {}
            }
        }
    }
}

impl Outside {
    /// A reply arrived with the response to a call. If the outcome was written, the reply is accepted; otherwise this
    /// is not known yet.
    pub(super) fn replied(&mut self, token: u64, event: EventNo, taken: bool) {
        self.sent(token, event);
        if taken {
            self.replies.push_back((self.op, token, event));
        }
    }

    /// Everything up to this operation survives a crash, including the replies that came with an acknowledgement.
    pub(super) fn replies_kept(&mut self, kept: u64) {
        while let Some((_, token, event)) = self.replies.pop_front_if(|(op, ..)| *op <= kept) {
            self.answered(token, event, Said::Taken);
        }
    }
}

impl Sub {
    /// The reply is in the log, but its position is unknown.
    fn took_reply(&mut self, made: &ProducedEvent, before: Before) {
        self.owes(made.no);
        if before.taken != Taken::No {
            return;
        }
        let (place, replayed_at, may_lag) = (self.place(made), self.replayed_at, self.limits.may_lag);
        let pair = self.pair_mut(made.no);
        pair.doubts.may_be_late = true;
        if place == Some(Place::Invalid) && pair.called.starts == 0 && !may_lag {
            pair.set(State::Dead { held: false }, pair.sent_op);
            pair.failures.revived += u32::from(replayed_at >= pair.taken_at);
        }
    }

    /// The event matches the filters. The response will show whether the subscription accepts it.
    fn offered(&mut self, no: SubNo, made: &ProducedEvent, op: u64, now: u64) -> Before {
        self.replies += u64::from(made.reply);
        let place = self.place(made);
        let may_be_long_past = self.may_be_long_past(place.as_ref(), now);
        let (timeout_ms, buffer_max) = (self.rules.gap.timeout_ms, self.rules.gap.buffer_max);
        // An event that a limit may have dropped is not certainly known.
        let drops = self.limits.drops;
        let window_ms = if self.limits.ids_limited { 0 } else { self.rules.window_ms };
        // An id may stay known for up to a tenth longer than its window.
        let forgotten_ms = self.rules.window_ms + self.rules.window_ms / 10;
        let is_steady = self.changes == 0 && !self.life.read_history;
        // After a crash, the subscription may have to read events again that it already knew.
        let is_read = !self.life.catching_up;
        let pair = self.pair_mut(made.no);
        // An event that is pending again because a crash lost its acknowledgement may be dropped, and its id
        // released.
        let delivered = pair.state == State::Acked || (pair.state == State::AckedMaybe && !drops);
        let since_ms = now.saturating_sub(pair.acked_at);
        let within = delivered && since_ms < window_ms;
        let waits = matches!(pair.state, State::Waiting | State::Dead { .. }) && !drops;
        // An event that may have arrived too late may have been skipped by the watermark, which sets no mark.
        let has_it = pair.called.starts > 0 || !pair.doubts.may_be_late;
        let before = Before {
            sub: no,
            taken: pair.taken,
            generation: pair.generation,
            known_for_sure: pair.taken == Taken::Yes
                && is_read
                && has_it
                && pair.pending == 0
                && (within || waits),
            // While the acknowledgement waits for space, the id window has not started.
            forgotten_for_sure: is_steady
                && pair.state == State::Acked
                && pair.state_op < u64::MAX
                && pair.pending == 0
                && since_ms >= forgotten_ms,
            may_be_long_past,
        };
        pair.pending += 1;
        if pair.taken == Taken::No {
            pair.begins_anew(op, now);
            // An event read from the log reaches its lane later, possibly under other rules. If the subscription read
            // the past, it is unknown since when a lane waits for a gap.
            let is_read = self.limits.may_lag || self.life.catching_up || self.life.read_history;
            self.pair_mut(made.no).doubts.may_be_late = is_read;
            if let Some(Place::Lane { key, sequence: Some(sequence) }) = &place {
                let lane = self.lane_mut(key);
                let may_be_late = is_read || lane.may_be_passed(*sequence, now, timeout_ms, buffer_max);
                lane.events.first_at.get_or_insert(now);
                lane.sequence.came.insert(*sequence);
                lane.events.arrivals.insert((now, made.no));
                lane.events.offered.insert((*sequence, made.no));
                self.pair_mut(made.no).doubts.may_be_late = may_be_late;
            }
        } else if matches!(pair.state, State::Acked | State::AckedMaybe) && !within {
            // Its id may be forgotten, in which case this is a new event with the same id.
            pair.state = State::AckedMaybe;
            pair.called.number = None;
            if let Some(Place::Lane { key, sequence: Some(_) }) = &place {
                self.lane_mut(key).events.again.insert(made.no, now);
            }
        } else if pair.state == State::GoneMaybe || pair.taken == Taken::Maybe || (drops && !within) {
            // From now on, this may be another event with the same id.
            pair.called.number = None;
            pair.doubts.may_be_late = true;
        }
        self.pair_mut(made.no).doubts.may_be_long_past |= may_be_long_past && !before.known_for_sure;
        before
    }

    /// True if the sequence may have been passed longer ago than the id window, by the current rules. This needs a
    /// lane of that age. Events read from the log are never skipped this way.
    fn may_be_long_past(&self, place: Option<&Place>, now: u64) -> bool {
        let Some(Place::Lane { key, sequence: Some(sequence) }) = place else { return false };
        // A sequence that was left out was never delivered. When it arrives, it is not a duplicate, regardless of the
        // age of the gap.
        let is_followed = self.changes == 0 && !self.life.read_history;
        if is_followed && self.lane(key).is_some_and(|lane| lane.never_came(*sequence)) {
            return false;
        }
        // Events of the past reached the lane at some time since the subscription was created.
        let first = match self.life.read_history {
            true => Some(self.life.created_at),
            false => self.lane(key).and_then(|lane| lane.events.first_at),
        };
        first.is_some_and(|first| now.saturating_sub(first) >= self.rules.window_ms)
    }

    fn accepted(&mut self, made: &ProducedEvent, before: Before, position: u64) {
        self.owes(made.no);
        let (place, replayed_at, may_lag) = (self.place(made), self.replayed_at, self.limits.may_lag);
        let pair = self.pair_mut(made.no);
        if before.taken == Taken::Yes && !before.known_for_sure {
            // Its id may have been forgotten, in which case this is a new event with the same id.
            pair.called.number = None;
            pair.doubts.may_be_late = true;
            if pair.state == State::Acked {
                pair.state = State::AckedMaybe;
            }
        }
        if before.taken != Taken::No || pair.position.is_some() {
            return;
        }
        pair.position = Some(position);
        let (came, may_be_late, by_old_sequence) =
            (pair.taken_at, pair.doubts.may_be_late, pair.doubts.by_old_sequence);
        let sent_op = pair.sent_op;
        // The place depends on rules that take effect later, and an unread event has no place yet.
        pair.doubts.may_be_late |= place.is_none() || may_lag;
        if may_lag && place == Some(Place::Invalid) {
            return;
        }
        if place == Some(Place::Invalid) {
            // A dead letter beside the lanes, from its acceptance on. A job may already replay it.
            pair.set(State::Dead { held: false }, sent_op);
            pair.failures.revived += u32::from(replayed_at >= came);
        }
        let Some(Place::Lane { key, sequence }) = place else { return };
        let lane = self.lane_mut(&key);
        lane.events.first_at.get_or_insert(came);
        match sequence {
            None => drop(lane.events.waiting.insert(position, made.no)),
            // The expected sequence was set while this event was in transit.
            Some(_) if may_lag || by_old_sequence => {}
            Some(sequence) if lane.is_opened_by(made.no) && sequence <= 1 => {
                lane.sequence.expected = Some(sequence)
            }
            Some(sequence) if !may_be_late => drop(lane.events.by_sequence.insert((sequence, made.no))),
            Some(_) => {}
        }
    }

    fn owes(&mut self, event: EventNo) {
        let pair = self.pair_mut(event);
        pair.taken = Taken::Yes;
        pair.owed = !matches!(pair.state, State::Gone | State::GoneMaybe);
    }

    /// The event was not accepted after all.
    fn untaken(&mut self, made: &ProducedEvent) {
        let place = self.place(made);
        let pair = self.pair_mut(made.no);
        if pair.pending > 0 || pair.taken == Taken::Yes {
            return;
        }
        pair.taken = Taken::No;
        let came = pair.taken_at;
        if let Some(Place::Lane { key, sequence }) = place {
            let lane = self.lane_mut(&key);
            lane.sequence.disturbed = true;
            lane.settle(made.no, None, sequence, came);
        }
    }
}

impl Pair {
    fn begins_anew(&mut self, op: u64, now: u64) {
        let kept = Pair { generation: self.generation, pending: self.pending, ..Pair::default() };
        *self = Pair { taken: Taken::Maybe, sent_op: op, taken_at: now, state_op: op, ..kept };
    }
}

impl super::Lane {
    /// True if this is the first event of the lane: sequence 0 or 1 opens the lane immediately.
    fn is_opened_by(&self, event: EventNo) -> bool {
        self.numbers.is_empty()
            && self.sequence.expected.is_none()
            && self.events.offered.iter().all(|(_, other)| *other == event)
    }

    /// True if the lane may have passed this sequence already, by a decision that is not visible from outside.
    pub fn may_be_passed(&self, sequence: u64, now: u64, timeout_ms: u64, buffer_max: u64) -> bool {
        self.sequence.disturbed
            || self.sequence.expected.is_none_or(|expected| sequence < expected)
            || self.gap_may_be_over(now, timeout_ms, buffer_max)
            || self.events.offered.range((sequence, 0)..=(sequence, EventNo::MAX)).next().is_some()
    }

    /// True if the lane may have given up a gap: the timeout has passed since the first waiting event arrived, or the
    /// buffer is full.
    pub fn gap_may_be_over(&self, now: u64, timeout_ms: u64, buffer_max: u64) -> bool {
        let Events { arrivals, again, .. } = &self.events;
        let mut first = arrivals.first().map(|(came, _)| came).into_iter().chain(again.values());
        let waited = first.any(|came| now.saturating_sub(*came) >= timeout_ms);
        waited || (arrivals.len() + again.len()) as u64 >= buffer_max
    }
}
