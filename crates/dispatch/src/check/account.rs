//! The events of one subscription according to the log: which are open, and how the others left.

use super::line::Line;
use hashbrown::{HashMap, HashSet};
use klambda_core::ids::{Position, Sequence};

#[derive(Default)]
pub(super) struct Account {
    pub lines: HashMap<String, Line>,
    /// Unordered events that are pending or dead letters.
    pub alone: HashSet<Position>,
    /// Events outside their line: overtaken, replayed, or never placed in one.
    pub aside: HashMap<Position, Aside>,
    /// Deleted dead letters that were still in their line according to the log.
    pub gone: HashSet<Position>,
    /// Events in a lane when it was purged, according to the log. An event that was in flight, or a dead letter
    /// outside the lane, survived the purge and may reappear once.
    pub purged: HashSet<Position>,
    pub delivered: u64,
    /// Created within this log, so its whole history is known.
    pub is_whole: bool,
    pub later: HashSet<Position>,
    pub last_routed: Position,
    /// Lanes with steps before the start of this log.
    pub older: HashSet<u64>,
    /// The highest delivered sequence per lane.
    pub highest: HashMap<u64, Sequence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aside {
    pub why: Why,
    /// The hash of the key.
    pub lane: u64,
    pub sequence: Option<Sequence>,
    /// Later events were delivered before this one.
    pub is_passed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Overtaken,
    /// The event may still be delivered.
    Replayed,
    Invalid,
}

impl Account {
    pub fn line(&mut self, key: &str) -> &mut Line {
        self.lines.entry_ref(key).or_default()
    }

    /// Removes an empty line, so that it uses no memory.
    pub fn forget_if_over(&mut self, key: &str) {
        if self.lines.get(key).is_some_and(Line::is_over) {
            self.lines.remove(key);
        }
    }

    /// Removes an event from whichever line it is in. Returns true if it was in one.
    pub fn leaves_line(&mut self, position: Position) -> bool {
        let found = self.lines.iter_mut().find_map(|(key, line)| line.take(position).map(|_| key.clone()));
        if let Some(key) = &found {
            self.forget_if_over(key);
        }
        found.is_some()
    }

    /// Removes all events of the line, limited to the number in the record. Returns how many were removed.
    pub fn purge(&mut self, key: &str, lane: u64, events: u64) -> u64 {
        let returned = self.aside.extract_if(|_, aside| aside.lane == lane && aside.why == Why::Replayed);
        let mut went: Vec<Position> = returned.map(|(position, _)| position).collect();
        let line = self.line(key);
        went.extend(line.iter().map(|waiting| waiting.position));
        line.clear();
        let waited = went.len() as u64;
        self.purged.extend(went);
        waited.min(events)
    }

    /// The expected sequence was reset, so every pending event may become late.
    pub fn set_apart(&mut self, key: &str, lane: u64) {
        let Some(line) = self.lines.get_mut(key) else { return };
        for waiting in line.iter() {
            let (why, sequence) = (Why::Replayed, waiting.sequence());
            let aside = Aside { why, lane, sequence, is_passed: true };
            self.aside.insert(waiting.position, aside);
        }
        line.clear();
    }

    /// The event was dropped to make room for another.
    pub fn dropped(&mut self, key: &str, position: Position) {
        let waited = self.lines.get_mut(key).is_some_and(|line| line.take(position).is_some());
        if !waited && self.aside.remove(&position).is_none() {
            self.is_back(position);
        }
    }

    /// Restores an event that was counted as purged but still exists.
    pub fn is_back(&mut self, position: Position) -> bool {
        self.purged.remove(&position)
    }

    /// Returns whether this delivery came after a higher sequence, and whether it skipped one.
    pub fn pass(&mut self, lane: u64, sequence: Option<Sequence>) -> (bool, bool) {
        let Some(sequence) = sequence else { return (false, false) };
        match self.highest.get_mut(&lane) {
            Some(highest) if sequence < *highest => (true, false),
            Some(highest) => {
                let gap = sequence.0 > highest.0 + 1;
                *highest = sequence;
                (false, gap)
            }
            None => {
                self.highest.insert(lane, sequence);
                (false, false)
            }
        }
    }

    /// The number of events that have not left.
    pub fn open(&self) -> usize {
        self.lines.values().map(Line::len).sum::<usize>() + self.alone.len() + self.aside.len()
    }
}
