//! The lane machine: one key of one subscription, a strict FIFO with its own state.
//!
//! `Lane::apply(input, policy, now, actions)` is pure: the same lane and input give the same lane and actions, always.
//! Every input that changes a lane is one record in the log, so a crash is undone by applying the records again.
//! The one thing that is not in the log is whether a request is open (`in_flight`): after a crash none is.
//!
//! Inside a lane an event is in one of four places:
//! - `early`: its producer sequence is above the expected one; it has no number yet;
//! - `queue` (its front in memory, `spilled` chunks on disk, `back` in memory): it has its number and waits its turn;
//! - `aside`: a dead letter that is replayed under its old number; it goes before the queue;
//! - gone: delivered, purged, or a dead letter outside the lane.
//!
//! A dead letter that holds its lane is the head of `queue` while `held` is set.

use crate::ids::{Address, LaneNumber, Position, Sequence};
use crate::subscription::{GapAction, OnFailure, Ordering, Spec, Start};
use crate::time::Millis;
use std::collections::{BTreeMap, VecDeque};

/// How an ordered subscription treats its lanes. Fixed within an epoch except for `attempts_max`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Order by the producer's sequence; otherwise by arrival.
    pub sequenced: bool,
    pub start: Start,
    pub strict: bool,
    pub gap_timeout_ms: u64,
    pub gap_action: GapAction,
    pub buffer_events_max: u64,
    pub buffer_bytes_max: u64,
    pub on_failure: OnFailure,
    /// `None`: for ever.
    pub attempts_max: Option<u32>,
    /// How long an id is remembered: what was passed longer ago is a duplicate by the watermark.
    pub window_ms: u64,
    /// How long the expected sequence of an empty lane is kept; zero: for ever.
    pub sequence_ttl_ms: u64,
}

impl Policy {
    pub fn new(spec: &Spec) -> Policy {
        let policy = &spec.policy;
        Policy {
            sequenced: spec.ordering == Ordering::Ordered && policy.sequence.is_some(),
            start: policy.start,
            strict: policy.strict,
            gap_timeout_ms: policy.gap_timeout_ms,
            gap_action: policy.gap_action,
            buffer_events_max: policy.buffer_events_max,
            buffer_bytes_max: policy.buffer_bytes_max,
            on_failure: policy.on_failure,
            attempts_max: spec.retry.attempts,
            window_ms: spec.idempotency_ttl_ms,
            sequence_ttl_ms: spec.sequence_ttl_ms,
        }
    }
}

/// A waiting event: where it stands, not what it says. Payloads stay in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub position: Position,
    pub at: Address,
    pub number: LaneNumber,
    pub accepted: Millis,
    pub bytes: u32,
    pub flag: Flag,
}

/// What `ce-orderstatus` says of a delivery.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Flag {
    #[default]
    None,
    Late,
    Gap,
}

/// Why a lane is parked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Hold {
    /// The head failed its last attempt and stays as a dead letter in its place.
    Failed,
    /// A missing sequence, and the policy asks a person.
    Gap,
}

/// The state a person sees; exactly one at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum State {
    Open,
    Running,
    Retrying,
    Gap,
    Parked,
    Paused,
}

impl State {
    pub const ALL: [State; 6] =
        [State::Open, State::Running, State::Retrying, State::Gap, State::Parked, State::Paused];

    pub fn name(self) -> &'static str {
        match self {
            State::Open => "open",
            State::Running => "running",
            State::Retrying => "retrying",
            State::Gap => "gap",
            State::Parked => "parked",
            State::Paused => "paused",
        }
    }
}

/// Whose turn it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Turn {
    Aside,
    Queue,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Input {
    /// `taken`: an early event on disk already has this sequence.
    Arrived {
        entry: Entry,
        sequence: Option<Sequence>,
        taken: bool,
    },
    /// The event whose turn it was is acknowledged.
    Delivered,
    /// The event whose turn it was failed. `fatal`: no retry can help.
    Failed {
        fatal: bool,
        retry_at: Millis,
    },
    /// The gap timer ran out.
    GapExpired,
    Resume,
    Skip,
    /// All that waits goes, except what is in flight.
    Purge,
    Pause,
    Reset {
        expected: Sequence,
    },
    /// The dead letter that holds the lane gets fresh attempts in its place.
    Replay,
    /// A dead letter from outside the lane comes back: under its number if it had one, else at the end.
    Requeue {
        entry: Entry,
    },
    /// Room was needed: the oldest waiting event that is not in flight is dropped.
    DropOldest,
}

