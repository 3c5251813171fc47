//! The events of the platform: the data of the 17 types, how they are built, and the commands that received ones carry.

mod command;
mod data;

pub use command::{Command, Named, command, kind_of};
pub use data::{
    BuildData, Data, FunctionData, HealthStatus, ParserData, ParserStatus, ServiceData, StatusData,
    parse_data,
};

use crate::hash;
use crate::resource::Resource;
use bytes::Bytes;
use klambda_core::event::{Attribute, Data as EventData, Event, Form, Value as Text};
use klambda_core::kinds::EventKind;
use klambda_core::time::Millis;
use serde_json::Value;

/// Aliases of event types.
pub const ALIASES: [(&str, EventKind); 2] = [
    ("network.notifi.lambda.build.start", EventKind::BuildStarted),
    ("network.notifi.lambda.parser.start", EventKind::ParserStarted),
];

/// Identifies a transition of a resource. The id of an event is derived from this and its type.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: String,
    pub generation: u64,
    pub transition: u64,
    pub namespace: String,
    pub name: String,
}

impl Identity {
    pub fn of(resource: &Resource, transition: u64) -> Identity {
        let metadata = &resource.metadata;
        Identity {
            uid: metadata.uid.clone(),
            generation: metadata.generation,
            transition,
            namespace: metadata.namespace.clone(),
            name: metadata.name.clone(),
        }
    }

    /// The same transition always has the same id.
    pub fn event_id(&self, kind: EventKind) -> String {
        hash::of(&(&self.uid, self.generation, self.transition, kind.name()))
    }
}

/// Builds one event. Events about a function carry its key and use the transition number as their sequence, so subscribers
/// can receive them in order. Events that are not transitions, such as the end of a parser, have no sequence.
pub fn build_event(identity: &Identity, kind: EventKind, data: &Value, now: Millis) -> Event {
    let subject = format!("{}/{}", identity.namespace, identity.name);
    let attributes = [
        ("time", now.rfc3339()),
        ("datacontenttype", "application/json".to_owned()),
        ("subject", subject.clone()),
        ("partitionkey", subject),
    ];
    let sequence = (identity.transition > 0).then(|| ("sequence", identity.transition.to_string()));
    Event {
        id: identity.event_id(kind),
        source: format!("/lambda/{}/{}", identity.namespace, identity.name),
        kind: kind.name().to_owned(),
        attributes: attributes
            .into_iter()
            .chain(sequence)
            .map(|(name, text)| Attribute { name: name.to_owned(), value: Text::String(text) })
            .collect(),
        data: Some(EventData { bytes: Bytes::from(data.to_string()), form: Form::Json }),
    }
}
