//! Deletes tables of marks when none of their marks count any more, because their windows are over or there are too
//! many marks (see `known_ids`).
//!
//! The oldest table goes first. Before a table is deleted, it is scanned in portions, and marks of events that are
//! pending or dead letters are written again. A crash during the scan does no harm: the table still exists and is
//! scanned again.

use super::checkpoint::ChoreKind;
use crate::engine::{Engine, Failure};
use crate::known_ids::life_ms;
use crate::rows;
use crate::subscription::Subscription;
use crate::subscriptions::Work;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::Entry;
use klambda_core::time::Millis;
use klambda_store::marks::{Mark, Marks, State};
use klambda_store::table::{self, Table};
use klambda_store::tables::MergePlan;

/// How many marks are read per call, and how many of them are looked up, which reads an event from the log.
const READ_AT_ONCE: usize = 4096;
const LOOKED_UP_AT_ONCE: usize = 256;
/// The maximum share of all marks in one table.
const TABLE_SHARE: u64 = 4;
/// How long a table is left alone that would hardly become smaller.
const FUTILE_MS: u64 = 60_000;

/// State of deleting old tables of marks.
#[derive(Default)]
pub(super) struct OldMarks {
    /// The oldest table, while it is being scanned.
    pub expiring: Option<Expiring>,
    /// No table is deleted early before this time.
    pub expire_after: Millis,
    /// A damaged table. Its needed marks cannot be determined, so it is kept.
    pub unreadable: Option<String>,
}

/// The oldest table of marks while it is being scanned.
pub(super) struct Expiring {
    table: Table,
    /// Where to continue; `None` when the scan is complete.
    next: Option<u128>,
    /// Marks from before this time are outside every window.
    before: Millis,
    renewed: u64,
}

impl Engine {
    /// The longest lifetime of a mark.
    fn life_ms_max(&self) -> u64 {
        life_ms(self.subscriptions.window_ms_max().max(24 * 3_600_000))
    }

    /// Starts expiring the oldest table if it is past every window.
    pub(super) fn expire_old_marks(&mut self) {
        let before = self.now - self.life_ms_max();
        self.known_ids.expire(before);
        self.begin_expiring(before);
    }

    /// Continues with the expiring table. If there is none and no mark of the oldest table counts, starts with that
    /// one.
    pub(super) fn expire_marks(&mut self) -> Result<(), Failure> {
        if self.maintenance.marks.expire_after <= self.now {
            self.begin_expiring(self.known_ids.first_time());
        }
        match self.look_through_marks() {
            Err(Failure::Table(error @ table::Error::Damaged { .. })) => {
                tracing::error!(%error, "Damaged table of event ids is kept, because the ids still needed cannot be read");
                self.metrics.damaged += 1;
                self.maintenance.marks.unreadable =
                    self.maintenance.marks.expiring.take().map(|going| going.table.name().to_owned());
                Ok(())
            }
            done => done,
        }
    }

    /// Starts expiring the oldest table if all of its marks are from before this time.
    fn begin_expiring(&mut self, before: Millis) {
        if self.maintenance.marks.expiring.is_some()
            || self.maintenance.chores.running == Some(ChoreKind::Marks)
        {
            return;
        }
        let is_readable = |table: &&Table| self.maintenance.marks.unreadable.as_deref() != Some(table.name());
        let oldest = self.store.marks.tables().oldest_before(before);
        if let Some(table) = oldest.filter(is_readable).cloned() {
            self.maintenance.marks.expiring = Some(Expiring { table, next: Some(0), before, renewed: 0 });
        }
    }

