//! What a lane is, in the plainest words: lists, and the whole history of what was passed and when. No windows, no
//! chunks on disk, no counters that stand for lists. Written from the semantics page, not from the machine.

use klambda_core::ids::{Address, LaneNumber, Position, Sequence};
use klambda_core::lane::{Action, Count, Entry, Flag, Hold, Input, Policy, Refused, State, Turn, Why};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;
use std::collections::{BTreeMap, BTreeSet};

/// Ranges of missing sequences beyond these are forgotten, the lowest first (line 12).
const RANGES_MAX: usize = 1024;

#[derive(Clone, Debug)]
pub struct Model {
    pub policy: Policy,
    next_number: u64,
    /// Events with a place, in the order of their turns.
    line: Vec<Entry>,
    /// Replayed dead letters that keep their old numbers.
    aside: Vec<Entry>,
    early: Vec<(u64, Entry)>,
    expected: Option<u64>,
    opening: bool,
    /// Each time `expected` moved: when, and to what.
    passed: Vec<(Millis, u64)>,
    /// Every sequence that was given up and has not come since, one by one.
    given_up: BTreeSet<u64>,
    /// The highest of those that were forgotten.
    forgotten: Option<u64>,
    gap_until: Option<Millis>,
    gap_parked: bool,
    held: bool,
    paused: bool,
    in_flight: bool,
    /// The event that began its turn.
    turn: Option<(Turn, Position)>,
    /// Of each waiting event: attempts since it was last given fresh ones, and in all.
    attempts: BTreeMap<Position, (u32, u32)>,
    retry_at: Option<Millis>,
    flag_next: bool,
    pub since: Millis,
    active_at: Millis,
}

