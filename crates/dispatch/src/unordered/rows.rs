//! The rows of unordered events: the queue, the chunks of its middle, and the events under way.

use super::{Single, Unordered};
use crate::engine::{Engine, Failure};
use crate::rows;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Queue};
use klambda_core::lane_row::{put_entries, put_entry, take_entries, take_entry};
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_bytes, put_option, put_varint};
use klambda_store::address::LogAddress;
use klambda_store::rows::Rows;

impl Engine {
    /// Moves a full back of the queue to disk, and loads an empty front from there.
    pub(super) fn settle_unordered(&mut self, id: SubscriptionId) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let queue = &mut subscription.unordered.queue;
        if let Some((chunk, entries)) = queue.take_chunk() {
            let mut row = Vec::new();
            put_entries(&mut row, entries.iter());
            self.store.rows.put(&rows::unordered_chunk(id, chunk), &row);
        }
        if let Some(chunk) = queue.wanted_chunk() {
            queue.load_chunk(read_chunk(&self.store.rows, id, chunk)?.into_iter());
            self.store.rows.delete(&rows::unordered_chunk(id, chunk));
        }
        Ok(())
    }

    /// Calls `f` for every event of the queue, in memory or on disk.
    pub(crate) fn for_each_queued(
        &self,
        id: SubscriptionId,
        f: &mut dyn FnMut(&Entry),
    ) -> Result<(), Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let queue = &subscription.unordered.queue;
        queue.entries().for_each(&mut *f);
        for chunk in queue.chunks() {
            read_chunk(&self.store.rows, id, chunk)?.iter().for_each(&mut *f);
        }
        Ok(())
    }

    /// True if the event is in the queue. If the queue contains moved dead letters, it is not in order of arrival. In
    /// that case its chunks are not searched, and the result is true.
    pub(crate) fn is_queued(&self, id: SubscriptionId, at: LogAddress) -> Result<bool, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(false) };
        let Unordered { queue, moved, .. } = &subscription.unordered;
        if queue.entries().any(|entry| entry.at == at.into()) {
            return Ok(true);
        }
        if queue.spilled().entries > 0 && !moved.is_empty() {
            return Ok(true);
        }
        let around = queue.chunk_around(at.into(), |chunk| read_chunk(&self.store.rows, id, chunk))?;
        Ok(around.iter().any(|entry| entry.at == at.into()))
    }

    pub(crate) fn load_unordered(&mut self) -> Result<(), Failure> {
        for (key, row) in self.store.rows.scan(&[rows::UNORDERED], &[], usize::MAX)? {
            if let Some(subscription) = self.subscriptions.get_mut(rows::subscription_of(&key)) {
                subscription.unordered.read_queue(&row)?;
            }
        }
        for (key, row) in self.store.rows.scan(&[rows::SINGLE], &[], usize::MAX)? {
            if let Some(subscription) = self.subscriptions.get_mut(rows::subscription_of(&key)) {
                let single = Single::decode(&row)?;
                subscription.unordered.under_way.insert(Position(rows::number_of(&key)), single);
            }
        }
        Ok(())
    }
}

pub(crate) fn read_chunk(rows: &Rows, id: SubscriptionId, chunk: u64) -> Result<Vec<Entry>, Failure> {
    let row = rows.get(&rows::unordered_chunk(id, chunk))?;
    let missing =
        || Failure::State(format!("chunk {chunk} of the queue of subscription {id} not found in the tables"));
    Ok(take_entries(&mut Reader::new(&row.ok_or_else(missing)?))?)
}

impl Unordered {
    /// Updates its rows.
    pub(crate) fn store(&mut self, id: SubscriptionId, rows: &mut Rows) {
        if std::mem::take(&mut self.dirty) {
            self.store_queue(id, rows);
        }
        for (position, single) in &mut self.under_way {
            rows.put(&rows::at_position(rows::SINGLE, id, *position), &single.encode());
            single.stored = true;
        }
    }

    fn store_queue(&mut self, id: SubscriptionId, rows: &mut Rows) {
        let key = rows::of_subscription(rows::UNORDERED, id);
        if self.queue.is_empty() {
            self.queue.shrink();
            return rows.delete(&key);
        }
        let mut row = Vec::new();
        self.queue.encode(&mut row);
        put_varint(&mut row, self.moved.len() as u64);
        self.moved.iter().for_each(|position| put_varint(&mut row, position.0));
        rows.put(&key, &row);
    }

    fn read_queue(&mut self, row: &[u8]) -> Result<(), Malformed> {
        let r = &mut Reader::new(row);
        self.queue = Queue::decode(r)?;
        for _ in 0..r.varint()? {
            self.moved.push_back(Position(r.varint()?));
        }
        Ok(())
    }
}

impl Single {
    fn encode(&self) -> Vec<u8> {
        let mut row = Vec::new();
        put_entry(&mut row, &self.entry);
        put_varint(&mut row, u64::from(self.attempts));
        put_varint(&mut row, u64::from(self.attempts_total));
        put_option(&mut row, self.retry_at.map(|at| at.0));
        put_varint(&mut row, self.last_step.0);
        row.push(self.reason.code());
        put_bytes(&mut row, self.error.as_bytes());
        row
    }

    fn decode(row: &[u8]) -> Result<Single, Malformed> {
        let r = &mut Reader::new(row);
        Ok(Single {
            entry: take_entry(r)?,
            attempts: r.u32()?,
            attempts_total: r.u32()?,
            retry_at: r.option()?.map(Millis),
            in_flight: false,
            last_step: LogAddress(r.varint()?),
            reason: Reason::from_code(r.u8()?).ok_or(Malformed("reason"))?,
            error: r.text()?.to_owned(),
            stored: true,
        })
    }
}
