//! Where a reader of a feed continues. A cursor is opaque to clients.

use klambda_core::ids::{FeedNumber, SubscriptionId, plain_number};
use klambda_core::webhook::EventId;
use klambda_dispatch::feed::Since;
use std::fmt;
use std::str::FromStr;

/// The version of the format, and the shard of the feed.
const PREFIX: &str = "c1-0-";

/// A place in the feed of one endpoint. An endpoint that is created again has another feed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cursor {
    pub feed: SubscriptionId,
    pub number: FeedNumber,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Start {
    Beginning,
    After(EventId),
    At(Cursor),
}

impl Start {
    pub fn since(self, feed: SubscriptionId) -> Since {
        match self {
            Start::Beginning => Since::Beginning,
            Start::After(id) => Since::Event(id),
            Start::At(cursor) if cursor.feed == feed => Since::Entry(cursor.number),
            // The feed that this cursor is from is gone. No event has this id.
            Start::At(_) => Since::Event(EventId([0; 16])),
        }
    }
}

impl fmt::Display for Cursor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}-{}", self.feed.0, self.number.0)
    }
}

impl FromStr for Start {
    type Err = ();

    fn from_str(text: &str) -> Result<Start, ()> {
        if let Ok(id) = text.parse() {
            return Ok(Start::After(id));
        }
        let (feed, number) = text.strip_prefix(PREFIX).and_then(|rest| rest.split_once('-')).ok_or(())?;
        let feed = plain_number(feed).and_then(|feed| feed.try_into().ok()).ok_or(())?;
        let number = plain_number(number).ok_or(())?;
        Ok(Start::At(Cursor { feed: SubscriptionId(feed), number: FeedNumber(number) }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_reads_back_and_is_valid_for_its_own_feed_only() {
        let cursor = Cursor { feed: SubscriptionId(7), number: FeedNumber(42) };
        let start: Start = cursor.to_string().parse().expect("a cursor");
        assert_eq!(start, Start::At(cursor));
        assert_eq!(start.since(SubscriptionId(7)), Since::Entry(FeedNumber(42)));
        assert!(matches!(start.since(SubscriptionId(8)), Since::Event(_)));
        let id = EventId::new("shop", "/s", "1");
        assert_eq!(id.to_string().parse(), Ok(Start::After(id)));
        for wrong in ["", "42", "c1-0-7", "c2-0-7-42", "c1-0-7-x", "c1-0--1", "not-a-uuid"] {
            assert_eq!(wrong.parse::<Start>(), Err(()), "{wrong}");
        }
    }
}
