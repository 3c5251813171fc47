//! The commands in received events. Most of the 17 types only inform. The types here act like the same REST call.

use super::ALIASES;
use super::data::{ParserData, ParserStatus, Reader};
use crate::name;
use crate::resource::{Form, Resource, ResourceKind};
use klambda_core::event::{Attributes as _, Event};
use klambda_core::fault::Fault;
use klambda_core::kinds::EventKind;
use serde_json::{Map, Value, json};

/// The members that the data of a command may have: those of a manifest, and those of the events that the platform emits.
const FUNCTION: [&str; 7] = ["name", "namespace", "kind", "apiVersion", "metadata", "spec", "status"];
const BUILD: [&str; 9] = [
    "function_name",
    "namespace",
    "kind",
    "build_id",
    "job_name",
    "image_uri",
    "status",
    "error",
    "duration_seconds",
];

/// The identity of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub kind: ResourceKind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// Create a function from this document, like POST. The name is optional.
    Create {
        form: Form,
        document: Value,
    },
    /// Merge this document, like PUT.
    Update {
        named: Named,
        body: Value,
    },
    Delete {
        named: Named,
    },
    Rebuild {
        named: Named,
    },
    StopBuilds {
        named: Named,
    },
    CancelBuild {
        named: Named,
    },
    /// Call the function once with the data of the event, then emit `completed` or `failed`.
    RunParser {
        named: Named,
        parser: ParserData,
    },
    /// A parser outside this server has finished. This is only logged.
    ParserEnded {
        named: Named,
        parser: ParserData,
    },
}

impl Command {
    /// The namespace that the command acts in.
    pub fn namespace(&self) -> &str {
        match self {
            Command::Create { document, .. } => {
                document["metadata"]["namespace"].as_str().unwrap_or_default()
            }
            Command::Update { named, .. }
            | Command::Delete { named }
            | Command::Rebuild { named }
            | Command::StopBuilds { named }
            | Command::CancelBuild { named }
            | Command::RunParser { named, .. }
            | Command::ParserEnded { named, .. } => &named.namespace,
        }
    }
}

/// The type with this name or alias.
pub fn kind_of(name: &str) -> Option<EventKind> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, kind)| *kind);
    alias.or_else(|| EventKind::parse(name))
}

/// The command in an event, or `None` if its type is not a command. An event without a namespace means `home`, the
/// namespace that it was sent in. Events that this server emitted must not run as commands; the caller detects those by
/// their id in the outbox, never by their content.
pub fn command(event: &Event, home: &str) -> Result<Option<Command>, Vec<Fault>> {
    let Some(kind) = kind_of(&event.kind).filter(|kind| acts(*kind)) else { return Ok(None) };
    let data = event.json_data().and_then(|bytes| serde_json::from_slice::<Value>(bytes).ok());
    let Some(mut data) = data else { return Err(vec![Fault::new("data", "must be a JSON object")]) };
    if data.is_object() && data.get("namespace").is_none() && data["metadata"].get("namespace").is_none() {
        data["namespace"] = home.into();
    }
    let mut reader = Reader::open(&data);
    let command = read(kind, &mut reader);
    match kind {
        EventKind::FunctionCreated | EventKind::FunctionUpdated | EventKind::FunctionDeleted => {
            reader.only(&FUNCTION)
        }
        EventKind::BuildStarted | EventKind::BuildStopped | EventKind::BuildCancelled => reader.only(&BUILD),
        // A parser receives the data unchanged, and may need other members.
        _ => {}
    }
    if reader.faults.is_empty() { Ok(Some(command)) } else { Err(reader.faults) }
}

fn acts(kind: EventKind) -> bool {
    matches!(
        kind,
        EventKind::FunctionCreated
            | EventKind::FunctionUpdated
            | EventKind::FunctionDeleted
            | EventKind::BuildStarted
            | EventKind::BuildStopped
            | EventKind::BuildCancelled
            | EventKind::ParserStarted
            | EventKind::ParserCompleted
            | EventKind::ParserFailed
    )
}

