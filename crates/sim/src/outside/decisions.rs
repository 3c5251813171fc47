//! Decisions of operators.

use super::{Lane, Outside, State, Sub, Taken};
use crate::event::{EventNo, ProducedEvent};
use crate::history::{Decision, SubNo};
use crate::rules::Ordering;

impl Outside {
    pub(super) fn decided(&mut self, decision: &Decision) {
        self.op += 1;
        let op = self.op;
        match decision {
            Decision::Created { sub } => self.created(*sub),
            Decision::Changed { sub, discards, .. } => {
                if *discards {
                    self.discarded(*sub);
                }
                // Decisions about gaps under the previous rules are not tracked.
                self.sub_mut(*sub).forget_all_sequences();
            }
            Decision::Removed { sub } => {
                self.sub_mut(*sub).life.there = false;
            }
            Decision::DiscardedMaybe { sub } => self.maybe_discarded(*sub),
            Decision::Draining { sub } => self.sub_mut(*sub).life.draining = true,
            Decision::Paused { sub, paused } => {
                let sub = self.sub_mut(*sub);
                sub.rules.paused = *paused;
                sub.next_rules.iter_mut().for_each(|rules| rules.paused = *paused);
            }
            Decision::Resume { sub, key } => self.resumed(*sub, key),
            Decision::Skip { sub, key } => self.skipped(*sub, key),
            Decision::Purge { sub, key } => self.purged(*sub, key),
            Decision::PauseLane { sub, key } => self.sub_mut(*sub).lane_mut(key).paused = Some(op),
            Decision::Reset { sub, key, .. } => self.reset(*sub, key),
            Decision::LetterDeleted { sub, event } => self.letter_deleted(*sub, *event),
            Decision::Replay { sub } => self.replayed(*sub),
            Decision::ReplayStopped => {}
        }
    }

    fn created(&mut self, sub: SubNo) {
        let now = self.now;
        let sub = &mut self.subs[sub as usize];
        sub.life.created_at = now;
        // A subscription that found an empty log has nothing to read. It receives events that are not sent yet like
        // any other.
        if sub.rules.earliest && sub.life.read_history {
            for made in &self.events {
                if sub.rules.matches(made) {
                    sub.pair_mut(made.no).taken = Taken::Maybe;
                }
            }
        }
    }

    fn discarded(&mut self, sub: SubNo) {
        let op = self.op;
        let events = &self.events;
        let sub = &mut self.subs[sub as usize];
        let (read_history, may_lag) = (sub.life.read_history, sub.limits.may_lag);
        for (n, pair) in sub.pairs.iter_mut().enumerate() {
            if !pair.called.open && pair.may_wait() && pair.taken != Taken::No {
                // A dead letter outside its lane is not discarded.
                let sure = matches!(pair.state, State::Waiting | State::Dead { held: true })
                    && !(read_history && pair.called.starts == 0 && events[n].may_be_invalid())
                    && pair.failures.revived == 0
                    && !pair.doubts.may_be_late
                    && pair.position.is_some()
                    && pair.taken == Taken::Yes
                    && !may_lag;
                pair.release(op, sure);
            }
        }
        for lane in sub.lanes.values_mut() {
            lane.events.waiting.clear();
            lane.parked.on = None;
            lane.forget_sequences();
        }
    }

    fn purged(&mut self, sub: SubNo, key: &str) {
        let (op, events) = (self.op, &self.events);
        let sub = &mut self.subs[sub as usize];
        let ordering = [Some(sub.rules.ordering), sub.next_rules.as_ref().map(|rules| rules.ordering)];
        let unsettled = sub.life.catching_up || sub.next_rules.is_some() || sub.limits.may_lag;
        let read_history = sub.life.read_history;
        let mut positions = Vec::new();
        let mut waited = unsettled || read_history;
        let mut surely = false;
        for (n, pair) in sub.pairs.iter_mut().enumerate() {
            if pair.called.open || pair.taken == Taken::No || !is_in_lane(&ordering, &events[n], key) {
                continue;
            }
            if pair.may_wait() {
                waited = true;
                let sure = pair.taken == Taken::Yes
                    && pair.position.is_some()
                    && matches!(pair.state, State::Waiting | State::Dead { held: true })
                    && !(read_history && pair.called.starts == 0 && events[n].may_be_invalid())
                    && pair.failures.revived == 0
                    && !pair.doubts.may_be_late
                    && !unsettled;
                // Limits drop events without naming them, so this one may be gone.
                surely |= sure && sub.limits.dropped == 0;
                positions.extend(pair.position);
                pair.release(op, sure);
            }
        }
        if !waited {
            return;
        }
        // Under pending rules, the event may have been in another lane.
        for lane in sub.lanes.values_mut().filter(|_| unsettled) {
            lane.events.waiting.retain(|position, _| !positions.contains(position));
        }
        let lane = sub.lane_mut(key);
        if surely {
            lane.decided_op = op;
        }
        lane.events.waiting.clear();
        lane.parked.on = None;
        lane.current = lane.open;
        lane.sequence.purged = true;
        lane.forget_sequences();
    }

    fn reset(&mut self, sub: SubNo, key: &str) {
        let op = self.op;
        let sub = self.sub_mut(sub);
        sub.lane_mut(key).decided_op = op;
        sub.forget_sequences(key);
    }

