//! A reference model of a lane in the simplest form: plain lists, and the complete history of passed sequences. It
//! has no windows, no chunks on disk, and no counters that replace lists. It implements the specification
//! independently of the machine.

use klambda_core::ids::{LaneNumber, Locator, Position, Sequence};
use klambda_core::lane::{Action, Count, Entry, Flag, Hold, Input, Policy, Refused, State, Turn, Why};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// The maximum number of remembered ranges. Beyond it, the lowest are forgotten (rule 12).
const RANGES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub struct Model {
    pub policy: Policy,
    next_number: u64,
    /// Queued events, in delivery order.
    line: Vec<Entry>,
    /// Replayed dead letters, which keep their old numbers.
    aside: Vec<Entry>,
    early: Vec<(u64, Entry)>,
    producer: Producer,
    gap_until: Option<Millis>,
    gap_parked: bool,
    held: bool,
    paused: bool,
    delivery: Delivery,
    flag_next: bool,
    pub since: Millis,
    active_at: Millis,
}

#[derive(Clone, Debug, Default)]
struct Producer {
    expected: Option<u64>,
    opening: bool,
    /// The time and the new value of each change of `expected`.
    passed: Vec<(Millis, u64)>,
    /// All sequences that were given up and have not arrived since.
    given_up: BTreeSet<u64>,
    /// The highest forgotten sequence.
    forgotten: Option<u64>,
}

#[derive(Clone, Debug, Default)]
struct Delivery {
    in_flight: bool,
    /// The event that has its turn.
    turn: Option<(Turn, Position)>,
    /// For each pending event: attempts since it last got fresh attempts, and total attempts.
    attempts: BTreeMap<Position, (u32, u32)>,
    retry_at: Option<Millis>,
}

/// The observable state of a lane.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct View {
    pub state: State,
    pub since: Millis,
    pub head: Option<(Turn, Entry)>,
    pub ready: bool,
    pub depth: u64,
    pub buffered: u64,
    pub expected: Option<Sequence>,
    pub next_number: LaneNumber,
    pub hold: Option<Hold>,
    pub paused: bool,
    pub attempts: u32,
    pub attempts_total: u32,
    pub retry_at: Option<Millis>,
    pub gap_timer: Option<Millis>,
    pub missing: Option<(Sequence, Sequence)>,
    /// The first and last sequence of each range that was given up.
    pub gaps: Vec<(u64, u64)>,
    pub forgotten: Option<u64>,
    pub droppable: u64,
    /// All pending events, by position.
    pub waiting: Vec<Entry>,
}

impl Model {
    pub fn new(policy: Policy, now: Millis) -> Model {
        Model {
            policy,
            next_number: 1,
            line: Vec::new(),
            aside: Vec::new(),
            early: Vec::new(),
            producer: Producer::default(),
            gap_until: None,
            gap_parked: false,
            held: false,
            paused: false,
            delivery: Delivery::default(),
            flag_next: false,
            since: now,
            active_at: now,
        }
    }

    pub fn step(&mut self, input: &Input, now: Millis) -> Result<Vec<Action>, Refused> {
        let state = self.state();
        let mut actions = Vec::new();
        match *input {
            Input::Arrived { entry, sequence: None, .. } => self.place(entry),
            Input::Arrived { entry, sequence: Some(sequence), .. } => {
                self.arrived(entry, sequence.0, now, &mut actions);
            }
            Input::Delivered => {
                let entry = self.leave();
                actions.push(Action::Delivered(entry));
            }
            Input::Failed { fatal, retry_at } => self.failed(fatal, retry_at, &mut actions),
            Input::GapExpired => {
                self.gap_is_over(now, &mut actions);
                self.keep_to_limit(now, &mut actions);
            }
            Input::Resume => self.resume(&mut actions),
            Input::Skip => self.skip(now, &mut actions)?,
            Input::Discard if !self.held => return Err(Refused::NotParked),
            Input::Discard => self.discard(&mut actions),
            Input::Acknowledge => self.acknowledge(&mut actions)?,
            Input::Purge => self.purge(now, &mut actions),
            Input::Pause => self.paused = true,
            Input::Reset { expected } => self.reset(expected.0, now, &mut actions)?,
            Input::Replay if !self.held => return Err(Refused::NotParked),
            Input::Replay => self.unhold(&mut actions),
            Input::Requeue { entry } => self.requeue(entry),
            Input::DropOldest => self.drop_oldest(&mut actions),
        }
        self.active_at = now;
        self.watch_gap(now);
        if self.state() != state {
            self.since = now;
        }
        Ok(actions)
    }

