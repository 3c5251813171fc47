//! `diff`: what `apply` would change.

use super::apply::{change, dry_run, found};
use super::manifest::{self, Manifest};
use super::{Context, for_each};
use crate::args::Diff;
use crate::exit::Differences;
use crate::unified;
use anyhow::Context as _;
use klambda_functions::write::LAST_APPLIED;
use serde_json::Value;

pub fn run(context: &mut Context, args: &Diff) -> anyhow::Result<()> {
    let manifests = manifest::read(&args.files.filename, context.namespace.as_deref())?;
    let mut differs = false;
    for_each(&manifests, |manifest| {
        let text = of(context, manifest).with_context(|| manifest.resource().to_string())?;
        differs |= text.is_some();
        write!(context.out, "{}", text.unwrap_or_default())?;
        Ok(())
    })?;
    if differs { Err(Differences.into()) } else { Ok(()) }
}

fn of(context: &Context, manifest: &Manifest) -> anyhow::Result<Option<String>> {
    let live = found(context, &manifest.route())?.map(authored);
    let mut answer = dry_run(context, manifest, false)?;
    let merged = authored(answer["document"].take());
    let live = live.map_or(Ok(String::new()), |live| serde_saphyr::to_string(&live))?;
    let merged = serde_saphyr::to_string(&merged)?;
    let name = |side: &str| format!("{side}/{}", manifest.resource());
    let shown = unified::diff(&name("live"), &live, &name("merged"), &merged);
    let hidden = || format!("{}: values that are not shown differ, such as headers\n", manifest.resource());
    Ok(shown.or_else(|| (change(&answer) != "unchanged").then(hidden)))
}

/// The part of a document that people write: no status, and no metadata that the server adds.
pub fn authored(mut document: Value) -> Value {
    if let Some(fields) = document.as_object_mut() {
        fields.remove("status");
    }
    if let Some(Value::Object(metadata)) = document.get_mut("metadata") {
        metadata.retain(|name, value| match name.as_str() {
            "annotations" => has_own(value),
            other => ["name", "namespace", "labels"].contains(&other),
        });
    }
    document
}

/// Takes out the annotation of the server. Answers whether there are others.
fn has_own(annotations: &mut Value) -> bool {
    let Some(annotations) = annotations.as_object_mut() else { return false };
    annotations.remove(LAST_APPLIED);
    !annotations.is_empty()
}

#[cfg(test)]
mod tests {
    use super::authored;
    use serde_json::json;

    #[test]
    fn only_what_people_write_is_compared() {
        let live = json!({"kind": "LambdaFunction", "metadata": {"name": "a", "uid": "1", "generation": 3,
            "annotations": {"lambda.knative.io/last-applied": "{}"}, "labels": {"a": "b"}}, "spec": {}, "status": {}});
        let expected =
            json!({"kind": "LambdaFunction", "metadata": {"name": "a", "labels": {"a": "b"}}, "spec": {}});
        assert_eq!(authored(live), expected);
        assert_eq!(authored(json!({"kind": "x"})), json!({"kind": "x"}));
    }
}
