//! What a received event asks for. Most of the 17 types only tell; these act, as the same call over REST would.

use super::ALIASES;
use super::data::{ParserData, ParserStatus, Reader};
use crate::name;
use crate::resource::{Form, Kind as ResourceKind, Resource};
use klambda_core::event::{Attributes as _, Event};
use klambda_core::fault::Fault;
use klambda_core::kinds::Kind;
use serde_json::{Map, Value, json};

/// What data may hold that something is asked for with. As a manifest does, and as these events do when they tell.
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

/// A resource by its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub kind: ResourceKind,
    pub namespace: String,
    pub name: String,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Command {
    /// To be created from this document as by POST; its name may be missing.
    Create {
        form: Form,
        document: Value,
    },
    /// To be merged as by PUT.
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
    /// Call the function once with the event's data; when it has ended, tell `completed` or `failed`.
    RunParser {
        named: Named,
        parser: ParserData,
    },
    /// A parser that runs elsewhere has ended: to be noted.
    ParserEnded {
        named: Named,
        parser: ParserData,
    },
}

impl Command {
    /// The namespace that it would act in.
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

/// The type of an event, by its name or an alias.
pub fn kind_of(name: &str) -> Option<Kind> {
    let alias = ALIASES.iter().find(|(alias, _)| *alias == name).map(|(_, kind)| *kind);
    alias.or_else(|| Kind::parse(name))
}

/// What the event asks for; `None` if its type asks for nothing. Where it names no namespace, the one it was sent in is
/// meant: `home`. Whether it was emitted here, and so is not to be obeyed,
/// is known by its id in the outbox, not by anything in it.
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
        Kind::FunctionCreated | Kind::FunctionUpdated | Kind::FunctionDeleted => reader.only(&FUNCTION),
        Kind::BuildStarted | Kind::BuildStopped | Kind::BuildCancelled => reader.only(&BUILD),
        // A parser is given the data as it is, and may take more.
        _ => {}
    }
    if reader.faults.is_empty() { Ok(Some(command)) } else { Err(reader.faults) }
}

fn acts(kind: Kind) -> bool {
    matches!(
        kind,
        Kind::FunctionCreated
            | Kind::FunctionUpdated
            | Kind::FunctionDeleted
            | Kind::BuildStarted
            | Kind::BuildStopped
            | Kind::BuildCancelled
            | Kind::ParserStarted
            | Kind::ParserCompleted
            | Kind::ParserFailed
    )
}

fn read(kind: Kind, reader: &mut Reader<'_>) -> Command {
    match kind {
        Kind::FunctionCreated => create(reader),
        Kind::FunctionUpdated => {
            let named = function(reader);
            let mut body = Map::new();
            for name in ["metadata", "spec"] {
                body.extend(reader.object(name).map(|value| (name.to_owned(), value)));
            }
            reader.object("status");
            if !body.contains_key("spec") {
                reader.fault("spec", "missing: give the part that is to change");
            }
            Command::Update { named, body: Value::Object(body) }
        }
        Kind::FunctionDeleted => {
            for name in ["metadata", "spec", "status"] {
                reader.object(name);
            }
            Command::Delete { named: function(reader) }
        }
        Kind::BuildStopped => Command::StopBuilds { named: of_build(reader, "stopped") },
        Kind::BuildCancelled => Command::CancelBuild { named: of_build(reader, "cancelled") },
        Kind::ParserStarted => parser(reader, ParserStatus::Started),
        Kind::ParserCompleted => parser(reader, ParserStatus::Completed),
        Kind::ParserFailed => parser(reader, ParserStatus::Failed),
        _ => Command::Rebuild { named: of_build(reader, "started") },
    }
}

/// A name stands in `name`, or in `metadata` as in a manifest.
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

/// What is wrong with the document itself, so that all is told at once.
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