fn read(kind: EventKind, reader: &mut Reader<'_>) -> Command {
    match kind {
        EventKind::FunctionCreated => create(reader),
        EventKind::FunctionUpdated => {
            let named = function(reader);
            let mut body = Map::new();
            for name in ["metadata", "spec"] {
                body.extend(reader.object(name).map(|value| (name.to_owned(), value)));
            }
            reader.object("status");
            if !body.contains_key("spec") {
                reader.fault("spec", "missing: add the fields to change");
            }
            Command::Update { named, body: Value::Object(body) }
        }
        EventKind::FunctionDeleted => {
            for name in ["metadata", "spec", "status"] {
                reader.object(name);
            }
            Command::Delete { named: function(reader) }
        }
        EventKind::BuildStopped => Command::StopBuilds { named: of_build(reader, "stopped") },
        EventKind::BuildCancelled => Command::CancelBuild { named: of_build(reader, "cancelled") },
        EventKind::ParserStarted => parser(reader, ParserStatus::Started),
        EventKind::ParserCompleted => parser(reader, ParserStatus::Completed),
        EventKind::ParserFailed => parser(reader, ParserStatus::Failed),
        _ => Command::Rebuild { named: of_build(reader, "started") },
    }
}

/// The name is in `name`, or in `metadata` as in a manifest.
fn create(reader: &mut Reader<'_>) -> Command {
    let kind = reader.resource_kind();
    reader.object("status");
    let mut metadata = reader.object("metadata").unwrap_or_else(|| json!({}));
    if let Value::Object(metadata) = &mut metadata {
        for name in ["name", "namespace"] {
            if let Some(text) = reader.text(name) {
                metadata.insert(name.to_owned(), text.into());
            }
        }
    }
    let mut document = json!({ "metadata": metadata });
    match reader.get("spec") {
        Some(spec) => document["spec"] = spec.clone(),
        None => reader.fault("spec", "missing"),
    }
    if document["metadata"].is_object() && document.get("spec").is_some() {
        faults_of(&document, kind, reader);
    }
    Command::Create { form: Form::Body(kind), document }
}

/// Adds the faults of the document itself, so that all faults are reported together.
fn faults_of(document: &Value, kind: ResourceKind, reader: &mut Reader<'_>) {
    let faults = Resource::parse(document, Form::Body(kind)).err().unwrap_or_default();
    for Fault { path, message } in faults {
        let outside = path.strip_prefix("metadata.").filter(|name| reader.get(name).is_some());
        reader.fault(outside.unwrap_or(&path), message);
    }
}

fn function(reader: &mut Reader<'_>) -> Named {
    let metadata = reader.get("metadata").cloned().unwrap_or_default();
    let inside = |name: &str| metadata[name].as_str().map(str::to_owned);
    let name = match inside("name") {
        Some(name) if reader.get("name").is_none() => name,
        _ => reader.required("name"),
    };
    let namespace = match inside("namespace") {
        Some(namespace) if reader.get("namespace").is_none() => namespace,
        _ => reader.namespace(),
    };
    named(reader, "name", namespace, name)
}

fn of_build(reader: &mut Reader<'_>, word: &str) -> Named {
    reader.build_members(word);
    let name = reader.required("function_name");
    let namespace = reader.namespace();
    named(reader, "function_name", namespace, name)
}

fn parser(reader: &mut Reader<'_>, status: ParserStatus) -> Command {
    let parser = reader.parser(status);
    let named = named(reader, "function_name", parser.namespace.clone(), parser.function_name.clone());
    match status {
        ParserStatus::Started => Command::RunParser { named, parser },
        ParserStatus::Completed | ParserStatus::Failed => Command::ParserEnded { named, parser },
    }
}

fn named(reader: &mut Reader<'_>, place: &str, namespace: String, name: String) -> Named {
    if !name.is_empty() && !name::is_label(&name) {
        reader.fault(place, format!("a name {}", name::RULE));
    }
    if !name::is_label(&namespace) {
        reader.fault("namespace", format!("a namespace {}", name::RULE));
    }
    Named { kind: reader.resource_kind(), namespace, name }
}
