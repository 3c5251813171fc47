//! Validates a manifest beyond its schema. Every check adds its faults and continues.

mod source;

use crate::name::{self, is_label};
use crate::resource::{
    Build, EnvVar, Form, KeyRef, Metadata, Resource, ResourceKind, Resources, Runtime, Scaling, SecretFiles,
    Spec,
};
use crate::triggers;
use klambda_core::fault::Fault;
use klambda_core::quantity::format_duration_ms;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};

const SOURCE_TYPE: &str = "spec.source.type";
const HOUR_MS: u64 = 3_600_000;
const ANNOTATION_BYTES_MAX: usize = 2 << 20;
const ENV_VALUE_BYTES_MAX: usize = 128 << 10;
/// Variables that the platform sets for every process.
const RESERVED_ENV: [&str; 2] = ["PORT", "K_SERVICE"];

pub(crate) struct Faults<'f>(&'f mut Vec<Fault>);

impl Faults<'_> {
    fn add(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.0.push(Fault::new(path, message));
    }

    fn unless(&mut self, fine: bool, path: &str, message: impl Into<String>) {
        if !fine {
            self.add(path, message);
        }
    }
}

pub(crate) fn resource(resource: &Resource, written: &Value, form: Form, faults: &mut Vec<Fault>) {
    let Resource { kind, metadata: given, spec: asked, .. } = resource;
    metadata(given, form, &mut Faults(faults));
    // If the source type is unknown, its members are not checked.
    let is_typed = !faults.iter().any(|fault| fault.path == SOURCE_TYPE);
    spec(*kind, asked, is_typed, &mut Faults(faults));
    triggers::check(asked, &written["spec"], faults);
}

fn metadata(metadata: &Metadata, form: Form, faults: &mut Faults<'_>) {
    match metadata.name.as_str() {
        "" if form == Form::Manifest => faults.add("metadata.name", "missing"),
        "" => {}
        given => faults.unless(is_label(given), "metadata.name", format!("a name {}", name::RULE)),
    }
    let namespace = &metadata.namespace;
    faults.unless(is_label(namespace), "metadata.namespace", format!("a namespace {}", name::RULE));
    labels(&metadata.labels, faults);
    let bytes: usize = metadata.annotations.iter().map(|(name, text)| name.len() + text.len()).sum();
    faults.unless(bytes <= ANNOTATION_BYTES_MAX, "metadata.annotations", "must be at most 2Mi in all");
}

fn labels(labels: &BTreeMap<String, String>, faults: &mut Faults<'_>) {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/');
    for (name, value) in labels {
        let sized = !name.is_empty() && name.len() <= 317 && value.len() <= 63;
        let spelled = name.bytes().all(fine) && value.bytes().all(|byte| fine(byte) && byte != b'/');
        let place = format!("metadata.labels.{name}");
        faults.unless(sized && spelled, &place, "a label has at most 63 letters, digits, -, _ and .");
    }
}

fn spec(kind: ResourceKind, spec: &Spec, is_typed: bool, faults: &mut Faults<'_>) {
    match &spec.source {
        Some(given) => source::check(given, is_typed, faults),
        None if kind == ResourceKind::LambdaFunction => {
            faults.add("spec.source", "missing: set a source, such as type: inline or type: git");
        }
        None => {}
    }
    let is_built = is_typed && spec.source.as_ref().is_some_and(|source| source.kind.is_built());
    match &spec.runtime {
        Some(given) => runtime(given, faults),
        None if is_built => {
            faults.add("spec.runtime", "missing: set at least runtime.language (nodejs, python or go)");
        }
        None => {}
    }
    scaling(&spec.scaling, faults);
    resources(&spec.resources, faults);
    env(&spec.env, faults);
    secret_files(&spec.secret_files, faults);
    build(&spec.build, faults);
}

fn runtime(runtime: &Runtime, faults: &mut Faults<'_>) {
    let part = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-' | b'/');
    let is_handler = runtime.handler.rsplit_once('.').is_some_and(|(file, function)| {
        let named = |text: &str| !text.is_empty() && text.len() <= 128;
        named(file)
            && named(function)
            && !file.starts_with('/')
            && file.split('/').all(|folder| !folder.is_empty())
            && file.bytes().all(part)
            && function.bytes().all(|byte| part(byte) && byte != b'/' && byte != b'-')
    });
    faults.unless(is_handler, "spec.runtime.handler", "must be file.function, such as index.handler");
    if let Some(version) = &runtime.version {
        let spelled = version.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-'));
        let fine = !version.is_empty() && version.len() <= 32 && spelled;
        faults.unless(fine, "spec.runtime.version", "must be a version, such as \"22\" or \"3.12\"");
    }
}

fn scaling(scaling: &Scaling, faults: &mut Faults<'_>) {
    let ordered = scaling.min_replicas <= scaling.max_replicas;
    faults.unless(ordered, "spec.scaling.minReplicas", "must not be greater than maxReplicas");
    let grace = scaling.scale_to_zero_grace_period.ms;
    let path = "spec.scaling.scaleToZeroGracePeriod";
    faults.unless(grace <= HOUR_MS, path, format!("must be between 0s and {}", format_duration_ms(HOUR_MS)));
}

