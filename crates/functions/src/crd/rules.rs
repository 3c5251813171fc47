//! Rules that only an API server checks, so that it rejects a manifest at once instead of a condition reporting it later.
//! On one machine `validate` checks the same, with more words.
//!
//! An API server estimates the cost of a rule from the largest possible value. So every text that a rule reads has a limit.

use serde_json::{Map, Value, json};

/// Adds a rule to the object at `place` below `spec`. `field` is the member that the message names.
struct Rule {
    place: &'static str,
    field: &'static str,
    rule: &'static str,
    message: &'static str,
}

const fn rule(place: &'static str, field: &'static str, rule: &'static str, message: &'static str) -> Rule {
    Rule { place, field, rule, message }
}

/// A pattern of one member, with its greatest length.
struct Pattern {
    place: &'static str,
    chars_max: u32,
    pattern: &'static str,
}

const fn pattern(place: &'static str, chars_max: u32, pattern: &'static str) -> Pattern {
    Pattern { place, chars_max, pattern }
}

const OBJECT_NAME: &str = r"^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$";
/// Without `//`, which a URL has.
const IMAGE: &str = r"^[a-zA-Z0-9](([-_.:@a-zA-Z0-9]|/[-_.:@a-zA-Z0-9])*[-_.a-zA-Z0-9])?$";
const ENDPOINT: &str = r"^(https?://)?[-_.:a-zA-Z0-9\[\]]+/?$";
const BUCKET: &str = r"^[-_.a-zA-Z0-9]{3,222}$";
const KEY: &str = r"[^/]";

