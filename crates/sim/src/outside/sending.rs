//! Producers hand events in and are told what became of them.

use super::{Before, Outside, Pair, State, Sub, Taken};
use crate::event::{EventNo, Made};
use crate::history::{Said, SubNo};
use crate::rules::Place;

impl Outside {
    pub(super) fn sent(&mut self, token: u64, event: EventNo) {
        self.op += 1;
        let (op, now) = (self.op, self.now);
        let made = self.events[event as usize].clone();
        let mut befores = Vec::new();
        for (n, sub) in self.subs.iter_mut().enumerate() {
            if sub.there && !sub.draining && sub.rules.matches(&made) {
                befores.push(sub.offered(n as SubNo, &made, op, now));
            }
        }
        self.pending.insert((token, event), befores);
    }

    pub(super) fn answered(&mut self, token: u64, event: EventNo, answer: Said) {
        let made = self.events[event as usize].clone();
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
                Said::Accepted { position } => sub.accepted(&made, before, position),
                Said::Skipped { .. } if before.taken == Taken::No => sub.untaken(&made),
                Said::Skipped { .. } => sub.owes(event),
                Said::Rejected if before.taken == Taken::No => sub.untaken(&made),
                Said::Taken => sub.took_reply(&made, before),
                Said::Rejected | Said::Unavailable => {}
            }
        }
    }
}

impl Outside {
    /// An event came with the answer to a call. It is taken if that was written, else nobody knows yet.
    pub(super) fn replied(&mut self, token: u64, event: EventNo, taken: bool) {
        self.sent(token, event);
        if taken {
            self.replies.push_back((self.op, token, event));
        }
    }

    /// What was handed in up to here outlives a crash, and with an acknowledgement the events that came with it.
    pub(super) fn replies_kept(&mut self, kept: u64) {
        while let Some((_, token, event)) = self.replies.pop_front_if(|(op, ..)| *op <= kept) {
            self.answered(token, event, Said::Taken);
        }
    }
}

impl Sub {
    /// It is in the log; where, nobody was told.
    fn took_reply(&mut self, made: &Made, before: Before) {
        self.owes(made.no);
        if before.taken != Taken::No {
            return;
        }
        let (place, replayed_at, may_lag) = (self.place(made), self.replayed_at, self.may_lag);
        let pair = self.pair_mut(made.no);
        pair.may_be_late = true;
        if place == Some(Place::Invalid) && pair.starts == 0 && !may_lag {
            pair.set(State::Dead { held: false }, pair.sent_op);
            pair.revived += u32::from(replayed_at >= pair.taken_at);
        }
    }

    /// Its filters let the event through; whether it takes it is told by the answer.
    fn offered(&mut self, no: SubNo, made: &Made, op: u64, now: u64) -> Before {
        self.replies += u64::from(made.reply);
        let place = self.place(made);
        let may_be_long_past = self.may_be_long_past(place.as_ref(), now);
        let (timeout_ms, buffer_max) = (self.rules.gap_timeout_ms, self.rules.buffer_max);
        // What a limit may have dropped is not surely known.
        let drops = self.drops;
        let window_ms = if self.ids_limited { 0 } else { self.rules.window_ms };
        // An id may be known for a tenth of its window longer, and no more.
        let forgotten_ms = self.rules.window_ms + self.rules.window_ms / 10;
        let is_steady = self.changes == 0 && !self.read_history;
        // What it read before a crash it may have to read again, and knows then.
        let is_read = !self.catching_up;
        let pair = self.pair_mut(made.no);
        // What waits again because a crash lost its acknowledgement may be dropped, and its id released.
        let delivered = pair.state == State::Acked || (pair.state == State::AckedMaybe && !drops);
        let since_ms = now.saturating_sub(pair.acked_at);
        let within = delivered && since_ms < window_ms;
        let waits = matches!(pair.state, State::Waiting | State::Dead { .. }) && !drops;
        // One that may have come too late may have been turned away by the watermark, which marks nothing.
        let has_it = pair.starts > 0 || !pair.may_be_late;
        let before = Before {
            sub: no,
            taken: pair.taken,
            generation: pair.generation,
            known_for_sure: pair.taken == Taken::Yes
                && is_read
                && has_it
                && pair.pending == 0
                && (within || waits),
            // While its acknowledgement waits for room, its window has not begun.
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
            // What is read from the log comes to its lane later, and by rules that may be others then. Where the past
            // was read, nobody outside knows since when a lane waits for a gap.
            let is_read = self.may_lag || self.catching_up || self.read_history;
            self.pair_mut(made.no).may_be_late = is_read;
            if let Some(Place::Lane { key, sequence: Some(sequence) }) = &place {
                let lane = self.lane_mut(key);
                let may_be_late = is_read || lane.may_be_passed(*sequence, now, timeout_ms, buffer_max);
                lane.first_at.get_or_insert(now);
                lane.came.insert(*sequence);
                lane.arrivals.insert((now, made.no));
                lane.offered.insert((*sequence, made.no));
                self.pair_mut(made.no).may_be_late = may_be_late;
            }
        } else if matches!(pair.state, State::Acked | State::AckedMaybe) && !within {
            // Its id may be forgotten: then it is a new event of the same name.
            pair.state = State::AckedMaybe;
            pair.number = None;
        } else if pair.state == State::GoneMaybe || pair.taken == Taken::Maybe || (drops && !within) {
            // It may be another one of the same name from here on.
            pair.number = None;
            pair.may_be_late = true;
        }
        self.pair_mut(made.no).may_be_long_past |= may_be_long_past && !before.known_for_sure;
        before
    }

