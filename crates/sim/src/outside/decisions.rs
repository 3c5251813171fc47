//! People decide.

use super::{Lane, Outside, State, Sub, Taken};
use crate::event::{EventNo, Made};
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
                // What was decided about gaps under the rules before is not followed.
                self.sub_mut(*sub).forget_all_sequences();
            }
            Decision::Removed { sub } => {
                self.sub_mut(*sub).there = false;
            }
            Decision::DiscardedMaybe { sub } => self.maybe_discarded(*sub),
            Decision::Draining { sub } => self.sub_mut(*sub).draining = true,
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
        sub.created_at = now;
        // One that found the log empty has nothing to read: what was made and is not sent yet comes as to others.
        if sub.rules.earliest && sub.read_history {
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
        let (read_history, may_lag) = (sub.read_history, sub.may_lag);
        for (n, pair) in sub.pairs.iter_mut().enumerate() {
            if !pair.open && pair.may_wait() && pair.taken != Taken::No {
                // What was a dead letter outside its lane stays one.
                let sure = matches!(pair.state, State::Waiting | State::Dead { held: true })
                    && !(read_history && pair.starts == 0 && events[n].may_be_invalid())
                    && pair.revived == 0
                    && !pair.may_be_late
                    && pair.position.is_some()
                    && pair.taken == Taken::Yes
                    && !may_lag;
                pair.release(op, sure);
            }
        }
        for lane in sub.lanes.values_mut() {
            lane.waiting.clear();
            lane.parked_on = None;
            lane.forget_sequences();
        }
    }

    fn purged(&mut self, sub: SubNo, key: &str) {
        let (op, events) = (self.op, &self.events);
        let sub = &mut self.subs[sub as usize];
        let ordering = [Some(sub.rules.ordering), sub.next_rules.as_ref().map(|rules| rules.ordering)];
        let unsettled = sub.catching_up || sub.next_rules.is_some() || sub.may_lag;
        let read_history = sub.read_history;
        let mut positions = Vec::new();
        let mut waited = unsettled || read_history;
        let mut surely = false;
        for (n, pair) in sub.pairs.iter_mut().enumerate() {
            if pair.open || pair.taken == Taken::No || !is_in_lane(&ordering, &events[n], key) {
                continue;
            }
            if pair.may_wait() {
                waited = true;
                let sure = pair.taken == Taken::Yes
                    && pair.position.is_some()
                    && matches!(pair.state, State::Waiting | State::Dead { held: true })
                    && !(read_history && pair.starts == 0 && events[n].may_be_invalid())
                    && pair.revived == 0
                    && !pair.may_be_late
                    && !unsettled;
                surely |= sure;
                positions.extend(pair.position);
                pair.release(op, sure);
            }
        }
        if !waited {
            return;
        }
        // By rules that are on their way it may have been another lane.
        for lane in sub.lanes.values_mut().filter(|_| unsettled) {
            lane.waiting.retain(|position, _| !positions.contains(position));
        }
        let lane = sub.lane_mut(key);
        if surely {
            lane.decided_op = op;
        }
        lane.waiting.clear();
        lane.parked_on = None;
        lane.current = lane.open;
        lane.purged = true;
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
        lane.resumed = true;
        let events = [lane.current, lane.parked_on.take()];
        for event in events.into_iter().flatten() {
            let pair = sub.pair_mut(event);
            pair.fresh_attempts();
            pair.retry_after = 0;
            pair.revived += 1;
        }
        // After a crash that may have lost its last failure, one that may hold the lane begins anew as well.
        let tried: Vec<EventNo> = sub.lane_mut(key).numbers.values().copied().collect();
        for event in tried {
            let pair = sub.pair_mut(event);
            if pair.state == State::DeadMaybe {
                pair.fresh_attempts();
            }
        }
    }

    /// It was refused half-way: nobody knows what is left.
    fn maybe_discarded(&mut self, sub: SubNo) {
        let op = self.op;
        let sub = &mut self.subs[sub as usize];
        for pair in
            sub.pairs.iter_mut().filter(|pair| !pair.open && pair.may_wait() && pair.taken != Taken::No)
        {
            pair.release(op, false);
        }
        for lane in sub.lanes.values_mut() {
            lane.waiting.clear();
            lane.parked_on = None;
            lane.forget_sequences();
        }
    }

    fn skipped(&mut self, sub: SubNo, key: &str) {
        let op = self.op;
        let made = &self.events;
        let sub = &mut self.subs[sub as usize];
        let lane = sub.lane_mut(key);
        lane.decided_op = op;
        lane.disturbed = true;
        // What was tried last and waits to be tried again, else what holds the lane; else a gap is skipped.
        let tried = lane.current.filter(|event| Some(*event) != lane.parked_on);
        let known = tried.or(lane.parked_on);
        let Some(event) = known.or(lane.parked_maybe) else {
            lane.resumed = false;
            return sub.may_have_skipped(key);
        };
        // What nobody saw called in this life is not surely what is tried.
        let is_tried = known.is_some() && lane.turn > 0;
        if !is_tried {
            sub.may_have_skipped(key);
        }
        let pair = sub.pair_mut(event);
        // One that is to be tried afresh is no obstacle: then a gap behind it may be what is skipped.
        let fails = matches!(pair.state, State::Dead { held: true })
            || (pair.state == State::Waiting && pair.failures_sure > 0);
        let sure = fails && pair.revived == 0;
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
        // What is unread may hold another of the same name: accepted while nobody knew it, or long after.
        let reads = sub.catching_up || sub.may_lag;
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
    /// A job may take up every dead letter there is.
    fn revive(&mut self) {
        self.replays += 1;
        for pair in &mut self.pairs {
            if matches!(pair.state, State::Dead { .. } | State::DeadMaybe) || pair.may_be_late {
                pair.revived += 1;
                pair.fresh_attempts();
                pair.retry_after = 0;
            }
        }
        for lane in self.lanes.values_mut() {
            // A dead letter that holds its lane goes on in its place, unless the job ends before it comes to that.
            lane.parked_maybe = lane.parked_on.take().or(lane.parked_maybe);
        }
    }
}

fn is_in_lane(orderings: &[Option<Ordering>], made: &Made, key: &str) -> bool {
    orderings.iter().flatten().any(|ordering| ordering.key(made).as_deref() == Some(key))
}

impl Lane {
    pub fn is_parked(&self) -> bool {
        self.parked_on.is_some()
    }
}

impl Sub {
    /// What was acknowledged may wait again after a crash, and then the first of that is what was skipped.
    fn may_have_skipped(&mut self, key: &str) {
        let delivered: Vec<EventNo> = self.lane_mut(key).numbers.values().copied().collect();
        for event in delivered {
            let pair = self.pair_mut(event);
            pair.may_be_letter |= pair.state == State::AckedMaybe;
        }
    }
}