    pub fn started(&mut self, now: Millis) {
        let (turn, entry) = self.head().expect("a lane that starts a delivery has a head");
        self.delivery.turn = Some((turn, entry.position));
        self.delivery.in_flight = true;
        self.since = now;
    }

    /// The process dies, or the call is abandoned. An attempt without an outcome does not count.
    pub fn crashed(&mut self, now: Millis) {
        self.delivery.in_flight = false;
        self.delivery.turn = self.delivery.turn.filter(|(_, position)| self.attempts_of(*position).0 > 0);
        self.since = now;
    }

    pub fn view(&self, now: Millis) -> View {
        let mut waiting: Vec<Entry> = self.aside.iter().chain(&self.line).copied().collect();
        waiting.extend(self.early.iter().map(|(_, entry)| *entry));
        waiting.sort_by_key(|entry| entry.position);
        let unavailable = u64::from(self.delivery.in_flight) + u64::from(self.held);
        View {
            state: self.state(),
            since: self.since,
            head: self.head(),
            ready: self.is_ready(now),
            depth: waiting.len() as u64,
            buffered: self.early.len() as u64,
            expected: self.producer.expected.map(Sequence),
            next_number: LaneNumber(self.next_number),
            hold: if self.held { Some(Hold::Failed) } else { self.gap_parked.then_some(Hold::Gap) },
            paused: self.paused,
            attempts: self.delivery.turn.map_or(0, |(_, position)| self.attempts_of(position).0),
            attempts_total: self.attempts_total(),
            retry_at: self.delivery.retry_at,
            gap_timer: self.gap_until.filter(|_| !self.gap_parked),
            missing: self.missing().map(|(from, to)| (Sequence(from), Sequence(to))),
            gaps: self.ranges(),
            forgotten: self.producer.forgotten,
            droppable: waiting.len() as u64 - unavailable,
            waiting,
        }
    }

    fn state(&self) -> State {
        match () {
            () if self.delivery.in_flight => State::Running,
            () if self.paused => State::Paused,
            () if self.delivery.retry_at.is_some() => State::Retrying,
            () if self.held || self.gap_parked => State::Parked,
            () if self.gap_until.is_some() && self.head().is_none() => State::Gap,
            () => State::Open,
        }
    }

    /// The next event to deliver: the one that has its turn, else a replayed one, else the head of the line unless it
    /// is a dead letter.
    pub fn head(&self) -> Option<(Turn, Entry)> {
        let next_aside = self.aside.first().map(|entry| (Turn::Aside, *entry));
        let next_in_line = self.line.first().map(|entry| (Turn::Queue, *entry));
        match self.delivery.turn {
            Some((Turn::Aside, _)) => next_aside,
            Some((Turn::Queue, _)) => next_in_line,
            None => next_aside.or(next_in_line.filter(|_| !self.held)),
        }
    }

    fn is_ready(&self, now: Millis) -> bool {
        let backing_off = self.delivery.retry_at.is_some_and(|at| now < at);
        !self.delivery.in_flight && !self.paused && !backing_off && self.head().is_some()
    }

    fn attempts_of(&self, position: Position) -> (u32, u32) {
        self.delivery.attempts.get(&position).copied().unwrap_or_default()
    }

    fn attempts_total(&self) -> u32 {
        let whose = self
            .delivery
            .turn
            .map(|(_, position)| position)
            .or(self.line.first().map(|entry| entry.position));
        whose.map_or(0, |position| self.attempts_of(position).1)
    }

