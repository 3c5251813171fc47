//! What an observer outside the process can know from the history alone: the state of every event and subscription,
//! and how certain it is. A crash makes everything uncertain that was not durable. Later observations make it certain
//! again.
//!
//! Checkers examine an entry with the knowledge from before it. Then the entry is added to the knowledge.

mod decisions;
pub mod edits;
pub mod endpoints;
mod pair;
mod requests;
mod sending;

pub use pair::{Lane, Pair, State, Taken};

use crate::event::{EventNo, ProducedEvent};
use crate::history::{Entry, SubNo};
use crate::rules::{Place, Rules};
use edits::Edited;
use endpoints::Endpoint;
use std::collections::{BTreeMap, VecDeque};
use std::sync::LazyLock;

#[derive(Default)]
pub struct Outside {
    pub events: Vec<ProducedEvent>,
    pub subs: Vec<Sub>,
    /// The number of operations so far that changed the engine.
    pub op: u64,
    pub flushed: u64,
    pub durable: u64,
    /// The clock of the engine. It never goes back within a life of the process.
    pub now: u64,
    pub calm: bool,
    /// For each event that was sent and not answered: what was known when it was sent.
    pending: BTreeMap<(u64, EventNo), Vec<Before>>,
    positions: BTreeMap<u64, EventNo>,
    /// Replies of receivers that the engine has but that are not durable yet: op, token, event.
    replies: VecDeque<(u64, u64, EventNo)>,
    /// A shutdown was requested.
    pub stopping: bool,
    pub endpoints: Vec<Endpoint>,
    pub edits: BTreeMap<(SubNo, EventNo), Edited>,
}

/// What was known about a subscription and an event when the event was sent.
#[derive(Clone, Copy, Debug)]
pub struct Before {
    pub sub: SubNo,
    pub taken: Taken,
    generation: u32,
    pub known_for_sure: bool,
    /// The event was delivered and its id window has expired.
    pub forgotten_for_sure: bool,
    pub may_be_long_past: bool,
}

/// One subscription from its creation to its deletion.
pub struct Sub {
    pub rules: Rules,
    /// The rules that take effect when the pending events are drained.
    pub next_rules: Option<Rules>,
    pub life: Life,
    pub pairs: Vec<Pair>,
    pub lanes: BTreeMap<String, Lane>,
    pub open: u32,
    /// Number of replies that match its filters.
    pub replies: u64,
    /// Number of requested replay jobs.
    pub replays: u32,
    /// The time of the last replay. It includes events that failed up to then.
    pub replayed_at: u64,
    pub limits: Limits,
    /// Number of changes of the rules.
    pub changes: u32,
    /// The highest earlier limit, as long as requests from that time are open.
    pub concurrency_before: u32,
    /// No replica is ready until this time.
    pub rests_until: u64,
}

pub struct Life {
    pub there: bool,
    /// The subscription accepts no new events and is removed when no event is pending.
    pub draining: bool,
    /// The subscription reads the log. What it reads and when is not visible from outside.
    pub catching_up: bool,
    /// The subscription has read the log at some time, so the arrival times of its events are unknown.
    pub read_history: bool,
    pub created_at: u64,
}

pub struct Limits {
    /// At some time it had limits that drop events.
    pub drops: bool,
    /// At some time it had limits at which it lags. The time when an event reaches its lane is not visible from
    /// outside.
    pub may_lag: bool,
    /// Number of events dropped by a limit, according to the metrics.
    pub dropped: u64,
    /// The number of ids is limited, so ids of delivered events may be forgotten at any time.
    pub ids_limited: bool,
}

impl Sub {
    pub fn new(rules: Rules, catching_up: bool) -> Sub {
        let (drops, may_lag) = (rules.drops(), rules.lags());
        Sub {
            rules,
            next_rules: None,
            life: Life {
                there: true,
                draining: false,
                catching_up,
                read_history: catching_up,
                created_at: 0,
            },
            pairs: Vec::new(),
            lanes: BTreeMap::new(),
            open: 0,
            replies: 0,
            replays: 0,
            replayed_at: 0,
            limits: Limits { drops, may_lag, dropped: 0, ids_limited: false },
            changes: 0,
            concurrency_before: 0,
            rests_until: 0,
        }
    }