    fn resumed(&mut self, sub: SubNo, key: &str) {
        let op = self.op;
        let sub = &mut self.subs[sub as usize];
        let lane = sub.lane_mut(key);
        lane.decided_op = op;
        lane.paused = None;
        lane.parked.resumed = true;
        let events = [lane.current, lane.parked.on.take()];
        for event in events.into_iter().flatten() {
            let pair = sub.pair_mut(event);
            pair.fresh_attempts();
            pair.failures.retry_after = 0;
            pair.failures.revived += 1;
        }
        // After a crash that may have lost the last failure, an event that may park the lane gets fresh attempts too.
        let tried: Vec<EventNo> = sub.lane_mut(key).numbers.values().copied().collect();
        for event in tried {
            let pair = sub.pair_mut(event);
            if pair.state == State::DeadMaybe {
                pair.fresh_attempts();
            }
        }
    }

    /// The change was refused halfway: it is unknown what is left.
    fn maybe_discarded(&mut self, sub: SubNo) {
        let op = self.op;
        let sub = &mut self.subs[sub as usize];
        for pair in sub
            .pairs
            .iter_mut()
            .filter(|pair| !pair.called.open && pair.may_wait() && pair.taken != Taken::No)
        {
            pair.release(op, false);
        }
        for lane in sub.lanes.values_mut() {
            lane.events.waiting.clear();
            lane.parked.on = None;
            lane.forget_sequences();
        }
    }

    fn skipped(&mut self, sub: SubNo, key: &str) {
        let op = self.op;
        let made = &self.events;
        let sub = &mut self.subs[sub as usize];
        let lane = sub.lane_mut(key);
        lane.decided_op = op;
        lane.sequence.disturbed = true;
        // Skips the event that waits for its retry, else the one that parks the lane; else a gap is skipped.
        let tried = lane.current.filter(|event| Some(*event) != lane.parked.on);
        let known = tried.or(lane.parked.on);
        let Some(event) = known.or(lane.parked.maybe) else {
            lane.parked.resumed = false;
            return sub.may_have_skipped(key);
        };
        // An event whose call was not seen in this life of the process is not certainly the one that is retried.
        let is_tried = known.is_some() && lane.turn > 0;
        if !is_tried {
            sub.may_have_skipped(key);
        }
        let pair = sub.pair_mut(event);
        // An event with fresh attempts does not block the lane, so a gap behind it may have been skipped.
        let fails = matches!(pair.state, State::Dead { held: true })
            || (pair.state == State::Waiting && pair.failures.sure > 0);
        let sure = fails && pair.failures.revived == 0;
        pair.set(if sure { State::Dead { held: false } } else { State::DeadMaybe }, op);
        pair.fresh_attempts();
        let (position, came) = (pair.position, pair.taken_at);
        let sequence = made[event as usize].readable_sequence();
        sub.lane_mut(key).settle(event, position, sequence, came);
    }

    fn letter_deleted(&mut self, sub: SubNo, event: EventNo) {
        let op = self.op;
        let made = self.events[event as usize].clone();
        let sub = &mut self.subs[sub as usize];
        // The unread part of the log may contain another event with the same id, accepted while the id was unknown.
        let reads = sub.life.catching_up || sub.limits.may_lag;
        let pair = sub.pair_mut(event);
        let (position, came) = (pair.position, pair.taken_at);
        pair.release(op, !reads);
        let places = [Some(sub.rules.ordering), sub.next_rules.as_ref().map(|rules| rules.ordering)];
        for ordering in places.into_iter().flatten() {
            if let Some(key) = ordering.key(&made) {
                sub.lane_mut(&key).settle(event, position, made.readable_sequence(), came);
            }
        }
    }

    fn replayed(&mut self, only: Option<SubNo>) {
        let now = self.now;
        for (n, sub) in self.subs.iter_mut().enumerate() {
            if only.is_none_or(|only| only == n as SubNo) {
                sub.replayed_at = now;
                sub.revive();
            }
        }
    }
}

impl Sub {
    /// A job may replay every dead letter that exists.
    fn revive(&mut self) {
        self.replays += 1;
        for pair in &mut self.pairs {
            // A discard that a crash may have undone leaves the letter there, too.
            let may_be_dead = matches!(pair.state, State::Dead { .. } | State::DeadMaybe | State::GoneMaybe);
            if may_be_dead || pair.doubts.may_be_late {
                pair.failures.revived += 1;
                pair.fresh_attempts();
                pair.failures.retry_after = 0;
            }
        }
        for lane in self.lanes.values_mut() {
            // A dead letter that parks its lane is retried in its place, unless the job ends before it gets there.
            lane.parked.maybe = lane.parked.on.take().or(lane.parked.maybe);
        }
    }
}

fn is_in_lane(orderings: &[Option<Ordering>], made: &ProducedEvent, key: &str) -> bool {
    orderings.iter().flatten().any(|ordering| ordering.key(made).as_deref() == Some(key))
}

impl Lane {
    pub fn is_parked(&self) -> bool {
        self.parked.on.is_some()
    }
}

impl Sub {
    /// After a crash, acknowledged events may be pending again. The first of those may be the one that was skipped.
    fn may_have_skipped(&mut self, key: &str) {
        let delivered: Vec<EventNo> = self.lane_mut(key).numbers.values().copied().collect();
        for event in delivered {
            let pair = self.pair_mut(event);
            pair.doubts.may_be_letter |= pair.state == State::AckedMaybe;
        }
    }
}
