//! A build: a Job that fetches the source, builds an image with buildah and pushes it.
//!
//! Only the init container sees the secrets of the source. Only the builder sees those of the registry. Neither has a token
//! of the cluster. The digest of the image is the termination message of the builder.

use super::Owned;
use crate::child::Child;
use crate::config::{self, Config};
use crate::kinds::Kind;
use crate::names::{self, BUILD_ACCOUNT, BUILD_CONTAINER, FETCH_CONTAINER};
use klambda_functions::resource::{Resource, Spec};
use serde_json::{Value, json};

/// The exit codes of `klambda fetch` for failures that a retry cannot fix.
pub const FETCH_FAILED_FOR_GOOD: [i32; 2] = [2, 10];
/// Where `klambda fetch` finds the resource, and the key in the ConfigMap.
pub const DOCUMENT: &str = "function.json";
/// A ConfigMap holds 1 MiB in all.
pub const DOCUMENT_BYTES_MAX: usize = 1_000_000;
const DOCUMENT_FOLDER: &str = "/klambda/function";
const SECRETS_FOLDER: &str = "/klambda/secrets";
const CONTEXT: &str = "/workspace";
/// Capabilities that buildah needs to make its own user namespace.
const CAPABILITIES: [&str; 7] =
    ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "SETFCAP", "SYS_CHROOT"];

/// One try of a build.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Try {
    /// The name of the Job, which is derived from the inputs.
    pub name: String,
    pub inputs: String,
    pub artifact: String,
    pub number: u64,
}

/// The objects of a build, in the order in which they must exist.
pub fn children(owned: &Owned<'_>, build: &Try, config: &Config) -> Vec<Child> {
    vec![account(owned.namespace()), document(owned, build), job(owned, build, config)]
}

/// The document that the fetch reads: the function without its status. `None` if it does not fit.
pub fn fetch_document(resource: &Resource) -> Option<String> {
    let spec = Spec { env: Vec::new(), ..resource.spec.clone() };
    let metadata = json!({ "name": resource.metadata.name, "namespace": resource.metadata.namespace });
    let api_version = klambda_functions::resource::API_VERSION;
    let document =
        json!({ "apiVersion": api_version, "kind": resource.kind, "metadata": metadata, "spec": spec });
    Some(document.to_string()).filter(|text| text.len() <= DOCUMENT_BYTES_MAX)
}

fn account(namespace: &str) -> Child {
    let content = json!({
        "metadata": { "labels": { names::MANAGED_BY: names::MANAGER } },
        "automountServiceAccountToken": false,
    });
    Child::new(Kind::ServiceAccount, namespace, BUILD_ACCOUNT, content)
}

fn document(owned: &Owned<'_>, build: &Try) -> Child {
    let text = fetch_document(owned.resource).unwrap_or_default();
    owned.child(Kind::ConfigMap, &build.name, json!({}), json!({ "data": { DOCUMENT: text } }))
}

fn job(owned: &Owned<'_>, build: &Try, config: &Config) -> Child {
    let spec = &owned.resource.spec;
    let mut labels = names::labels(owned.name());
    labels[names::BUILD] = build.name.clone().into();
    let annotations = json!({
        names::INPUTS: build.inputs,
        names::ARTIFACT: build.artifact,
        names::TRY: build.number.to_string(),
        names::IMAGE: repository(owned, config, true),
    });
    let content = json!({ "spec": {
        "backoffLimit": config::BACKOFF_LIMIT,
        "activeDeadlineSeconds": spec.build.timeout.ms.div_ceil(1000).max(1),
        "podFailurePolicy": { "rules": [{
            "action": "FailJob",
            "onExitCodes": { "containerName": FETCH_CONTAINER, "operator": "In", "values": FETCH_FAILED_FOR_GOOD },
        }] },
        "template": { "metadata": { "labels": labels }, "spec": pod(owned, build, config) },
    } });
    owned.child(Kind::Job, &build.name, annotations, content)
}

/// The name of the image without a tag, as builds push it or as nodes pull it.
fn repository(owned: &Owned<'_>, config: &Config, is_pulled: bool) -> String {
    let build = &config.build;
    let registry = match (&owned.resource.spec.build.registry, is_pulled) {
        (Some(own), _) => own,
        (None, true) => build.pull_registry.as_ref().unwrap_or(&build.registry),
        (None, false) => &build.registry,
    };
    format!("{registry}/{}/{}", owned.namespace(), owned.name())
}

fn pod(owned: &Owned<'_>, build: &Try, config: &Config) -> Value {
    let spec = &owned.resource.spec;
    let (secret_volumes, secret_mounts) = source_secrets(owned);
    let mut volumes = vec![
        json!({ "name": "context", "emptyDir": {} }),
        json!({ "name": "storage", "emptyDir": {} }),
        json!({ "name": "tmp", "emptyDir": {} }),
        json!({ "name": "document", "configMap": { "name": build.name } }),
    ];
    volumes.extend(secret_volumes);
    let push = spec.build.image_pull_secret.as_ref().or(config.build.push_secret.as_ref());
    if let Some(secret) = push {
        let items = json!([{ "key": ".dockerconfigjson", "path": "config.json" }]);
        volumes.push(json!({ "name": "registry", "secret": { "secretName": secret, "items": items } }));
    }
    json!({
        "restartPolicy": "Never",
        "serviceAccountName": BUILD_ACCOUNT,
        "automountServiceAccountToken": false,
        "enableServiceLinks": false,
        "volumes": volumes,
        "initContainers": [fetch(secret_mounts, config)],
        "containers": [builder(owned, build, push.is_some(), config)],
    })
}

