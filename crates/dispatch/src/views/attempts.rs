//! The attempts of one event in one subscription, newest first.

use super::Time;
use super::timeline::{Attempt, Lane, Step, Walk};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_store::address::LogAddress;
use klambda_store::log::LogReader;
use klambda_store::record::{self, LaneRef, Record};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Tried {
    #[serde(flatten)]
    pub attempt: Attempt,
    pub at: Time,
    /// `delivered` or `failed`.
    #[schemars(extend("enum" = ["delivered", "failed"]))]
    pub outcome: &'static str,
    /// Why the attempt failed, unless the answer says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// A search for attempts, started in memory and finished on disk.
#[derive(Debug)]
pub struct Search {
    subscription: SubscriptionId,
    position: Position,
    /// From the last known step backwards.
    walk: Option<Walk>,
    key: Option<String>,
    is_delivered: bool,
}

/// How much of the log after an event is searched for its delivery. An event that was delivered at its first attempt
/// has no other pointer to it.
const SCANNED_BYTES: u64 = 16 << 20;

impl Search {
    /// `last_step` is a step of the event, or a later one of its lane.
    pub fn new(
        subscription: SubscriptionId,
        position: Position,
        key: Option<String>,
        last_step: Option<LogAddress>,
        is_delivered: bool,
    ) -> Search {
        let mut search = Search { subscription, position, walk: None, key, is_delivered };
        search.walk = last_step.map(|at| search.walk_from(at));
        search
    }

    /// Continues as long as `read` returns records.
    pub fn follow(&mut self, read: impl FnMut(LogAddress) -> Option<bytes::Bytes>) {
        if let Some(walk) = &mut self.walk {
            walk.follow(read);
        }
    }

    /// Reads the rest.
    pub fn finish(mut self, reader: &LogReader) -> Vec<Tried> {
        let found = self.walk.take().map(|walk| walk.attempts(reader)).unwrap_or_default();
        if !found.is_empty() || !self.is_delivered {
            return found;
        }
        let delivery = self.scan(reader);
        delivery.map(|at| self.walk_from(at).attempts(reader)).unwrap_or_default()
    }

    fn walk_from(&self, at: LogAddress) -> Walk {
        let lane = match &self.key {
            Some(key) => Lane::Key(key.clone()),
            None => Lane::Alone(self.position),
        };
        Walk::of_event(self.subscription, lane, at, self.position)
    }

    /// The record of the delivery.
    fn scan(&self, reader: &LogReader) -> Option<LogAddress> {
        let start = reader.seek(Position(self.position.0.checked_sub(1)?)).ok()?;
        let mut at = start;
        while at.0 - start.0 < SCANNED_BYTES
            && let Ok(Some(frame)) = reader.frame(at)
        {
            let is_it = |range: &std::ops::Range<usize>| self.is_delivery(&frame.bytes[range.clone()]);
            if let Some((found, _)) = frame.records.iter().find(|(_, range)| is_it(range)) {
                return Some(*found);
            }
            at = frame.next;
        }
        None
    }

    fn is_delivery(&self, body: &[u8]) -> bool {
        let Ok(Record::Step { subscription, lane, step, .. }) = Record::decode(body) else { return false };
        let record::Step::Delivered { position, .. } = step else { return false };
        let is_its_lane = match lane {
            LaneRef::Key(key) => self.key.as_deref() == Some(key),
            LaneRef::Alone(_) | LaneRef::Unordered => self.key.is_none(),
        };
        subscription == self.subscription && position == self.position && is_its_lane
    }
}

impl Tried {
    pub(super) fn new(step: Step) -> Option<Tried> {
        let Step { at, step, attempt, detail, .. } = step;
        let attempt = attempt?;
        let error = detail.filter(|_| attempt.answer.is_none());
        Some(Tried { attempt, at, outcome: step, error })
    }
}
