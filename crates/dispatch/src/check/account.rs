//! What the log says of one subscription: which events are open there, and how those left that are not.

use super::line::Line;
use hashbrown::{HashMap, HashSet};
use klambda_core::ids::{Position, Sequence};

/// What the log says of one subscription.
#[derive(Default)]
pub(super) struct Account {
    pub lines: HashMap<String, Line>,
    /// Unordered events that wait or are dead letters.
    pub alone: HashSet<Position>,
    /// Out of their line: overtaken, replayed, or never in one.
    pub aside: HashMap<Position, Aside>,
    /// Dead letters that are gone, while they stood in their line for all the log says.
    pub gone: HashSet<Position>,
    /// What waited when its lane was purged, for all the log says. What was in flight then, or a dead letter outside the
    /// lane, is still there and may come back, once.
    pub purged: HashSet<Position>,
    pub delivered: u64,
    /// Created within this log, so that all of its history is known.
    pub is_whole: bool,
    pub later: HashSet<Position>,
    pub last_routed: Position,
    /// Lanes that something happened to before this log.
    pub older: HashSet<u64>,
    /// By lane, the highest sequence that was delivered.
    pub highest: HashMap<u64, Sequence>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Aside {
    pub why: Why,
    /// The hash of its key.
    pub lane: u64,
    pub sequence: Option<Sequence>,
    /// Others that came after it were delivered before it.
    pub is_passed: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Why {
    Overtaken,
    /// It may be delivered yet.
    Replayed,
    Invalid,
}

impl Account {
    pub fn line(&mut self, key: &str) -> &mut Line {
        self.lines.entry_ref(key).or_default()
    }

    /// A line that nothing waits in is known to be in order: it costs nothing.
    pub fn forget_if_over(&mut self, key: &str) {
        if self.lines.get(key).is_some_and(Line::is_over) {
            self.lines.remove(key);
        }
    }

    /// Takes an event out of its line, whichever that is. Answers whether it was in one.
    pub fn leaves_line(&mut self, position: Position) -> bool {
        let found = self.lines.iter_mut().find_map(|(key, line)| line.take(position).map(|_| key.clone()));
        if let Some(key) = &found {
            self.forget_if_over(key);
        }
        found.is_some()
    }

    /// Everything in the line goes, as far as the record says. Answers how many that were.
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

    /// A new expected sequence: what waits may be late by it.
    pub fn set_apart(&mut self, key: &str, lane: u64) {
        let Some(line) = self.lines.get_mut(key) else { return };
        for waiting in line.iter() {
            let (why, sequence) = (Why::Replayed, waiting.sequence());
            let aside = Aside { why, lane, sequence, is_passed: true };
            self.aside.insert(waiting.position, aside);
        }
        line.clear();
    }

    /// It made room for another.
    pub fn dropped(&mut self, key: &str, position: Position) {
        let waited = self.lines.get_mut(key).is_some_and(|line| line.take(position).is_some());
        if !waited && self.aside.remove(&position).is_none() {
            self.is_back(position);
        }
    }

    /// An event that was taken for purged is there after all.
    pub fn is_back(&mut self, position: Position) -> bool {
        self.purged.remove(&position)
    }

    /// Whether this delivery came after a higher sequence, and whether it skipped one.
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

    /// Everything that has not left.
    pub fn open(&self) -> usize {
        self.lines.values().map(Line::len).sum::<usize>() + self.alone.len() + self.aside.len()
    }
}
