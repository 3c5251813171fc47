//! Ids that are known: kept while their events wait, dropped when their windows are over or there are too many.
//!
//! Marks go a table at a time, the oldest first. Before it goes it is looked through, some marks per call, and those of
//! events that still wait or are dead letters are written anew. A crash on the way costs nothing: the table is still
//! there, and is looked through again.

use super::Kind;
use crate::engine::{Engine, Failure};
use crate::rows;
use crate::subscription::{Phase, Subscription};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::time::Millis;
use klambda_store::marks::{Mark, Marks, State};
use klambda_store::table::{self, Table};
use klambda_store::tables::MergePlan;

/// Marks that are read at once, and those of them that are looked up: for these an event is read from the log.
const READ_AT_ONCE: usize = 4096;
const LOOKED_UP_AT_ONCE: usize = 256;
/// What part of all marks one table may hold: when there are too many, that is what goes.
const TABLE_SHARE: u64 = 4;
/// How long a table that would hardly become smaller is left alone.
const FUTILE_MS: u64 = 60_000;

/// The oldest table of marks, on its way out.
pub(super) struct Expiring {
    table: Table,
    /// Where to go on; none when it is looked through.
    next: Option<u128>,
    /// Marks from before this are in no one's window.
    before: Millis,
    /// It goes because there are too many.
    early: bool,
    renewed: u64,
}

impl Engine {
    pub(super) fn window_ms(&self) -> u64 {
        let windows = self.subscriptions.values().map(|s| s.document.spec.idempotency_ttl_ms);
        windows.max().unwrap_or(0).max(24 * 3_600_000)
    }

    /// The oldest table begins to go if it is past every window.
    pub(super) fn expire_old_marks(&mut self) {
        let before = self.now - self.window_ms();
        if !self.marks.tables().expired(before).is_empty() {
            self.begin_expiring(before, false);
        }
    }

    /// Goes on with the table that goes; if none does and there are too many marks, the oldest begins to.
    pub(super) fn expire_marks(&mut self) -> Result<(), Failure> {
        if self.keeping.expiring.is_none()
            && self.keeping.expire_after <= self.now
            && self.has_too_many_marks()
        {
            self.begin_expiring(self.now - self.window_ms(), true);
        }
        match self.look_through_marks() {
            Err(Failure::Table(error @ table::Error::Damaged { .. })) => {
                tracing::error!(%error, "A damaged table of ids is kept: which of them are needed cannot be told.");
                self.metrics.damaged += 1;
                self.keeping.unreadable_marks =
                    self.keeping.expiring.take().map(|going| going.table.name().to_owned());
                Ok(())
            }
            done => done,
        }
    }

    /// Events that wait are known whatever the limit says, so their marks do not count.
    fn has_too_many_marks(&self) -> bool {
        let (all, limit) = (self.marks.len(), self.config.marks_max);
        let next = self.log.next_position();
        all > limit && all > limit + self.subscriptions.values().map(|s| s.needed_marks(next)).sum::<u64>()
    }

    fn begin_expiring(&mut self, before: Millis, early: bool) {
        let is_free = self.keeping.expiring.is_none() && self.keeping.running != Some(Kind::Marks);
        let oldest = self.marks.tables().tables().last().filter(|_| is_free);
        let is_readable = |table: &&Table| self.keeping.unreadable_marks.as_deref() != Some(table.name());
        if let Some(table) = oldest.filter(is_readable).cloned() {
            self.keeping.expiring = Some(Expiring { table, next: Some(0), before, early, renewed: 0 });
        }
    }

    fn look_through_marks(&mut self) -> Result<(), Failure> {
        let Some(Expiring { table, next: Some(from), before, .. }) = &self.keeping.expiring else {
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
                self.marks.renew(hash, Mark { time, ..mark });
                renewed += 1;
            }
        }
        let Some(expiring) = &mut self.keeping.expiring else { return Ok(()) };
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
        mark.state != State::Released
            && self.subscriptions.values().any(|s| s.will_read(mark) || self.is_pinned_by(s.id, mark.at))
    }

    /// Whether the mark still counts, and its event waits for the mark's subscription or is a dead letter of it.
    fn is_mark_needed(&mut self, hash: u128, mark: &Mark) -> Result<bool, Failure> {
        if self.marks.newest(hash)?.as_ref() != Some(mark) {
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
        let going = self.keeping.expiring.take_if(|expiring| expiring.next.is_none())?;
        let gone = going.table.rows().saturating_sub(going.renewed);
        if going.early {
            self.metrics.marks_expired_early += gone;
            let is_futile = gone < going.renewed;
            self.keeping.expire_after = self.now + if is_futile { FUTILE_MS } else { 0 };
        }
        Some(going.table.name().to_owned())
    }

    /// Not while the oldest table is looked through: it must still be there when it goes.
    pub(super) fn mergeable_marks(&self) -> Option<MergePlan> {
        let all = self.marks.len().max(self.config.marks_max);
        match self.keeping.expiring {
            Some(_) => None,
            None => self.marks.tables().plan_merge_up_to(all / TABLE_SHARE),
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

impl Subscription {
    /// It will come to the event of this mark, which no lane has yet.
    fn will_read(&self, mark: &Mark) -> bool {
        mark.state == State::Later && matches!(self.phase, Phase::CatchingUp { .. })
    }

    /// How many marks it needs at most, whatever their age.
    fn needed_marks(&self, next: Position) -> u64 {
        let unread = match self.phase {
            Phase::CatchingUp { done, .. } => next.0.saturating_sub(done.0.max(self.began.0)),
            _ => 0,
        };
        self.tally.waiting + self.tally.dead + unread
    }
}
