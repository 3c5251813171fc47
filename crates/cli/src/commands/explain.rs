//! `explain`: the fields of a resource type, from the schema that `klambda crd` prints.

use crate::args::Explain;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::one_line;
use crate::resource::{self, nearest};
use klambda_functions::crd;
use serde_json::{Map, Value, json};
use std::io::Write;

const INDENT: &str = "  ";
const WIDTH_CHARS: usize = 76;

pub fn run(out: &mut dyn Write, args: &Explain) -> anyhow::Result<()> {
    let mut path = args.path.split('.');
    let kind = resource::kind(path.next().unwrap_or_default())?;
    let mut definition = definition(kind)?;
    complete(&mut definition);
    let root = definition.pointer("/spec/versions/0/schema/openAPIV3Schema").unwrap_or(&Value::Null);
    let fields: Vec<&str> = path.collect();
    let (mut schema, mut found) = (root, Vec::new());
    for field in fields {
        schema = member(schema, field, kind, &found)?;
        found.push(field);
    }
    write_heading(out, &definition, schema, &found)?;
    write_members(out, schema, INDENT, args.recursive)
}

fn definition(kind: Kind) -> Result<Value, Usage> {
    let name = match kind {
        Kind::Function => "LambdaFunction",
        Kind::Agent => "LambdaAgent",
        Kind::Subscription => "Subscription",
        Kind::Webhook => "WebhookEndpoint",
        Kind::EventType => "EventType",
        other => {
            let fault = format!(
                "{} have no schema; explain works with function, agent, subscription, webhook and eventtype",
                other.plural_in_words()
            );
            return Err(Usage(fault));
        }
    };
    let is_named = |one: &Value| one.pointer("/spec/names/kind").is_some_and(|kind| kind == name);
    let found = crd::definitions().into_iter().find(is_named);
    found.ok_or_else(|| Usage(format!("there is no schema of {name}")))
}

/// Fields of the status that the server keeps for itself.
const INTERNAL: [&str; 6] = [
    "/status/properties/restored",
    "/status/properties/candidate",
    "/status/properties/buildStatus/properties/inputs",
    "/status/properties/buildStatus/properties/triedSince",
    "/status/properties/buildStatus/properties/sourceFailed",
    "/status/properties/revisions/items/properties/content",
];

/// A definition leaves out the members that all types have. Adds them, and removes internal fields.
fn complete(definition: &mut Value) {
    let Some(root) = definition.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties") else {
        return;
    };
    for internal in INTERNAL {
        let (parent, name) = internal.rsplit_once('/').unwrap_or_default();
        if let Some(members) = root.pointer_mut(parent).and_then(Value::as_object_mut) {
            members.remove(name);
        }
    }
    let text = |about: &str| json!({"type": "string", "description": about});
    let texts = |about: &str| json!({"type": "object", "additionalProperties": {"type": "string"}, "description": about});
    let metadata = json!({
        "name": text("The name, unique in the namespace."),
        "namespace": text("The namespace [default: -n, or default]."),
        "labels": texts("Labels, to select functions and agents with -l."),
        "annotations": texts("Annotations of functions and agents."),
    });
    root["apiVersion"] = text("The version of the type, shown above.");
    root["kind"] = text("The type, shown above.");
    root["metadata"] = json!({"type": "object", "description": "Name and labels.", "properties": metadata});
}

/// Elements of arrays and values of maps are meant where their members are named.
fn inner(schema: &Value) -> &Value {
    let below =
        [&schema["items"], &schema["additionalProperties"]].into_iter().find(|below| below.is_object());
    below.map_or(schema, inner)
}

fn members(schema: &Value) -> Option<&Map<String, Value>> {
    inner(schema)["properties"].as_object()
}

fn member<'a>(schema: &'a Value, name: &str, kind: Kind, path: &[&str]) -> Result<&'a Value, Usage> {
    let members = members(schema);
    if let Some(found) = members.and_then(|members| members.get(name)) {
        return Ok(found);
    }
    let place = [&[kind.word()], path].concat().join(".");
    let Some(members) = members else { return Err(Usage(format!("{place} has no fields"))) };
    let names = || members.keys().map(String::as_str);
    let hint = match nearest(name, names()) {
        Some(near) => format!("did you mean {near:?}?"),
        None => format!("fields: {}", names().collect::<Vec<_>>().join(", ")),
    };
    Err(Usage(format!("{place} has no field {name:?}; {hint}")))
}