/// What follows from an input. The caller persists the input itself, then does these.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Action {
    Count(Count),
    /// A dead letter at the head of its lane, which waits behind it.
    Hold(Entry),
    /// The head is tried again: it is no dead letter any more.
    Unhold(Entry),
    /// A dead letter outside the lane.
    DeadLetter {
        entry: Entry,
        why: Why,
    },
    Delivered(Entry),
    /// Left without success: its id is released.
    Dropped(Entry),
    /// Known by the watermark: skipped, no trace in the lane.
    Watermark,
    /// An early event beyond the buffer of a parked gap: to be kept on disk.
    SpillEarly {
        sequence: Sequence,
        entry: Entry,
    },
    /// A tombstone: these sequences will not be waited for.
    GapRecorded {
        from: Sequence,
        to: Sequence,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Why {
    /// Failed at its turn and the policy goes on, or a person skipped it.
    Failed,
    Late,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Count {
    Early,
    Late,
    Gap,
}

/// An operator's action that does not fit the lane's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refused {
    #[error("the head is being delivered; pause the lane first and wait for it")]
    Running,
    #[error("there is nothing to skip: the lane is neither parked, retrying nor waiting for a gap")]
    NothingToSkip,
    #[error("the lane is not parked at a dead letter")]
    NotParked,
    #[error("the subscription does not order by a producer's sequence")]
    NotSequenced,
}

/// The most entries a lane keeps in memory at each end before the middle goes to disk.
pub const FRONT_MAX: usize = 256;
pub const CHUNK: usize = 256;
/// Recorded gaps kept per lane; the oldest go first.
const GAPS_MAX: usize = 64;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lane {
    pub(crate) next_number: LaneNumber,
    pub(crate) queue: VecDeque<Entry>,
    pub(crate) spilled: Spilled,
    pub(crate) back: Vec<Entry>,
    pub(crate) aside: VecDeque<Entry>,
    pub(crate) early: BTreeMap<Sequence, Entry>,
    pub(crate) early_bytes: u64,
    /// Early events on disk; all of them are above all in `early`.
    pub(crate) early_spilled: SpilledEarly,
    pub(crate) expected: Option<Sequence>,
    /// Waiting for lower sequences than the first one seen.
    pub(crate) opening: bool,
    pub(crate) watermark: Watermark,
    pub(crate) gaps: Vec<(Sequence, Sequence)>,
    pub(crate) gap_until: Option<Millis>,
    /// The head failed its last attempt and stays as a dead letter in its place.
    pub(crate) held: bool,
    /// The gap waits for a person.
    pub(crate) gap_parked: bool,
    pub(crate) paused: bool,
    /// The event that began its turn keeps it until it is delivered or given up.
    pub(crate) turn: Option<Turn>,
    /// Of the event that began its turn, since it was last given fresh ones.
    pub(crate) attempts: u32,
    /// Of the queue's head in all, holds and resumptions included.
    pub(crate) attempts_total: u32,
    /// Of the first of `aside`, since it came back. Apart, because it goes out while another dead letter holds the lane.
    pub(crate) aside_attempts_total: u32,
    pub(crate) retry_at: Option<Millis>,
    /// The next event to take a place is flagged.
    pub(crate) flag_next: bool,
    /// The first event of the next chunk to be loaded is flagged.
    pub(crate) flag_loaded: bool,
    pub(crate) since: Millis,
    pub(crate) active_at: Millis,
    pub(crate) in_flight: bool,
}

/// Chunks of the queue's middle that are on disk, numbered in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Spilled {
    pub first_chunk: u64,
    pub next_chunk: u64,
    pub entries: u64,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct SpilledEarly {
    pub(crate) entries: u64,
    pub(crate) bytes: u64,
    /// The highest sequence among them.
    pub(crate) highest: Sequence,
}

/// `expected` at the beginning of this id window and of the one before.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Watermark {
    pub(crate) window_start: Millis,
    pub(crate) at_start: Sequence,
    pub(crate) at_previous_start: Sequence,
}

impl Lane {
    pub fn new(now: Millis) -> Lane {
        Lane {
            next_number: LaneNumber(1),
            queue: VecDeque::new(),
            spilled: Spilled::default(),
            back: Vec::new(),
            aside: VecDeque::new(),
            early: BTreeMap::new(),
            early_bytes: 0,
            early_spilled: SpilledEarly::default(),
            expected: None,
            opening: false,
            watermark: Watermark::default(),
            gaps: Vec::new(),
            gap_until: None,
            held: false,
            gap_parked: false,
            paused: false,
            turn: None,
            attempts: 0,
            attempts_total: 0,
            aside_attempts_total: 0,
            retry_at: None,
            flag_next: false,
            flag_loaded: false,
            since: now,
            active_at: now,
            in_flight: false,
        }
    }

