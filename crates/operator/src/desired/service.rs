//! The Knative Service of a function.

use super::{Owned, Wanted};
use crate::child::Child;
use crate::config::Config;
use crate::kinds::Kind;
use crate::names;
use klambda_core::quantity::{format_bytes, format_cpu};
use klambda_functions::defaults;
use klambda_functions::resource::{EnvVar, KeyRef, Scaling, Spec};
use serde_json::{Value, json};

/// The port of functions that are built here. Images may use another one.
const PORT: u16 = 8080;
const SECRETS_FOLDER: &str = "/var/run/klambda/secrets";
/// The hard limits of Knative.
const TIMEOUT_S_MAX: u64 = 600;
const CONTAINER_CONCURRENCY_MAX: u32 = 1000;

pub(super) fn service(owned: &Owned<'_>, wanted: &Wanted, _: &Config) -> Child {
    let spec = &owned.resource.spec;
    let scaling = serde_json::to_string(&spec.scaling).unwrap_or_default();
    let template = json!({
        "metadata": {
            "labels": names::labels(owned.name()),
            "annotations": template_annotations(&spec.scaling, &wanted.version),
        },
        "spec": pod(owned, wanted),
    });
    owned.child(
        Kind::Service,
        owned.name(),
        json!({ names::SCALING: scaling }),
        json!({ "spec": { "template": template } }),
    )
}

/// Knative reads autoscaling annotations only from the template.
fn template_annotations(scaling: &Scaling, version: &str) -> Value {
    let retention_s = scaling.scale_to_zero_grace_period.ms / 1000;
    json!({
        names::VERSION: version,
        "autoscaling.knative.dev/min-scale": scaling.min_replicas.to_string(),
        "autoscaling.knative.dev/max-scale": scaling.max_replicas.to_string(),
        "autoscaling.knative.dev/metric": "concurrency",
        "autoscaling.knative.dev/target": scaling.target_concurrency.to_string(),
        "autoscaling.knative.dev/scale-to-zero-pod-retention-period": format!("{retention_s}s"),
    })
}

fn pod(owned: &Owned<'_>, wanted: &Wanted) -> Value {
    let spec = &owned.resource.spec;
    let amounts = defaults::amounts(&spec.resources);
    let mut container = json!({
        "name": "function",
        "image": wanted.image,
        "ports": [{ "containerPort": port(spec) }],
        "env": env(owned),
        "resources": {
            "requests": { "memory": format_bytes(amounts.request_memory.bytes), "cpu": format_cpu(amounts.request_cpu.millis) },
            "limits": { "memory": format_bytes(amounts.limit_memory.bytes), "cpu": format_cpu(amounts.limit_cpu.millis) },
        },
        "securityContext": security(spec),
    });
    let timeout_s = spec.call_timeout().ms.div_ceil(1000).clamp(1, TIMEOUT_S_MAX);
    let mut pod = json!({
        // The target is what replicas should handle. Twice that is what they may get while others start.
        "containerConcurrency": (spec.scaling.target_concurrency.saturating_mul(2)).min(CONTAINER_CONCURRENCY_MAX),
        "timeoutSeconds": timeout_s,
    });
    let (mut volumes, mut mounts) = secret_files(spec);
    if is_built(spec) {
        // The rest of the file system is read-only.
        volumes.push(json!({ "name": "tmp", "emptyDir": {} }));
        mounts.push(json!({ "name": "tmp", "mountPath": "/tmp" }));
    }
    if !volumes.is_empty() {
        container["volumeMounts"] = mounts.into();
        pod["volumes"] = volumes.into();
    }
    let pull = spec.source.as_ref().and_then(|source| source.image.as_ref()?.secret_ref.as_ref());
    let pull = pull.map(|secret| &secret.name).or(spec.build.image_pull_secret.as_ref());
    if let Some(secret) = pull {
        pod["imagePullSecrets"] = json!([{ "name": secret }]);
    }
    pod["containers"] = json!([container]);
    pod
}

fn is_built(spec: &Spec) -> bool {
    spec.source.as_ref().is_some_and(|source| source.kind.is_built())
}

fn port(spec: &Spec) -> u16 {
    spec.source.as_ref().and_then(|source| source.image.as_ref()).map_or(PORT, |image| image.port)
}

/// The profile `restricted` of Kubernetes. Images of others may need their own user.
fn security(spec: &Spec) -> Value {
    let mut context = json!({
        "allowPrivilegeEscalation": false,
        "capabilities": { "drop": ["ALL"] },
        "seccompProfile": { "type": "RuntimeDefault" },
    });
    if is_built(spec) {
        context["runAsNonRoot"] = true.into();
        context["readOnlyRootFilesystem"] = true.into();
    }
    context
}

fn env(owned: &Owned<'_>) -> Vec<Value> {
    let spec = &owned.resource.spec;
    let mut env: Vec<Value> = vec![
        json!({ "name": "KLAMBDA_FUNCTION", "value": owned.name() }),
        json!({ "name": "KLAMBDA_NAMESPACE", "value": owned.namespace() }),
        json!({ "name": "KLAMBDA_TIMEOUT_MS", "value": spec.call_timeout().ms.to_string() }),
    ];
    if !spec.secret_files.is_empty() {
        env.push(json!({ "name": "KLAMBDA_SECRETS", "value": SECRETS_FOLDER }));
    }
    env.extend(spec.env.iter().map(variable));
    env
}

fn variable(variable: &EnvVar) -> Value {
    let reference = |key: &KeyRef| {
        let mut reference = json!({ "name": key.name, "key": key.key });
        if key.optional {
            reference["optional"] = true.into();
        }
        reference
    };
    let from = variable.value_from.as_deref();
    let secret = from.and_then(|from| from.secret_key_ref.as_ref());
    let map = from.and_then(|from| from.config_map_key_ref.as_ref());
    match (secret, map) {
        (Some(key), _) => json!({ "name": variable.name, "valueFrom": { "secretKeyRef": reference(key) } }),
        (None, Some(key)) => {
            json!({ "name": variable.name, "valueFrom": { "configMapKeyRef": reference(key) } })
        }
        (None, None) => json!({ "name": variable.name, "value": variable.value.clone().unwrap_or_default() }),
    }
}

fn secret_files(spec: &Spec) -> (Vec<Value>, Vec<Value>) {
    let (mut volumes, mut mounts) = (Vec::new(), Vec::new());
    for (index, files) in spec.secret_files.iter().enumerate() {
        let volume = format!("secret-{index}");
        let mut source = json!({ "secretName": files.secret });
        if files.optional {
            source["optional"] = true.into();
        }
        volumes.push(json!({ "name": volume, "secret": source }));
        let folder = format!("{SECRETS_FOLDER}/{}", files.secret);
        for path in [Some(&folder), files.path.as_ref()].into_iter().flatten() {
            mounts.push(json!({ "name": volume, "mountPath": path, "readOnly": true }));
        }
    }
    (volumes, mounts)
}
