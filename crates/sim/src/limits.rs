//! Observes the effects of limits: what they drop, and what they should drop.

use crate::checkers::{self, Verdict};
use crate::history::Entry;
use crate::mix::Trouble;
use crate::world::World;
use klambda_dispatch::dead_letters::DeadLetter;
use std::collections::BTreeMap;

impl World {
    /// Records what limits dropped, according to the metrics.
    pub fn look_at_drops(&mut self) -> Verdict {
        let mut news = Vec::new();
        // A subscription that was created again under an old name counts from zero.
        let told = std::mem::take(&mut self.watched.drops_told);
        for ((name, reason), count) in &self.host.engine.metrics().dead_letters_dropped {
            let which = format!("{name} {reason}");
            let before = told.get(&which).copied().unwrap_or_default();
            if *count > before {
                news.push((name.clone(), *count - before));
            }
            self.watched.drops_told.insert(which, *count);
        }
        for (name, count) in news {
            if let Some(sub) = self.known.names.get(&name).copied() {
                self.note(Entry::Dropped { sub, count })?;
            }
        }
        Ok(())
    }

    /// Checks that dead letters are removed when they expire. The engine checks every second. A full disk may delay
    /// the removal.
    pub fn look_at_overdue(&mut self) -> Verdict {
        let now = self.host.engine.now().0;
        let mut overdue = BTreeMap::new();
        for (name, sub) in self.known.names.iter().filter(|_| !self.mix.has(Trouble::FullDisk)) {
            let rules = &self.outside.sub(*sub).rules;
            if !rules.letters_expire() {
                continue;
            }
            let is_over = |letter: &&DeadLetter| {
                !letter.holds_lane && now.saturating_sub(letter.failed.0) >= rules.letters.ttl_ms
            };
            for letter in self.letters(name).iter().filter(is_over) {
                let at = (*sub, letter.entry.position.0);
                let since = self.watched.overdue.get(&at).copied().unwrap_or(now);
                checkers::bounded::expires(rules, letter, now - since)?;
                overdue.insert(at, since);
            }
        }
        self.watched.overdue = overdue;
        Ok(())
    }
}