    /// Takes one step. `Err` changes nothing; only operators' inputs can be refused.
    pub fn apply(
        &mut self,
        input: Input,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        let (state, watermark) = (self.state(), self.watermark);
        // At every step: the windows since the last one began with the expected sequence from before this one.
        self.watermark.rotate(self.expected.unwrap_or_default(), policy.window_ms, now);
        if let Err(refused) = self.step(input, policy, now, actions) {
            self.watermark = watermark;
            return Err(refused);
        }
        self.active_at = now;
        self.watch_gap(policy, now);
        if self.state() != state {
            self.since = now;
        }
        Ok(())
    }

    fn step(
        &mut self,
        input: Input,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        match input {
            Input::Arrived { entry, sequence, taken } => match sequence {
                Some(sequence) => self.arrived(entry, sequence, taken, policy, now, actions),
                None => self.place(entry),
            },
            Input::Delivered => self.delivered(actions),
            Input::Failed { fatal, retry_at } => self.failed(fatal, retry_at, policy, actions),
            Input::GapExpired => self.gap_expired(policy, actions),
            Input::Resume => self.resume(actions),
            Input::Skip => self.skip(actions)?,
            Input::Purge => self.purge(actions),
            Input::Pause => self.paused = true,
            Input::Reset { expected } => self.reset(expected, policy, actions)?,
            Input::Replay => self.replay(actions)?,
            Input::Requeue { entry } => self.requeue(entry),
            Input::DropOldest => self.drop_oldest(actions),
        }
        Ok(())
    }

    // ---- what a caller asks -------------------------------------------------------------------------------

    pub fn state(&self) -> State {
        if self.in_flight {
            State::Running
        } else if self.paused {
            State::Paused
        } else if self.retry_at.is_some() {
            State::Retrying
        } else if self.hold().is_some() {
            State::Parked
        } else if self.gap_until.is_some() && self.head().is_none() {
            State::Gap
        } else {
            State::Open
        }
    }

    /// The event whose turn it is, if one can be delivered apart from pause and backoff.
    pub fn head(&self) -> Option<(Turn, &Entry)> {
        let turn = self.turn.or_else(|| self.next_turn())?;
        let entry = match turn {
            Turn::Aside => self.aside.front(),
            Turn::Queue => self.queue.front(),
        };
        entry.map(|entry| (turn, entry))
    }

    fn next_turn(&self) -> Option<Turn> {
        if !self.aside.is_empty() {
            return Some(Turn::Aside);
        }
        (!self.held && !self.queue.is_empty()).then_some(Turn::Queue)
    }

    /// A delivery may start now.
    pub fn is_ready(&self, now: Millis) -> bool {
        !self.in_flight && !self.paused && self.retry_at.is_none_or(|at| at <= now) && self.head().is_some()
    }

