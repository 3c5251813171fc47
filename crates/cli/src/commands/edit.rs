//! `edit`: a resource in an editor.

use super::Context;
use super::apply::found;
use super::diff::authored;
use super::manifest;
use crate::args::Edit;
use crate::client::{Error, Problem};
use crate::exit::Usage;
use crate::kind::Kind;
use crate::resource::{self, Resource};
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::path::Path;
use std::process::Command;
use tempfile::NamedTempFile;

pub fn run(context: &mut Context, args: &Edit) -> anyhow::Result<()> {
    let resource = one(args)?;
    let live = context.client.get(&resource.route()).with_context(|| resource.to_string())?;
    let before = authored(live.clone());
    let text = serde_saphyr::to_string(&before)?;
    let mut file = tempfile::Builder::new().prefix("klambda-edit-").suffix(".yaml").tempfile()?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    open_editor(file.path())?;
    let edited = std::fs::read_to_string(file.path())?;
    if edited.trim().is_empty() || edited == text {
        writeln!(context.out, "Edit cancelled, no changes made.")?;
        return Ok(());
    }
    match submit(context, &resource, &live, &before, &edited) {
        Ok(done) => Ok(writeln!(context.out, "{done}")?),
        Err(error) => Err(keep(file, error)),
    }
}

fn one(args: &Edit) -> Result<Resource, Usage> {
    let named = resource::named(&args.resources)?;
    let [one] = named.as_slice() else { return Err(Usage("edit one resource at a time".to_owned())) };
    match one.kind {
        Kind::Function
        | Kind::Agent
        | Kind::Subscription
        | Kind::Webhook
        | Kind::EventType
        | Kind::Namespace => Ok(one.clone()),
        other => Err(Usage(format!("{} cannot be edited", other.plural_in_words()))),
    }
}

/// The variable may hold arguments too, so a shell splits it.
pub fn open_editor(file: &Path) -> anyhow::Result<()> {
    let named = ["KLAMBDA_EDITOR", "EDITOR"].iter().find_map(|name| std::env::var(name).ok());
    let named = named.filter(|editor| !editor.trim().is_empty());
    if named.is_none() && !std::io::stdin().is_terminal() {
        return Err(Usage("editing needs a terminal; to use a program, name it in EDITOR".to_owned()).into());
    }
    let editor = named.unwrap_or_else(|| "vi".to_owned());
    let script = format!("{editor} \"$1\"");
    let status = Command::new("sh").args(["-c", &script, "sh"]).arg(file).status();
    let status = status.with_context(|| format!("could not start the editor {editor}"))?;
    match status.success() {
        true => Ok(()),
        false => bail!("the editor {editor} failed ({status}); nothing changed"),
    }
}

fn submit(
    context: &Context,
    resource: &Resource,
    live: &Value,
    before: &Value,
    edited: &str,
) -> anyhow::Result<String> {
    let after = document(edited, resource, context)?;
    if after == *before {
        return Ok("Edit cancelled, no changes made.".to_owned());
    }
    match resource.kind {
        Kind::Function | Kind::Agent => {
            let mut patch = patch(before, &after);
            patch["metadata"]["resourceVersion"] = live["metadata"]["resourceVersion"].clone();
            context.client.put(&resource.route(), &patch).map_err(conflict)?;
        }
        _ => {
            // These documents have no version, so the live one must still be the one that was opened.
            if found(context, &resource.route())?.map(authored).as_ref() != Some(before) {
                bail!(Error::Problem(changed_meanwhile()));
            }
            context.client.put(&resource.route(), &after).map_err(conflict)?;
        }
    }
    Ok(format!("{resource} edited"))
}

fn document(text: &str, resource: &Resource, context: &Context) -> anyhow::Result<Value> {
    let mut documents = manifest::parse(text).map_err(Usage)?;
    let (Some(document), true) = (documents.pop(), documents.is_empty()) else {
        return Err(Usage("the file must contain one document".to_owned()).into());
    };
    let manifest = manifest::manifest(document, Some(context.client.namespace())).map_err(Usage)?;
    match (manifest.kind, manifest.name.as_str()) == (resource.kind, resource.name.as_str()) {
        true => Ok(manifest.document),
        false => Err(Usage(format!("kind and name of {resource} cannot be changed")).into()),
    }
}

fn conflict(error: Error) -> Error {
    match error {
        Error::Problem(problem) if is_outdated(&problem) => Error::Problem(changed_meanwhile()),
        other => other,
    }
}

/// Other conflicts have messages of their own.
fn is_outdated(problem: &Problem) -> bool {
    let detail = problem.body["detail"].as_str().unwrap_or_default();
    problem.status == 409 && detail.contains("resourceVersion")
}

fn changed_meanwhile() -> Problem {
    let title = "Conflict";
    let detail = "someone changed the resource while you edited it; edit it again";
    Problem { status: 409, body: json!({ "title": title, "detail": detail }) }
}

/// The edited text is not lost.
pub fn keep(file: NamedTempFile, error: anyhow::Error) -> anyhow::Error {
    match file.keep() {
        Ok((_, path)) => error.context(format!("not saved, your edits are in {}", path.display())),
        Err(lost) => error.context(format!("not saved, and your edits could not be kept: {lost}")),
    }
}

/// A merge patch (RFC 7396): `null` removes a member.
fn patch(before: &Value, after: &Value) -> Value {
    let (Value::Object(old), Value::Object(new)) = (before, after) else { return after.clone() };
    let mut changes = Map::new();
    for name in old.keys().filter(|name| !new.contains_key(*name)) {
        changes.insert(name.clone(), Value::Null);
    }
    for (name, value) in new.iter().filter(|(name, value)| old.get(*name) != Some(*value)) {
        let old = old.get(name).unwrap_or(&Value::Null);
        changes.insert(name.clone(), patch(old, value));
    }
    Value::Object(changes)
}

#[cfg(test)]
mod tests {
    use super::patch;
    use serde_json::json;

    #[test]
    fn a_patch_has_only_what_changed() {
        let before = json!({"a": 1, "b": {"c": 2, "d": [1, 2]}, "e": 3});
        let after = json!({"a": 1, "b": {"c": 4, "d": [1]}, "f": {"g": 5}});
        assert_eq!(patch(&before, &after), json!({"b": {"c": 4, "d": [1]}, "e": null, "f": {"g": 5}}));
        assert_eq!(patch(&before, &before), json!({}));
    }
}
