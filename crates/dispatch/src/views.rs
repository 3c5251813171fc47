//! What people see of the engine: plain values that serialize as the API documents them. Nothing here changes state.
//!
//! Looking must not hold up the work, so a view takes from the engine only what is in memory or a few rows away. What
//! needs the log (the event at a lane's head, a key's history) is read afterwards, on another thread: `resolve`.

mod dead_letters;
mod fates;
mod lane_list;
mod lanes;
mod namespaces;
mod replays;
mod sample;
mod status;
mod subscriptions;
mod timeline;
mod waits_for;

pub use dead_letters::{DeadLetter, Letters};
pub use fates::{Fate, Sighting};
pub use lane_list::{LanePage, LaneQuery, Ranking, Sort};
pub use lanes::{Gap, Head, Lane};
pub use namespaces::Namespace;
pub use replays::Replay;
pub use sample::{LettersSample, Sample, SubscriptionSample};
pub use status::Status;
pub use subscriptions::Subscription;
pub use timeline::Step;

use klambda_core::event_codec::EventView;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// An instant as APIs write it: RFC 3339, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Millis);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

/// Some of a list, and where the rest begins.
#[derive(Debug, Serialize)]
pub struct Page<T> {
    pub items: Vec<T>,
    pub next: Option<String>,
}

/// An encoded event in the CloudEvents JSON format, its data byte for byte.
pub fn event_json(event: &[u8]) -> Result<Box<RawValue>, Malformed> {
    let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
    let mut json = Vec::new();
    view.write_json(&mut json);
    let text = String::from_utf8(json).map_err(|_| Malformed("event"))?;
    RawValue::from_string(text).map_err(|_| Malformed("event"))
}
