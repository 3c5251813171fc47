//! The id under which receivers of webhooks know an event.

use std::fmt;
use std::str::FromStr;
use uuid::Uuid;

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
        let mut name = Vec::with_capacity(namespace.len() + source.len() + id.len() + 2);
        for part in [namespace, "\n", source, "\n", id] {
            name.extend_from_slice(part.as_bytes());
        }
        EventId(*Uuid::new_v5(&NAMESPACE, &name).as_bytes())
    }

    /// The id of a call with these events. A retry with more events has another id, so that a receiver that compares ids
    /// does not take it for a duplicate.
    pub fn of_call(events: &[EventId]) -> EventId {
        match events {
            [event] => *event,
            events => {
                let name: Vec<u8> = events.iter().flat_map(|event| event.0).collect();
                EventId(*Uuid::new_v5(&BATCHES, &name).as_bytes())
            }
        }
    }
}

impl fmt::Display for EventId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Uuid::from_bytes(self.0).fmt(f)
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
