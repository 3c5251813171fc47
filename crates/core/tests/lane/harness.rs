//! A lane together with the parts that its caller provides (a disk for spilled events, a log of its steps, marks for
//! ids), a reference model, and the checks after each step.

use crate::model::{Model, View};
use klambda_core::ids::{LaneNumber, Locator, Position, Sequence};
use klambda_core::lane::{Action, Entry, Flag, Input, Lane, Policy, Refused, Turn};
use klambda_core::subscription::{GapAction, OnFailure, Start};
use klambda_core::time::Millis;
use klambda_core::wire::Reader;
use std::collections::{BTreeMap, BTreeSet};

pub const START: Millis = Millis(1_000_000);

pub fn policy() -> Policy {
    Policy {
        sequenced: true,
        start: Start::Auto,
        strict: false,
        gap_timeout_ms: 100,
        gap_action: GapAction::Skip,
        buffer_events_max: 1000,
        buffer_bytes_max: 1 << 20,
        on_failure: OnFailure::Park,
        attempts_max: Some(3),
        window_ms: 10_000,
        sequence_ttl_ms: 0,
    }
}

pub fn entry(position: u64, bytes: u32, now: Millis) -> Entry {
    let at = Locator::new(position * 100);
    Entry { position: Position(position), at, number: LaneNumber(0), accepted: now, bytes, flag: Flag::None }
}

/// The lane and its entries on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    pub lane: Lane,
    pub chunks: BTreeMap<u64, Vec<Entry>>,
    pub early: BTreeMap<Sequence, Entry>,
}

impl Machine {
    pub fn new(now: Millis) -> Machine {
        Machine { lane: Lane::new(now), chunks: BTreeMap::new(), early: BTreeMap::new() }
    }

    /// Applies one step like a real caller. Performs the actions that concern only the disk.
    pub fn apply(&mut self, input: &Input, policy: &Policy, now: Millis) -> Result<Vec<Action>, Refused> {
        let mut actions = Vec::new();
        if *input == Input::Purge {
            let chunks = std::mem::take(&mut self.chunks).into_values().flatten();
            let early = std::mem::take(&mut self.early).into_values();
            actions.extend(chunks.chain(early).map(Action::Dropped));
        }
        let input = match *input {
            Input::Arrived { entry, sequence, .. } => {
                let taken = sequence.is_some_and(|sequence| self.early.contains_key(&sequence));
                Input::Arrived { entry, sequence, taken }
            }
            ref other => other.clone(),
        };
        self.lane.apply(input, policy, now, &mut actions)?;
        for action in &actions {
            if let Action::SpillEarly { sequence, entry } = action {
                assert!(
                    self.early.insert(*sequence, *entry).is_none(),
                    "an early event is spilled only once"
                );
            }
        }
        actions.retain(|action| !matches!(action, Action::SpillEarly { .. }));
        self.settle(policy, now, &mut actions);
        Ok(actions)
    }

    fn settle(&mut self, policy: &Policy, now: Millis, actions: &mut Vec<Action>) {
        if let Some((chunk, entries)) = self.lane.queue_mut().take_chunk() {
            assert!(self.chunks.insert(chunk, entries).is_none(), "a chunk number is used only once");
        }
        if let Some(chunk) = self.lane.queue().wanted_chunk() {
            let entries = self.chunks.remove(&chunk).expect("the wanted chunk is on disk");
            self.lane.queue_mut().load_chunk(entries.into_iter());
        }
        while self.lane.wants_early() {
            let lowest = policy.buffer_events_max.clamp(1, 10_000) as usize;
            let found: Vec<_> = self.early.iter().take(lowest).map(|(n, entry)| (*n, *entry)).collect();
            assert!(!found.is_empty(), "the wanted early events are on disk");
            found.iter().for_each(|(sequence, _)| {
                self.early.remove(sequence);
            });
            actions.extend(self.lane.load_early(found, policy, now));
        }
    }

    pub fn through_its_row(&self) -> Machine {
        let mut row = Vec::new();
        self.lane.encode(&mut row);
        let mut reader = Reader::new(&row);
        let lane = Lane::decode(&mut reader).expect("an encoded row decodes");
        assert!(reader.is_empty(), "decoding reads the whole row");
        Machine { lane, ..self.clone() }
    }