fn write_heading(
    out: &mut dyn Write,
    definition: &Value,
    schema: &Value,
    path: &[&str],
) -> anyhow::Result<()> {
    let text = |pointer: &str| definition.pointer(pointer).and_then(Value::as_str).unwrap_or_default();
    writeln!(out, "KIND:     {}", text("/spec/names/kind"))?;
    writeln!(out, "VERSION:  {}/{}", text("/spec/group"), text("/spec/versions/0/name"))?;
    if !path.is_empty() {
        writeln!(out, "FIELD:    {} <{}>", path.join("."), type_of(schema))?;
        // The default of an object is that of its members, which follow.
        if let (Some(bounds), None) = (bounds(schema), members(schema)) {
            writeln!(out, "VALUE:    {bounds}")?;
        }
    }
    if let Some(about) = schema["description"].as_str() {
        writeln!(out, "\nDESCRIPTION:")?;
        wrapped(out, about, INDENT)?;
    }
    Ok(())
}

fn write_members(out: &mut dyn Write, schema: &Value, indent: &str, recursive: bool) -> anyhow::Result<()> {
    let Some(all) = members(schema) else { return Ok(()) };
    if indent == INDENT {
        writeln!(out, "\nFIELDS:")?;
    }
    let required = inner(schema)["required"].as_array();
    for (name, member) in all {
        let is_required = required.is_some_and(|names| names.iter().any(|one| one == name.as_str()));
        let note = [is_required.then(|| "required".to_owned()), bounds(member)];
        let note: Vec<String> = note.into_iter().flatten().collect();
        let note = if note.is_empty() { String::new() } else { format!("  {}", note.join("; ")) };
        writeln!(out, "{indent}{name} <{}>{}", type_of(member), one_line(&note))?;
        if recursive {
            write_members(out, member, &format!("{indent}{INDENT}"), true)?;
        } else if let Some(about) = member["description"].as_str() {
            wrapped(out, about, &format!("{indent}{INDENT}"))?;
        }
    }
    Ok(())
}

fn type_of(schema: &Value) -> String {
    let name = schema["type"].as_str();
    match (&schema["items"], &schema["additionalProperties"]) {
        (items @ Value::Object(_), _) => format!("[]{}", type_of(items)),
        (_, values @ Value::Object(_)) => format!("map[string]{}", type_of(values)),
        _ if schema["x-kubernetes-int-or-string"] == true => "integer or string".to_owned(),
        _ => name.unwrap_or("any").to_owned(),
    }
}

/// The default and the values that are allowed.
fn bounds(schema: &Value) -> Option<String> {
    let shown = crate::jsonpath::shown;
    let default = schema.get("default").map(|value| format!("default {}", shown(value)));
    let words = schema["enum"]
        .as_array()
        .map(|all| format!("one of {}", all.iter().map(shown).collect::<Vec<_>>().join(", ")));
    let (min, max) = (schema.get("minimum"), schema.get("maximum"));
    let range = match (min, max) {
        (Some(min), Some(max)) if min == max => Some(format!("only {}", shown(min))),
        (Some(min), Some(max)) => Some(format!("{} to {}", shown(min), shown(max))),
        (Some(min), None) => Some(format!("at least {}", shown(min))),
        (None, Some(max)) => Some(format!("at most {}", shown(max))),
        (None, None) => None,
    };
    let all: Vec<String> = [default, words, range].into_iter().flatten().collect();
    (!all.is_empty()).then(|| all.join("; "))
}

fn wrapped(out: &mut dyn Write, text: &str, indent: &str) -> anyhow::Result<()> {
    let mut line = String::new();
    for word in text.split_whitespace() {
        if !line.is_empty() && indent.len() + line.chars().count() + 1 + word.chars().count() > WIDTH_CHARS {
            writeln!(out, "{indent}{line}")?;
            line.clear();
        }
        if !line.is_empty() {
            line.push(' ');
        }
        line.push_str(word);
    }
    writeln!(out, "{indent}{line}")?;
    Ok(())
}
