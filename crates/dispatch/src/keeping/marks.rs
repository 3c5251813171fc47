//! Tables of marks, removed when none of their marks counts any more: their windows are over, or there are too many of
//! them (see `known`).
//!
//! The oldest table goes first. Before it goes it is looked through, some marks per call, and marks of events that still
//! wait or are dead letters are written anew. A crash on the way costs nothing: the table is still there, and is looked
//! through again.

use super::checkpoint::Kind;
use crate::engine::{Engine, Failure};
use crate::known::life_ms;
use crate::rows;
use crate::subscription::Subscription;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::Entry;
use klambda_core::time::Millis;
use klambda_store::marks::{Mark, Marks, State};
use klambda_store::table::{self, Table};
use klambda_store::tables::MergePlan;

/// Marks that are read at once, and those of them that are looked up: for these an event is read from the log.
const READ_AT_ONCE: usize = 4096;
const LOOKED_UP_AT_ONCE: usize = 256;
/// What part of all marks one table may hold.
const TABLE_SHARE: u64 = 4;
/// How long a table that would hardly become smaller is left alone.
const FUTILE_MS: u64 = 60_000;

/// Tables of marks that go.
#[derive(Default)]
pub(super) struct OldMarks {
    /// The oldest one, while it is on its way out.
    pub expiring: Option<Expiring>,
    /// None goes early before this.
    pub expire_after: Millis,
    /// One with damage: what is still needed of it cannot be told, so it stays.
    pub unreadable: Option<String>,
}

/// The oldest table of marks, on its way out.
pub(super) struct Expiring {
    table: Table,
    /// Where to go on; none when it is looked through.
    next: Option<u128>,
    /// Marks from before this are in no one's window.
    before: Millis,
    renewed: u64,
}

impl Engine {
    /// The longest life of a mark.
    fn life_ms_max(&self) -> u64 {
        let windows = self.subscriptions.values().map(|s| s.document.spec.idempotency_ttl_ms);
        life_ms(windows.max().unwrap_or(0).max(24 * 3_600_000))
    }

    /// The oldest table begins to go if it is past every window.
    pub(super) fn expire_old_marks(&mut self) {
        let before = self.now - self.life_ms_max();
        self.known.expire(before);
        self.begin_expiring(before);
    }

    /// Goes on with the table that goes; if none does and none of the oldest table counts, that begins to.
    pub(super) fn expire_marks(&mut self) -> Result<(), Failure> {
        if self.keeping.marks.expire_after <= self.now {
            self.begin_expiring(self.known.first_time());
        }
        match self.look_through_marks() {
            Err(Failure::Table(error @ table::Error::Damaged { .. })) => {
                tracing::error!(%error, "A damaged table of ids is kept: which of them are needed cannot be told.");
                self.metrics.damaged += 1;
                self.keeping.marks.unreadable =
                    self.keeping.marks.expiring.take().map(|going| going.table.name().to_owned());
                Ok(())
            }
            done => done,
        }
    }

    /// The oldest table begins to go if all its marks are from before this.
    fn begin_expiring(&mut self, before: Millis) {
        if self.keeping.marks.expiring.is_some() || self.keeping.chores.running == Some(Kind::Marks) {
            return;
        }
        let is_readable = |table: &&Table| self.keeping.marks.unreadable.as_deref() != Some(table.name());
        let oldest = self.store.marks.tables().oldest_before(before);
        if let Some(table) = oldest.filter(is_readable).cloned() {
            self.keeping.marks.expiring = Some(Expiring { table, next: Some(0), before, renewed: 0 });
        }
    }

    fn look_through_marks(&mut self) -> Result<(), Failure> {
        let Some(Expiring { table, next: Some(from), before, .. }) = &self.keeping.marks.expiring else {
            return Ok(());
        };
        let before = *before;
        let (page, mut next) = Marks::page(table, *from, READ_AT_ONCE)?;
        let (mut looked_up, mut renewed) = (0, 0);
        for (hash, mark) in page {
            if !self.may_wait(&mark) {
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
        let Some(expiring) = &mut self.keeping.marks.expiring else { return Ok(()) };
        expiring.next = next;
        expiring.renewed += renewed;
        if next.is_none() && expiring.renewed > 0 {
            // What was written anew is in memory alone until then.
            self.request_checkpoint();
        }
        Ok(())
    }

    /// Without a look at anything on disk.
    fn may_wait(&self, mark: &Mark) -> bool {
        matches!(mark.state, State::Taken(_) | State::Later(_))
            && self.subscriptions.values().any(|s| s.will_read(mark) || self.is_pinned_by(s.id, mark.at))
    }

    /// Whether the mark still counts, and its event waits for the mark's subscription or is a dead letter of it.
    fn is_mark_needed(&mut self, hash: u128, mark: &Mark) -> Result<bool, Failure> {
        if self.store.marks.newest(hash)?.as_ref() != Some(mark) || self.is_gone(mark.at)? {
            return Ok(false);
        }
        let identity = self.identity_at(mark.at)?;
        for subscription in self.subscriptions.values() {
            let id = subscription.id;
            let is_needed = match identity {
                Some(identity) if identity.within(id) != hash => false,
                Some(_) => subscription.will_read(mark) || self.is_waiting(id, mark)?,
                None => self.is_outside_lanes(id, mark)?,
            };
            if is_needed {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// The table that was looked through, once what is needed of it is elsewhere.
    pub(super) fn marks_to_drop(&mut self) -> Option<String> {
        if self.is_checkpointing() {
            return None;
        }
        let going = self.keeping.marks.expiring.take_if(|expiring| expiring.next.is_none())?;
        let gone = going.table.rows().saturating_sub(going.renewed);
        if gone < going.renewed {
            self.keeping.marks.expire_after = self.now + FUTILE_MS;
        }
        Some(going.table.name().to_owned())
    }

    /// Not while the oldest table is looked through: it must still be there when it goes.
    pub(super) fn mergeable_marks(&self) -> Option<MergePlan> {
        let all = self.store.marks.len().max(self.config.marks_max);
        match self.keeping.marks.expiring {
            Some(_) => None,
            None => self.store.marks.tables().plan_merge_up_to(all / TABLE_SHARE),
        }
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
            for (row, _) in self.store.rows.scan(&prefix, &prefix, usize::MAX)? {
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
    /// It will come to the event of this mark, which no lane has yet.
    fn will_read(&self, mark: &Mark) -> bool {
        matches!(mark.state, State::Later(_)) && self.is_reading()
    }
}
