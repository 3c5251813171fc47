//! Files of resources: found, parsed and checked before anything is sent.

use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::cell;
use crate::resource::Resource;
use crate::route::Route;
use klambda_core::strict_json::Strict;
use klambda_server::config::yaml_fault;
use serde_json::Value;
use std::io::Read;
use std::path::{Path, PathBuf};

/// All documents of the files. A mistake in any of them is found before the first is sent.
pub fn read(paths: &[PathBuf], namespace: Option<&str>) -> Result<Vec<Manifest>, Usage> {
    let mut manifests = Vec::new();
    for file in files(paths)? {
        let text = content(&file)?;
        for document in parse(&text).map_err(|error| Usage::file(&file, &error))? {
            manifests.push(manifest(document, namespace).map_err(|error| Usage::file(&file, &error))?);
        }
    }
    let namespaces: Vec<String> =
        manifests.iter().filter(|one| one.kind == Kind::Namespace).map(|one| one.name.clone()).collect();
    for manifest in manifests.iter_mut().filter(|one| one.kind != Kind::Namespace) {
        manifest.has_own_namespace = namespaces.contains(&manifest.namespace);
    }
    match manifests.is_empty() {
        true => Err(Usage("the files contain no documents".to_owned())),
        false => Ok(manifests),
    }
}

/// A document of a file, ready to be sent.
#[derive(Debug, PartialEq)]
pub struct Manifest {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
    pub document: Value,
    /// Whether the files also contain its namespace.
    pub has_own_namespace: bool,
}

impl Manifest {
    pub fn resource(&self) -> Resource {
        Resource::new(self.kind, &self.name)
    }

    pub fn route(&self) -> Route {
        match self.kind {
            Kind::Namespace => self.resource().route(),
            _ => self.resource().route().within(&self.namespace),
        }
    }
}

/// Leaves out what only the server sets, so that the output of `get -o yaml` can be applied.
pub fn manifest(mut document: Value, given: Option<&str>) -> Result<Manifest, String> {
    let Some(fields) = document.as_object_mut() else {
        return Err("a document is not a mapping with apiVersion, kind, metadata and spec".to_owned());
    };
    let kind = kind(fields.get("kind").and_then(Value::as_str))?;
    fields.remove("status");
    let metadata = fields.get_mut("metadata").and_then(Value::as_object_mut);
    metadata.and_then(|metadata| metadata.remove("createdAt"));
    let name = match document.pointer("/metadata/name") {
        Some(Value::String(name)) if !name.is_empty() => name.to_owned(),
        None | Some(Value::Null | Value::String(_)) => {
            return Err(format!("a {} has no metadata.name", cell(&document, "/kind")));
        }
        // Not everything that looks like a name is text in YAML.
        Some(other) => return Err(format!("metadata.name must be a string, not {other}: quote it")),
    };
    let written = document.pointer("/metadata/namespace").and_then(Value::as_str);
    let namespace = match (written, given) {
        (Some(written), Some(given)) if written != given && kind != Kind::Namespace => {
            return Err(format!("{name} is in namespace {written}, but -n is {given}"));
        }
        (written, given) => written.or(given).unwrap_or("default").to_owned(),
    };
    Ok(Manifest { kind, namespace, name, document, has_own_namespace: false })
}

fn kind(word: Option<&str>) -> Result<Kind, String> {
    const KNOWN: &str =
        "use LambdaFunction, LambdaAgent, Subscription, WebhookEndpoint, EventType or Namespace";
    match word {
        Some("LambdaFunction") => Ok(Kind::Function),
        Some("LambdaAgent") => Ok(Kind::Agent),
        Some("Subscription") => Ok(Kind::Subscription),
        Some("WebhookEndpoint") => Ok(Kind::Webhook),
        Some("EventType") => Ok(Kind::EventType),
        Some("Namespace") => Ok(Kind::Namespace),
        Some("Secret") => {
            Err("secrets are not applied from files; use `klambda secret set NAME KEY=VALUE`".to_owned())
        }
        Some(other) => Err(format!("unknown kind {other}; {KNOWN}")),
        None => Err(format!("a document has no kind; {KNOWN}")),
    }
}

/// Every document of a YAML or JSON text; arrays and `{items: […]}` count as their elements.
pub fn parse(text: &str) -> Result<Vec<Value>, String> {
    let documents: Vec<Value> = if text.trim_start().starts_with(['{', '[']) {
        // JSON first, since it may be indented with tabs, which YAML forbids. Then YAML in flow style.
        let json: Result<Vec<Strict>, _> = serde_json::Deserializer::from_str(text).into_iter().collect();
        json.map(|all| all.into_iter().map(|Strict(value)| value).collect())
            .or_else(|json_error| yaml(text).map_err(|_| json_error.to_string()))?
    } else {
        yaml(text)?
    };
    Ok(documents.into_iter().flat_map(flatten).collect())
}

fn yaml(text: &str) -> Result<Vec<Value>, String> {
    serde_saphyr::from_multiple::<Value>(text).map_err(|error| yaml_fault(&error))
}

