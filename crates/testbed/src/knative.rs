//! Knative Serving's own manifests, taken from its Go modules, with the settings of the tests.
//!
//! The webhook and the controller run as processes with the rights of their service account. Their Deployments are left
//! out, and the address of the webhook's Service is one that the webhook listens on.

use crate::binaries::KNATIVE;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

pub const NAMESPACE: &str = "knative-serving";
/// The address of the webhook's Service.
pub const WEBHOOK_ADDRESS: &str = "10.96.0.10";
const CRDS: &str = "crds.json";
const OBJECTS: &str = "objects.json";

/// Files of definitions. A trailing `/` stands for all YAML files of a folder.
const CRD_FILES: [(&str, &[&str]); 3] = [
    ("knative.dev/serving", &["config/core/300-resources/"]),
    (
        "knative.dev/networking",
        &[
            "config/certificate.yaml",
            "config/domain-claim.yaml",
            "config/ingress.yaml",
            "config/serverlessservice.yaml",
        ],
    ),
    ("knative.dev/caching", &["config/image.yaml"]),
];

/// Files of objects, in the order in which they are created. The webhooks come last: they refuse everything until the
/// webhook runs.
const OBJECT_FILES: [(&str, &[&str]); 3] = [
    (
        "knative.dev/serving",
        &[
            "config/core/100-namespace.yaml",
            "config/core/200-serviceaccount.yaml",
            "config/core/200-roles/",
            "config/core/configmaps/",
        ],
    ),
    ("knative.dev/networking", &["config/config-network.yaml"]),
    ("knative.dev/serving", &["config/core/deployments/webhook.yaml", "config/core/webhooks/"]),
];

/// Settings that the tests need, per config map.
const SETTINGS: [(&str, &str, &str); 13] = [
    // Required, never pulled.
    ("config-deployment", "queue-sidecar-image", "registry.test/knative/queue:played"),
    ("config-deployment", "registries-skipping-tag-resolving", "kind.local,ko.local,dev.local,registry.test"),
    ("config-deployment", "progress-deadline", "20s"),
    ("config-domain", "example.com", ""),
    ("config-network", "ingress-class", "played.ingress.networking.knative.dev"),
    ("config-autoscaler", "allow-zero-initial-scale", "true"),
    ("config-logging", "loglevel.controller", "warn"),
    ("config-logging", "loglevel.webhook", "warn"),
    ("config-observability", "metrics-protocol", "none"),
    // A restarted controller continues after seconds instead of a minute.
    ("config-leader-election", "lease-duration", "5s"),
    ("config-leader-election", "renew-deadline", "4s"),
    ("config-leader-election", "retry-period", "1s"),
    ("config-gc", "min-non-active-revisions", "20"),
];

/// The manifests in the cache: definitions, and objects. They are written when they are missing.
pub fn manifests() -> Result<(PathBuf, PathBuf)> {
    let folder = KNATIVE.cache()?;
    let (crds, objects) = (folder.join(CRDS), folder.join(OBJECTS));
    if !crds.is_file() {
        write_list(&crds, read(&CRD_FILES)?)?;
    }
    // Written each time, so that the settings above are those that are used.
    let sources = folder.join("objects-source.json");
    if !sources.is_file() {
        write_list(&sources, read(&OBJECT_FILES)?)?;
    }
    let items: Value = serde_json::from_slice(&fs::read(&sources)?)?;
    let items = items["items"].as_array().cloned().unwrap_or_default();
    write_list(&objects, items.into_iter().filter_map(adapt).collect())?;
    Ok((crds, objects))
}

/// The names of the definitions that Knative Serving brings.
pub fn crd_names() -> Result<Vec<String>> {
    let list: Value = serde_json::from_slice(&fs::read(manifests()?.0)?)?;
    let items = list["items"].as_array().cloned().unwrap_or_default();
    Ok(items.iter().filter_map(|item| item["metadata"]["name"].as_str().map(str::to_owned)).collect())
}

/// Changes an object for the tests. `None` leaves it out.
fn adapt(mut object: Value) -> Option<Value> {
    let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
    match object["kind"].as_str() {
        Some("Deployment") => return None,
        Some("Service") if name == "webhook" => object["spec"]["clusterIP"] = json!(WEBHOOK_ADDRESS),
        Some("ConfigMap") => configure(&mut object, &name),
        _ => {}
    }
    Some(object)
}

fn configure(object: &mut Value, name: &str) {
    if let Some(annotations) = object["metadata"]["annotations"].as_object_mut() {
        // The checksum of the example, which is removed.
        annotations.remove("knative.dev/example-checksum");
    }
    if !object["data"].is_object() {
        object["data"] = json!({});
    }
    if let Some(data) = object["data"].as_object_mut() {
        data.remove("_example");
        for (_, key, value) in SETTINGS.iter().filter(|(map, ..)| *map == name) {
            data.insert((*key).to_owned(), json!(value));
        }
    }
}

fn read(sources: &[(&str, &[&str])]) -> Result<Vec<Value>> {
    let mut objects = Vec::new();
    for (module, files) in sources {
        let folder = KNATIVE.folder_of(module)?;
        for file in *files {
            for path in yaml_files(&folder.join(file))? {
                objects.extend(documents(&path)?);
            }
        }
    }
    Ok(objects)
}

/// The file itself, or the YAML files of a folder in the order of their names.
pub fn yaml_files(path: &Path) -> Result<Vec<PathBuf>> {
    if path.is_file() {
        return Ok(vec![path.to_owned()]);
    }
    let mut files = Vec::new();
    for entry in fs::read_dir(path).with_context(|| format!("reading {}", path.display()))? {
        let file = entry?.path();
        if file.extension().is_some_and(|extension| extension == "yaml") {
            files.push(file);
        }
    }
    files.sort();
    Ok(files)
}

fn documents(file: &Path) -> Result<Vec<Value>> {
    let text = fs::read_to_string(file).with_context(|| format!("reading {}", file.display()))?;
    let documents: Vec<Value> =
        serde_saphyr::from_multiple(&text).with_context(|| format!("{} is not YAML", file.display()))?;
    Ok(documents.into_iter().filter(Value::is_object).collect())
}

fn write_list(file: &Path, items: Vec<Value>) -> Result<()> {
    let list = json!({"apiVersion": "v1", "kind": "List", "items": items});
    // Several tests may start at once: a file is complete or not there.
    let partial = file.with_extension(format!("partial-{}", std::process::id()));
    fs::write(&partial, serde_json::to_vec(&list)?)
        .with_context(|| format!("writing {}", partial.display()))?;
    fs::rename(&partial, file).with_context(|| format!("writing {}", file.display()))
}