fn resources(resources: &Resources, faults: &mut Faults<'_>) {
    let (requests, limits) = (&resources.requests, &resources.limits);
    let within = |request: Option<u64>, limit: Option<u64>| match (request, limit) {
        (Some(request), Some(limit)) => request <= limit,
        _ => true,
    };
    let bytes = |amount: Option<crate::scalar::Size>| amount.map(|size| size.bytes);
    let millis = |amount: Option<crate::scalar::Cpu>| amount.map(|cpu| cpu.millis);
    let message = "must not be greater than the limit";
    let fine = within(bytes(requests.memory), bytes(limits.memory));
    faults.unless(fine, "spec.resources.requests.memory", message);
    let fine = within(millis(requests.cpu), millis(limits.cpu));
    faults.unless(fine, "spec.resources.requests.cpu", message);
    let enough = bytes(limits.memory).is_none_or(|bytes| bytes >= 1 << 20);
    faults.unless(enough, "spec.resources.limits.memory", "must be at least 1Mi");
    let enough = millis(limits.cpu).is_none_or(|millis| millis >= 1);
    faults.unless(enough, "spec.resources.limits.cpu", "must be at least 1m");
}

fn env(env: &[EnvVar], faults: &mut Faults<'_>) {
    let mut seen = BTreeSet::new();
    for (index, variable) in env.iter().enumerate() {
        let path = format!("spec.env[{index}]");
        let name = variable.name.as_str();
        let place = format!("{path}.name");
        faults.unless(
            is_variable(name),
            &place,
            "must contain only letters, digits and _, and must not start with a digit",
        );
        let free = !RESERVED_ENV.contains(&name) && !name.starts_with("KLAMBDA_");
        faults.unless(free, &place, "is reserved for the platform: use another name");
        faults.unless(seen.insert(name), &place, format!("`{name}` is set twice"));
        env_value(variable, &path, faults);
    }
}

fn is_variable(name: &str) -> bool {
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
    name.len() <= 256
        && name.bytes().all(fine)
        && name.bytes().next().is_some_and(|byte| !byte.is_ascii_digit())
}

fn env_value(variable: &EnvVar, path: &str, faults: &mut Faults<'_>) {
    let value = variable.value.as_deref().unwrap_or_default();
    let place = format!("{path}.value");
    faults.unless(value.len() <= ENV_VALUE_BYTES_MAX, &place, "must be at most 128Ki");
    faults.unless(!value.contains('\0'), &place, "must not contain a zero byte");
    let Some(from) = &variable.value_from else { return };
    faults.unless(variable.value.is_none(), path, "set either value or valueFrom, not both");
    let place = format!("{path}.valueFrom");
    match (&from.secret_key_ref, &from.config_map_key_ref) {
        (Some(key), None) => key_ref(key, &format!("{place}.secretKeyRef"), faults),
        (None, Some(key)) => key_ref(key, &format!("{place}.configMapKeyRef"), faults),
        (None, None) => faults.add(place, "set secretKeyRef or configMapKeyRef"),
        (Some(_), Some(_)) => faults.add(place, "set either secretKeyRef or configMapKeyRef, not both"),
    }
}

fn key_ref(key: &KeyRef, path: &str, faults: &mut Faults<'_>) {
    faults.unless(is_object_name(&key.name), &format!("{path}.name"), OBJECT_NAME);
    let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let spelled = !key.key.is_empty() && key.key.len() <= 253 && key.key.bytes().all(fine);
    // Keys become file names when secrets are stored as files.
    let spelled = spelled && !key.key.starts_with("..") && key.key != ".";
    faults.unless(spelled, &format!("{path}.key"), "must contain only letters, digits, -, _ and .");
}

fn secret_files(files: &[SecretFiles], faults: &mut Faults<'_>) {
    let mut seen = BTreeSet::new();
    for (index, SecretFiles { secret, path, .. }) in files.iter().enumerate() {
        let place = format!("spec.secretFiles[{index}]");
        let named = format!("{place}.secret");
        faults.unless(is_object_name(secret), &named, OBJECT_NAME);
        faults.unless(seen.insert(secret), &named, format!("`{secret}` is given twice"));
        let fine = path.as_deref().is_none_or(is_mount_path);
        faults.unless(fine, &format!("{place}.path"), "must be an absolute path without .., : and ,");
    }
}

fn is_mount_path(path: &str) -> bool {
    let parts = path.strip_prefix('/').map(|path| path.split('/'));
    let is_plain = |part: &str| !part.is_empty() && part != "." && part != "..";
    path.len() <= 1024
        && !path.contains([':', ',', '"', '\0'])
        && parts.is_some_and(|mut parts| parts.all(is_plain))
}

const OBJECT_NAME: &str = "must be a name of at most 253 characters: a-z, 0-9, - and .";

/// A DNS subdomain, the format of names of secrets and config maps.
fn is_object_name(name: &str) -> bool {
    !name.is_empty() && name.len() <= 253 && name.split('.').all(is_label)
}

fn build(build: &Build, faults: &mut Faults<'_>) {
    let timeout = build.timeout.ms;
    let fine = (1000..=24 * HOUR_MS).contains(&timeout);
    faults.unless(fine, "spec.build.timeout", "must be between 1s and 24h");
    if let Some(registry) = &build.registry {
        faults.unless(
            source::is_image(registry),
            "spec.build.registry",
            "must be host/path without https://",
        );
    }
    if let Some(secret) = &build.image_pull_secret {
        faults.unless(is_object_name(secret), "spec.build.imagePullSecret", OBJECT_NAME);
    }
    if let Some(tag) = &build.tag {
        let fine = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
        let spelled = !tag.is_empty() && tag.len() <= 128 && tag.bytes().all(fine);
        let spelled = spelled && !tag.starts_with(['-', '.']);
        faults.unless(spelled, "spec.build.tag", "must be at most 128 letters, digits, -, _ and .");
    }
}
