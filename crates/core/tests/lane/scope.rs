//! Every state of a small world: two keys, four events each of which two share a sequence, sent in any order, again or
//! not at all; calls that succeed, fail or are cut off by a crash; gap timers; a person who resumes or skips.
//! Breadth first, so that whatever is wrong shows up by its shortest way.

use crate::harness::{Machine, START, entry, policy};
use klambda_core::ids::{LaneNumber, Position, Sequence};
use klambda_core::lane::{Action, Entry, Flag, Input, Lane, Policy, Turn, Why};
use klambda_core::subscription::{GapAction, OnFailure};
use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};

const KEYS: usize = 2;
const SEQUENCES: [u64; 4] = [1, 2, 3, 2];

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Fate {
    NotSent,
    Waiting,
    Delivered,
    DeadLetter,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Move {
    /// Sent for the first time, or again.
    Send(usize),
    Start,
    Deliver,
    Fail { fatal: bool },
    GapExpired,
    Resume,
    Skip,
    Replay(usize),
    /// The process dies, all keys with it.
    Crash,
}

/// One key: its lane, and what an observer knows of its events.
#[derive(Clone)]
struct Key {
    machine: Machine,
    fates: [Fate; SEQUENCES.len()],
    letters: [Option<Entry>; SEQUENCES.len()],
    last_number: LaneNumber,
    last_sequence: u64,
    replays_left: u8,
    faults_left: u8,
}

impl Key {
    fn new() -> Key {
        Key {
            machine: Machine::new(START),
            fates: [Fate::NotSent; SEQUENCES.len()],
            letters: [None; SEQUENCES.len()],
            last_number: LaneNumber(0),
            last_sequence: 0,
            replays_left: 1,
            faults_left: 3,
        }
    }

    fn moves(&self, out: &mut Vec<Move>) {
        let lane = &self.machine.lane;
        out.extend((0..SEQUENCES.len()).map(Move::Send));
        if lane.in_flight() {
            out.push(Move::Deliver);
            if self.faults_left > 0 {
                out.extend([Move::Fail { fatal: false }, Move::Fail { fatal: true }]);
            }
        }
        if lane.is_ready(START) {
            out.push(Move::Start);
        }
        if lane.gap_timer().is_some() && lane.head().is_none() {
            out.push(Move::GapExpired);
        }
        if lane.hold().is_some() && !lane.in_flight() {
            out.extend([Move::Resume, Move::Skip]);
        }
        if self.replays_left > 0 {
            out.extend((0..SEQUENCES.len()).filter(|n| self.letters[*n].is_some()).map(Move::Replay));
        }
    }

    /// Time stands still: a timer that is offered is due.
    fn make(&mut self, step: Move, policy: &Policy) {
        match step {
            // Known by its id: it goes no further.
            Move::Send(n) if self.fates[n] != Fate::NotSent => {}
            Move::Send(n) => {
                self.fates[n] = Fate::Waiting;
                let sequence = policy.sequenced.then_some(Sequence(SEQUENCES[n]));
                let entry = entry(n as u64 + 1, 1, START);
                self.apply(Input::Arrived { entry, sequence, taken: false }, policy);
            }
            Move::Start => self.start(policy),
            Move::Deliver => self.apply(Input::Delivered, policy),
            Move::Fail { fatal } => {
                self.faults_left -= 1;
                self.apply(Input::Failed { fatal, retry_at: START }, policy);
            }
            Move::GapExpired => self.apply(Input::GapExpired, policy),
            Move::Resume => self.apply(Input::Resume, policy),
            Move::Skip => self.apply(Input::Skip, policy),
            Move::Replay(n) => {
                self.replays_left -= 1;
                self.fates[n] = Fate::Waiting;
                let entry = self.letters[n].take().expect("a dead letter to replay");
                self.apply(Input::Requeue { entry }, policy);
            }
            Move::Crash => self.crash(),
        }
    }

    fn start(&mut self, policy: &Policy) {
        let (turn, entry) = self.machine.lane.head().map(|(turn, entry)| (turn, *entry)).expect("ready has a head");
        self.machine.lane.started(START);
        if turn == Turn::Queue {
            assert!(entry.number >= self.last_number, "the line goes out in the order of its numbers");
            self.last_number = entry.number;
        }
        if policy.sequenced && entry.flag != Flag::Late {
            let sequence = SEQUENCES[entry.position.0 as usize - 1];
            assert!(sequence >= self.last_sequence, "what is not late goes out in the producer's order");
            self.last_sequence = sequence;
        }
    }

    fn crash(&mut self) {
        let mut before = self.machine.clone();
        before.lane.abandoned(START);
        self.machine = self.machine.through_its_row();
        self.machine.lane.abandoned(START);
        assert_eq!(before, self.machine, "a crash loses nothing but the open request");
    }

    fn apply(&mut self, input: Input, policy: &Policy) {
        let actions = self.machine.apply(&input, policy, START).expect("only what fits is done");
        for action in actions {
            let (entry, fate) = match action {
                Action::Delivered(entry) => (entry, Fate::Delivered),
                Action::DeadLetter { entry, why } => {
                    assert!(why == Why::Failed || policy.strict, "late is a dead letter only where order is strict");
                    self.letters[entry.position.0 as usize - 1] = Some(entry);
                    (entry, Fate::DeadLetter)
                }
                Action::Dropped(_) | Action::Watermark => panic!("nothing was to be dropped: {action:?}"),
                _ => continue,
            };
            let was = std::mem::replace(&mut self.fates[entry.position.0 as usize - 1], fate);
            assert_eq!(was, Fate::Waiting, "an event leaves once");
        }
    }

    fn check(&self) {
        let lane = &self.machine.lane;
        let waits = |position: u64| self.machine.waiting().filter(|entry| entry.position == Position(position)).count();
        for (n, fate) in self.fates.iter().enumerate() {
            assert_eq!(waits(n as u64 + 1), usize::from(*fate == Fate::Waiting), "event {n} is {fate:?}");
        }
        let goes_on = lane.in_flight() || lane.is_ready(START) || lane.wake_at().is_some() || lane.hold().is_some();
        assert!(goes_on || lane.is_idle(), "stuck: {lane:?}");
        let mut numbers: Vec<u64> = self.machine.waiting().map(|entry| entry.number.0).filter(|n| *n > 0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbered = self.machine.waiting().filter(|entry| entry.number.0 > 0).count();
        assert_eq!(numbers.len(), numbered, "no number is given twice");
        assert!(numbers.last().is_none_or(|last| *last < lane.next_number().0));
    }

    fn fingerprint(&self, hasher: &mut impl Hasher) {
        let mut row = Vec::new();
        Lane::encode(&self.machine.lane, &mut row);
        let sides = (self.machine.lane.running().map(|turn| turn == Turn::Aside), self.machine.early.len());
        (row, sides, self.fates, self.last_number, self.last_sequence).hash(hasher);
        (self.replays_left, self.faults_left).hash(hasher);
        // What a dead letter is, beyond being one, is its number.
        self.letters.map(|letter| letter.map(|entry| entry.number)).hash(hasher);
    }
}

type World = [Key; KEYS];

/// 128 bits, so that two states are not taken for one.
fn fingerprint(world: &World) -> (u64, u64) {
    let hash = |salt: u8| {
        let mut hasher = DefaultHasher::new();
        salt.hash(&mut hasher);
        world.iter().for_each(|key| key.fingerprint(&mut hasher));
        hasher.finish()
    };
    (hash(0), hash(1))
}

/// Where a state was first reached from, to tell the way there.
type Seen = HashMap<(u64, u64), Option<((u64, u64), usize, Move)>>;

fn explore(policy: &Policy, depth: usize) -> usize {
    let first: World = std::array::from_fn(|_| Key::new());
    let mut seen: Seen = HashMap::from([(fingerprint(&first), None)]);
    let mut frontier = vec![first];
    let mut moves = Vec::new();
    for _ in 0..depth {
        let mut next = Vec::new();
        for world in &frontier {
            let from = fingerprint(world);
            for key in 0..KEYS {
                moves.clear();
                world[key].moves(&mut moves);
                if key == 0 {
                    moves.push(Move::Crash);
                }
                for step in &moves {
                    let reached = make(world, key, *step, policy, &seen, from);
                    let print = fingerprint(&reached);
                    if let std::collections::hash_map::Entry::Vacant(vacant) = seen.entry(print) {
                        vacant.insert(Some((from, key, *step)));
                        next.push(reached);
                    }
                }
            }
        }
        frontier = next;
    }
    seen.len()
}

fn make(world: &World, key: usize, step: Move, policy: &Policy, seen: &Seen, from: (u64, u64)) -> World {
    let made = std::panic::catch_unwind(|| {
        let mut world = world.clone();
        match step {
            Move::Crash => world.iter_mut().for_each(|key| key.make(step, policy)),
            _ => world[key].make(step, policy),
        }
        world.iter().for_each(Key::check);
        world
    });
    made.unwrap_or_else(|panic| {
        eprintln!("{policy:?}\nby {:?}, then {:?}", way_to(seen, from), (key, step));
        std::panic::resume_unwind(panic)
    })
}

fn way_to(seen: &Seen, mut at: (u64, u64)) -> Vec<(usize, Move)> {
    let mut way = Vec::new();
    while let Some(Some((from, key, step))) = seen.get(&at) {
        way.push((*key, *step));
        at = *from;
    }
    way.reverse();
    way
}

#[test]
fn every_state_of_a_small_world_keeps_the_promises() {
    let base = Policy { attempts_max: Some(2), ..policy() };
    let policies = [
        ("by arrival, park", Policy { sequenced: false, ..base }, 10),
        ("lenient, skip gaps, park", base, 10),
        ("strict, skip gaps, skip", Policy { strict: true, on_failure: OnFailure::Skip, ..base }, 10),
        ("lenient, park gaps, buffer of one", park_gaps(base), 10),
    ];
    let mut all = 0;
    for (name, policy, depth) in policies {
        let states = explore(&policy, depth);
        println!("{name}: {states} states to depth {depth}");
        all += states;
    }
    println!("{all} states in all");
    assert!(all > 100_000, "the world is not as small as that");
}

fn park_gaps(base: Policy) -> Policy {
    Policy { gap_action: GapAction::Park, buffer_events_max: 1, on_failure: OnFailure::Skip, ..base }
}
