//! Events that tell that a webhook endpoint was disabled or enabled. They are written in the same step as the change.

use crate::engine::{Engine, Failure};
use crate::group::{Origin, OutboxEntry};
use bytes::Bytes;
use klambda_core::event::{Attribute, Data, Event, Form, Value};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::namespace::split;
use klambda_core::time::Millis;
use klambda_core::webhook::PREFIX;
use klambda_store::log;
use klambda_store::record::{Change, Record, WhyDisabled};
use klambda_store::segment::RECORD_HEADER;
use serde_json::json;

impl Engine {
    /// Disables an endpoint for this reason, or enables it.
    pub(super) fn change_endpoint(
        &mut self,
        id: SubscriptionId,
        why: Option<WhyDisabled>,
    ) -> Result<(), Failure> {
        let change = why.map_or(Change::Enabled, |why| Change::Disabled { why });
        let record = Record::Subscription { time: self.now, subscription: id, change };
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(()) };
        let (namespace, event) = (
            subscription.namespace,
            notice(subscription.name(), why, self.now, self.store.log.next_position()),
        );
        let entry = OutboxEntry { namespace, event: &event };
        let mut body = Vec::new();
        record.encode(&mut body);
        if let Ok(length) = self.room_for(&[entry], RECORD_HEADER + body.len(), Origin::System)? {
            let done = self.in_group(length, |engine| {
                engine.commit(&record)?;
                engine.take_in_group(entry, Origin::System).map(drop)
            });
            if !matches!(done, Err(Failure::Log(log::Error::Full))) {
                return done;
            }
        }
        // An endpoint that is gone must not be called again only because there is no room for the event.
        tracing::warn!(
            source = event.source,
            kind = event.kind,
            "No room for an event about a webhook endpoint"
        );
        self.commit(&record).map(drop)
    }
}

/// The position is the one that the event gets, so no two events have the same id.
fn notice(subscription: &str, why: Option<WhyDisabled>, now: Millis, position: Position) -> Event {
    let (namespace, name) = split(subscription);
    let name = name.trim_start_matches(PREFIX);
    let word = if why.is_some() { "disabled" } else { "enabled" };
    let data = json!({ "endpoint": name, "namespace": namespace, "status": word, "reason": why });
    let text = |name: &str, value: String| Attribute { name: name.to_owned(), value: Value::String(value) };
    Event {
        id: format!("{word}-{}", position.0),
        source: format!("/lambda/webhooks/{namespace}/{name}"),
        kind: format!("lambda.webhook.{word}"),
        attributes: vec![
            text("subject", format!("{namespace}/{name}")),
            text("partitionkey", format!("{namespace}/{name}")),
            text("time", now.rfc3339()),
            text("datacontenttype", "application/json".to_owned()),
        ],
        data: Some(Data { bytes: Bytes::from(data.to_string()), form: Form::Json }),
    }
}
