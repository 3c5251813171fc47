//! Explores all states of a small system: two keys; four events per key, two of which share a sequence, sent in any
//! order, repeatedly or not at all; calls that succeed, fail or are interrupted by a crash; gap timers; a user who
//! resumes or skips. The search is breadth-first, so it finds the shortest path to an error.

use crate::harness::{Machine, START, entry, policy};
use klambda_core::ids::{LaneNumber, Position, Sequence};
use klambda_core::lane::{Action, Entry, Flag, Input, Lane, Policy, Turn, Why};
use klambda_core::subscription::{GapAction, OnFailure};
use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::rc::Rc;

const DEPTH: usize = 11;
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
    /// The first send or a repetition.
    Send(usize),
    Start,
    Deliver,
    Fail {
        fatal: bool,
    },
    GapExpired,
    Resume,
    Skip,
    Replay(usize),
    /// The process dies, which affects all keys.
    Crash,
}

/// One key: its lane, and the observed state of its events.
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

    /// The clock does not advance: every timer that is offered is due.
    fn make(&mut self, step: Move, policy: &Policy) {
        match step {
            // The id is known, so the event is skipped.
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
        let (turn, entry) =
            self.machine.lane.head().map(|(turn, entry)| (turn, *entry)).expect("a ready lane has a head");
        self.machine.lane.started(START);
        if turn == Turn::Queue {
            assert!(entry.number >= self.last_number, "the queue is delivered in the order of its numbers");
            self.last_number = entry.number;
        }
        if policy.sequenced && entry.flag != Flag::Late {
            let sequence = SEQUENCES[entry.position.0 as usize - 1];
            assert!(sequence >= self.last_sequence, "events that are not late follow the producer's order");
            self.last_sequence = sequence;
        }
    }

    fn crash(&mut self) {
        let mut before = self.machine.clone();
        before.lane.abandoned(START);
        self.machine = self.machine.through_its_row();
        self.machine.lane.abandoned(START);
        assert_eq!(before, self.machine, "a crash loses only the open request");
    }

    fn apply(&mut self, input: Input, policy: &Policy) {
        let actions = self.machine.apply(&input, policy, START).expect("only valid moves are made");
        for action in actions {
            let (entry, fate) = match action {
                Action::Delivered(entry) => (entry, Fate::Delivered),
                Action::DeadLetter { entry, why } => {
                    assert!(
                        why == Why::Failed || policy.strict,
                        "a late event is a dead letter only with strict order"
                    );
                    self.letters[entry.position.0 as usize - 1] = Some(entry);
                    (entry, Fate::DeadLetter)
                }
                Action::Dropped(_) => panic!("no event may be dropped: {action:?}"),
                _ => continue,
            };
            let was = std::mem::replace(&mut self.fates[entry.position.0 as usize - 1], fate);
            assert_eq!(was, Fate::Waiting, "an event leaves only once");
        }
    }

    fn check(&self) {
        let lane = &self.machine.lane;
        let waits = |position: u64| {
            self.machine.waiting().filter(|entry| entry.position == Position(position)).count()
        };
        for (n, fate) in self.fates.iter().enumerate() {
            assert_eq!(waits(n as u64 + 1), usize::from(*fate == Fate::Waiting), "event {n} is {fate:?}");
        }
        let goes_on =
            lane.in_flight() || lane.is_ready(START) || lane.wake_at().is_some() || lane.hold().is_some();
        assert!(goes_on || lane.is_idle(), "stuck: {lane:?}");
        let mut numbers: Vec<u64> =
            self.machine.waiting().map(|entry| entry.number.0).filter(|n| *n > 0).collect();
        numbers.sort_unstable();
        numbers.dedup();
        let numbered = self.machine.waiting().filter(|entry| entry.number.0 > 0).count();
        assert_eq!(numbers.len(), numbered, "each number is assigned only once");
        assert!(numbers.last().is_none_or(|last| *last < lane.next_number().0));
    }

    /// 128 bits, so that different states do not collide.
    fn fingerprint(&self) -> (u64, u64) {
        let hash = |salt: u8| {
            let mut hasher = DefaultHasher::new();
            salt.hash(&mut hasher);
            self.write_to(&mut hasher);
            hasher.finish()
        };
        (hash(0), hash(1))
    }

    fn write_to(&self, hasher: &mut impl Hasher) {
        let mut row = Vec::new();
        Lane::encode(&self.machine.lane, &mut row);
        let sides = (self.machine.lane.running().map(|turn| turn == Turn::Aside), self.machine.early.len());
        (row, sides, self.fates, self.last_number, self.last_sequence).hash(hasher);
        (self.replays_left, self.faults_left).hash(hasher);
        // A dead letter differs from others only in its number.
        self.letters.map(|letter| letter.map(|entry| entry.number)).hash(hasher);
    }
}