const PATTERNS: [Pattern; 24] = [
    pattern("runtime.handler", 257, r"^[-_a-zA-Z0-9]+(/[-_a-zA-Z0-9]+)*\.[_a-zA-Z0-9]+$"),
    pattern("runtime.version", 32, r"^[-.a-zA-Z0-9]+$"),
    pattern("env[].name", 256, r"^[_a-zA-Z][_a-zA-Z0-9]*$"),
    pattern("env[].valueFrom.secretKeyRef.name", 253, OBJECT_NAME),
    pattern("env[].valueFrom.secretKeyRef.key", 253, r"^[-._a-zA-Z0-9]+$"),
    pattern("env[].valueFrom.configMapKeyRef.name", 253, OBJECT_NAME),
    pattern("env[].valueFrom.configMapKeyRef.key", 253, r"^[-._a-zA-Z0-9]+$"),
    pattern("secretFiles[].secret", 253, OBJECT_NAME),
    pattern("secretFiles[].path", 1024, r#"^(/[^/:,"]+)+$"#),
    pattern("build.registry", 512, IMAGE),
    pattern("build.imagePullSecret", 253, OBJECT_NAME),
    pattern("build.tag", 128, r"^[_a-zA-Z0-9][-_.a-zA-Z0-9]*$"),
    pattern("triggers[].broker", 253, OBJECT_NAME),
    pattern("source.minio.endpoint", 270, ENDPOINT),
    pattern("source.minio.bucket", 222, BUCKET),
    pattern("source.minio.key", 1024, KEY),
    pattern("source.s3.bucket", 222, BUCKET),
    pattern("source.s3.key", 1024, KEY),
    pattern("source.gcs.bucket", 222, BUCKET),
    pattern("source.gcs.key", 1024, KEY),
    pattern("source.git.url", 4096, r"^((https?|ssh|git)://[^ ]+|[^-: ][^: ]*@[^: ]+:[^ ]+)$"),
    pattern("source.git.ref", 255, r"^[^-~^:?*\[\\ ][^~^:?*\[\\ ]*$"),
    pattern("source.image.uri", 512, IMAGE),
    pattern("source.url.url", 4096, r"^https?://[^/?#@ ]+([/?][^# ]*)?$"),
];

/// Names of secrets in a source.
const SECRETS: [&str; 5] = ["minio", "s3", "gcs", "git", "image"];

const RULES: [Rule; 9] = [
    rule(
        "source",
        ".type",
        "self.type != 'folder'",
        "a folder works only on a single machine: use git, a bucket or inline code",
    ),
    rule(
        "source.git",
        ".url",
        "!self.url.matches('^[a-z]+://[^/]*:[^/]*@')",
        "url must not contain a password: store it in a secret and use secretRef",
    ),
    rule(
        "source.git",
        ".path",
        "!has(self.path) || !self.path.startsWith('/')",
        "path must be relative to the root of the repository",
    ),
    rule(
        "source.git",
        ".path",
        "!has(self.path) || !self.path.matches('(^|/)[.][.](/|$)')",
        "path must not contain ..",
    ),
    rule(
        "source.git",
        ".ref",
        "!has(self.ref) || !self.ref.contains('..')",
        "ref must be a branch, a tag or a commit",
    ),
    rule("source.inline", ".code", "self.code.matches('[^[:space:]]')", "code must not be empty"),
    rule(
        "env[]",
        ".name",
        "!(self.name in ['PORT', 'K_SERVICE', 'K_REVISION', 'K_CONFIGURATION']) && !self.name.startsWith('KLAMBDA_')",
        "this name is reserved for the platform",
    ),
    rule(
        "secretFiles[]",
        ".path",
        "!has(self.path) || !self.path.matches('(^|/)[.][.]?(/|$)')",
        "path must not contain . or ..",
    ),
    rule(
        "",
        ".from",
        "!has(oldSelf.triggers) || (has(self.from) ? self.from : 'latest') == (has(oldSelf.from) ? oldSelf.from : 'latest')",
        "from cannot be changed: delete the function and create it again",
    ),
];

/// A name of a function is also the name of a Knative Service and a part of host names.
const NAME_RULE: &str = "self.metadata.name.matches('^[a-z]([-a-z0-9]{0,61}[a-z0-9])?$')";
const NAME_MESSAGE: &str = "metadata.name must have at most 63 of the characters a-z, 0-9 and -, begin with a letter, and end with a letter or digit";

pub(super) fn of_functions(schema: &mut Value) {
    add(schema, NAME_RULE, NAME_MESSAGE, None);
    let spec = &mut schema["properties"]["spec"];
    for Pattern { place, chars_max, pattern } in PATTERNS {
        let member = at(spec, place);
        member["pattern"] = pattern.into();
        member["maxLength"] = chars_max.into();
    }
    for source in SECRETS {
        let member = at(spec, &format!("source.{source}.secretRef.name"));
        member["pattern"] = OBJECT_NAME.into();
        member["maxLength"] = 253.into();
    }
    for place in ["source.inline.code", "source.inline.dependencies"] {
        at(spec, place)["maxLength"] = (1 << 20).into();
    }
    at(spec, "source.git.path")["maxLength"] = 1024.into();
    at(spec, "env[].value")["maxLength"] = (128 << 10).into();
    for Rule { place, field, rule, message } in RULES {
        add(at(spec, place), rule, message, Some(field));
    }
    for name in ["filter.type", "filter.source"] {
        let member = at(spec, &format!("triggers[].{name}"));
        member["minLength"] = 1.into();
        member["maxLength"] = 1024.into();
    }
}

const FROM_RULE: &str = "self.from == oldSelf.from";
const FROM_MESSAGE: &str = "from cannot be changed: delete the subscription and create it again";

pub(super) fn of_subscriptions(schema: &mut Value) {
    add(schema, "self.metadata.name.size() <= 134", "metadata.name must have at most 134 characters", None);
    add(&mut schema["properties"]["spec"], FROM_RULE, FROM_MESSAGE, Some(".from"));
}

pub(super) fn of_webhooks(schema: &mut Value) {
    let rule = "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$')";
    let message = "metadata.name must have at most 63 of the characters a-z, 0-9 and -, and begin and end with a letter or digit";
    add(schema, rule, message, None);
    let types = at(&mut schema["properties"]["spec"], "types[]");
    types["pattern"] = r"^([^*]+[*]?|[*])$".into();
    types["maxLength"] = 1024.into();
}

/// The schema at a path such as `env[].name`. Panics in tests if the path does not exist.
fn at<'s>(spec: &'s mut Value, path: &str) -> &'s mut Value {
    let mut schema = spec;
    for name in path.split('.').filter(|name| !name.is_empty()) {
        let (name, is_list) = name.strip_suffix("[]").map_or((name, false), |name| (name, true));
        let properties = &mut schema["properties"];
        debug_assert!(properties.get(name).is_some(), "{path}: no {name}");
        schema = &mut properties[name];
        if is_list {
            schema = &mut schema["items"];
        }
    }
    schema
}

fn add(schema: &mut Value, rule: &str, message: &str, field: Option<&str>) {
    let mut added =
        Map::from_iter([("rule".to_owned(), rule.into()), ("message".to_owned(), message.into())]);
    added.extend(field.map(|field| ("fieldPath".to_owned(), field.into())));
    let rules = &mut schema["x-kubernetes-validations"];
    if !rules.is_array() {
        *rules = json!([]);
    }
    if let Some(rules) = rules.as_array_mut() {
        rules.push(added.into());
    }
}