    pub fn waiting(&self) -> impl Iterator<Item = &Entry> {
        self.lane.entries().chain(self.chunks.values().flatten()).chain(self.early.values())
    }

    pub fn view(&self, now: Millis) -> View {
        let lane = &self.lane;
        let mut waiting: Vec<Entry> = self.waiting().copied().collect();
        waiting.sort_by_key(|entry| entry.position);
        View {
            state: lane.state(),
            since: lane.since(),
            head: lane.head().map(|(turn, entry)| (turn, *entry)),
            ready: lane.is_ready(now),
            depth: lane.depth(),
            buffered: lane.buffered(),
            expected: lane.expected(),
            next_number: lane.next_number(),
            hold: lane.hold(),
            paused: lane.is_paused(),
            attempts: lane.attempts(),
            attempts_total: lane.attempts_total(),
            retry_at: lane.retry_at(),
            gap_timer: lane.gap_timer(),
            missing: lane.missing(),
            gaps: lane.gaps().ranges().iter().map(|gap| (gap.from.0, gap.to.0)).collect(),
            forgotten: lane.gaps().forgotten().map(|sequence| sequence.0),
            droppable: lane.droppable(),
            waiting,
        }
    }
}

/// The current place of an event that arrived. An event has exactly one and is never lost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fate {
    Waiting,
    Delivered,
    DeadLetter,
    Dropped,
    /// Skipped as a duplicate by the watermark.
    Known,
}

/// A step as recorded in the log, with the turn that was in flight at that time.
struct Record {
    running: Option<Turn>,
    input: Input,
    now: Millis,
}

/// The identity of an event: its sequence, and its index among the events with that sequence.
pub type Id = (u64, u8);

pub struct World {
    pub machine: Machine,
    pub model: Model,
    pub policy: Policy,
    pub now: Millis,
    pub letters: BTreeMap<Position, Entry>,
    pub fates: BTreeMap<Position, Fate>,
    marks: BTreeMap<Id, (Millis, Position)>,
    /// The event that each lane number was assigned to.
    numbers: BTreeMap<LaneNumber, Position>,
    last_in_line: LaneNumber,
    hurried: bool,
    checkpoint: Machine,
    log: Vec<Record>,
}

impl World {
    pub fn new(policy: Policy) -> World {
        World {
            machine: Machine::new(START),
            model: Model::new(policy, START),
            policy,
            now: START,
            letters: BTreeMap::new(),
            fates: BTreeMap::new(),
            marks: BTreeMap::new(),
            numbers: BTreeMap::new(),
            last_in_line: LaneNumber(0),
            hurried: false,
            checkpoint: Machine::new(START),
            log: Vec::new(),
        }
    }

    // ---- inputs -------------------------------------------------------------------------------------------

    /// A producer sends an event of this size. Returns `None` if its id is known.
    pub fn send(&mut self, id: Id, bytes: u32) -> Option<Position> {
        if self.knows_id(id) {
            return None;
        }
        let position = Position(self.fates.len() as u64 + 1);
        let sequence = self.policy.sequenced.then_some(Sequence(id.0));
        if let Some(n) = sequence
            && self.machine.lane.knows(n, &self.policy, self.now)
        {
            assert!(!self.model.must_take(n.0, self.now), "wrongly skipped by the watermark: {n:?}");
            self.fates.insert(position, Fate::Known);
            return Some(position);
        }
        assert!(
            sequence.is_none_or(|n| !self.model.must_know(n.0, self.now)),
            "accepted although its sequence was passed long ago"
        );
        self.fates.insert(position, Fate::Waiting);
        let entry = entry(position.0, bytes, self.now);
        self.must(Input::Arrived { entry, sequence, taken: false });
        self.marks.insert(id, (self.now, position));
        Some(position)
    }

    /// True if the event is pending, is a dead letter, or was accepted within the window. An id is released when its
    /// event leaves without success.
    fn knows_id(&self, id: Id) -> bool {
        let Some((at, position)) = self.marks.get(&id) else { return false };
        match self.fates[position] {
            Fate::Waiting | Fate::DeadLetter => true,
            Fate::Delivered => self.now.since(*at) < self.policy.window_ms,
            Fate::Dropped | Fate::Known => false,
        }
    }