    /// Passed longer ago than the id window, by the rules in force: only in a lane that is that old. What is read from the
    /// log is never turned away.
    fn may_be_long_past(&self, place: Option<&Place>, now: u64) -> bool {
        let Some(Place::Lane { key, sequence: Some(sequence) }) = place else { return false };
        // A sequence that was left out and comes late was never delivered: it is no duplicate, however old the gap is.
        let is_followed = self.changes == 0 && !self.read_history;
        if is_followed && self.lane(key).is_some_and(|lane| lane.never_came(*sequence)) {
            return false;
        }
        // The past came to a lane at some time since its subscription was made.
        let first = match self.read_history {
            true => Some(self.created_at),
            false => self.lane(key).and_then(|lane| lane.first_at),
        };
        first.is_some_and(|first| now.saturating_sub(first) >= self.rules.window_ms)
    }

    fn accepted(&mut self, made: &Made, before: Before, position: u64) {
        self.owes(made.no);
        let (place, replayed_at, may_lag) = (self.place(made), self.replayed_at, self.may_lag);
        let pair = self.pair_mut(made.no);
        if before.taken == Taken::Yes && !before.known_for_sure {
            // Its id may have been forgotten: then it is a new event of the same name.
            pair.number = None;
            pair.may_be_late = true;
            if pair.state == State::Acked {
                pair.state = State::AckedMaybe;
            }
        }
        if before.taken != Taken::No || pair.position.is_some() {
            return;
        }
        pair.position = Some(position);
        let (came, may_be_late, by_old_sequence) = (pair.taken_at, pair.may_be_late, pair.by_old_sequence);
        let sent_op = pair.sent_op;
        // Where it goes is told by rules that hold later, and what is unread has not gone anywhere.
        pair.may_be_late |= place.is_none() || may_lag;
        if may_lag && place == Some(Place::Invalid) {
            return;
        }
        if place == Some(Place::Invalid) {
            // A dead letter beside the lanes, from the moment it was taken: a job may have it already.
            pair.set(State::Dead { held: false }, sent_op);
            pair.revived += u32::from(replayed_at >= came);
        }
        let Some(Place::Lane { key, sequence }) = place else { return };
        let lane = self.lane_mut(&key);
        lane.first_at.get_or_insert(came);
        match sequence {
            None => drop(lane.waiting.insert(position, made.no)),
            // What the lane expects was set while this one was on its way.
            Some(_) if may_lag || by_old_sequence => {}
            Some(sequence) if lane.is_opened_by(made.no) && sequence <= 1 => lane.expected = Some(sequence),
            Some(sequence) if !may_be_late => drop(lane.by_sequence.insert((sequence, made.no))),
            Some(_) => {}
        }
    }

    fn owes(&mut self, event: EventNo) {
        let pair = self.pair_mut(event);
        pair.taken = Taken::Yes;
        pair.owed = !matches!(pair.state, State::Gone | State::GoneMaybe);
    }

    /// It was not taken after all.
    fn untaken(&mut self, made: &Made) {
        let place = self.place(made);
        let pair = self.pair_mut(made.no);
        if pair.pending > 0 || pair.taken == Taken::Yes {
            return;
        }
        pair.taken = Taken::No;
        let came = pair.taken_at;
        if let Some(Place::Lane { key, sequence }) = place {
            let lane = self.lane_mut(&key);
            lane.disturbed = true;
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
    /// It is the first that ever came: 0 or 1 opens the lane at once.
    fn is_opened_by(&self, event: EventNo) -> bool {
        self.numbers.is_empty()
            && self.expected.is_none()
            && self.offered.iter().all(|(_, other)| *other == event)
    }

    /// Whether the lane may have gone past this sequence already, by a decision that is not seen from outside.
    pub fn may_be_passed(&self, sequence: u64, now: u64, timeout_ms: u64, buffer_max: u64) -> bool {
        self.disturbed
            || self.expected.is_none_or(|expected| sequence < expected)
            || self.gap_may_be_over(now, timeout_ms, buffer_max)
            || self.offered.range((sequence, 0)..=(sequence, EventNo::MAX)).next().is_some()
    }

    /// A gap may have been given up: its time is over since the first event came that waits, or the buffer is full.
    pub fn gap_may_be_over(&self, now: u64, timeout_ms: u64, buffer_max: u64) -> bool {
        let waited = self.arrivals.first().is_some_and(|(came, _)| now.saturating_sub(*came) >= timeout_ms);
        waited || self.arrivals.len() as u64 >= buffer_max
    }
}
