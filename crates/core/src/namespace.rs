//! Namespaces. Every resource belongs to one namespace, and namespaces are isolated from each other.

use crate::fault::Fault;
use crate::schema::{self, API_VERSION, Schema, form};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::sync::{Arc, LazyLock};

/// The namespace that always exists. It applies when a request does not name one.
pub const DEFAULT: &str = "default";
pub const KIND: &str = "Namespace";

const LIMIT_MAX: u64 = 1_000_000_000_000;

/// The document of a namespace.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Document {
    pub name: String,
    pub limits: Limits,
    pub schema_check: SchemaCheck,
}

#[derive(Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
struct Spec {
    limits: Limits,
    #[serde(skip_serializing_if = "SchemaCheck::is_off")]
    schema_check: SchemaCheck,
}

/// What happens to events whose data does not match the schema of their event type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum SchemaCheck {
    /// Events are not checked.
    #[default]
    Off,
    /// They are accepted with the attribute `schemastatus`.
    Flag,
    /// They are rejected.
    Reject,
}

impl SchemaCheck {
    pub fn is_off(&self) -> bool {
        *self == SchemaCheck::Off
    }
}

/// Limits for a whole namespace. They apply in addition to the limits of the server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = LIMIT_MAX))]
    pub events_per_second: Option<u64>,
    /// Maximum number of pending events over all subscriptions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = LIMIT_MAX))]
    pub backlog: Option<u64>,
    /// Maximum number of subscriptions, not counting those of functions.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = LIMIT_MAX))]
    pub subscriptions: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(max = LIMIT_MAX))]
    pub functions: Option<u64>,
}

pub const LABEL_RULE: &str =
    "must have 1 to 63 of the characters a-z, 0-9 and -, and must begin and end with a letter or digit";

/// True if this is a valid name without dots, as namespaces and functions use.
pub fn is_label(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let is_edge = |byte: Option<u8>| byte.is_some_and(|byte| byte != b'-');
    name.len() <= 63
        && name.bytes().all(inner)
        && is_edge(name.bytes().next())
        && is_edge(name.bytes().last())
}

/// A name that is unique across namespaces: `name` in the default namespace, `namespace/name` in others. User input
/// may contain a slash. No resource has such a name, and it must not be mistaken for a name in another namespace.
pub fn full_name<'a>(namespace: &str, name: &'a str) -> Cow<'a, str> {
    match namespace {
        DEFAULT if !name.contains('/') => Cow::Borrowed(name),
        other => Cow::Owned(format!("{other}/{name}")),
    }
}

/// Splits a full name into namespace and name.
pub fn split(full_name: &str) -> (&str, &str) {
    full_name.split_once('/').unwrap_or((DEFAULT, full_name))
}

/// The command-line flag that selects this namespace, for commands shown to users. Empty for the default namespace.
pub fn flag(namespace: &str) -> String {
    match namespace {
        DEFAULT => String::new(),
        other => format!(" -n {other}"),
    }
}

static SPEC: LazyLock<Schema> = LazyLock::new(Schema::of::<Spec>);
static SCHEMA: LazyLock<Schema> = LazyLock::new(|| {
    let metadata = json!({ "name": { "type": "string", "pattern": form::LABEL } });
    Schema::document(KIND, metadata, &SPEC, &["apiVersion", "kind", "metadata"])
});

/// The schema of `spec`.
pub fn spec_schema() -> &'static Schema {
    &SPEC
}

impl Document {
    /// Parses a document strictly and reports all faults together.
    pub fn parse(value: &Value) -> Result<Document, Vec<Fault>> {
        let mut read = SCHEMA.read(&with_off_as_text(value), |_, _| {})?;
        let name = read["metadata"]["name"].as_str().unwrap_or_default().to_owned();
        let spec: Option<Spec> = schema::typed(&mut read, "spec")?;
        let Spec { limits, schema_check } = spec.unwrap_or_default();
        Ok(Document { name, limits, schema_check })
    }

    pub fn to_json(&self) -> Value {
        let spec = Spec { limits: self.limits, schema_check: self.schema_check };
        json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": self.name }, "spec": spec })
    }
}

/// Some YAML tools read `off` as `false`.
fn with_off_as_text(value: &Value) -> Cow<'_, Value> {
    const CHECK: &str = "/spec/schemaCheck";
    if value.pointer(CHECK) != Some(&Value::Bool(false)) {
        return Cow::Borrowed(value);
    }
    let mut value = value.clone();
    if let Some(check) = value.pointer_mut(CHECK) {
        *check = json!(SchemaCheck::Off);
    }
    Cow::Owned(value)
}

/// The namespaces that a list includes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Within {
    #[default]
    All,
    These(Arc<BTreeSet<String>>),
}

impl Within {
    pub fn one(namespace: &str) -> Within {
        Within::These(Arc::new(BTreeSet::from([namespace.to_owned()])))
    }

    pub fn has(&self, namespace: &str) -> bool {
        match self {
            Within::All => true,
            Within::These(names) => names.contains(namespace),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn documents_read_back_and_every_fault_is_told() {
        let limits = json!({"eventsPerSecond": 100, "functions": 0});
        let given = json!({
            "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shop"}, "spec": {"limits": limits},
        });
        let document = Document::parse(&given).expect("a document");
        assert_eq!(document.limits.events_per_second, Some(100));
        assert_eq!((document.limits.functions, document.limits.backlog), (Some(0), None));
        assert_eq!(document.to_json(), given);
        for (check, read) in [
            (json!(false), "off"),
            (json!("off"), "off"),
            (json!("flag"), "flag"),
            (json!("reject"), "reject"),
        ] {
            let given = json!({"apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "shop"}, "spec": {"schemaCheck": check}});
            assert_eq!(json!(Document::parse(&given).expect("a document").schema_check), read);
        }
        let bad = json!({"kind": "Nmspace", "metadata": {"name": "Shop"}, "spec": {"limits": {"backlogs": 1, "backlog": -1}}});
        let faults = Document::parse(&bad).expect_err("faults");
        let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
        assert_eq!(
            paths,
            ["apiVersion", "kind", "metadata.name", "spec.limits.backlog", "spec.limits.backlogs"]
        );
    }

    #[test]
    fn full_names_split_again() {
        for (namespace, name, full) in [(DEFAULT, "orders", "orders"), ("shop", "orders", "shop/orders")] {
            assert_eq!(full_name(namespace, name), full);
            assert_eq!(split(full), (namespace, name));
        }
        assert_eq!(
            full_name(DEFAULT, "shop/orders"),
            "default/shop/orders",
            "not a name in the namespace shop"
        );
        assert!(is_label("a") && is_label("a-1"));
        for bad in ["", "-a", "a-", "A", "a.b", "a/b", "*", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