    fn look_through_marks(&mut self) -> Result<(), Failure> {
        let Some(Expiring { table, next: Some(from), before, .. }) = &self.maintenance.marks.expiring else {
            return Ok(());
        };
        // A large table of pending events would otherwise be written again faster than checkpoints take it from memory.
        if self.has_many_new_marks() {
            return Ok(());
        }
        let before = *before;
        let (page, mut next) = Marks::page(table, *from, READ_AT_ONCE)?;
        let (mut looked_up, mut renewed) = (0, 0);
        let pinned = self.pinned_near(page.iter().map(|(_, mark)| mark.at));
        let is_reading = self.is_catching_up();
        // Checks without reading from disk.
        let may_wait = |mark: &Mark| match mark.state {
            State::Taken(_) => pinned.contains(mark.at),
            State::Later(_) => is_reading || pinned.contains(mark.at),
            State::Delivered(_) | State::Released(_) => false,
        };
        for (hash, mark) in page {
            if !may_wait(&mark) {
                continue;
            }
            if looked_up == LOOKED_UP_AT_ONCE {
                next = Some(hash);
                break;
            }
            looked_up += 1;
            if self.is_mark_needed(hash, &mark)? {
                let time = if mark.time < before { self.now } else { mark.time };
                self.store.marks.renew(hash, Mark { time, ..mark });
                renewed += 1;
            }
        }
        let Some(expiring) = &mut self.maintenance.marks.expiring else { return Ok(()) };
        expiring.next = next;
        expiring.renewed += renewed;
        if next.is_none() && expiring.renewed > 0 {
            // The rewritten marks are only in memory until the checkpoint.
            self.request_checkpoint();
        }
        Ok(())
    }

    /// True if the mark still counts and its event is pending or a dead letter of the mark's subscription.
    fn is_mark_needed(&mut self, hash: u128, mark: &Mark) -> Result<bool, Failure> {
        if self.store.marks.newest(hash)?.as_ref() != Some(mark) || self.is_gone(mark.at)? {
            return Ok(false);
        }
        if let Some(identity) = self.identity_at(mark.at)? {
            let holder = identity.subscription_of(hash).and_then(|id| self.subscriptions.get(id));
            let Some(holder) = holder else { return Ok(false) };
            return Ok(holder.will_read(mark) || self.is_waiting(holder.id, mark)?);
        }
        // The event cannot be read, so its mark may belong to any subscription that keeps an event there.
        for subscription in self.subscriptions.each_with(Work::Keeping).filter(|s| s.tally.pins(mark.at)) {
            if self.is_outside_lanes(subscription.id, mark)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The table whose scan is complete, once its needed marks are stored elsewhere.
    pub(super) fn marks_to_drop(&mut self) -> Option<String> {
        if self.is_checkpointing() {
            return None;
        }
        let going = self.maintenance.marks.expiring.take_if(|expiring| expiring.next.is_none())?;
        let gone = going.table.rows().saturating_sub(going.renewed);
        if gone < going.renewed {
            self.maintenance.marks.expire_after = self.now + FUTILE_MS;
        }
        Some(going.table.name().to_owned())
    }

    /// No merge while the oldest table is scanned: the table must still exist when it is deleted.
    pub(super) fn mergeable_marks(&self) -> Option<MergePlan> {
        let all = self.store.marks.len().max(self.config.marks_max);
        match self.maintenance.marks.expiring {
            Some(_) => None,
            None => self.store.marks.tables().plan_merge_up_to(all / TABLE_SHARE),
        }
    }

    /// Calls `f` for every pending event in the lanes or the queue of the subscription, in memory or on disk.
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
            for (row, _) in self.store.rows.scan(&prefix, &prefix, usize::MAX)? {
                let key = rows::lane_of(&row);
                if self.lanes.find(id, key).is_none()
                    && let Some(resident) = self.peek_lane(id, key)?
                {
                    resident.lane.entries().for_each(&mut *f);
                }
            }
        }
        self.for_each_queued(id, f)?;
        for letter in [rows::CHUNK, rows::EARLY] {
            let prefix = rows::of_subscription(letter, id);
            for (_, row) in self.store.rows.scan(&prefix, &prefix, usize::MAX)? {
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

impl Subscription {
    /// True if the subscription will read the event of this mark, which is in no lane yet.
    fn will_read(&self, mark: &Mark) -> bool {
        matches!(mark.state, State::Later(_)) && self.is_reading()
    }
}