    /// Starts the next delivery, if one may start.
    pub fn start(&mut self) -> Option<Entry> {
        if !self.machine.lane.is_ready(self.now) {
            return None;
        }
        let (turn, entry) =
            self.machine.lane.head().map(|(turn, entry)| (turn, *entry)).expect("a ready lane has a head");
        self.machine.lane.started(self.now);
        self.model.started(self.now);
        if turn == Turn::Queue {
            assert!(entry.number >= self.last_in_line, "the queue is delivered in the order of its numbers");
            self.last_in_line = entry.number;
        } else {
            assert_eq!(entry.flag, Flag::Late, "an event replayed under its old number is flagged late");
        }
        assert_ne!(entry.number, LaneNumber(0), "a delivered event has a number");
        self.check();
        Some(entry)
    }

    pub fn deliver(&mut self) -> Option<Entry> {
        if !self.machine.lane.in_flight() {
            return None;
        }
        let actions = self.must(Input::Delivered);
        match actions[..] {
            [Action::Delivered(entry)] => Some(entry),
            _ => panic!("a delivery must complete exactly one event: {actions:?}"),
        }
    }

    pub fn fail(&mut self, fatal: bool) -> Vec<Action> {
        if !self.machine.lane.in_flight() {
            return Vec::new();
        }
        let retry_at = self.now + 50;
        self.must(Input::Failed { fatal, retry_at })
    }

    /// Starts and acknowledges deliveries until none can start.
    pub fn deliver_all(&mut self) -> Vec<Entry> {
        let mut delivered = Vec::new();
        while self.machine.lane.in_flight() || self.start().is_some() {
            delivered.extend(self.deliver());
        }
        delivered
    }

    /// Applies the gap timer if it is due.
    pub fn expire_gap(&mut self) -> Vec<Action> {
        let lane = &self.machine.lane;
        let due = !lane.in_flight() && lane.gap_timer().is_some_and(|at| at <= self.now);
        if due { self.must(Input::GapExpired) } else { Vec::new() }
    }

    /// Moves the clock to the end of the gap timer and applies the timer.
    pub fn wait_for_gap(&mut self) -> Vec<Action> {
        self.now = self.now.max(self.machine.lane.gap_timer().unwrap_or(self.now));
        self.expire_gap()
    }

    pub fn requeue(&mut self, nth: usize) {
        let Some(position) = self.letters.keys().nth(nth).copied() else { return };
        let entry = self.letters.remove(&position).expect("the key was just read from the map");
        self.fates.insert(position, Fate::Waiting);
        self.must(Input::Requeue { entry });
    }

    /// Abandons the call without an outcome.
    pub fn abandon(&mut self) {
        if self.machine.lane.in_flight() {
            self.machine.lane.abandoned(self.now);
            self.model.crashed(self.now);
            self.check();
        }
    }

    pub fn checkpoint(&mut self) {
        self.checkpoint = self.machine.through_its_row();
        self.log.clear();
    }

    /// The process dies. Applying the log since the checkpoint to the checkpoint must give the same lane.
    pub fn crash(&mut self) {
        let mut recovered = self.checkpoint.clone();
        for record in &self.log {
            recovered.lane.set_running(record.running);
            recovered.apply(&record.input, &self.policy, record.now).expect("a logged step was accepted");
        }
        self.machine.lane.abandoned(self.now);
        recovered.lane.abandoned(self.now);
        assert_eq!(recovered, self.machine, "recovery from the log gives the same lane");
        self.machine = recovered.through_its_row();
        self.model.crashed(self.now);
        self.check();
    }

    pub fn through_its_row(&mut self) {
        if !self.machine.lane.in_flight() {
            let read = self.machine.through_its_row();
            assert_eq!(read, self.machine, "decoding the row gives the same lane");
            self.machine = read;
        }
    }

    // ---- steps and checks ---------------------------------------------------------------------------------

    pub fn must(&mut self, input: Input) -> Vec<Action> {
        self.apply(input).expect("the lane accepts the input")
    }