fn flatten(document: Value) -> Vec<Value> {
    match document {
        Value::Null => Vec::new(),
        Value::Array(items) => items,
        Value::Object(mut fields) if is_list(&fields) => {
            fields.remove("items").map(flatten).unwrap_or_default()
        }
        other => vec![other],
    }
}

fn is_list(fields: &serde_json::Map<String, Value>) -> bool {
    fields.contains_key("items") && fields.get("kind").is_none_or(|kind| kind == "List")
}

fn files(given: &[PathBuf]) -> Result<Vec<PathBuf>, Usage> {
    let mut files = Vec::new();
    for path in given {
        if path.is_dir() {
            files.extend(folder(path)?);
        } else {
            files.push(path.clone());
        }
    }
    Ok(files)
}

fn folder(path: &Path) -> Result<Vec<PathBuf>, Usage> {
    let wrong = |error: std::io::Error| Usage::file(path, &error);
    let entries: Result<Vec<_>, _> = std::fs::read_dir(path).map_err(wrong)?.collect();
    let known = |file: &PathBuf| {
        let extension = file.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("yaml" | "yml" | "json")) && file.is_file()
    };
    let mut files: Vec<PathBuf> =
        entries.map_err(wrong)?.into_iter().map(|entry| entry.path()).filter(known).collect();
    files.sort();
    Ok(files)
}

fn content(file: &Path) -> Result<String, Usage> {
    let mut text = String::new();
    let result = match file.to_str() {
        Some("-") => std::io::stdin().read_to_string(&mut text).map(|_| ()),
        _ => std::fs::read_to_string(file).map(|read| text = read),
    };
    result.map_err(|error| Usage::file(file, &error))?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn documents_come_in_many_shapes() {
        let a = json!({"kind": "Subscription", "metadata": {"name": "a"}});
        let b = json!({"kind": "Subscription", "metadata": {"name": "b"}});
        let both = vec![a.clone(), b.clone()];
        for text in [
            "---\nkind: Subscription\nmetadata: {name: a}\n---\n# nothing here\n---\nkind: Subscription\nmetadata:\n  name: b\n",
            "- {kind: Subscription, metadata: {name: a}}\n- {kind: Subscription, metadata: {name: b}}\n",
            "{kind: Subscription, metadata: {name: a}}\n---\n{kind: Subscription, metadata: {name: b}}\n",
            "{\n\t\"items\": [{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"a\"}},\n\t{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"b\"}}]}",
            "{\"kind\":\"List\",\"items\":[{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"a\"}},{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"b\"}}]}",
            "{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"a\"}}\n{\"kind\":\"Subscription\",\"metadata\":{\"name\":\"b\"}}",
        ] {
            assert_eq!(parse(text).expect(text), both, "{text}");
        }
        assert_eq!(parse("\n# only a comment\n").expect("parsed"), Vec::<Value>::new());
        assert!(parse("a: [1").is_err());
        let twice = parse("a: 1\na: 2\n").expect_err("a key twice");
        assert_eq!(twice, "the key a appears twice, at line 2, column 1");
        assert!(parse("{\"a\": 1, \"a\": 2}").is_err());
    }

    #[test]
    fn what_the_server_printed_can_be_applied() {
        let printed = json!({"apiVersion": "v", "kind": "Subscription",
            "metadata": {"name": "a", "createdAt": "2026-01-01T00:00:00Z"}, "spec": {"from": "latest"}, "status": {"waiting": 1}});
        let Manifest { kind, name, document, .. } = manifest(printed, None).expect("a subscription");
        assert_eq!((kind, name.as_str()), (Kind::Subscription, "a"));
        let expected = json!({"apiVersion": "v", "kind": "Subscription", "metadata": {"name": "a"}, "spec": {"from": "latest"}});
        assert_eq!(document, expected);
    }

    #[test]
    fn what_is_not_known_is_refused_before_anything_is_sent() {
        for document in
            [json!(3), json!({}), json!({"kind": "Pod"}), json!({"kind": "Subscription", "metadata": {}})]
        {
            assert!(manifest(document.clone(), None).is_err(), "{document}");
        }
        for name in [json!(1), json!(false), json!(["a"])] {
            let unquoted = manifest(json!({"kind": "Subscription", "metadata": {"name": name}}), None);
            assert!(unquoted.is_err_and(|message| message.contains("quote it")), "{name}");
        }
    }

    #[test]
    fn a_namespace_is_written_or_given_but_not_two() {
        let document = |namespace: Value| json!({"kind": "LambdaFunction", "metadata": {"name": "f", "namespace": namespace}});
        let namespace =
            |written: Value, given| manifest(document(written), given).map(|found| found.namespace);
        assert_eq!(namespace(Value::Null, None).as_deref(), Ok("default"));
        assert_eq!(namespace(Value::Null, Some("shop")).as_deref(), Ok("shop"));
        assert_eq!(namespace(json!("shop"), None).as_deref(), Ok("shop"));
        assert!(namespace(json!("shop"), Some("other")).is_err());
    }
}