fn fetch(secrets: Vec<Value>, config: &Config) -> Value {
    let mut mounts = vec![
        json!({ "name": "context", "mountPath": CONTEXT }),
        json!({ "name": "document", "mountPath": DOCUMENT_FOLDER, "readOnly": true }),
        json!({ "name": "tmp", "mountPath": "/tmp" }),
    ];
    mounts.extend(secrets);
    let images = &config.build;
    json!({
        "name": FETCH_CONTAINER,
        "image": images.fetch_image,
        "command": ["klambda", "fetch"],
        "args": [
            "--file", format!("{DOCUMENT_FOLDER}/{DOCUMENT}"),
            "--secrets", SECRETS_FOLDER,
            "--into", format!("{CONTEXT}/context"),
            "--result", "/dev/termination-log",
            "--node-image", images.node_image,
            "--python-image", images.python_image,
            "--go-image", images.go_image,
            "--static-image", images.static_image,
        ],
        "env": [{ "name": "HOME", "value": "/tmp" }],
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": { "requests": { "cpu": "50m", "memory": "64Mi" }, "limits": { "cpu": "1", "memory": "512Mi" } },
        "securityContext": {
            "allowPrivilegeEscalation": false,
            "readOnlyRootFilesystem": true,
            "runAsNonRoot": true,
            "runAsUser": 65532,
            "capabilities": { "drop": ["ALL"] },
            "seccompProfile": { "type": "RuntimeDefault" },
        },
    })
}

fn source_secrets(owned: &Owned<'_>) -> (Vec<Value>, Vec<Value>) {
    let namespace = owned.namespace();
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (index, secret) in owned.resource.spec.source_secrets().into_iter().enumerate() {
        let volume = format!("source-secret-{index}");
        volumes.push(json!({ "name": volume, "secret": { "secretName": secret, "optional": true } }));
        let path = format!("{SECRETS_FOLDER}/{namespace}/{secret}");
        mounts.push(json!({ "name": volume, "mountPath": path, "readOnly": true }));
    }
    (volumes, mounts)
}

/// Values reach the script as variables, never as text of the script.
const SCRIPT: &str = r#"set -eu
buildah build --tls-verify="$TLS_VERIFY" --layers=false --tag "$IMAGE" "$CONTEXT"
buildah push --tls-verify="$TLS_VERIFY" --retry 3 --retry-delay 2s --digestfile /dev/termination-log "$IMAGE"
"#;

fn builder(owned: &Owned<'_>, build: &Try, has_credentials: bool, config: &Config) -> Value {
    let spec = &owned.resource.spec;
    let tag = spec.build.tag.clone().unwrap_or_else(|| build.artifact.clone());
    let image = format!("{}:{tag}", repository(owned, config, false));
    let is_insecure = spec.build.insecure || (spec.build.registry.is_none() && config.build.insecure);
    let mut env = vec![
        json!({ "name": "IMAGE", "value": image }),
        json!({ "name": "CONTEXT", "value": format!("{CONTEXT}/context") }),
        json!({ "name": "TLS_VERIFY", "value": (!is_insecure).to_string() }),
        json!({ "name": "BUILDAH_ISOLATION", "value": "chroot" }),
        json!({ "name": "STORAGE_DRIVER", "value": "overlay" }),
        json!({ "name": "HOME", "value": "/tmp" }),
        json!({ "name": "TMPDIR", "value": "/tmp" }),
    ];
    let mut mounts = vec![
        json!({ "name": "context", "mountPath": CONTEXT, "readOnly": true }),
        json!({ "name": "storage", "mountPath": "/var/lib/containers" }),
        json!({ "name": "tmp", "mountPath": "/tmp" }),
    ];
    if has_credentials {
        env.push(json!({ "name": "REGISTRY_AUTH_FILE", "value": "/klambda/registry/config.json" }));
        mounts.push(json!({ "name": "registry", "mountPath": "/klambda/registry", "readOnly": true }));
    }
    json!({
        "name": BUILD_CONTAINER,
        "image": config.build.builder_image,
        "command": ["sh", "-c", SCRIPT],
        "env": env,
        "volumeMounts": mounts,
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "resources": { "requests": { "cpu": "250m", "memory": "256Mi" }, "limits": { "cpu": "2", "memory": "2Gi" } },
        // Root in the container, in a user namespace that buildah makes. Never privileged.
        "securityContext": {
            "runAsUser": 0,
            "capabilities": { "drop": ["ALL"], "add": CAPABILITIES },
            "seccompProfile": { "type": "Unconfined" },
        },
    })
}
