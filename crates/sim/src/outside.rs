//! What someone outside can know, from the history alone: of every event and subscription how far it is, and how sure
//! that is. A crash makes things unsure that were not durable; what is seen afterwards makes them sure again.
//!
//! Checkers look at an entry with this knowledge from before it; then the entry is taken in.

mod decisions;
mod pair;
mod requests;
mod sending;

pub use pair::{Lane, Pair, State, Taken};

use crate::event::{EventNo, Made};
use crate::history::{Entry, SubNo};
use crate::rules::{Place, Rules};
use std::collections::{BTreeMap, VecDeque};

#[derive(Default)]
pub struct Outside {
    pub events: Vec<Made>,
    pub subs: Vec<Sub>,
    /// Numbers everything that changes the engine.
    pub op: u64,
    pub flushed: u64,
    pub durable: u64,
    /// As the engine has it: it never goes back within a life.
    pub now: u64,
    pub calm: bool,
    /// Of each event that was sent and not answered: what was known when it was sent.
    pending: BTreeMap<(u64, EventNo), Vec<Before>>,
    positions: BTreeMap<u64, EventNo>,
    /// Answers of receivers that are with the engine and not durable yet: op, token, event.
    replies: VecDeque<(u64, u64, EventNo)>,
    /// The process was asked to end.
    pub stopping: bool,
}

/// What was known of a subscription and an event when the event was sent.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub sub: SubNo,
    pub taken: Taken,
    generation: u32,
    pub known_for_sure: bool,
    /// It was delivered, and its window is over.
    pub forgotten_for_sure: bool,
    pub may_be_long_past: bool,
}

/// One subscription from its creation to its end.
pub struct Sub {
    pub rules: Rules,
    /// The rules that begin when what waits has drained.
    pub next_rules: Option<Rules>,
    pub there: bool,
    /// Takes no new events and goes when nothing waits.
    pub draining: bool,
    /// It reads the log: what it takes and when is not seen from outside.
    pub catching_up: bool,
    /// It did so once: when its events came to it is not known.
    pub read_history: bool,
    pub created_at: u64,
    pub pairs: Vec<Pair>,
    pub lanes: BTreeMap<String, Lane>,
    pub open: u32,
    /// Events of answers that its filters let through.
    pub replies: u64,
    /// Replay jobs that were asked for.
    pub replays: u32,
    /// When the last one was: it takes what failed up to then.
    pub replayed_at: u64,
    /// Rules with limits that drop were in force at some time.
    pub drops: bool,
    /// It had limits at which it falls behind: when an event comes to its lane is not seen from outside.
    pub may_lag: bool,
    /// Dropped by a limit, as its metrics say.
    pub dropped: u64,
    /// So many ids are kept at most that those of delivered events may be forgotten at any time.
    pub ids_limited: bool,
    /// The rules changed so many times.
    pub changes: u32,
    /// The highest that was allowed while requests are open that began then.
    pub concurrency_before: u32,
    /// Nobody is there to be called until then.
    pub rests_until: u64,
}

impl Sub {
    pub fn new(rules: Rules, catching_up: bool) -> Sub {
        let (drops, may_lag) = (rules.drops(), rules.lags());
        Sub {
            ids_limited: false,
            rules,
            next_rules: None,
            there: true,
            draining: false,
            catching_up,
            read_history: catching_up,
            created_at: 0,
            pairs: Vec::new(),
            lanes: BTreeMap::new(),
            open: 0,
            replies: 0,
            replays: 0,
            replayed_at: 0,
            drops,
            may_lag,
            dropped: 0,
            changes: 0,
            concurrency_before: 0,
            rests_until: 0,
        }
    }

    /// It was given other rules, at once or once what waits has drained.
    pub fn given(&mut self, rules: Rules, drains: bool, events: &[Made]) {
        self.changes += 1;
        self.drops |= rules.drops();
        self.may_lag |= rules.lags();
        self.window_is(rules.window_ms);
        self.concurrency_before = self.concurrency_before.max(self.rules.concurrency);
        self.read_history |= drains;
        if drains {
            self.rules = rules.ordered_as(&self.rules);
            self.next_rules = Some(rules);
            return;
        }
        let ordering = rules.ordering;
        let differs = ordering != self.rules.ordering;
        self.rules = rules;
        if differs {
            self.new_epoch(events);
        }
    }

    /// A new window is for what is delivered from now on.
    pub fn window_is(&mut self, window_ms: u64) {
        if window_ms != self.rules.window_ms {
            self.pairs.iter_mut().for_each(|pair| pair.acked_at = 0);
        }
    }

    /// Other rules about order are in force: a dead letter from before may have another lane, and no number in it.
    pub fn new_epoch(&mut self, events: &[Made]) {
        self.forget_all_sequences();
        for (pair, made) in self.pairs.iter_mut().zip(events) {
            if pair.lane.is_some() && pair.lane != self.rules.ordering.key(made) {
                (pair.number, pair.lane) = (None, None);
            }
        }
    }

    pub fn pair(&self, event: EventNo) -> Pair {
        self.pairs.get(event as usize).cloned().unwrap_or_default()
    }