    /// Applies one step to the machine and the model, which must agree on everything.
    pub fn apply(&mut self, input: Input) -> Result<Vec<Action>, Refused> {
        let running = self.machine.lane.running();
        let refusable = matches!(
            input,
            Input::Skip | Input::Discard | Input::Acknowledge | Input::Reset { .. } | Input::Replay
        );
        let before = refusable.then(|| self.machine.clone());
        let early_on_disk = self.machine.early.len();
        let result = self.machine.apply(&input, &self.policy, self.now);
        let expected = self.model.step(&input, self.now);
        let (texts, expected) = (result.as_deref().map(sorted), expected.as_deref().map(sorted));
        assert_eq!(texts, expected, "actions of {input:?}");
        let Ok(actions) = result else {
            assert_eq!(before.as_ref(), Some(&self.machine), "a refused input changes nothing");
            return result;
        };
        if self.machine.early.len() < early_on_disk {
            // Between two loads the lane passes through states that are not visible outside.
            self.model.since = self.machine.lane.since();
        }
        actions.iter().for_each(|action| self.note(*action));
        self.log.push(Record { running, input, now: self.now });
        self.check();
        Ok(actions)
    }

    fn note(&mut self, action: Action) {
        let (entry, fate) = match action {
            Action::Delivered(entry) => (entry, Fate::Delivered),
            Action::Dropped(entry) => (entry, Fate::Dropped),
            Action::DeadLetter { entry, .. } => {
                self.letters.insert(entry.position, entry);
                (entry, Fate::DeadLetter)
            }
            _ => return,
        };
        self.number(&entry);
        let was = self.fates.insert(entry.position, fate);
        assert_eq!(
            was,
            Some(Fate::Waiting),
            "{:?} must leave the lane only once, now as {fate:?}",
            entry.position
        );
    }

    fn number(&mut self, entry: &Entry) {
        if entry.number != LaneNumber(0) {
            let whose = *self.numbers.entry(entry.number).or_insert(entry.position);
            assert_eq!(whose, entry.position, "number {} is assigned only once", entry.number);
        }
    }

    /// Runs many similar steps with reduced checks. The full checks run once at the end.
    pub fn hurry(&mut self, steps: impl FnOnce(&mut World)) {
        self.hurried = true;
        steps(self);
        self.hurried = false;
        self.check();
    }

    fn check(&mut self) {
        if self.hurried {
            let (lane, model) = (&self.machine.lane, self.model.head());
            return assert_eq!(lane.head().map(|(turn, entry)| (turn, *entry)), model);
        }
        let machine = self.machine.view(self.now);
        assert_eq!(machine, self.model.view(self.now));
        self.check_that_nothing_is_lost(&machine);
        self.check_that_it_goes_on(&machine);
        machine.waiting.iter().for_each(|entry| self.number(entry));
        let given = self.numbers.len() as u64;
        assert_eq!(
            given + 1,
            machine.next_number.0,
            "numbers are contiguous from 1, each assigned to one event"
        );
        assert_eq!(self.numbers.last_key_value().map_or(0, |(number, _)| number.0), given);
    }

    fn check_that_nothing_is_lost(&self, view: &View) {
        let here: BTreeSet<Position> = view.waiting.iter().map(|entry| entry.position).collect();
        assert_eq!(here.len(), view.waiting.len(), "a pending event is in only one place");
        let should =
            self.fates.iter().filter(|(_, fate)| **fate == Fate::Waiting).map(|(position, _)| *position);
        assert_eq!(here, should.collect(), "the pending events are those that arrived and have not left");
        assert_eq!(view.depth, here.len() as u64);
    }

    /// A lane with pending events is ready, in flight, due at a certain time, or waits for manual action.
    fn check_that_it_goes_on(&self, view: &View) {
        let lane = &self.machine.lane;
        let for_a_person = view.paused || (view.hold.is_some() && view.head.is_none());
        let due = lane.wake_at();
        if view.depth > 0 {
            assert!(for_a_person || lane.in_flight() || view.ready || due.is_some(), "stuck: {lane:?}");
        }
        if due.is_some_and(|at| at <= self.now) {
            let gap = view.head.is_none() && view.gap_timer.is_some_and(|at| at <= self.now);
            assert!(view.ready || gap, "the lane wakes up but has nothing to do: {lane:?}");
        }
    }
}

fn sorted(actions: &[Action]) -> Vec<String> {
    let mut texts: Vec<String> = actions.iter().map(|action| format!("{action:?}")).collect();
    texts.sort();
    texts
}