    /// The subscription gets new rules, immediately or when the pending events are drained.
    pub fn given(&mut self, rules: Rules, drains: bool, events: &[ProducedEvent]) {
        self.changes += 1;
        self.limits.drops |= rules.drops();
        self.limits.may_lag |= rules.lags();
        self.window_is(rules.window_ms);
        self.concurrency_before = self.concurrency_before.max(self.rules.concurrency);
        self.life.read_history |= drains;
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

    /// A new id window applies to events that are delivered from now on.
    pub fn window_is(&mut self, window_ms: u64) {
        if window_ms != self.rules.window_ms {
            self.pairs.iter_mut().for_each(|pair| pair.acked_at = 0);
        }
    }

    /// New ordering rules take effect. A dead letter from before may belong to another lane and has no number in it.
    pub fn new_epoch(&mut self, events: &[ProducedEvent]) {
        self.forget_all_sequences();
        for (pair, made) in self.pairs.iter_mut().zip(events) {
            if pair.called.lane.is_some() && pair.called.lane != self.rules.ordering.key(made) {
                (pair.called.number, pair.called.lane) = (None, None);
            }
        }
    }

    pub fn pair(&self, event: EventNo) -> &Pair {
        static NEW: LazyLock<Pair> = LazyLock::new(Pair::default);
        self.pairs.get(event as usize).unwrap_or(&NEW)
    }

    pub fn pair_mut(&mut self, event: EventNo) -> &mut Pair {
        let at = event as usize;
        if self.pairs.len() <= at {
            self.pairs.resize_with(at + 1, Pair::default);
        }
        &mut self.pairs[at]
    }

    /// The lane has a new sequence. Events that wait for their turn may be late by it.
    pub fn forget_sequences(&mut self, key: &str) {
        let lane = self.lane_mut(key);
        lane.forget_sequences();
        let offered: Vec<EventNo> = lane.events.offered.iter().map(|(_, event)| *event).collect();
        for event in offered {
            let pair = self.pair_mut(event);
            pair.doubts.may_be_late = true;
            pair.doubts.by_old_sequence = true;
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
        self.lanes.get_mut(key).expect("the lane was just inserted")
    }

    /// The place of an event by the current rules; `None` while a change of the ordering is pending.
    pub fn place(&self, event: &ProducedEvent) -> Option<Place> {
        (self.next_rules.is_none() && !self.life.catching_up).then(|| self.rules.ordering.place(event))
    }
}

impl Outside {
    pub fn new(now: u64, endpoints: Vec<Endpoint>) -> Outside {
        Outside { now, endpoints, ..Outside::default() }
    }

    pub fn sub(&self, sub: SubNo) -> &Sub {
        &self.subs[sub as usize]
    }

    pub fn sub_mut(&mut self, sub: SubNo) -> &mut Sub {
        &mut self.subs[sub as usize]
    }

    pub fn made(&self, event: EventNo) -> &ProducedEvent {
        &self.events[event as usize]
    }

    pub fn before(&self, token: u64, event: EventNo) -> &[Before] {
        self.pending.get(&(token, event)).map_or(&[], Vec::as_slice)
    }

    /// True if the dead letter at this position had a number in this lane. Its replay precedes the queue.
    pub fn has_number_outside(&self, sub: SubNo, position: u64, key: &str) -> bool {
        let Some(event) = self.positions.get(&position) else { return false };
        let pair = self.sub(sub).pair(*event);
        let was_here = pair.called.number.is_some() && pair.called.lane.as_deref() == Some(key);
        was_here && pair.position == Some(position) && pair.state == State::Dead { held: false }
    }

    /// Adds an entry to the knowledge.
    pub fn take(&mut self, entry: &Entry) {
        match entry {
            Entry::Sent { token, event } => self.sent(*token, *event),
            Entry::Answered { token, event, answer } => self.answered(*token, *event, *answer),
            Entry::Started(request) => {
                self.started(request);
                self.edit_delivered(request.sub, request.event, request.content);
            }
            Entry::Ended { sub, event, ending, retry_after_ms, stalled, .. } => {
                self.ended(*sub, *event, *ending, *retry_after_ms, *stalled);
                self.edit_ended(*sub, *event, *ending);
            }
            Entry::Webhook { endpoint, what } => self.webhook(*endpoint, what),
            Entry::Edited { sub, event, version, sure } => self.edited(*sub, *event, *version, *sure),
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
            Entry::Seen { sub, there } => self.sub_mut(*sub).life.there = *there,
            Entry::Switched { sub, reads } => self.switched(*sub, *reads),
            Entry::Dropped { sub, count } => {
                let sub = self.sub_mut(*sub);
                sub.limits.dropped += count;
                // Retention may remove unread events.
                sub.limits.drops |= sub.limits.may_lag;
            }
            Entry::Opened { now, .. } => {
                self.time_is(*now);
                self.replies_kept(u64::MAX);
                // Recovery makes everything that it finds durable before anything new happens.
                (self.flushed, self.durable) = (self.op, self.op);
            }
            Entry::Calm => self.calm = true,
            _ => {}
        }
    }

    /// The clock of the engine advances. An idle lane forgets its producer's sequence after a day.
    pub fn time_is(&mut self, now: u64) {
        const LONG_MS: u64 = 12 * 3_600_000;
        if now.saturating_sub(self.now) > LONG_MS {
            self.subs.iter_mut().for_each(Sub::forget_all_sequences);
        }
        self.now = now;
    }

    /// After a kill, unwritten data may be lost. After a power cut, unsynced data may be lost.
    fn crashed(&mut self, power: bool) {
        let kept = if power { self.durable } else { self.flushed };
        // A power cut during the restart may still lose data that survived a kill.
        self.replies.retain(|(op, ..)| *op <= kept);
        let replies = &self.replies;
        self.pending
            .retain(|answered, _| replies.iter().any(|(_, token, event)| (*token, *event) == *answered));
        self.stopping = false;
        self.endpoints_crashed(kept);
        self.edits_crashed(kept);
        for sub in &mut self.subs {
            sub.open = 0;
            sub.rests_until = 0;
            sub.pairs.iter_mut().for_each(|pair| pair.crashed(kept));
            sub.lanes.values_mut().for_each(|lane| lane.crashed(kept));
            let pairs = &sub.pairs;
            let maybe = |event: EventNo| pairs[event as usize].state == State::DeadMaybe;
            sub.lanes
                .values_mut()
                .for_each(|lane| lane.parked.on = lane.parked.on.filter(|event| !maybe(*event)));
        }
    }

    fn switched(&mut self, sub: SubNo, reads: bool) {
        let sub = &mut self.subs[sub as usize];
        sub.life.catching_up = reads;
        match sub.next_rules.take() {
            Some(rules) => {
                sub.rules = rules;
                sub.new_epoch(&self.events);
            }
            None => sub.forget_all_sequences(),
        }
    }
}