/// What a person or a caller can see of a lane.
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
    /// First and last of each range that was given up.
    pub gaps: Vec<(u64, u64)>,
    pub forgotten: Option<u64>,
    pub droppable: u64,
    /// All that waits, by position.
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
            expected: None,
            opening: false,
            passed: Vec::new(),
            given_up: BTreeSet::new(),
            forgotten: None,
            gap_until: None,
            gap_parked: false,
            held: false,
            paused: false,
            in_flight: false,
            turn: None,
            attempts: BTreeMap::new(),
            retry_at: None,
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
        let (turn, entry) = self.head().expect("a delivery starts with a head");
        self.turn = Some((turn, entry.position));
        self.in_flight = true;
        self.since = now;
    }

    /// The process dies, or the call is given up: an attempt without an outcome was not made.
    pub fn crashed(&mut self, now: Millis) {
        self.in_flight = false;
        self.turn = self.turn.filter(|(_, position)| self.attempts_of(*position).0 > 0);
        self.since = now;
    }

    pub fn view(&self, now: Millis) -> View {
        let mut waiting: Vec<Entry> = self.aside.iter().chain(&self.line).copied().collect();
        waiting.extend(self.early.iter().map(|(_, entry)| *entry));
        waiting.sort_by_key(|entry| entry.position);
        let unavailable = u64::from(self.in_flight) + u64::from(self.held);
        View {
            state: self.state(),
            since: self.since,
            head: self.head(),
            ready: self.is_ready(now),
            depth: waiting.len() as u64,
            buffered: self.early.len() as u64,
            expected: self.expected.map(Sequence),
            next_number: LaneNumber(self.next_number),
            hold: if self.held { Some(Hold::Failed) } else { self.gap_parked.then_some(Hold::Gap) },
            paused: self.paused,
            attempts: self.turn.map_or(0, |(_, position)| self.attempts_of(position).0),
            attempts_total: self.attempts_total(),
            retry_at: self.retry_at,
            gap_timer: self.gap_until.filter(|_| !self.gap_parked),
            missing: self.missing().map(|(from, to)| (Sequence(from), Sequence(to))),
            gaps: self.ranges(),
            forgotten: self.forgotten,
            droppable: waiting.len() as u64 - unavailable,
            waiting,
        }
    }

    fn state(&self) -> State {
        match () {
            () if self.in_flight => State::Running,
            () if self.paused => State::Paused,
            () if self.retry_at.is_some() => State::Retrying,
            () if self.held || self.gap_parked => State::Parked,
            () if self.gap_until.is_some() && self.head().is_none() => State::Gap,
            () => State::Open,
        }
    }

    /// Who is delivered next: whoever began, else a replay, else the line unless its head is a dead letter.
    pub fn head(&self) -> Option<(Turn, Entry)> {
        let next_aside = self.aside.first().map(|entry| (Turn::Aside, *entry));
        let next_in_line = self.line.first().map(|entry| (Turn::Queue, *entry));
        match self.turn {
            Some((Turn::Aside, _)) => next_aside,
            Some((Turn::Queue, _)) => next_in_line,
            None => next_aside.or(next_in_line.filter(|_| !self.held)),
        }
    }

    fn is_ready(&self, now: Millis) -> bool {
        let backing_off = self.retry_at.is_some_and(|at| now < at);
        !self.in_flight && !self.paused && !backing_off && self.head().is_some()
    }

    fn attempts_of(&self, position: Position) -> (u32, u32) {
        self.attempts.get(&position).copied().unwrap_or_default()
    }

    fn attempts_total(&self) -> u32 {
        let whose = self.turn.map(|(_, position)| position).or(self.line.first().map(|entry| entry.position));
        whose.map_or(0, |position| self.attempts_of(position).1)
    }

    fn missing(&self) -> Option<(u64, u64)> {
        Some((self.expected?, self.lowest()?.saturating_sub(1)))
    }

    fn lowest(&self) -> Option<u64> {
        self.early.iter().map(|(sequence, _)| *sequence).min()
    }

    // ---- arriving -----------------------------------------------------------------------------------------

    fn arrived(&mut self, entry: Entry, sequence: u64, now: Millis, actions: &mut Vec<Action>) {
        self.forget_after_ttl(now);
        if self.expected.is_none() {
            match self.policy.start {
                Start::At(first) => self.open_at(first, now),
                Start::First => self.open_at(sequence, now),
                Start::Auto if sequence <= 1 => self.open_at(sequence, now),
                Start::Auto => self.opening = true,
            }
        }
        let buffered_already = self.early.iter().any(|(other, _)| *other == sequence);
        match self.expected {
            Some(expected) if sequence == expected => {
                self.place(entry);
                self.pass_to(sequence + 1, now);
                self.close_gap();
                self.drain(now);
                self.keep_to_limit(now, actions);
            }
            Some(expected) if sequence < expected => {
                self.given_up.remove(&sequence);
                self.forget_lowest();
                self.late(entry, sequence, actions);
            }
            _ if buffered_already => self.late(entry, sequence, actions),
            _ => self.buffer(entry, sequence, now, actions),
        }
    }

    /// Not passed, in a recorded gap, or passed less than one window ago: it must be taken.
    pub fn must_take(&self, sequence: u64, now: Millis) -> bool {
        self.passed_for(sequence, now).is_none_or(|age| age < self.policy.window_ms)
    }

    /// Passed two windows ago or more: it must be turned away. Between the two the machine may choose.
    pub fn must_know(&self, sequence: u64, now: Millis) -> bool {
        self.passed_for(sequence, now).is_some_and(|age| age / 2 >= self.policy.window_ms)
    }

    /// For how long the lane has been past this sequence, if it is and remembers it.
    fn passed_for(&self, sequence: u64, now: Millis) -> Option<u64> {
        let in_gap = self.given_up.contains(&sequence) || Some(sequence) <= self.forgotten;
        if in_gap || self.forgets(now) || self.expected.is_none_or(|expected| sequence >= expected) {
            return None;
        }
        let (at, _) = self.passed.iter().find(|(_, expected)| *expected > sequence).expect("it was passed");
        Some(now.since(*at))
    }

    fn forgets(&self, now: Millis) -> bool {
        let ttl = self.policy.sequence_ttl_ms;
        let idle = self.line.is_empty() && self.aside.is_empty() && self.early.is_empty();
        ttl > 0 && idle && now.since(self.active_at) >= ttl
    }

    fn forget_after_ttl(&mut self, now: Millis) {
        if self.forgets(now) {
            self.expected = None;
            self.forget_gaps();
            self.passed.clear();
        }
    }

    fn open_at(&mut self, first: u64, now: Millis) {
        self.opening = false;
        self.gap_until = None;
        self.pass_to(first, now);
    }

    fn pass_to(&mut self, expected: u64, now: Millis) {
        self.expected = Some(expected);
        self.passed.push((now, expected));
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
        if self.expected.is_some() {
            self.count(Count::Early, &entry, sequence, actions);
        }
        self.early.push((sequence, entry));
        self.keep_to_limit(now, actions);
    }

    /// A gap that is over the limit is not waited for, be it the one at hand or the next.
    fn keep_to_limit(&mut self, now: Millis, actions: &mut Vec<Action>) {
        while self.is_buffer_full() && !self.gap_parked {
            self.gap_is_over(now, actions);
        }
    }

    fn count(&self, what: Count, entry: &Entry, sequence: u64, actions: &mut Vec<Action>) {
        let (at, expected) = (entry.at, self.expected.map(Sequence));
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
        while let Some(next) = self.early.iter().position(|(sequence, _)| Some(*sequence) == self.expected) {
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

    /// From the moment nothing deliverable is left before the gap, once per gap.
    fn watch_gap(&mut self, now: Millis) {
        if self.early.is_empty() {
            self.close_gap();
        } else if self.gap_until.is_none() && self.line.is_empty() && self.aside.is_empty() {
            self.gap_until = Some(now + self.policy.gap_timeout_ms);
        }
    }

    fn gap_is_over(&mut self, now: Millis, actions: &mut Vec<Action>) {
        let Some(lowest) = self.lowest() else { return };
        if self.opening {
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
        let (from, to) = self.missing().expect("a gap has missing sequences");
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

    fn record_gap(&mut self, from: u64, to: u64, next: Option<Address>, actions: &mut Vec<Action>) {
        self.given_up.extend(from..=to);
        self.forget_lowest();
        actions.push(Action::GapRecorded { from: Sequence(from), to: Sequence(to), next });
    }

    /// Neighbours are one range.
    fn ranges(&self) -> Vec<(u64, u64)> {
        let mut ranges: Vec<(u64, u64)> = Vec::new();
        for sequence in &self.given_up {
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
            self.forgotten = self.forgotten.max(Some(*to));
            self.given_up.retain(|sequence| sequence > to);
        }
    }

    fn forget_gaps(&mut self) {
        self.given_up.clear();
        self.forgotten = None;
    }

    // ---- leaving ------------------------------------------------------------------------------------------

    /// The event whose turn it is leaves its place.
    fn leave(&mut self) -> Entry {
        let (turn, entry) = self.head().expect("an outcome has an event");
        match turn {
            Turn::Aside => self.aside.remove(0),
            Turn::Queue => self.line.remove(0),
        };
        self.in_flight = false;
        self.gone(entry.position);
        entry
    }

    fn gone(&mut self, position: Position) {
        self.attempts.remove(&position);
        if self.turn.is_some_and(|(_, whose)| whose == position) {
            self.turn = None;
            self.retry_at = None;
        }
    }

    fn failed(&mut self, fatal: bool, retry_at: Millis, actions: &mut Vec<Action>) {
        let (turn, entry) = self.head().expect("an outcome has an event");
        self.in_flight = false;
        self.turn = Some((turn, entry.position));
        let attempts = self.attempts.entry(entry.position).or_default();
        *attempts = (attempts.0 + 1, attempts.1 + 1);
        let last = self.policy.attempts_max.is_some_and(|max| attempts.0 >= max);
        if !fatal && !last {
            self.retry_at = Some(retry_at);
        } else if turn == Turn::Queue && self.policy.on_failure == OnFailure::Park {
            attempts.0 = 0;
            self.turn = None;
            self.retry_at = None;
            self.held = true;
            actions.push(Action::Hold(entry));
        } else {
            self.give_up(actions);
        }
    }

    /// The event whose turn it is becomes a dead letter outside; a hole in the line is flagged on what follows.
    fn give_up(&mut self, actions: &mut Vec<Action>) {
        let (turn, _) = self.head().expect("someone to give up");
        let entry = self.leave();
        actions.push(Action::DeadLetter { entry, why: Why::Failed });
        if turn == Turn::Queue {
            self.flag(0);
        }
    }

    /// What follows from this place on, and is in order, follows a hole.
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
        if let Some((_, position)) = self.turn
            && let Some(attempts) = self.attempts.get_mut(&position)
        {
            attempts.0 = 0;
        }
        self.retry_at = None;
        if !self.in_flight {
            self.turn = None;
        }
    }

    fn skip(&mut self, now: Millis, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if self.in_flight {
            return Err(Refused::Running);
        }
        if self.turn.is_some() {
            self.give_up(actions);
        } else if self.held {
            self.unhold(actions);
            let entry = self.line.remove(0);
            self.gone(entry.position);
            actions.push(Action::DeadLetter { entry, why: Why::Failed });
            self.flag(0);
        } else if self.gap_until.is_none() && !self.gap_parked {
            return Err(Refused::NothingToSkip);
        } else if self.opening {
            let lowest = self.lowest().expect("an opening lane has an early event");
            self.open_at(lowest, now);
            self.drain(now);
            self.keep_to_limit(now, actions);
        } else {
            // Counted already when it was parked.
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
        if all.len() as u64 == u64::from(self.in_flight) {
            return;
        }
        self.unhold(actions);
        let kept = self.turn.filter(|_| self.in_flight).map(|(_, position)| position);
        for entry in all.into_iter().filter(|entry| Some(entry.position) != kept) {
            self.gone(entry.position);
            actions.push(Action::Dropped(entry));
        }
        if let (Some(expected), Some(highest)) = (self.expected, self.early.iter().map(|early| early.0).max())
        {
            self.record_gap(expected, highest, None, actions);
            self.pass_to(highest + 1, now);
        }
        self.line.retain(|entry| Some(entry.position) == kept);
        self.aside.retain(|entry| Some(entry.position) == kept);
        self.early.clear();
        self.opening = false;
        self.close_gap();
        self.flag_next = true;
    }

    fn reset(&mut self, expected: u64, now: Millis, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.policy.sequenced {
            return Err(Refused::NotSequenced);
        }
        self.opening = false;
        self.close_gap();
        self.forget_gaps();
        self.passed.clear();
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

    /// The dead letter that holds the lane, and no other.
    fn discard(&mut self, actions: &mut Vec<Action>) {
        self.unhold(actions);
        let entry = self.line.remove(0);
        self.gone(entry.position);
        actions.push(Action::Dropped(entry));
        self.flag(0);
    }

    fn requeue(&mut self, mut entry: Entry) {
        entry.flag = Flag::Late;
        if entry.number == LaneNumber(0) {
            return self.place(entry);
        }
        // Behind all that come before it in the lane, and never before one that was tried.
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
        tried || self.turn.is_some_and(|(turn, _)| turn == Turn::Aside)
    }

    fn drop_oldest(&mut self, actions: &mut Vec<Action>) {
        let running = self.turn.filter(|_| self.in_flight).map(|(_, position)| position);
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
