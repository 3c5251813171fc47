//! Reads a document: first its kind, then each part by its schema. Parts that do not match are reported and left out.

use crate::resource::{API_VERSION, Form, Metadata, Resource, ResourceKind, Spec};
use crate::schema;
use klambda_core::fault::{Fault, unknown};
use klambda_core::schema::{Schema, present};
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

const TOP: [&str; 5] = ["apiVersion", "kind", "metadata", "spec", "status"];
/// Fields that a cluster adds to an object. They are accepted and ignored.
const METADATA_IGNORED: [&str; 4] = ["managedFields", "finalizers", "ownerReferences", "selfLink"];

pub(crate) fn read(value: &Value, form: Form) -> (Resource, Vec<Fault>) {
    let Some(top) = value.as_object() else {
        let message = "must be an object with apiVersion, kind, metadata and spec";
        return (Resource::default(), vec![Fault::new("", message)]);
    };
    let mut reader = Reader { top, form, faults: Vec::new() };
    for name in top.keys().filter(|name| !TOP.contains(&name.as_str())) {
        reader.fault(name, unknown("field", name, &TOP));
    }
    let kind = reader.kind();
    let metadata: Metadata = reader.part("metadata", schema::metadata());
    if form == Form::Manifest && present(top, "spec").is_none() {
        reader.fault("spec", "missing");
    }
    let spec: Spec = reader.part("spec", schema::spec());
    (Resource { kind, metadata, spec, ..Resource::default() }, reader.faults)
}

struct Reader<'v> {
    top: &'v Map<String, Value>,
    form: Form,
    faults: Vec<Fault>,
}

impl Reader<'_> {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    fn kind(&mut self) -> ResourceKind {
        let given = match present(self.top, "kind") {
            Some(Value::String(name)) => self.named_kind(name),
            Some(_) => self.no_kind("must be a string"),
            None if self.form == Form::Manifest => self.no_kind("missing"),
            None => None,
        };
        let kind = match self.form {
            Form::Manifest => given.unwrap_or_default(),
            Form::Body(expected) => expected,
        };
        if given.is_some_and(|given| given != kind) {
            self.fault("kind", format!("must be {}", kind.name()));
        }
        self.api_version(kind);
        kind
    }

    fn named_kind(&mut self, name: &str) -> Option<ResourceKind> {
        let known = ResourceKind::parse(name);
        if known.is_none() {
            self.fault("kind", unknown("kind", name, &ResourceKind::ALL.map(ResourceKind::name)));
        }
        known
    }

    fn no_kind(&mut self, message: &str) -> Option<ResourceKind> {
        self.fault("kind", message);
        None
    }

    fn api_version(&mut self, kind: ResourceKind) {
        match present(self.top, "apiVersion") {
            Some(Value::String(version)) if kind.takes_api_version(version) => {}
            Some(_) => self.fault("apiVersion", format!("must be {API_VERSION}")),
            None if self.form == Form::Manifest => self.fault("apiVersion", "missing"),
            None => {}
        }
    }

    /// Reads one part of the document by its schema. Invalid members are reported and replaced by their defaults.
    fn part<T: DeserializeOwned + Default>(&mut self, name: &str, schema: &Schema) -> T {
        let Some(value) = present(self.top, name) else { return T::default() };
        let mut value = value.clone();
        if name == "metadata"
            && let Value::Object(metadata) = &mut value
        {
            metadata.retain(|name, _| !METADATA_IGNORED.contains(&name.as_str()));
        }
        if !schema.check(name, &mut value, &mut self.faults) {
            return T::default();
        }
        serde_json::from_value(value).unwrap_or_else(|error| {
            self.fault(name, error.to_string());
            T::default()
        })
    }
}