    fn missing(&self) -> Option<(u64, u64)> {
        Some((self.producer.expected?, self.lowest()?.saturating_sub(1)))
    }

    fn lowest(&self) -> Option<u64> {
        self.early.iter().map(|(sequence, _)| *sequence).min()
    }

    // ---- arriving -----------------------------------------------------------------------------------------

    fn arrived(&mut self, entry: Entry, sequence: u64, now: Millis, actions: &mut Vec<Action>) {
        self.forget_after_ttl(now);
        if self.producer.expected.is_none() {
            match self.policy.start {
                Start::At(first) => self.open_at(first, now),
                Start::First => self.open_at(sequence, now),
                Start::Auto if sequence <= 1 => self.open_at(sequence, now),
                Start::Auto => self.producer.opening = true,
            }
        }
        let buffered_already = self.early.iter().any(|(other, _)| *other == sequence);
        match self.producer.expected {
            Some(expected) if sequence == expected => {
                self.place(entry);
                self.pass_to(sequence + 1, now);
                self.close_gap();
                self.drain(now);
                self.keep_to_limit(now, actions);
            }
            Some(expected) if sequence < expected => {
                self.producer.given_up.remove(&sequence);
                self.forget_lowest();
                self.late(entry, sequence, actions);
            }
            _ if buffered_already => self.late(entry, sequence, actions),
            _ => self.buffer(entry, sequence, now, actions),
        }
    }

    /// True if the lane must accept the sequence: not passed, in a recorded gap, or passed less than one window ago.
    pub fn must_take(&self, sequence: u64, now: Millis) -> bool {
        self.passed_for(sequence, now).is_none_or(|age| age < self.policy.window_ms)
    }

    /// True if the lane must skip the sequence: passed at least two windows ago. In between, the machine may do
    /// either.
    pub fn must_know(&self, sequence: u64, now: Millis) -> bool {
        self.passed_for(sequence, now).is_some_and(|age| age / 2 >= self.policy.window_ms)
    }

    /// How long ago the lane passed this sequence. `None` if it did not, or does not remember.
    fn passed_for(&self, sequence: u64, now: Millis) -> Option<u64> {
        let in_gap = self.producer.given_up.contains(&sequence) || Some(sequence) <= self.producer.forgotten;
        if in_gap || self.forgets(now) || self.producer.expected.is_none_or(|expected| sequence >= expected) {
            return None;
        }
        let (at, _) = self
            .producer
            .passed
            .iter()
            .find(|(_, expected)| *expected > sequence)
            .expect("the sequence was passed");
        Some(now.since(*at))
    }

    fn forgets(&self, now: Millis) -> bool {
        let ttl = self.policy.sequence_ttl_ms;
        let idle = self.line.is_empty() && self.aside.is_empty() && self.early.is_empty();
        ttl > 0 && idle && now.since(self.active_at) >= ttl
    }

    fn forget_after_ttl(&mut self, now: Millis) {
        if self.forgets(now) {
            self.producer.expected = None;
            self.forget_gaps();
            self.producer.passed.clear();
        }
    }

    fn open_at(&mut self, first: u64, now: Millis) {
        self.producer.opening = false;
        self.gap_until = None;
        self.pass_to(first, now);
    }

    fn pass_to(&mut self, expected: u64, now: Millis) {
        self.producer.expected = Some(expected);
        self.producer.passed.push((now, expected));
    }

    fn late(&mut self, mut entry: Entry, sequence: u64, actions: &mut Vec<Action>) {
        self.count(Count::Late, &entry, sequence, actions);
        entry.flag = Flag::Late;
        if self.policy.strict {
            actions.push(Action::DeadLetter { entry, why: Why::Late });
        } else {
            self.place(entry);
        }
    }

    fn place(&mut self, mut entry: Entry) {
        entry.number = LaneNumber(self.next_number);
        self.next_number += 1;
        if entry.flag != Flag::Late && std::mem::take(&mut self.flag_next) {
            entry.flag = Flag::Gap;
        }
        self.line.push(entry);
    }

