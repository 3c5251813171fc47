//! A subscription document: one consumer of events, with its filters, its target and its rules.

mod given;
mod header;
mod rules;
mod spec;
mod target;

pub use spec::*;

pub(crate) use header::wrong_name as wrong_header_name;
pub(crate) use rules::{NAME_RULE, is_name};
pub(crate) use target::check_url;

use crate::fault::Fault;
use crate::namespace;
use crate::schema::{self, Schema, form};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::sync::LazyLock;

pub use crate::schema::API_VERSION;
pub const KIND: &str = "Subscription";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub namespace: String,
    pub name: String,
    pub spec: Spec,
}

/// The name prefix of subscriptions that the server manages: `lambda.<namespace>.<name>` for a function.
pub const MANAGED_PREFIX: &str = "lambda.";

/// The server's own subscription in each namespace. Through it, received events act on functions. Functions cannot
/// have this name, and lists omit this subscription.
pub const CONTROLLER: &str = "lambda.controller";

static SPEC: LazyLock<Schema> = LazyLock::new(Schema::of::<Spec>);
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let metadata = json!({
        "namespace": { "type": "string", "pattern": form::LABEL },
        "name": { "type": "string", "pattern": form::NAME },
    });
    Schema::document(KIND, metadata, &SPEC, &["apiVersion", "kind", "metadata", "spec"])
});

/// The schema of `spec`.
pub fn spec_schema() -> &'static Schema {
    &SPEC
}

impl Document {
    /// The name, unique across all namespaces.
    pub fn full_name(&self) -> Cow<'_, str> {
        namespace::full_name(&self.namespace, &self.name)
    }

    /// True if the server created the subscription for a function, so users cannot change or delete it directly.
    /// Accepts a name or a full name, like `function_of`.
    pub fn is_managed(name: &str) -> bool {
        namespace::split(name).1.starts_with(MANAGED_PREFIX)
    }

    /// The namespace and name of the function for which the server created this subscription.
    pub fn function_of(name: &str) -> Option<(&str, &str)> {
        namespace::split(name).1.strip_prefix(MANAGED_PREFIX)?.split_once('.')
    }

    /// True for the server's own subscription, through which received events act.
    pub fn is_controller(&self) -> bool {
        self.name == CONTROLLER
    }

    /// Parses a document strictly and reports all faults together.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        let mut read = SCHEMA.read(value, rules::check)?;
        let mut spec: Spec = schema::typed(&mut read, "spec")?;
        // A configured value below `backoff` was already rejected, so this only raises the default.
        spec.retry.max_backoff_ms = spec.retry.max_backoff_ms.max(spec.retry.backoff_ms);
        if let Some(endpoint) = spec.target.endpoint() {
            // An earlier version may have stored other filters for the same types.
            spec.filters = crate::webhook::filters(endpoint);
        }
        let text = |name: &str| read["metadata"][name].as_str().map(str::to_owned);
        let namespace = text("namespace").unwrap_or_else(|| namespace::DEFAULT.to_owned());
        Ok(Document { namespace, name: text("name").unwrap_or_default(), spec })
    }

    /// Like `parse`, for a document that a user sends. `***` stands for the secret at the same place in `before`.
    pub fn given(value: &Value, before: Option<&Document>) -> Result<Document, Vec<Fault>> {
        given::document(value, before)
    }

    /// The document with all defaults filled in and without secrets.
    pub fn to_json(&self) -> Value {
        let mut document = self.to_stored_json();
        document.pointer_mut("/spec/target/headers").into_iter().for_each(header::hide_secrets);
        document
    }

    /// The document with secrets, for the log. `parse` reads it back unchanged.
    pub fn to_stored_json(&self) -> Value {
        let metadata = json!({ "namespace": self.namespace, "name": self.name });
        let mut spec = json!(self.spec);
        if let (Ordering::Unordered, Value::Object(fields)) = (self.spec.ordering, &mut spec) {
            fields.remove("orderingPolicy");
        }
        json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec })
    }

    /// True if `other` orders events by different rules, so that pending events must drain first.
    pub fn epoch_differs(&self, other: &Document) -> bool {
        let (ours, theirs) = (&self.spec, &other.spec);
        let source = |spec: &Spec| spec.policy.sequence.as_ref().map(|sequence| sequence.source.clone());
        let rules = |spec: &Spec| (spec.policy.key.clone(), source(spec));
        ours.ordering != theirs.ordering
            || (ours.ordering == Ordering::Ordered && rules(ours) != rules(theirs))
    }

    /// This document with the ordering rules of another one. It applies while events drain under those rules.
    pub fn ordered_as(&self, other: &Document) -> Document {
        let mut document = self.clone();
        document.spec.ordering = other.spec.ordering;
        document.spec.policy = other.spec.policy.clone();
        document
    }
}

#[cfg(test)]
mod tests;
