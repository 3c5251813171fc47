//! The keys of rows. The first letter is the kind of the row. Numbers are big-endian, so that rows sort numerically.

use klambda_core::ids::{Position, Sequence, SubscriptionId};
use klambda_core::webhook::EventId;
use klambda_core::wire::put_varint;
use klambda_store::address::LogAddress;
use klambda_store::rows::NumberKey;

pub const SUBSCRIPTION: u8 = b'S';
pub const LANE: u8 = b'L';
/// Index: lanes that wait and continue without help.
pub const WAITING: u8 = b'W';
/// Index: lanes that wait for an operator.
pub const PARKED: u8 = b'P';
/// Index: lanes by the position of the event that they would drop first.
pub const BY_AGE: u8 = b'B';
/// A chunk of a lane's queue.
pub const CHUNK: u8 = b'Q';
/// An early event beyond the buffer.
pub const EARLY: u8 = b'E';
/// The queue of an unordered subscription, and a chunk of its middle.
pub const UNORDERED: u8 = b'U';
pub const UNORDERED_CHUNK: u8 = b'C';
/// An event of an unordered subscription that is in flight or between attempts.
pub const SINGLE: u8 = b'A';
/// A dead letter outside the lanes.
pub const DEAD: u8 = b'D';
/// A dead letter that parks its lane.
pub const HELD: u8 = b'H';
/// The address of the edit of a dead letter, and its length.
pub const EDITED: u8 = b'V';
/// The address of the copy of an event whose segment was deleted.
pub const KEPT: u8 = b'K';
pub const REPLAY: u8 = b'J';
/// A document of the platform.
pub const DOCUMENT: u8 = b'O';
/// A chunk of the feed of a webhook endpoint.
pub const FEED: u8 = b'F';
/// The number of an entry of a feed, by event id.
pub const FEED_ID: u8 = b'I';
/// A chunk of the attempts of a webhook endpoint.
pub const CALLS: u8 = b'T';
pub const GLOBAL: &[u8] = b"G";

pub fn of_subscription(letter: u8, id: SubscriptionId) -> Vec<u8> {
    let mut key = Vec::with_capacity(48);
    key.push(letter);
    key.extend_from_slice(&id.0.to_be_bytes());
    key
}

pub fn subscription_of(row: &[u8]) -> SubscriptionId {
    let number = row.get(1..5).and_then(|bytes| bytes.try_into().ok());
    SubscriptionId(u32::from_be_bytes(number.unwrap_or_default()))
}

pub fn of_lane(letter: u8, id: SubscriptionId, lane: &str) -> Vec<u8> {
    let mut key = of_subscription(letter, id);
    key.extend_from_slice(lane.as_bytes());
    key
}

/// The lane's key in a row of `of_lane`.
pub fn lane_of(row: &[u8]) -> &str {
    row.get(5..).and_then(|bytes| std::str::from_utf8(bytes).ok()).unwrap_or_default()
}

pub fn chunk(id: SubscriptionId, lane: &str, chunk: u64) -> Vec<u8> {
    numbered(CHUNK, id, lane, chunk)
}

pub fn unordered_chunk(id: SubscriptionId, chunk: u64) -> Vec<u8> {
    let mut key = of_subscription(UNORDERED_CHUNK, id);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub fn early(id: SubscriptionId, lane: &str, sequence: Sequence) -> Vec<u8> {
    numbered(EARLY, id, lane, sequence.0)
}

pub fn early_prefix(id: SubscriptionId, lane: &str) -> Vec<u8> {
    let mut key = of_subscription(EARLY, id);
    put_varint(&mut key, lane.len() as u64);
    key.extend_from_slice(lane.as_bytes());
    key
}

/// The number at the end of a row's key.
pub fn number_of(row: &[u8]) -> u64 {
    row.last_chunk().map_or(0, |bytes| u64::from_be_bytes(*bytes))
}

fn numbered(letter: u8, id: SubscriptionId, lane: &str, number: u64) -> Vec<u8> {
    let mut key = of_subscription(letter, id);
    put_varint(&mut key, lane.len() as u64);
    key.extend_from_slice(lane.as_bytes());
    key.extend_from_slice(&number.to_be_bytes());
    key
}

pub fn at_position(letter: u8, id: SubscriptionId, position: Position) -> Vec<u8> {
    let mut key = of_subscription(letter, id);
    key.extend_from_slice(&position.0.to_be_bytes());
    key
}

pub fn feed(id: SubscriptionId, chunk: u64) -> Vec<u8> {
    let mut key = of_subscription(FEED, id);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub fn calls(id: SubscriptionId, chunk: u64) -> Vec<u8> {
    let mut key = of_subscription(CALLS, id);
    key.extend_from_slice(&chunk.to_be_bytes());
    key
}

pub fn feed_id(id: SubscriptionId, event: EventId) -> NumberKey {
    let mut key = [FEED_ID; size_of::<NumberKey>()];
    key[1..5].copy_from_slice(&id.0.to_be_bytes());
    key[5..].copy_from_slice(&event.0);
    key
}

pub fn kept(at: LogAddress) -> Vec<u8> {
    [&[KEPT], at.0.to_be_bytes().as_slice()].concat()
}

/// The prefix of all documents of a kind. A kind contains no zero byte.
pub fn documents(kind: &str) -> Vec<u8> {
    [&[DOCUMENT], kind.as_bytes(), &[0]].concat()
}

pub fn document(kind: &str, key: &str) -> Vec<u8> {
    [&documents(kind), key.as_bytes()].concat()
}

pub fn replay(id: u64) -> Vec<u8> {
    [&[REPLAY], id.to_be_bytes().as_slice()].concat()
}
