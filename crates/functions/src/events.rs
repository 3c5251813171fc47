//! The platform's own events: the data of each of the 17 types, making them, and what received ones ask for.

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
use klambda_core::kinds::Kind;
use klambda_core::time::Millis;
use serde_json::Value;

/// Other names of event types, as routes call them.
pub const ALIASES: [(&str, Kind); 2] = [
    ("network.notifi.lambda.build.start", Kind::BuildStarted),
    ("network.notifi.lambda.parser.start", Kind::ParserStarted),
];

/// Which transition of which resource an event tells of: its id is made of this and its type.
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

    /// The same transition always has the same one.
    pub fn event_id(&self, kind: Kind) -> String {
        hash::of(&(&self.uid, self.generation, self.transition, kind.name()))
    }
}

/// One event. Events of a function have its key and the transition as their sequence, so that subscribers can have them in
/// order; what is no transition of it, such as the end of a parser, has no place among them.
pub fn build_event(identity: &Identity, kind: Kind, data: &Value, now: Millis) -> Event {
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
