//! What limits let go, and what they should have let go.

use crate::checkers::{self, Verdict};
use crate::history::Entry;
use crate::mix::Trouble;
use crate::world::World;
use klambda_dispatch::dead_letters::DeadLetter;
use std::collections::BTreeMap;

impl World {
    /// What limits dropped, as the metrics tell.
    pub fn look_at_drops(&mut self) -> Verdict {
        let mut news = Vec::new();
        // One that is made anew under an old name counts from the beginning.
        let told = std::mem::take(&mut self.drops_told);
        for ((name, reason), count) in &self.engine.metrics().dead_letters_dropped {
            let which = format!("{name} {reason}");
            let before = told.get(&which).copied().unwrap_or_default();
            if *count > before {
                news.push((name.clone(), *count - before));
            }
            self.drops_told.insert(which, *count);
        }
        for (name, count) in news {
            if let Some(sub) = self.names.get(&name).copied() {
                self.note(Entry::Dropped { sub, count })?;
            }
        }
        Ok(())
    }

    /// Dead letters go when their time is over: at the next look that the engine takes, which it does every second. A full
    /// disk may keep it from writing that down.
    pub fn look_at_overdue(&mut self) -> Verdict {
        let now = self.engine.now().0;
        let mut overdue = BTreeMap::new();
        for (name, sub) in self.names.iter().filter(|_| !self.mix.has(Trouble::FullDisk)) {
            let rules = &self.outside.sub(*sub).rules;
            if !rules.letters_expire() {
                continue;
            }
            let is_over = |letter: &&DeadLetter| {
                !letter.holds_lane && now.saturating_sub(letter.failed.0) >= rules.letters_ttl_ms
            };
            for letter in self.letters(name).iter().filter(is_over) {
                let at = (*sub, letter.entry.position.0);
                let since = self.overdue.get(&at).copied().unwrap_or(now);
                checkers::bounded::expires(rules, letter, now - since)?;
                overdue.insert(at, since);
            }
        }
        self.overdue = overdue;
        Ok(())
    }
}
