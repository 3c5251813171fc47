//! Ids that are known: kept while their events wait, dropped when their windows are over.

use crate::engine::{Engine, Failure};
use crate::rows;
use klambda_core::ids::{Address, Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::time::Millis;

impl Engine {
    pub(super) fn window_ms(&self) -> u64 {
        let windows = self.subscriptions.values().map(|s| s.document.spec.idempotency_ttl_ms);
        windows.max().unwrap_or(0).max(24 * 3_600_000)
    }

    /// Whole tables of marks that are past every window, or too many.
    pub(super) fn marks_to_drop(&mut self) -> Option<Vec<String>> {
        if self.marks.len() > self.config.marks_max
            && let Some(oldest) = self.marks.tables().tables().last()
        {
            self.metrics.marks_expired_early += oldest.rows();
            return Some(vec![oldest.name().to_owned()]);
        }
        if self.is_checkpointing() {
            // What was written anew is in memory alone until then.
            return None;
        }
        let before = self.keeping.marks_refreshed.take()?;
        let names = self.marks.tables().expired(before);
        (!names.is_empty()).then_some(names)
    }

    /// Before old marks go, those of events that still wait are written anew, and a checkpoint makes that durable.
    pub(super) fn refresh_marks(&mut self) -> Result<(), Failure> {
        let before = self.now - self.window_ms();
        if self.keeping.marks_refreshed.is_some() || self.is_checkpointing() {
            return Ok(());
        }
        // What was accepted and is not read from the log yet is known by its mark alone.
        if self.is_catching_up() {
            return Ok(());
        }
        if self.marks.tables().expired(before).is_empty() {
            return Ok(());
        }
        for (id, at) in self.waiting_before(before)? {
            self.mark_taken(at, self.now, id)?;
        }
        self.keeping.marks_refreshed = Some(before);
        self.request_checkpoint();
        Ok(())
    }

    /// Events that were accepted before this and still wait or are dead letters.
    pub(super) fn waiting_before(&self, before: Millis) -> Result<Vec<(SubscriptionId, Address)>, Failure> {
        let mut found = Vec::new();
        for (id, subscription) in &self.subscriptions {
            let tally = &subscription.tally;
            let mut add = |entry: &Entry| {
                if entry.accepted < before {
                    found.push((*id, entry.at));
                }
            };
            if tally.dead + tally.held > 0 {
                let all = crate::dead_letters::Selector::default();
                let letters = self.select_dead_letters(*id, &all, Position(0), usize::MAX)?;
                letters.iter().for_each(|letter| add(&letter.entry));
            }
            if tally.oldest().is_some_and(|oldest| oldest < before) {
                subscription.singles.values().for_each(|single| add(&single.entry));
                self.for_each_waiting(*id, &mut add)?;
            }
        }
        Ok(found)
    }

    /// Every event that waits in a lane of the subscription, in memory or not.
    pub(crate) fn for_each_waiting(
        &self,
        id: SubscriptionId,
        f: &mut dyn FnMut(&Entry),
    ) -> Result<(), Failure> {
        for (_, resident) in self.lanes.iter().filter(|(_, resident)| resident.subscription == id) {
            resident.lane.entries().for_each(&mut *f);
        }
        for letter in [rows::WAITING, rows::PARKED] {
            let prefix = rows::of_subscription(letter, id);
            for (row, _) in self.rows.scan(&prefix, &prefix, usize::MAX)? {
                let key = rows::lane_of(&row);
                if self.lanes.find(id, key).is_none()
                    && let Some(resident) = self.peek_lane(id, key)?
                {
                    resident.lane.entries().for_each(&mut *f);
                }
            }
        }
        for letter in [rows::CHUNK, rows::EARLY] {
            let prefix = rows::of_subscription(letter, id);
            for (_, row) in self.rows.scan(&prefix, &prefix, usize::MAX)? {
                let r = &mut klambda_core::wire::Reader::new(&row);
                if letter == rows::CHUNK {
                    klambda_core::lane_row::take_entries(r)?.iter().for_each(&mut *f);
                } else {
                    f(&klambda_core::lane_row::take_entry(r)?);
                }
            }
        }
        Ok(())
    }
}