/// The state that each move leads to. The first move is the crash.
type Edges = Rc<[(Move, u32)]>;

/// The states of one key and the moves between them, each computed once. Keys are independent, so a system state is a
/// pair of key states.
struct Graph {
    policy: Policy,
    keys: Vec<Key>,
    ids: HashMap<(u64, u64), u32>,
    /// The first move that reached each state, to print the path to an error.
    came_from: Vec<Option<(u32, Move)>>,
    edges: Vec<Option<Edges>>,
}

impl Graph {
    fn new(policy: Policy) -> Graph {
        let mut graph =
            Graph { policy, keys: Vec::new(), ids: HashMap::new(), came_from: Vec::new(), edges: Vec::new() };
        graph.intern(Key::new(), None);
        graph
    }

    fn intern(&mut self, key: Key, came_from: Option<(u32, Move)>) -> u32 {
        let next = self.keys.len() as u32;
        let id = *self.ids.entry(key.fingerprint()).or_insert(next);
        if id == next {
            self.keys.push(key);
            self.came_from.push(came_from);
            self.edges.push(None);
        }
        id
    }

    fn edges(&mut self, from: u32) -> Edges {
        if let Some(edges) = &self.edges[from as usize] {
            return edges.clone();
        }
        let mut moves = vec![Move::Crash];
        self.keys[from as usize].moves(&mut moves);
        let reached = moves.into_iter().map(|step| {
            let key = self.make(from, step);
            (step, self.intern(key, Some((from, step))))
        });
        let edges: Edges = reached.collect();
        self.edges[from as usize] = Some(edges.clone());
        edges
    }

    fn make(&self, from: u32, step: Move) -> Key {
        let made = std::panic::catch_unwind(|| {
            let mut key = self.keys[from as usize].clone();
            key.make(step, &self.policy);
            key.check();
            key
        });
        made.unwrap_or_else(|panic| {
            eprintln!("{:?}\nby {:?}, then {step:?}", self.policy, self.way_to(from));
            std::panic::resume_unwind(panic)
        })
    }

    fn way_to(&self, mut id: u32) -> Vec<Move> {
        let mut way = Vec::new();
        while let Some((from, step)) = self.came_from[id as usize] {
            way.push(step);
            id = from;
        }
        way.reverse();
        way
    }

    /// Explores all reachable states of one key.
    fn exhaust(&mut self) -> usize {
        let mut id = 0;
        while id < self.keys.len() {
            self.edges(id as u32);
            id += 1;
        }
        id
    }

    /// Explores all states that two keys can reach in `depth` moves. The order of the two keys does not matter.
    fn pairs(&mut self, depth: usize) -> usize {
        let mut seen = HashSet::from([(0, 0)]);
        let mut frontier = vec![(0, 0)];
        for _ in 0..depth {
            let mut next = Vec::new();
            for (a, b) in frontier {
                self.next_pairs(a, b, &mut |pair| {
                    if seen.insert(pair) {
                        next.push(pair);
                    }
                });
            }
            frontier = next;
        }
        seen.len()
    }

    fn next_pairs(&mut self, a: u32, b: u32, reached: &mut dyn FnMut((u32, u32))) {
        let (of_a, of_b) = (self.edges(a), self.edges(b));
        let pair = |a: u32, b: u32| (a.min(b), a.max(b));
        let (crash_a, crash_b) = (of_a[0].1, of_b[0].1);
        reached(pair(crash_a, crash_b));
        of_a[1..].iter().for_each(|(_, to)| reached(pair(*to, b)));
        of_b[1..].iter().for_each(|(_, to)| reached(pair(a, *to)));
    }
}

#[test]
fn every_state_of_a_small_world_keeps_the_promises() {
    let base = Policy { attempts_max: Some(2), ..policy() };
    let skip = OnFailure::Skip;
    let policies = [
        ("by arrival, park", Policy { sequenced: false, ..base }),
        ("lenient, skip gaps, park", base),
        ("strict, skip gaps, skip", Policy { strict: true, on_failure: skip, ..base }),
        ("strict, park gaps, park", Policy { strict: true, gap_action: GapAction::Park, ..base }),
        (
            "lenient, park gaps, skip, buffer of one",
            Policy { gap_action: GapAction::Park, buffer_events_max: 1, on_failure: skip, ..base },
        ),
    ];
    let mut all = 0;
    for (name, policy) in policies {
        let mut graph = Graph::new(policy);
        let pairs = graph.pairs(DEPTH);
        let keys = graph.exhaust();
        println!("{name}: {pairs} states of two keys up to depth {DEPTH}, {keys} states of one key");
        all += pairs + keys;
    }
    println!("{all} states in total");
    assert!(all > 1_000_000, "the search covers more than a million states");
}