    pub fn pair_mut(&mut self, event: EventNo) -> &mut Pair {
        let at = event as usize;
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, Pair::default);
        }
        &mut self.pairs[at]
    }

    /// The lane's sequence is another one now: what waits for its turn may be late by it.
    pub fn forget_sequences(&mut self, key: &str) {
        let lane = self.lane_mut(key);
        lane.forget_sequences();
        let offered: Vec<EventNo> = lane.offered.iter().map(|(_, event)| *event).collect();
        for event in offered {
            let pair = self.pair_mut(event);
            pair.may_be_late = true;
            pair.by_old_sequence = true;
        }
    }

    pub fn forget_all_sequences(&mut self) {
        let keys: Vec<String> = self.lanes.keys().cloned().collect();
        keys.iter().for_each(|key| self.forget_sequences(key));
    }

    pub fn lane(&self, key: &str) -> Option<&Lane> {
        self.lanes.get(key)
    }

    pub fn lane_mut(&mut self, key: &str) -> &mut Lane {
        if !self.lanes.contains_key(key) {
            self.lanes.insert(key.to_owned(), Lane::default());
        }
        self.lanes.get_mut(key).expect("just made")
    }

    /// The place of an event by the rules in force; none while another ordering is on its way.
    pub fn place(&self, event: &Made) -> Option<Place> {
        (self.next_rules.is_none() && !self.catching_up).then(|| self.rules.ordering.place(event))
    }
}

impl Outside {
    pub fn at(now: u64) -> Outside {
        Outside { now, ..Outside::default() }
    }

    pub fn sub(&self, sub: SubNo) -> &Sub {
        &self.subs[sub as usize]
    }

    pub fn sub_mut(&mut self, sub: SubNo) -> &mut Sub {
        &mut self.subs[sub as usize]
    }

    pub fn made(&self, event: EventNo) -> &Made {
        &self.events[event as usize]
    }

    pub fn before(&self, token: u64, event: EventNo) -> &[Before] {
        self.pending.get(&(token, event)).map_or(&[], Vec::as_slice)
    }

    /// The dead letter at this position had a number when it left this lane: replayed, it goes before the queue.
    pub fn has_number_outside(&self, sub: SubNo, position: u64, key: &str) -> bool {
        let Some(event) = self.positions.get(&position) else { return false };
        let pair = self.sub(sub).pair(*event);
        let was_here = pair.number.is_some() && pair.lane.as_deref() == Some(key);
        was_here && pair.position == Some(position) && pair.state == State::Dead { held: false }
    }

    /// Takes an entry in.
    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Sent { token, event } => self.sent(*token, *event),
            Entry::Answered { token, event, answer } => self.answered(*token, *event, *answer),
            Entry::Started(request) => self.started(request),
            Entry::Ended { sub, event, ending, retry_after_ms, stalled, .. } => {
                self.ended(*sub, *event, *ending, *retry_after_ms, *stalled);
            }
            Entry::Unstalled { sub, event } => self.unstalled(*sub, *event),
            Entry::Decided(decision) => self.decided(decision),
            Entry::Flushed => self.flushed = self.op,
            Entry::Replied { token, event, taken } => self.replied(*token, *event, *taken),
            Entry::Stopping => self.stopping = true,
            Entry::Synced { up_to } => {
                self.durable = self.durable.max(*up_to);
                self.replies_kept(self.durable);
            }
            Entry::Crashed { power } => self.crashed(*power),
            Entry::Seen { sub, there } => self.sub_mut(*sub).there = *there,
            Entry::Switched { sub, reads } => self.switched(*sub, *reads),
            Entry::Dropped { sub, count } => {
                let sub = self.sub_mut(*sub);
                sub.dropped += count;
                // Retention may remove what is unread.
                sub.drops |= sub.may_lag;
            }
            Entry::Opened { now, .. } => {
                self.time_is(*now);
                self.replies_kept(u64::MAX);
                // What recovery finds is durable before anything new happens.
                (self.flushed, self.durable) = (self.op, self.op);
            }
            Entry::Calm => self.calm = true,
            _ => {}
        }
    }

    /// The engine's clock. An idle lane forgets its producer's sequence after a day.
    pub fn time_is(&mut self, now: u64) {
        const LONG_MS: u64 = 12 * 3_600_000;
        if now.saturating_sub(self.now) > LONG_MS {
            self.subs.iter_mut().for_each(Sub::forget_all_sequences);
        }
        self.now = now;
    }

    /// What was not written, or with the power not synced, may be gone.
    fn crashed(&mut self, power: bool) {
        let kept = if power { self.durable } else { self.flushed };
        // A power cut while it starts may still take what a kill has left.
        self.replies.retain(|(op, ..)| *op <= kept);
        let replies = &self.replies;
        self.pending
            .retain(|answered, _| replies.iter().any(|(_, token, event)| (*token, *event) == *answered));
        self.stopping = false;
        for sub in &mut self.subs {
            sub.open = 0;
            sub.rests_until = 0;
            sub.pairs.iter_mut().for_each(|pair| pair.crashed(kept));
            sub.lanes.values_mut().for_each(|lane| lane.crashed(kept));
            let pairs = &sub.pairs;
            let maybe = |event: EventNo| pairs[event as usize].state == State::DeadMaybe;
            sub.lanes
                .values_mut()
                .for_each(|lane| lane.parked_on = lane.parked_on.filter(|event| !maybe(*event)));
        }
    }

    fn switched(&mut self, sub: SubNo, reads: bool) {
        let sub = &mut self.subs[sub as usize];
        sub.catching_up = reads;
        match sub.next_rules.take() {
            Some(rules) => {
                sub.rules = rules;
                sub.new_epoch(&self.events);
            }
            None => sub.forget_all_sequences(),
        }
    }
}
