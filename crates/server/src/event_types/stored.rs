//! The stored form of an event type, and the check of those in a data folder.

use super::catalogue::Known;
use klambda_core::event_type::Document;
use klambda_core::time::Millis;
use klambda_dispatch::{Engine, Failure};
use klambda_event_schema::Schema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kind of the documents that store event types.
pub const KIND: &str = "eventType";
const PAGE: usize = 16;

pub struct Stored {
    pub created: Millis,
    pub document: Document,
}

#[derive(Serialize, Deserialize)]
struct Content {
    created: Millis,
    document: Value,
}

impl Stored {
    pub fn encode(&self) -> Vec<u8> {
        let content = Content { created: self.created, document: self.document.to_json() };
        serde_json::to_vec(&content).expect("a document contains only JSON values")
    }

    /// `None` if the document is damaged.
    pub fn decode(content: &[u8]) -> Option<Stored> {
        let Content { created, document } = serde_json::from_slice(content).ok()?;
        Some(Stored { created, document: Document::parse(&document).ok()? })
    }

    pub fn known(&self, version: u64) -> Known {
        Known {
            name: self.document.name.clone(),
            event_type: self.document.event_type().to_owned(),
            version,
            has_schema: self.document.spec.schema.is_some(),
        }
    }
}

pub fn key(namespace: &str, name: &str) -> String {
    format!("{namespace}/{name}")
}

/// Namespace and name.
pub fn split(key: &str) -> (&str, &str) {
    key.split_once('/').unwrap_or(("", key))
}

/// Calls `take` with every stored event type, and with `None` for damaged ones.
pub fn each(engine: &Engine, mut take: impl FnMut(&str, u64, Option<Stored>)) -> Result<(), Failure> {
    let mut after: Option<String> = None;
    loop {
        let page = engine.documents(KIND, after.as_deref(), PAGE)?;
        let Some(last) = page.last() else { return Ok(()) };
        after = Some(last.key.clone());
        for found in &page {
            take(&found.key, found.version, Stored::decode(&found.content));
        }
    }
}

/// What a check of a data folder found.
#[derive(Debug, Default)]
pub struct CheckedTypes {
    pub types: u64,
    /// Event types that are damaged, in a namespace that does not exist, or have a schema that cannot be used.
    pub damaged: Vec<String>,
}

/// For commands that work on the folder of a stopped server.
pub fn check(engine: &Engine) -> Result<CheckedTypes, Failure> {
    let mut checked = CheckedTypes::default();
    each(engine, |key, _, stored| {
        checked.types += 1;
        let (namespace, _) = split(key);
        if engine.namespace_id(namespace).is_err() {
            checked.damaged.push(format!("event type {key}: there is no namespace {namespace}"));
        }
        let Some(stored) = stored else {
            return checked.damaged.push(format!("event type {key}: the document is damaged"));
        };
        let compiled = stored.document.spec.schema.as_ref().map(Schema::compile).transpose();
        if let Err(fault) = compiled {
            checked.damaged.push(format!("event type {key}: the schema cannot be used: {fault}"));
        }
    })?;
    Ok(checked)
}
