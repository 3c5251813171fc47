//! The events of producers. The content of an event follows from its number, so that deliveries can be compared with
//! what was sent.

use crate::rng::Rng;
use klambda_core::event::{Attribute, Data, Event, Form, Value};

/// Identifies an event of this run.
pub type EventNo = u32;

pub const SOURCES: [&str; 3] = ["/shop", "/shop/eu", "/till"];
/// The second namespace, in addition to the default one.
pub const OTHER: &str = "other";
/// The attribute of events that were sent to the second namespace.
pub const HOME: &str = "home";
pub const KINDS: [&str; 3] = ["order.placed", "order.paid", "parcel.sent"];

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProducedEvent {
    pub no: EventNo,
    /// Sent to the second namespace.
    pub elsewhere: bool,
    pub id: String,
    pub source: usize,
    pub kind: usize,
    pub key: Option<u64>,
    pub subject: Option<u64>,
    pub sequence: Option<String>,
    pub data_len: usize,
    /// Receivers reject the event as invalid until the troubles are over.
    pub poison: bool,
    /// A receiver made the event: it arrived as a reply to a call.
    pub reply: bool,
}

impl ProducedEvent {
    pub fn to_event(&self) -> Event {
        let attribute =
            |name: &str, value: String| Attribute { name: name.into(), value: Value::String(value) };
        let mut attributes = Vec::new();
        attributes.extend(self.key.map(|key| attribute("partitionkey", format!("k{key}"))));
        attributes.extend(self.subject.map(|subject| attribute("subject", format!("s{subject}"))));
        attributes.extend(self.sequence.clone().map(|text| attribute("sequence", text)));
        // Attributes of the producer must not be delivered as our numbers.
        if self.no % 50 == 7 {
            attributes.push(attribute("lanesequence", "999999".into()));
            attributes.push(attribute("previousid", "nobody".into()));
        }
        if self.elsewhere {
            attributes.push(attribute(HOME, OTHER.into()));
        }
        if self.reply {
            attributes.push(Attribute { name: "lambdahops".into(), value: Value::Integer(1) });
        }
        let data = (self.data_len > 0).then(|| Data { bytes: self.data().into(), form: Form::Text });
        Event {
            id: self.id.clone(),
            source: SOURCES[self.source].into(),
            kind: KINDS[self.kind].into(),
            attributes,
            data,
        }
    }

    /// The data as text.
    pub fn text(&self) -> Option<String> {
        (self.data_len > 0).then(|| self.data().into_iter().map(char::from).collect())
    }

    fn data(&self) -> Vec<u8> {
        let mut rng = Rng::new(u64::from(self.no));
        (0..self.data_len).map(|_| b'a' + rng.below(26) as u8).collect()
    }

    /// True if some ordering rules cannot place the event. With those rules it is a dead letter beside the lanes.
    pub fn may_be_invalid(&self) -> bool {
        self.subject.is_none() || self.readable_sequence().is_none()
    }

    /// The producer's sequence, if it is valid.
    pub fn readable_sequence(&self) -> Option<u64> {
        let text = self.sequence.as_deref()?;
        let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        // The highest number is invalid, because a lane must be able to expect the next one.
        text.parse().ok().filter(|sequence| digits && *sequence < u64::MAX)
    }
}
