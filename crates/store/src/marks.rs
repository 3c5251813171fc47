//! Idempotency marks: which subscription knows which event, by a keyed 128-bit hash, for the length of the id window.
//!
//! A mark is set in the same step as the work that it marks. Marks expire in tables by time: a table is dropped when
//! all its marks are past their window. The number of marks is limited; at the limit, the oldest table is dropped
//! early.

use crate::address::LogAddress;
use crate::table::{Error, Table};
use crate::tables::TableSet;
use hashbrown::HashMap;
use klambda_core::ids::{NamespaceId, Position, SubscriptionId};
use klambda_core::time::Millis;
use klambda_core::wire::{Malformed, Reader, put_varint};
use siphasher::sip128::{Hasher128, SipHasher13};
use std::hash::Hasher;
use std::sync::Arc;

/// Hash of the `source` and `id` of an event. It uses a secret key per data folder, so that nobody can construct
/// collisions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Identity(u128);

/// An odd number, and the number whose product with it is 1.
const ODD: u128 = 0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835;
const INVERSE: u128 = 0x2896_9101_c228_2353_2f07_eb1a_988d_4a1d;
const _: () = assert!(ODD.wrapping_mul(INVERSE) == 1);

impl Identity {
    pub fn new(key: &[u8; 16], namespace: NamespaceId, source: &str, id: &str) -> Identity {
        let mut hasher = SipHasher13::new_with_key(key);
        hasher.write_u64(namespace.0);
        hasher.write_u64(source.len() as u64);
        hasher.write(source.as_bytes());
        hasher.write(id.as_bytes());
        Identity(hasher.finish128().as_u128())
    }

    /// The hash of the mark in one subscription. This is a bijection, so different ids of a subscription never
    /// collide here.
    pub fn within(self, subscription: SubscriptionId) -> u128 {
        self.0.wrapping_add(ODD.wrapping_mul(u128::from(subscription.0)))
    }

    /// The subscription in which the mark of this identity has this hash.
    pub fn subscription_of(self, hash: u128) -> Option<SubscriptionId> {
        let number = INVERSE.wrapping_mul(hash.wrapping_sub(self.0));
        u32::try_from(number).ok().map(SubscriptionId)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The address of the event's record.
    pub at: LogAddress,
    pub time: Millis,
    pub state: State,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The event is pending, or was delivered soon after its acceptance. The first format did not store the position;
    /// it reads as 0.
    Taken(Position),
    /// The event is in the log. It will be routed when the subscription reads it.
    Later(Position),
    /// The record at this address records the delivery.
    Delivered(LogAddress),
    /// The record at this address shows that the event left without success. The event may be sent again.
    Released(LogAddress),
}

/// Marks with their hashes, and the hash to continue from.
pub type Page = (Vec<(u128, Mark)>, Option<u128>);

pub type Recent = HashMap<u128, Mark, foldhash::fast::RandomState>;

#[derive(Default)]
pub struct Marks {
    recent: Recent,
    frozen: Option<Arc<Recent>>,
    tables: TableSet,
}

impl Marks {
    pub fn new(tables: TableSet) -> Marks {
        Marks { tables, ..Marks::default() }
    }

    pub fn get(&self, identity: Identity, subscription: SubscriptionId) -> Result<Option<Mark>, Error> {
        self.newest(identity.within(subscription))
    }

    /// The newest version of the mark with this hash.
    pub fn newest(&self, hash: u128) -> Result<Option<Mark>, Error> {
        let memory = self.recent.get(&hash).or_else(|| self.frozen.as_ref()?.get(&hash));
        if let Some(mark) = memory {
            return Ok(Some(*mark));
        }
        let row = self.tables.get(&hash.to_be_bytes())?;
        Ok(row.and_then(|row| Mark::decode(&row).ok()))
    }

    pub fn put(&mut self, identity: Identity, subscription: SubscriptionId, mark: Mark) {
        self.renew(identity.within(subscription), mark);
    }

    pub fn renew(&mut self, hash: u128, mark: Mark) {
        self.recent.insert(hash, mark);
    }