    fn buffer(&mut self, entry: Entry, sequence: u64, now: Millis, actions: &mut Vec<Action>) {
        if self.producer.expected.is_some() {
            self.count(Count::Early, &entry, sequence, actions);
        }
        self.early.push((sequence, entry));
        self.keep_to_limit(now, actions);
    }

    /// Gives up a gap that exceeds the limit, and all further gaps that do.
    fn keep_to_limit(&mut self, now: Millis, actions: &mut Vec<Action>) {
        while self.is_buffer_full() && !self.gap_parked {
            self.gap_is_over(now, actions);
        }
    }

    fn count(&self, what: Count, entry: &Entry, sequence: u64, actions: &mut Vec<Action>) {
        let (at, expected) = (entry.at, self.producer.expected.map(Sequence));
        actions.push(Action::Count { what, at, sequence: Sequence(sequence), expected });
    }

    fn first_early(&self) -> Option<(u64, Entry)> {
        self.early.iter().copied().min_by_key(|(sequence, _)| *sequence)
    }

    fn is_buffer_full(&self) -> bool {
        let bytes: u64 = self.early.iter().map(|(_, entry)| u64::from(entry.bytes)).sum();
        self.early.len() as u64 >= self.policy.buffer_events_max || bytes >= self.policy.buffer_bytes_max
    }

    fn drain(&mut self, now: Millis) {
        while let Some(next) =
            self.early.iter().position(|(sequence, _)| Some(*sequence) == self.producer.expected)
        {
            let (sequence, entry) = self.early.remove(next);
            self.place(entry);
            self.pass_to(sequence + 1, now);
        }
    }

    // ---- gaps ---------------------------------------------------------------------------------------------

    fn close_gap(&mut self) {
        self.gap_until = None;
        self.gap_parked = false;
    }

    /// Starts the timer once per gap, when no deliverable event is left before the gap.
    fn watch_gap(&mut self, now: Millis) {
        if self.early.is_empty() {
            self.close_gap();
        } else if self.gap_until.is_none() && self.line.is_empty() && self.aside.is_empty() {
            self.gap_until = Some(now + self.policy.gap_timeout_ms);
        }
    }

    fn gap_is_over(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(lowest) = self.lowest() else { return };
        if self.producer.opening {
            self.open_at(lowest, now);
            return self.drain(now);
        }
        if self.gap_parked {
            return;
        }
        self.count_gap(actions);
        match self.policy.gap_action {
            GapAction::Park => self.gap_parked = true,
            GapAction::Skip => self.tombstone(now, actions),
        }
    }

    fn tombstone(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let (from, to) = self.missing().expect("a gap has at least one missing sequence");
        let next = self.first_early().map(|(_, entry)| entry.at);
        self.record_gap(from, to, next, actions);
        self.pass_to(to + 1, now);
        self.close_gap();
        self.flag_next = true;
        self.drain(now);
    }

    fn count_gap(&self, actions: &mut Vec<Action>) {
        if let Some((sequence, entry)) = self.first_early() {
            self.count(Count::Gap, &entry, sequence, actions);
        }
    }

    fn record_gap(&mut self, from: u64, to: u64, next: Option<Locator>, actions: &mut Vec<Action>) {
        self.producer.given_up.extend(from..=to);
        self.forget_lowest();
        actions.push(Action::GapRecorded { from: Sequence(from), to: Sequence(to), next });
    }