    /// When this lane wants to be looked at again.
    pub fn wake_at(&self) -> Option<Millis> {
        if self.in_flight {
            return None;
        }
        // What can still be delivered comes before the gap: its timer is looked at when that is done.
        let gap_timer = self.gap_timer().filter(|_| self.head().is_none());
        match (self.retry_at.filter(|_| !self.paused), gap_timer) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        }
    }

    /// The running gap timer; none while the gap is parked.
    pub fn gap_timer(&self) -> Option<Millis> {
        self.gap_until.filter(|_| !self.gap_parked)
    }

    /// Nothing waits: the lane can live on disk alone.
    pub fn is_idle(&self) -> bool {
        self.depth() == 0 && !self.in_flight
    }

    /// All that waits, in flight included.
    pub fn depth(&self) -> u64 {
        (self.queue.len() + self.back.len() + self.aside.len() + self.early.len()) as u64
            + self.spilled.entries
            + self.early_spilled.entries
    }

    pub fn hold(&self) -> Option<Hold> {
        match (self.held, self.gap_parked) {
            (true, _) => Some(Hold::Failed),
            (false, true) => Some(Hold::Gap),
            (false, false) => None,
        }
    }

    pub fn is_paused(&self) -> bool {
        self.paused
    }

    pub fn since(&self) -> Millis {
        self.since
    }

    pub fn active_at(&self) -> Millis {
        self.active_at
    }

    pub fn expected(&self) -> Option<Sequence> {
        self.expected
    }

    pub fn next_number(&self) -> LaneNumber {
        self.next_number
    }

    pub fn attempts(&self) -> u32 {
        self.attempts
    }

    /// As `attempts`, all resumptions included; of a lane that is parked at a dead letter, the dead letter's.
    pub fn attempts_total(&self) -> u32 {
        match self.turn {
            Some(Turn::Aside) => self.aside_attempts_total,
            _ => self.attempts_total,
        }
    }

    pub fn retry_at(&self) -> Option<Millis> {
        self.retry_at
    }

    pub fn buffered(&self) -> u64 {
        self.early.len() as u64 + self.early_spilled.entries
    }

    pub fn in_flight(&self) -> bool {
        self.in_flight
    }

    /// What the open request delivers. Belongs into the record of every step: what some steps do depends on it, and a
    /// crash forgets it.
    pub fn running(&self) -> Option<Turn> {
        self.turn.filter(|_| self.in_flight)
    }

    /// Before a step is made again from its record: what was in flight when it was made first.
    pub fn set_running(&mut self, running: Option<Turn>) {
        self.in_flight = running.is_some();
        self.turn = running.or_else(|| self.persistent_turn());
    }

    /// How many events `DropOldest` could drop: all but what is in flight and what holds the lane.
    pub fn droppable(&self) -> u64 {
        self.depth().saturating_sub(u64::from(self.in_flight)).saturating_sub(u64::from(self.held))
    }

    pub fn spilled(&self) -> Spilled {
        self.spilled
    }

    /// The sequences that are missing before the first early event.
    pub fn missing(&self) -> Option<(Sequence, Sequence)> {
        let lowest = *self.early.keys().next()?;
        let from = self.expected?;
        Some((from, Sequence(lowest.0.saturating_sub(1))))
    }

    /// The oldest event of the lane that waits, whatever holds it: the head, or the first early one.
    pub fn first_waiting(&self) -> Option<&Entry> {
        self.aside
            .front()
            .or_else(|| self.queue.front())
            .or_else(|| self.back.first())
            .or_else(|| self.early.values().next())
    }

    /// The first of the queue, whatever holds it.
    pub fn front(&self) -> Option<&Entry> {
        self.queue.front()
    }

    /// Every entry that is in memory, in the order of its turn.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.aside.iter().chain(&self.queue).chain(&self.back).chain(self.early.values())
    }

    pub fn early(&self) -> impl Iterator<Item = (Sequence, &Entry)> {
        self.early.iter().map(|(sequence, entry)| (*sequence, entry))
    }

    /// Marks that the head's request is open. Not in the log: a crash closes it.
    pub fn started(&mut self, now: Millis) {
        assert!(!self.in_flight, "two requests open in one lane");
        self.turn = self.turn.or_else(|| self.next_turn());
        self.in_flight = true;
        self.since = now;
    }

    /// Gives the turn back without an outcome (shutdown, or a step that could not be made).
    pub fn abandoned(&mut self, now: Millis) {
        self.in_flight = false;
        self.turn = self.persistent_turn();
        self.since = now;
    }

    /// After a clock that moved or a restart: no timer may be further away than it was when it was set.
    pub fn clamp_timers(&mut self, policy: &Policy, backoff_ms_max: u64, now: Millis) {
        if let Some(until) = &mut self.gap_until {
            *until = (*until).min(now + policy.gap_timeout_ms);
        }
        if let Some(at) = &mut self.retry_at {
            *at = (*at).min(now + backoff_ms_max);
        }
    }

    /// Takes the first of the queue out of the lane: how an unordered subscription, which has no turns, uses it.
    pub fn take_front(&mut self) -> Option<Entry> {
        let entry = self.queue.pop_front();
        self.refill_from_back();
        entry
    }

    /// The arrival would be skipped as a duplicate by the watermark.
    pub fn knows(&self, sequence: Sequence, policy: &Policy, now: Millis) -> bool {
        let Some(expected) = self.expected else { return false };
        let forgotten = policy.sequence_ttl_ms > 0
            && self.is_idle()
            && now.since(self.active_at) >= policy.sequence_ttl_ms;
        let mut watermark = self.watermark;
        watermark.rotate(expected, policy.window_ms, now);
        !forgotten
            && sequence < expected
            && !self.in_recorded_gap(sequence)
            && sequence < watermark.at_previous_start
    }

    /// Entries held in memory, for accounting.
    pub fn resident(&self) -> usize {
        self.queue.len() + self.back.len() + self.aside.len() + self.early.len()
    }

    // ---- the queue's middle on disk -----------------------------------------------------------------------

    /// A full chunk at the back that should go to disk, and the number to store it under.
    pub fn take_chunk(&mut self) -> Option<(u64, Vec<Entry>)> {
        if self.back.len() < CHUNK {
            return None;
        }
        let chunk = self.spilled.next_chunk;
        self.spilled.next_chunk += 1;
        self.spilled.entries += self.back.len() as u64;
        Some((chunk, std::mem::take(&mut self.back)))
    }

    /// The chunk to load next, if the front has run out but for the head: what follows the head must be in memory,
    /// because it can be flagged or dropped while the head is in flight.
    pub fn wanted_chunk(&self) -> Option<u64> {
        (self.queue.len() <= 1 && self.spilled.entries > 0).then_some(self.spilled.first_chunk)
    }

    pub fn load_chunk(&mut self, entries: impl ExactSizeIterator<Item = Entry>) {
        self.spilled.first_chunk += 1;
        self.spilled.entries -= entries.len() as u64;
        let first = self.queue.len();
        self.queue.extend(entries);
        if std::mem::take(&mut self.flag_loaded) {
            self.flag_break(first);
        }
        self.refill_from_back();
    }

    pub fn has_spilled_early(&self) -> bool {
        self.early_spilled.entries > 0
    }

    /// Early events on disk must come back before the next step: none is left in memory.
    pub fn wants_early(&self) -> bool {
        self.early_spilled.entries > 0 && self.early.is_empty()
    }

    /// The lowest early events from disk, in order. Those that a reset has passed meanwhile are late: what follows from
    /// that is to be done like the actions of a step.
    pub fn load_early(
        &mut self,
        entries: Vec<(Sequence, Entry)>,
        policy: &Policy,
        now: Millis,
    ) -> Vec<Action> {
        let state = self.state();
        let mut actions = Vec::new();
        for (sequence, entry) in entries {
            self.early_spilled.entries = self.early_spilled.entries.saturating_sub(1);
            self.early_spilled.bytes = self.early_spilled.bytes.saturating_sub(u64::from(entry.bytes));
            if self.expected.is_some_and(|expected| sequence < expected) {
                self.late(entry, policy, &mut actions);
            } else {
                self.early_bytes += u64::from(entry.bytes);
                self.early.insert(sequence, entry);
            }
        }
        self.drain_early();
        self.watch_gap(policy, now);
        if self.state() != state {
            self.since = now;
        }
        actions
    }

    // ---- steps --------------------------------------------------------------------------------------------

    fn place(&mut self, mut entry: Entry) {
        entry.number = self.next_number;
        self.next_number.0 += 1;
        if self.flag_next {
            self.flag_next = false;
            if entry.flag == Flag::None {
                entry.flag = Flag::Gap;
            }
        }
        if self.spilled.entries > 0 || !self.back.is_empty() || self.queue.len() >= FRONT_MAX {
            self.back.push(entry);
        } else {
            self.queue.push_back(entry);
        }
    }

    fn arrived(
        &mut self,
        entry: Entry,
        sequence: Sequence,
        taken: bool,
        policy: &Policy,
        now: Millis,
        actions: &mut Vec<Action>,
    ) {
        self.forget_if_idle(policy, now);
        self.open_if_first(sequence, policy);
        let Some(expected) = self.expected else {
            return self.buffer(entry, sequence, taken, policy, actions);
        };
        if sequence == expected {
            self.take(entry, sequence);
        } else if sequence > expected {
            self.buffer(entry, sequence, taken, policy, actions);
        } else if self.in_recorded_gap(sequence) || sequence >= self.watermark.at_previous_start {
            self.late(entry, policy, actions);
        } else {
            actions.push(Action::Watermark);
        }
    }

    fn forget_if_idle(&mut self, policy: &Policy, now: Millis) {
        let ttl = policy.sequence_ttl_ms;
        if ttl > 0 && self.is_idle() && now.since(self.active_at) >= ttl {
            self.expected = None;
            self.gaps.clear();
            self.watermark.restart();
        }
    }

    fn open_if_first(&mut self, sequence: Sequence, policy: &Policy) {
        if self.expected.is_some() {
            return;
        }
        let first = match policy.start {
            Start::At(first) => Some(Sequence(first)),
            Start::First => Some(sequence),
            Start::Auto => (sequence.0 <= 1).then_some(sequence),
        };
        match first {
            Some(first) => self.open_at(first),
            None => self.opening = true,
        }
    }

    fn open_at(&mut self, first: Sequence) {
        self.opening = false;
        self.gap_until = None;
        self.expected = Some(first);
    }

    fn take(&mut self, entry: Entry, sequence: Sequence) {
        self.place(entry);
        self.expected = Some(Sequence(sequence.0.saturating_add(1)));
        self.gap_closed();
        self.drain_early();
    }

    fn gap_closed(&mut self) {
        self.gap_until = None;
        self.gap_parked = false;
    }

    fn drain_early(&mut self) {
        while let Some(expected) = self.expected
            && let Some(entry) = self.early.remove(&expected)
        {
            self.early_bytes -= u64::from(entry.bytes);
            self.place(entry);
            self.expected = Some(Sequence(expected.0.saturating_add(1)));
        }
    }

    fn buffer(
        &mut self,
        entry: Entry,
        sequence: Sequence,
        taken: bool,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) {
        if taken || self.early.contains_key(&sequence) {
            return self.late(entry, policy, actions);
        }
        if self.expected.is_some() {
            actions.push(Action::Count(Count::Early));
        }
        if self.beyond_early(sequence) {
            self.spill_one(sequence, entry, actions);
        } else {
            self.early_bytes += u64::from(entry.bytes);
            self.early.insert(sequence, entry);
        }
        while self.is_buffer_full(policy) && !self.gap_parked && !self.early.is_empty() {
            self.gap_expired(policy, actions);
        }
        if self.gap_parked {
            self.spill_early(policy, actions);
        }
    }

    fn is_buffer_full(&self, policy: &Policy) -> bool {
        self.buffered() >= policy.buffer_events_max
            || self.early_bytes + self.early_spilled.bytes >= policy.buffer_bytes_max
    }

    /// A parked gap goes on queueing: what is beyond the buffer's limit waits on disk, the highest first.
    fn spill_early(&mut self, policy: &Policy, actions: &mut Vec<Action>) {
        while self.early.len() as u64 > policy.buffer_events_max || self.early_bytes > policy.buffer_bytes_max
        {
            let Some((sequence, entry)) = self.early.pop_last() else { return };
            self.early_bytes -= u64::from(entry.bytes);
            self.spill_one(sequence, entry, actions);
        }
    }

    fn spill_one(&mut self, sequence: Sequence, entry: Entry, actions: &mut Vec<Action>) {
        let spilled = &mut self.early_spilled;
        spilled.highest = if spilled.entries == 0 { sequence } else { spilled.highest.max(sequence) };
        spilled.entries += 1;
        spilled.bytes += u64::from(entry.bytes);
        actions.push(Action::SpillEarly { sequence, entry });
    }

    fn beyond_early(&self, sequence: Sequence) -> bool {
        self.early_spilled.entries > 0
            && self.early.keys().next_back().is_some_and(|highest| sequence > *highest)
    }

    fn late(&mut self, mut entry: Entry, policy: &Policy, actions: &mut Vec<Action>) {
        actions.push(Action::Count(Count::Late));
        entry.flag = Flag::Late;
        if policy.strict {
            actions.push(Action::DeadLetter { entry, why: Why::Late });
        } else {
            self.place(entry);
        }
    }

    fn in_recorded_gap(&self, sequence: Sequence) -> bool {
        self.gaps.iter().any(|(from, to)| (*from..=*to).contains(&sequence))
    }

    fn delivered(&mut self, actions: &mut Vec<Action>) {
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::Delivered(entry));
        }
    }

    fn pop_turn(&mut self) -> Option<Entry> {
        let turn = self.turn.or_else(|| self.next_turn())?;
        self.in_flight = false;
        self.end_turn(turn);
        let entry = match turn {
            Turn::Aside => self.aside.pop_front(),
            Turn::Queue => self.queue.pop_front(),
        };
        self.refill_from_back();
        entry
    }

    /// The first in this place leaves it; a turn that the other place has is not touched.
    fn end_turn(&mut self, turn: Turn) {
        *self.total_of(turn) = 0;
        if self.turn.is_none_or(|current| current == turn) {
            self.turn = None;
            self.retry_at = None;
            self.attempts = 0;
        }
    }

    fn total_of(&mut self, turn: Turn) -> &mut u32 {
        match turn {
            Turn::Aside => &mut self.aside_attempts_total,
            Turn::Queue => &mut self.attempts_total,
        }
    }

    fn refill_from_back(&mut self) {
        if self.queue.len() <= 1 && self.spilled.entries == 0 && !self.back.is_empty() {
            self.queue.extend(self.back.drain(..));
        }
    }

    fn failed(&mut self, fatal: bool, retry_at: Millis, policy: &Policy, actions: &mut Vec<Action>) {
        let Some(turn) = self.turn.or_else(|| self.next_turn()) else { return };
        self.in_flight = false;
        self.turn = Some(turn);
        self.attempts += 1;
        *self.total_of(turn) += 1;
        if !fatal && policy.attempts_max.is_none_or(|max| self.attempts < max) {
            self.retry_at = Some(retry_at);
            return;
        }
        self.retry_at = None;
        match (turn, policy.on_failure) {
            (Turn::Queue, OnFailure::Park) => {
                // A dead letter that is replayed beside it has its own attempts.
                self.turn = None;
                self.attempts = 0;
                self.held = true;
                actions.extend(self.queue.front().map(|entry| Action::Hold(*entry)));
            }
            (Turn::Queue, OnFailure::Skip) => self.give_up_head(actions),
            (Turn::Aside, _) => self.give_up_aside(actions),
        }
    }

    /// A replay that failed again is the dead letter it was, outside the lane.
    fn give_up_aside(&mut self, actions: &mut Vec<Action>) {
        actions.extend(self.pop_turn().map(|entry| Action::DeadLetter { entry, why: Why::Failed }));
    }

    /// The queue's head becomes a dead letter outside the lane and the break is flagged on what follows.
    fn give_up_head(&mut self, actions: &mut Vec<Action>) {
        self.turn = Some(Turn::Queue);
        if let Some(entry) = self.pop_turn() {
            actions.push(Action::DeadLetter { entry, why: Why::Failed });
            self.flag_break(0);
        }
    }

    /// Something left before this place in the queue without having been delivered.
    fn flag_break(&mut self, place: usize) {
        match self.queue.get_mut(place) {
            Some(next) if next.flag == Flag::None => next.flag = Flag::Gap,
            Some(_) => {}
            None if self.spilled.entries > 0 => self.flag_loaded = true,
            None => self.flag_next = true,
        }
    }

    fn gap_expired(&mut self, policy: &Policy, actions: &mut Vec<Action>) {
        let Some(lowest) = self.early.keys().next().copied() else {
            self.gap_until = None;
            return;
        };
        if self.opening {
            self.open_at(lowest);
            return self.drain_early();
        }
        match policy.gap_action {
            GapAction::Park if self.gap_parked => {}
            GapAction::Park => {
                self.gap_parked = true;
                actions.push(Action::Count(Count::Gap));
            }
            GapAction::Skip => {
                actions.push(Action::Count(Count::Gap));
                self.skip_gap(actions);
            }
        }
    }

    fn skip_gap(&mut self, actions: &mut Vec<Action>) {
        let Some((from, to)) = self.missing() else { return };
        self.record_gap(from, to, actions);
        self.expected = Some(Sequence(to.0 + 1));
        self.gap_closed();
        self.flag_next = true;
        self.drain_early();
    }

    fn record_gap(&mut self, from: Sequence, to: Sequence, actions: &mut Vec<Action>) {
        if self.gaps.len() == GAPS_MAX {
            self.gaps.remove(0);
        }
        self.gaps.push((from, to));
        actions.push(Action::GapRecorded { from, to });
    }

    fn resume(&mut self, actions: &mut Vec<Action>) {
        self.paused = false;
        // The timer starts anew, once nothing deliverable is left before the gap.
        self.gap_closed();
        self.unhold(actions);
        self.turn = self.running();
        self.retry_at = None;
        self.attempts = 0;
    }

    fn unhold(&mut self, actions: &mut Vec<Action>) {
        if std::mem::take(&mut self.held) {
            actions.extend(self.queue.front().map(|entry| Action::Unhold(*entry)));
        }
    }

    fn skip(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if self.in_flight {
            return Err(Refused::Running);
        }
        if self.turn == Some(Turn::Aside) {
            self.give_up_aside(actions);
        } else if self.held || self.retry_at.is_some() {
            self.unhold(actions);
            self.give_up_head(actions);
        } else if let Some(lowest) = self.waited_for_in_vain() {
            if self.opening {
                self.open_at(lowest);
                self.drain_early();
            } else {
                // A gap that is parked was counted when it was.
                actions.extend((!self.gap_parked).then_some(Action::Count(Count::Gap)));
                self.skip_gap(actions);
            }
        } else {
            return Err(Refused::NothingToSkip);
        }
        Ok(())
    }

    /// The first early event, when the gap before it is what the lane waits for.
    fn waited_for_in_vain(&self) -> Option<Sequence> {
        let lowest = *self.early.keys().next()?;
        (self.gap_until.is_some() || self.gap_parked).then_some(lowest)
    }

    fn purge(&mut self, actions: &mut Vec<Action>) {
        self.unhold(actions);
        let running = self.running();
        let kept_aside = usize::from(running == Some(Turn::Aside)).min(self.aside.len());
        let kept_queue = usize::from(running == Some(Turn::Queue)).min(self.queue.len());
        let gone = self.aside.drain(kept_aside..).chain(self.queue.drain(kept_queue..));
        actions.extend(gone.chain(self.back.drain(..)).map(Action::Dropped));
        actions.extend(self.early.values().map(|entry| Action::Dropped(*entry)));
        self.purge_early(actions);
        self.spilled = Spilled { first_chunk: self.spilled.next_chunk, entries: 0, ..self.spilled };
        [Turn::Aside, Turn::Queue]
            .into_iter()
            .filter(|turn| running != Some(*turn))
            .for_each(|turn| self.end_turn(turn));
        self.flag_next = true;
    }

    /// What was waited for in vain is a recorded gap, so that it is late and no new gap if it comes after all.
    fn purge_early(&mut self, actions: &mut Vec<Action>) {
        let spilled = (self.early_spilled.entries > 0).then_some(self.early_spilled.highest);
        let highest = spilled.or_else(|| self.early.keys().next_back().copied());
        if let (Some(highest), Some(expected)) = (highest, self.expected) {
            self.record_gap(expected, highest, actions);
            self.expected = Some(Sequence(highest.0.saturating_add(1)));
        }
        self.early.clear();
        self.early_bytes = 0;
        self.early_spilled = SpilledEarly::default();
        self.opening = false;
        self.gap_closed();
    }

    fn reset(
        &mut self,
        expected: Sequence,
        policy: &Policy,
        actions: &mut Vec<Action>,
    ) -> Result<(), Refused> {
        if !policy.sequenced {
            return Err(Refused::NotSequenced);
        }
        self.opening = false;
        self.gap_closed();
        self.gaps.clear();
        self.expected = Some(expected);
        self.watermark.restart();
        let kept = self.early.split_off(&expected);
        let passed = std::mem::replace(&mut self.early, kept);
        for entry in passed.into_values() {
            self.early_bytes -= u64::from(entry.bytes);
            self.late(entry, policy, actions);
        }
        self.drain_early();
        Ok(())
    }

    fn replay(&mut self, actions: &mut Vec<Action>) -> Result<(), Refused> {
        if !self.held {
            return Err(Refused::NotParked);
        }
        self.unhold(actions);
        Ok(())
    }

    fn requeue(&mut self, mut entry: Entry) {
        entry.flag = Flag::Late;
        if entry.number == LaneNumber(0) {
            self.place(entry);
        } else {
            // Among themselves in the lane's order; one that was tried stays first.
            let begun = self.turn == Some(Turn::Aside) || self.aside_attempts_total > 0;
            let lower = self.aside.iter().rposition(|other| other.number < entry.number);
            self.aside.insert(lower.map_or(usize::from(begun), |lower| lower + 1), entry);
        }
    }

    fn drop_oldest(&mut self, actions: &mut Vec<Action>) {
        // Neither what is in flight nor a dead letter that holds the lane is ever dropped.
        let running = self.running();
        let aside = usize::from(running == Some(Turn::Aside));
        let queue = usize::from(self.held || running == Some(Turn::Queue));
        if let Some(entry) = self.aside.remove(aside) {
            if aside == 0 {
                self.end_turn(Turn::Aside);
            }
            actions.push(Action::Dropped(entry));
        } else if let Some(entry) = self.queue.remove(queue) {
            if queue == 0 {
                self.end_turn(Turn::Queue);
            }
            actions.push(Action::Dropped(entry));
            self.refill_from_back();
            self.flag_break(queue);
        } else if let Some((_, entry)) = self.early.pop_first() {
            self.early_bytes -= u64::from(entry.bytes);
            actions.push(Action::Dropped(entry));
        }
    }

    /// Starts the gap timer the moment nothing deliverable is left before the gap, once per gap.
    fn watch_gap(&mut self, policy: &Policy, now: Millis) {
        if self.buffered() == 0 {
            self.gap_closed();
        } else if self.wants_early() {
            // Whether there is a gap shows when they are here.
        } else if self.gap_until.is_none()
            && self.queue.is_empty()
            && self.spilled.entries == 0
            && self.aside.is_empty()
        {
            self.gap_until = Some(now + policy.gap_timeout_ms);
        }
    }
}

impl Watermark {
    fn rotate(&mut self, expected: Sequence, window_ms: u64, now: Millis) {
        let age_ms = now.since(self.window_start);
        if age_ms < window_ms {
            return;
        }
        let passed = age_ms / window_ms.max(1);
        self.at_previous_start = if passed == 1 { self.at_start } else { expected };
        self.at_start = expected;
        self.window_start = self.window_start + passed.saturating_mul(window_ms.max(1));
    }

    /// Nothing was passed long ago: whatever comes below the expected sequence is late, no duplicate.
    fn restart(&mut self) {
        self.at_start = Sequence(0);
        self.at_previous_start = Sequence(0);
    }
}
