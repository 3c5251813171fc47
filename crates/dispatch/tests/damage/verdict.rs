//! Compares what an opened folder delivered with what was known before.

use crate::load::{Drained, KEYS, Name, Told, is_note};
use std::collections::BTreeSet;

/// All lists are empty if nothing is wrong.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Verdict {
    pub lost: Vec<Name>,
    /// Delivered again although its acknowledgement was durable.
    pub doubled: Vec<Name>,
    pub disordered: Vec<Name>,
    pub wrong: Vec<Name>,
}

impl Verdict {
    /// `before` is what had happened. `must` is what may not be lost: the same, or less if damage took the rest.
    pub fn of(drained: &Drained, before: &Told, must: &Told) -> Verdict {
        let mut verdict = Verdict { wrong: drained.wrong.clone(), ..Verdict::default() };
        for key in 0..KEYS {
            verdict.judge_lane(key, &drained.lanes[key], before, must);
        }
        verdict.judge_notes(drained, before, must);
        verdict
    }

    fn judge_lane(&mut self, key: usize, delivered: &[u64], before: &Told, must: &Told) {
        let in_turn = |pair: &[u64]| pair[1] == pair[0] + 1;
        let out_of_turn = delivered.windows(2).filter(|pair| !in_turn(pair)).map(|pair| (key, pair[1]));
        self.disordered.extend(out_of_turn);
        let again = delivered.iter().filter(|number| **number <= must.settled[key]);
        self.doubled.extend(again.map(|number| (key, *number)));
        let delivered: BTreeSet<u64> = delivered.iter().copied().collect();
        let lost = (before.seen[key] + 1..=must.answered[key]).filter(|number| !delivered.contains(number));
        self.lost.extend(lost.map(|number| (key, number)));
    }

    fn judge_notes(&mut self, drained: &Drained, before: &Told, must: &Told) {
        let delivered: BTreeSet<Name> = drained.notes.iter().copied().collect();
        self.doubled.extend(delivered.intersection(&must.notes_settled));
        let answered = (0..KEYS).flat_map(|key| (1..=must.answered[key]).map(move |number| (key, number)));
        let wanted = answered.filter(|name| is_note(*name) && !before.notes_seen.contains(name));
        self.lost.extend(wanted.filter(|name| !delivered.contains(name)));
    }
}
