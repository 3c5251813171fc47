//! The id under which receivers of webhooks know an event.

use sha1::{Digest, Sha1};
use std::fmt;
use std::str::FromStr;
use uuid::fmt::Hyphenated;
use uuid::{Builder, Uuid};

/// A version 5 UUID of namespace, source and id. The same event always has the same id, in every attempt and replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct EventId(pub [u8; 16]);

/// The UUID namespace of event ids, a random constant.
const NAMESPACE: Uuid = Uuid::from_u128(0x5f0c_1be8_7d1f_4c53_9a35_2d9e_61b0_84f7);
/// The UUID namespace of calls with several events, a random constant.
const BATCHES: Uuid = Uuid::from_u128(0x0e8b_93b1_52c4_4f6d_b1a7_c94b_7b1d_3a26);

impl EventId {
    /// Attributes of an event contain no control characters, so a line break separates them without ambiguity.
    pub fn new(namespace: &str, source: &str, id: &str) -> EventId {
        let parts = [namespace, "\n", source, "\n", id];
        version_5(NAMESPACE, parts.iter().map(|part| part.as_bytes()))
    }

    /// The id of a call with these events. A retry with more events has another id, so that a receiver that compares ids
    /// does not take it for a duplicate.
    pub fn of_call(events: &[EventId]) -> EventId {
        match events {
            [event] => *event,
            events => version_5(BATCHES, events.iter().map(|event| event.0.as_slice())),
        }
    }

    /// Passes the id as text to `f`, without an allocation.
    pub fn with_text<T>(self, f: impl FnOnce(&str) -> T) -> T {
        f(Uuid::from_bytes(self.0).hyphenated().encode_lower(&mut [0; Hyphenated::LENGTH]))
    }
}

/// A UUID of the name that consists of these parts. Every call of an endpoint needs one, so the hash uses the instructions
/// of the processor.
fn version_5<'a>(namespace: Uuid, parts: impl Iterator<Item = &'a [u8]>) -> EventId {
    let mut hash = Sha1::new();
    hash.update(namespace.as_bytes());
    parts.for_each(|part| hash.update(part));
    let hash: [u8; 20] = hash.finalize().into();
    let mut bytes = [0; 16];
    bytes.copy_from_slice(&hash[..16]);
    EventId(*Builder::from_sha1_bytes(bytes).as_uuid().as_bytes())
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.with_text(|text| f.write_str(text))
    }
}

impl FromStr for EventId {
    type Err = uuid::Error;

    fn from_str(text: &str) -> Result<EventId, uuid::Error> {
        Uuid::try_parse(text).map(|uuid| EventId(*uuid.as_bytes()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_event_id_is_stable_and_names_one_event() {
        let id = EventId::new("shop", "/orders", "1");
        assert_eq!(id, EventId::new("shop", "/orders", "1"));
        assert_eq!(id.to_string().parse(), Ok(id));
        assert_eq!(id.to_string().as_bytes()[14], b'5', "version 5");
        for (namespace, source, other) in
            [("shop", "/orders", "2"), ("shop", "/orders/1", ""), ("sho", "p/orders", "1")]
        {
            assert_ne!(id, EventId::new(namespace, source, other));
        }
    }

    /// The examples of RFC 9562.
    #[test]
    fn the_hash_is_that_of_the_specification() {
        let domains = Uuid::from_u128(0x6ba7_b810_9dad_11d1_80b4_00c0_4fd4_30c8);
        for parts in [&["www.example.com"][..], &["www.", "example", ".com"]] {
            let id = version_5(domains, parts.iter().map(|part| part.as_bytes()));
            assert_eq!(id.to_string(), "2ed6657d-e927-568b-95e1-2665a8aea6a2");
        }
    }

    #[test]
    fn a_call_has_the_id_of_its_content() {
        let [a, b, c] = ["a", "b", "c"].map(|id| EventId::new("shop", "/orders", id));
        assert_eq!(EventId::of_call(&[a]), a, "one event keeps its id");
        let calls = [&[a][..], &[a, b], &[a, b, c], &[b, a], &[b, c]].map(EventId::of_call);
        for (n, call) in calls.iter().enumerate() {
            assert!(!calls[n + 1..].contains(call), "{n}");
        }
        assert_eq!(EventId::of_call(&[a, b]), calls[1]);
    }
}