    /// Adjacent sequences form one range.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for sequence in &self.producer.given_up {
            match ranges.last_mut() {
                Some((_, to)) if *to + 1 == *sequence => *to = *sequence,
                _ => ranges.push((*sequence, *sequence)),
            }
        }
        ranges
    }

    fn forget_lowest(&mut self) {
        let ranges = self.ranges();
        for (_, to) in &ranges[..ranges.len().saturating_sub(RANGES_MAX)] {
            self.producer.forgotten = self.producer.forgotten.max(Some(*to));
            self.producer.given_up.retain(|sequence| sequence > to);
        }
    }

    fn forget_gaps(&mut self) {
        self.producer.given_up.clear();
        self.producer.forgotten = None;
    }

    // ---- leaving ------------------------------------------------------------------------------------------

    /// Removes the event whose turn it is.
    fn leave(&mut self) -> Entry {
        let (turn, entry) = self.head().expect("an outcome belongs to an event");
        match turn {
            Turn::Aside => self.aside.remove(0),
            Turn::Queue => self.line.remove(0),
        };
        self.delivery.in_flight = false;
        self.gone(entry.position);
        entry
    }

    fn gone(&mut self, position: Position) {
        self.delivery.attempts.remove(&position);
        if self.delivery.turn.is_some_and(|(_, whose)| whose == position) {
            self.delivery.turn = None;
            self.delivery.retry_at = None;
        }
    }

    fn failed(&mut self, fatal: bool, retry_at: Millis, actions: &mut Vec<Action>) {
        let (turn, entry) = self.head().expect("an outcome belongs to an event");
        self.delivery.in_flight = false;
        self.delivery.turn = Some((turn, entry.position));
        let attempts = self.delivery.attempts.entry(entry.position).or_default();
        *attempts = (attempts.0 + 1, attempts.1 + 1);
        let last = self.policy.attempts_max.is_some_and(|max| attempts.0 >= max);
        if !fatal && !last {
            self.delivery.retry_at = Some(retry_at);
        } else if turn == Turn::Queue && self.policy.on_failure == OnFailure::Park {
            attempts.0 = 0;
            self.delivery.turn = None;
            self.delivery.retry_at = None;
            self.held = true;
            actions.push(Action::Hold(entry));
        } else {
            self.give_up(actions);
        }
    }

    /// The event whose turn it is becomes a dead letter outside the lane. If it was in the line, the next event is
    /// flagged.
    fn give_up(&mut self, actions: &mut Vec<Action>) {
        let (turn, _) = self.head().expect("an event has its turn");
        let entry = self.leave();
        actions.push(Action::DeadLetter { entry, why: Why::Failed });
        if turn == Turn::Queue {
            self.flag(0);
        }
    }

    /// Flags the first event from this place on that is not late.
    fn flag(&mut self, place: usize) {
        match self.line.iter_mut().skip(place).find(|next| next.flag != Flag::Late) {
            Some(next) => next.flag = Flag::Gap,
            None => self.flag_next = true,
        }
    }

    // ---- operators ----------------------------------------------------------------------------------------

    fn unhold(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.held) {
            actions.push(Action::Unhold(self.line[0]));
        }
    }

    fn resume(&mut self, actions: &mut Vec<Action>) {
        self.paused = false;
        self.close_gap();
        self.unhold(actions);
        if let Some((_, position)) = self.delivery.turn
            && let Some(attempts) = self.delivery.attempts.get_mut(&position)
        {
            attempts.0 = 0;
        }
        self.delivery.retry_at = None;
        if !self.delivery.in_flight {
            self.delivery.turn = None;
        }
    }

    fn skip(&mut self, now: Millis, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if self.delivery.in_flight {
            return Err(Refused::Running);
        }
        if self.delivery.turn.is_some() {
            self.give_up(actions);
        } else if self.held {
            self.unhold(actions);
            let entry = self.line.remove(0);
            self.gone(entry.position);
            actions.push(Action::DeadLetter { entry, why: Why::Failed });
            self.flag(0);
        } else if self.gap_until.is_none() && !self.gap_parked {
            return Err(Refused::NothingToSkip);
        } else if self.producer.opening {
            let lowest = self.lowest().expect("a lane that is opening has an early event");
            self.open_at(lowest, now);
            self.drain(now);
            self.keep_to_limit(now, actions);
        } else {
            // A parked gap was already counted.
            if !self.gap_parked {
                self.count_gap(actions);
            }
            self.tombstone(now, actions);
            self.keep_to_limit(now, actions);
        }
        Ok(())
    }

    fn purge(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let all: Vec<Entry> = self.view(now).waiting;
        if all.len() as u64 == u64::from(self.delivery.in_flight) {
            return;
        }
        self.unhold(actions);
        let kept = self.delivery.turn.filter(|_| self.delivery.in_flight).map(|(_, position)| position);
        for entry in all.into_iter().filter(|entry| Some(entry.position) != kept) {
            self.gone(entry.position);
            actions.push(Action::Dropped(entry));
        }
        if let (Some(expected), Some(highest)) =
            (self.producer.expected, self.early.iter().map(|early| early.0).max())
        {
            self.record_gap(expected, highest, None, actions);
            self.pass_to(highest + 1, now);
        }
        self.line.retain(|entry| Some(entry.position) == kept);
        self.aside.retain(|entry| Some(entry.position) == kept);
        self.early.clear();
        self.producer.opening = false;
        self.close_gap();
        self.flag_next = true;
    }

    fn reset(&mut self, expected: u64, now: Millis, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.policy.sequenced {
            return Err(Refused::NotSequenced);
        }
        self.producer.opening = false;
        self.close_gap();
        self.forget_gaps();
        self.producer.passed.clear();
        self.pass_to(expected, now);
        let mut passed: Vec<(u64, Entry)> =
            self.early.iter().copied().filter(|(n, _)| *n < expected).collect();
        passed.sort_by_key(|(sequence, _)| *sequence);
        self.early.retain(|(sequence, _)| *sequence >= expected);
        passed.into_iter().for_each(|(sequence, entry)| self.late(entry, sequence, actions));
        self.drain(now);
        self.keep_to_limit(now, actions);
        Ok(())
    }

    /// Removes only the dead letter that parks the lane.
    fn discard(&mut self, actions: &mut Vec<Action>) {
        self.unhold(actions);
        let entry = self.line.remove(0);
        self.gone(entry.position);
        actions.push(Action::Dropped(entry));
        self.flag(0);
    }

    fn acknowledge(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        let first = self.line.first().ok_or(Refused::NothingPending)?.position;
        if self.delivery.in_flight && self.delivery.turn == Some((Turn::Queue, first)) {
            return Err(Refused::Running);
        }
        self.unhold(actions);
        let entry = self.line.remove(0);
        self.gone(entry.position);
        actions.push(Action::Delivered(entry));
        Ok(())
    }

    fn requeue(&mut self, mut entry: Entry) {
        entry.flag = Flag::Late;
        if entry.number == LaneNumber(0) {
            return self.place(entry);
        }
        // After all lower numbers, but never before an event that was already attempted.
        let mut place = self.aside.len();
        while place > 0
            && self.aside[place - 1].number > entry.number
            && !(place == 1 && self.is_first_aside_begun())
        {
            place -= 1;
        }
        self.aside.insert(place, entry);
    }

    fn is_first_aside_begun(&self) -> bool {
        let tried = self.aside.first().is_some_and(|first| self.attempts_of(first.position).1 > 0);
        tried || self.delivery.turn.is_some_and(|(turn, _)| turn == Turn::Aside)
    }

    fn drop_oldest(&mut self, actions: &mut Vec<Action>) {
        let running = self.delivery.turn.filter(|_| self.delivery.in_flight).map(|(_, position)| position);
        let held = self.line.first().filter(|_| self.held).map(|entry| entry.position);
        let free = |entry: &Entry| Some(entry.position) != running && Some(entry.position) != held;
        let lowest = self.lowest();
        if let Some(place) = self.aside.iter().position(free) {
            let entry = self.aside.remove(place);
            self.gone(entry.position);
            actions.push(Action::Dropped(entry));
        } else if let Some(place) = self.line.iter().position(free) {
            let entry = self.line.remove(place);
            self.gone(entry.position);
            actions.push(Action::Dropped(entry));
            self.flag(place);
        } else if let Some(place) = self.early.iter().position(|(sequence, _)| Some(*sequence) == lowest) {
            let (_, entry) = self.early.remove(place);
            actions.push(Action::Dropped(entry));
        }
    }
}