    /// Up to `limit` marks of one table in hash order, and the hash to continue from; `None` at the end.
    pub fn page(table: &Table, from: u128, limit: usize) -> Result<Page, Error> {
        let mut page = Vec::with_capacity(limit);
        let mut next = None;
        for row in table.scan(&from.to_be_bytes()).take(limit) {
            let (key, value) = row?;
            let hash = key.try_into().map_or(0, u128::from_be_bytes);
            next = hash.checked_add(1);
            page.extend(value.and_then(|value| Mark::decode(&value).ok()).map(|mark| (hash, mark)));
        }
        Ok((page, next))
    }

    /// Memory used, without the tables.
    pub fn memory_bytes(&self) -> usize {
        let frozen = self.frozen.as_ref().map_or(0, |frozen| frozen.allocation_size());
        self.recent.allocation_size() + frozen
    }

    pub fn recent_len(&self) -> usize {
        self.recent.len()
    }

    /// The number of marks. A mark that exists in two versions counts twice.
    pub fn len(&self) -> u64 {
        let stored: u64 = self.tables.tables().iter().map(|table| table.rows()).sum();
        stored + (self.recent.len() + self.frozen.as_ref().map_or(0, |frozen| frozen.len())) as u64
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    pub fn freeze(&mut self) -> Arc<Recent> {
        assert!(self.frozen.is_none(), "only one checkpoint may run at a time");
        // About as many marks will arrive before the next checkpoint, so reserve the space now.
        let next = Recent::with_capacity_and_hasher(self.recent.len(), Default::default());
        let frozen = Arc::new(std::mem::replace(&mut self.recent, next));
        self.frozen = Some(frozen.clone());
        frozen
    }

    pub fn thaw(&mut self) {
        let Some(frozen) = self.frozen.take() else { return };
        for (hash, mark) in frozen.iter() {
            self.recent.entry(*hash).or_insert(*mark);
        }
    }

    pub fn settle(&mut self, tables: TableSet) {
        self.frozen = None;
        self.tables = tables;
    }

    pub fn replace_tables(&mut self, tables: TableSet) {
        self.tables = tables;
    }

    pub fn tables(&self) -> &TableSet {
        &self.tables
    }
}

impl Mark {
    /// The address of the record that the mark refers to. The oldest marks are forgotten first.
    pub fn age(&self) -> LogAddress {
        match self.state {
            State::Taken(_) | State::Later(_) => self.at,
            State::Delivered(at) | State::Released(at) => at,
        }
    }

    pub fn encode(&self, out: &mut Vec<u8>) {
        let (code, number) = match self.state {
            State::Taken(position) => (0, position.0),
            State::Later(position) => (1, position.0),
            State::Released(at) => (2, at.0),
            State::Delivered(at) => (3, at.0),
        };
        out.push(code);
        put_varint(out, self.at.0);
        put_varint(out, self.time.0);
        put_varint(out, number);
    }

    pub fn decode(row: &[u8]) -> Result<Mark, Malformed> {
        let mut r = Reader::new(row);
        let code = r.u8()?;
        let (at, time) = (LogAddress(r.varint()?), Millis(r.varint()?));
        let number = if r.is_empty() { 0 } else { r.varint()? };
        let state = match code {
            0 => State::Taken(Position(number)),
            1 => State::Later(Position(number)),
            2 => State::Released(LogAddress(number)),
            3 => State::Delivered(LogAddress(number)),
            _ => return Err(Malformed("mark")),
        };
        Ok(Mark { at, time, state })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hash_names_its_subscription() {
        let identity = Identity::new(&[7; 16], NamespaceId(3), "/s", "1");
        for id in [0, 1, 77, u32::MAX].map(SubscriptionId) {
            assert_eq!(identity.subscription_of(identity.within(id)), Some(id));
        }
        let other = Identity::new(&[7; 16], NamespaceId(3), "/s", "2");
        assert_eq!(identity.subscription_of(other.within(SubscriptionId(1))), None);
    }
}
