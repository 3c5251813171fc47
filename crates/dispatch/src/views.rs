//! Views of the engine for the API: plain values that serialize as documented. Nothing here changes state.
//!
//! A view must not delay the engine, so it takes only what is in memory or a few rows away. Data from the log (the
//! event at a lane's head, the history of a key) is read afterwards by `resolve`, on another thread.

mod attempts;
mod dead_letters;
mod endpoints;
mod fates;
mod lane_list;
mod lanes;
mod namespaces;
mod overview;
mod replays;
mod sample;
mod schemas;
mod status;
mod subscriptions;
mod timeline;
mod waits_for;

pub use attempts::Tried;
pub use dead_letters::{DeadLetter, Edit, Letters};
pub use endpoints::Endpoint;
pub use fates::{Fate, Sighting};
pub use lane_list::{LanePage, LaneQuery, Ranking, Sort};
pub use lanes::{Gap, Head, Lane};
pub use namespaces::Namespace;
pub use overview::{ATTENTION_MAX, Attention, Latency, Overview, rank};
pub use replays::Replay;
pub use sample::{LettersSample, Sample, SubscriptionSample};
pub use schemas::{CloudEvent, EndpointSpec, EventTypeSpec, NamespaceSpec, SubscriptionSpec};
pub use status::Status;
pub use subscriptions::{Status as SubscriptionStatus, Subscription};
pub use timeline::{Attempt, Step};

use klambda_core::event_codec::EventView;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use schemars::JsonSchema;
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// A time in the API format: RFC 3339, in UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Millis);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

/// A page of a list, and where the rest begins.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "{T}Page")]
pub struct Page<T> {
    pub items: Vec<T>,
    /// The cursor of the next page.
    pub next: Option<String>,
}

/// `1 event`, or `3 events`.
pub(crate) fn counted(count: u64, thing: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {thing}{plural}")
}

/// An encoded event in the CloudEvents JSON format, with its data unchanged.
pub fn event_json(event: &[u8]) -> Result<Box<RawValue>, Malformed> {
    let view = EventView::decode(event).map_err(|_| Malformed("event"))?;
    let mut json = Vec::new();
    view.write_json(&mut json);
    let text = String::from_utf8(json).map_err(|_| Malformed("event"))?;
    RawValue::from_string(text).map_err(|_| Malformed("event"))
}
