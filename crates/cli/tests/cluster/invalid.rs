//! Manifests that the API server itself refuses, with a message that names the field.

use crate::harness::{Namespace, kubectl};
use serde_json::{Value, json};

struct Case {
    base: &'static str,
    /// JSON pointer below the manifest, and the value. `Null` removes.
    change: (&'static str, Value),
    /// A part of the message.
    names: &'static str,
}

fn case(base: &'static str, place: &'static str, value: Value, names: &'static str) -> Case {
    Case { base, change: (place, value), names }
}

fn base(name: &str) -> Value {
    let spec = match name {
        "git" => {
            json!({ "source": { "type": "git", "git": { "url": "https://e.example/r.git" } }, "runtime": { "language": "go" } })
        }
        "minio" => {
            json!({ "source": { "type": "minio", "minio": { "bucket": "code", "key": "a.zip" } }, "runtime": { "language": "python" } })
        }
        "s3" => {
            json!({ "source": { "type": "s3", "s3": { "bucket": "code", "key": "a.zip" } }, "runtime": { "language": "python" } })
        }
        "gcs" => {
            json!({ "source": { "type": "gcs", "gcs": { "bucket": "code", "key": "a.zip" } }, "runtime": { "language": "python" } })
        }
        "image" => json!({ "source": { "type": "image", "image": { "uri": "ghcr.io/team/agent:1" } } }),
        "url" => json!({ "source": { "type": "url", "url": { "url": "https://e.example/f" } } }),
        "subscription" => json!({ "target": { "url": "http://h.example/" } }),
        "endpoint" => json!({ "url": "https://h.example/" }),
        _ => {
            json!({ "source": { "type": "inline", "inline": { "code": "x" } }, "runtime": { "language": "nodejs" } })
        }
    };
    let (kind, version) = match name {
        "subscription" => ("Subscription", "io"),
        "endpoint" => ("WebhookEndpoint", "io"),
        "agent" => ("LambdaAgent", "dev"),
        _ => ("LambdaFunction", "io"),
    };
    json!({ "apiVersion": format!("lambda.knative.{version}/v1alpha1"), "kind": kind, "metadata": { "name": "f" }, "spec": spec })
}

fn changed(case: &Case) -> Value {
    let mut manifest = base(case.base);
    let (place, value) = &case.change;
    let (parent, name) = place.rsplit_once('/').expect("a pointer");
    let mut at = &mut manifest;
    for part in parent.split('/').filter(|part| !part.is_empty()) {
        at = &mut at[part];
    }
    match (value, at.as_object_mut()) {
        (Value::Null, Some(members)) => drop(members.remove(name)),
        _ => at[name] = value.clone(),
    }
    manifest
}

fn long(count: usize) -> Value {
    "a".repeat(count).into()
}

fn env(variable: Value) -> Value {
    json!([variable])
}

fn secret_env(name: &str, key: &str) -> Value {
    env(json!({ "name": "A", "valueFrom": { "secretKeyRef": { "name": name, "key": key } } }))
}

fn of_sources() -> Vec<Case> {
    let code = "/spec/source";
    vec![
        case("inline", code, Value::Null, "spec.source"),
        case("inline", "/spec/source/type", json!("floppy"), "spec.source.type"),
        case("inline", "/spec/source/type", json!(7), "spec.source.type"),
        case("inline", "/spec/source/type", json!("folder"), "spec.source.folder"),
        case("inline", code, json!({ "type": "folder", "folder": { "path": "/srv" } }), "spec.source.type"),
        case("inline", "/spec/source/git", json!({ "url": "https://e.example/r.git" }), "spec.source.git"),
        case("inline", "/spec/source/minio", json!({ "bucket": "code", "key": "k" }), "spec.source.minio"),
        case("inline", "/spec/source/s3", json!({ "bucket": "code", "key": "k" }), "spec.source.s3"),
        case("inline", "/spec/source/gcs", json!({ "bucket": "code", "key": "k" }), "spec.source.gcs"),
        case("inline", "/spec/source/image", json!({ "uri": "a" }), "spec.source.image"),
        case("inline", "/spec/source/url", json!({ "url": "http://h" }), "spec.source.url"),
        case("inline", "/spec/source/inline", Value::Null, "spec.source.inline"),
        case("inline", "/spec/source/inline/code", Value::Null, "spec.source.inline.code"),
        case("inline", "/spec/source/inline/code", json!("  \n "), "spec.source.inline.code"),
        case("inline", "/spec/source/inline/code", json!(5), "spec.source.inline.code"),
        case("git", "/spec/source/git/url", Value::Null, "spec.source.git.url"),
        case("git", "/spec/source/git/url", json!("file:///srv/r"), "spec.source.git.url"),
        case("git", "/spec/source/git/url", json!("--upload-pack=x"), "spec.source.git.url"),
        case("git", "/spec/source/git/url", json!("https://u:p@e.example/r.git"), "spec.source.git.url"),
        case("git", "/spec/source/git/url", json!("https://e.example/a b"), "spec.source.git.url"),
        case("git", "/spec/source/git/ref", json!("-x"), "spec.source.git.ref"),
        case("git", "/spec/source/git/ref", json!("a..b"), "spec.source.git.ref"),
        case("git", "/spec/source/git/ref", json!("a b"), "spec.source.git.ref"),
        case("git", "/spec/source/git/ref", json!(""), "spec.source.git.ref"),
        case("git", "/spec/source/git/path", json!("/abs"), "spec.source.git.path"),
        case("git", "/spec/source/git/path", json!("a/../../b"), "spec.source.git.path"),
        case("git", "/spec/source/git/secretRef", json!({}), "spec.source.git.secretRef.name"),
        case("git", "/spec/source/git/secretRef", json!({ "name": "No" }), "spec.source.git.secretRef.name"),
        case("minio", "/spec/source/minio/bucket", Value::Null, "spec.source.minio.bucket"),
        case("minio", "/spec/source/minio/bucket", json!("a"), "spec.source.minio.bucket"),
        case("minio", "/spec/source/minio/bucket", json!("a/b/c"), "spec.source.minio.bucket"),
        case("minio", "/spec/source/minio/key", json!("///"), "spec.source.minio.key"),
        case("minio", "/spec/source/minio/endpoint", json!("a b"), "spec.source.minio.endpoint"),
        case("minio", "/spec/source/minio/endpoint", json!("ftp://h"), "spec.source.minio.endpoint"),
        case("s3", "/spec/source/s3/bucket", json!(""), "spec.source.s3.bucket"),
        case("s3", "/spec/source/s3/key", Value::Null, "spec.source.s3.key"),
        case("s3", "/spec/source/s3/key", json!(""), "spec.source.s3.key"),
        case("gcs", "/spec/source/gcs/bucket", json!("x y"), "spec.source.gcs.bucket"),
        case("gcs", "/spec/source/gcs/key", json!("/"), "spec.source.gcs.key"),
        case("image", "/spec/source/image/uri", Value::Null, "spec.source.image.uri"),
        case("image", "/spec/source/image/uri", json!("--privileged"), "spec.source.image.uri"),
        case("image", "/spec/source/image/uri", json!("a b"), "spec.source.image.uri"),
        case("image", "/spec/source/image/port", json!(0), "spec.source.image.port"),
        case("image", "/spec/source/image/port", json!(65536), "spec.source.image.port"),
        case("url", "/spec/source/url/url", json!("mailto:a@b"), "spec.source.url.url"),
        case("url", "/spec/source/url/url", json!("http://u@h/"), "spec.source.url.url"),
        case("url", "/spec/source/url/url", json!("http://h/#x"), "spec.source.url.url"),
    ]
}

fn of_settings() -> Vec<Case> {
    vec![
        case("inline", "/metadata/name", json!("0-begins-with-a-digit"), "metadata.name"),
        case("inline", "/metadata/name", json!("a.b"), "metadata.name"),
        case("inline", "/metadata/name", json!("Upper"), "metadata.name"),
        case("agent", "/metadata/name", long(64), "metadata.name"),
        case("inline", "/spec", Value::Null, "spec"),
        case("inline", "/spec/runtime", Value::Null, "spec.runtime"),
        case("inline", "/spec/runtime/language", Value::Null, "spec.runtime.language"),
        case("inline", "/spec/runtime/language", json!("cobol"), "spec.runtime.language"),
        case("inline", "/spec/runtime/handler", json!("index"), "spec.runtime.handler"),
        case("inline", "/spec/runtime/handler", json!("/etc/x.handler"), "spec.runtime.handler"),
        case("inline", "/spec/runtime/handler", json!("../x.handler"), "spec.runtime.handler"),
        case("inline", "/spec/runtime/handler", json!("a b.c"), "spec.runtime.handler"),
        case("inline", "/spec/runtime/version", json!("22 && rm"), "spec.runtime.version"),
        case("inline", "/spec/scaling", json!({ "minReplicas": -1 }), "spec.scaling.minReplicas"),
        case(
            "inline",
            "/spec/scaling",
            json!({ "minReplicas": 5, "maxReplicas": 2 }),
            "spec.scaling.minReplicas",
        ),
        case("inline", "/spec/scaling", json!({ "maxReplicas": 0 }), "spec.scaling.maxReplicas"),
        case("inline", "/spec/scaling", json!({ "maxReplicas": 1001 }), "spec.scaling.maxReplicas"),
        case("inline", "/spec/scaling", json!({ "targetConcurrency": 0 }), "spec.scaling.targetConcurrency"),
        case(
            "inline",
            "/spec/scaling",
            json!({ "scaleToZeroGracePeriod": "soon" }),
            "spec.scaling.scaleToZeroGracePeriod",
        ),
        case(
            "inline",
            "/spec/scaling",
            json!({ "scaleToZeroGracePeriod": 30 }),
            "spec.scaling.scaleToZeroGracePeriod",
        ),
        case(
            "inline",
            "/spec/resources",
            json!({ "limits": { "memory": "much" } }),
            "spec.resources.limits.memory",
        ),
        case(
            "inline",
            "/spec/resources",
            json!({ "requests": { "cpu": "fast" } }),
            "spec.resources.requests.cpu",
        ),
        case("inline", "/spec/env", env(json!({ "value": "x" })), "spec.env[0].name"),
        case("inline", "/spec/env", env(json!({ "name": "1A" })), "spec.env[0].name"),
        case("inline", "/spec/env", env(json!({ "name": "PORT", "value": "1" })), "spec.env[0].name"),
        case("inline", "/spec/env", env(json!({ "name": "KLAMBDA_CODE", "value": "1" })), "spec.env[0].name"),
        case("inline", "/spec/env", json!([{ "name": "A" }, { "name": "A" }]), "spec.env[1]"),
        case(
            "inline",
            "/spec/env",
            env(
                json!({ "name": "A", "value": "1", "valueFrom": { "secretKeyRef": { "name": "s", "key": "k" } } }),
            ),
            "spec.env[0]",
        ),
        case("inline", "/spec/env", env(json!({ "name": "A", "valueFrom": {} })), "spec.env[0].valueFrom"),
        case("inline", "/spec/env", secret_env("No", "k"), "spec.env[0].valueFrom.secretKeyRef.name"),
        case("inline", "/spec/env", secret_env("s", "a/b"), "spec.env[0].valueFrom.secretKeyRef.key"),
        case("inline", "/spec/secretFiles", json!([{}]), "spec.secretFiles[0].secret"),
        case(
            "inline",
            "/spec/secretFiles",
            json!([{ "secret": "s", "path": "etc" }]),
            "spec.secretFiles[0].path",
        ),
        case(
            "inline",
            "/spec/secretFiles",
            json!([{ "secret": "s", "path": "/a/../b" }]),
            "spec.secretFiles[0].path",
        ),
        case(
            "inline",
            "/spec/secretFiles",
            json!([{ "secret": "s" }, { "secret": "s" }]),
            "spec.secretFiles[1]",
        ),
        case("inline", "/spec/build", json!({ "timeout": "forever" }), "spec.build.timeout"),
        case("inline", "/spec/build", json!({ "registry": "https://r" }), "spec.build.registry"),
        case("inline", "/spec/build", json!({ "tag": "-x" }), "spec.build.tag"),
        case("inline", "/spec/build", json!({ "imagePullSecret": "a_b" }), "spec.build.imagePullSecret"),
        case("inline", "/spec/triggers", json!([{ "broker": "" }]), "spec.triggers[0].broker"),
        case("inline", "/spec/triggers", json!([{ "filter": {} }]), "spec.triggers[0].filter"),
        case(
            "inline",
            "/spec/triggers",
            json!([{ "filter": { "type": "" } }]),
            "spec.triggers[0].filter.type",
        ),
        case(
            "inline",
            "/spec/triggers",
            json!([{ "filter": { "type": "a" }, "filters": [] }]),
            "spec.triggers[0]",
        ),
        case("inline", "/spec/ordering", json!("sometimes"), "spec.ordering"),
        case("inline", "/spec/orderingPolicy", json!({ "strict": true }), "spec.orderingPolicy"),
        case("inline", "/spec/concurrency", json!(0), "spec.concurrency"),
        case("inline", "/spec/retry", json!({ "backoff": "x" }), "spec.retry.backoff"),
    ]
}

fn of_others() -> Vec<Case> {
    let policy = |value: Value| json!({ "target": { "url": "http://h/" }, "ordering": "ordered", "orderingPolicy": value });
    vec![
        case("subscription", "/spec/target", Value::Null, "spec.target"),
        case("subscription", "/spec/target", json!({}), "spec.target"),
        case("subscription", "/spec/target/url", json!("ftp://h/"), "spec.target.url"),
        case(
            "subscription",
            "/spec/target/function",
            json!({ "namespace": "a", "name": "b" }),
            "spec.target",
        ),
        case("subscription", "/spec/target/tls", json!({ "certFile": "/c" }), "spec.target"),
        case("subscription", "/spec/orderingPolicy", json!({}), "spec.orderingPolicy"),
        case("subscription", "/spec", policy(json!({ "sequence": {} })), "spec.orderingPolicy.sequence"),
        case(
            "subscription",
            "/spec",
            policy(json!({ "gap": { "action": "guess" } })),
            "spec.orderingPolicy.gap.action",
        ),
        case("subscription", "/spec/concurrency", json!(70000), "spec.concurrency"),
        case("subscription", "/spec/backlog", json!({ "onFull": "explode" }), "spec.backlog.onFull"),
        case("endpoint", "/spec/url", Value::Null, "spec.url"),
        case("endpoint", "/spec/url", json!("h"), "spec.url"),
        case("endpoint", "/spec/types", json!(["a*b"]), "spec.types[0]"),
        case("endpoint", "/spec/signature", json!("rot13"), "spec.signature"),
        case("endpoint", "/metadata/name", json!("a.b"), "metadata.name"),
    ]
}

#[test]
#[ignore = "needs a control plane"]
fn invalid_manifests_are_refused_by_the_api_server() {
    let namespace = Namespace::new("invalid");
    let create = |manifest: &Value| {
        kubectl(&["-n", &namespace.name, "create", "--dry-run=server", "-f", "-"], Some(manifest))
    };
    for name in ["inline", "git", "minio", "s3", "gcs", "image", "url", "agent", "subscription", "endpoint"] {
        create(&base(name)).unwrap_or_else(|error| panic!("{name} is valid: {error}"));
    }
    let cases = [of_sources(), of_settings(), of_others()].concat_all();
    assert!(cases.len() >= 100, "{}", cases.len());
    let mut wrong = Vec::new();
    for case in &cases {
        let told = match create(&changed(case)) {
            Ok(_) => "it was accepted".to_owned(),
            Err(error) if error.contains(case.names) => continue,
            Err(error) => error,
        };
        wrong.push(format!("{} {:?}: expected {}: {told}", case.base, case.change, case.names));
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    immutable(&namespace);
}

trait ConcatAll {
    fn concat_all(self) -> Vec<Case>;
}

impl<const N: usize> ConcatAll for [Vec<Case>; N] {
    fn concat_all(self) -> Vec<Case> {
        self.into_iter().flatten().collect()
    }
}

/// Fields that cannot change, and fields that are not lost.
fn immutable(namespace: &Namespace) {
    let mut subscription = base("subscription");
    subscription["spec"]["filters"] =
        json!([{ "any": [{ "exact": { "type": "a" } }, { "not": { "prefix": { "type": "b" } } }] }]);
    namespace.apply(&subscription);
    let stored = namespace.get("subscriptions.lambda.knative.io", "f");
    assert_eq!(
        stored["spec"]["filters"], subscription["spec"]["filters"],
        "nothing that users write is pruned"
    );
    subscription["spec"]["from"] = "earliest".into();
    let error =
        kubectl(&["-n", &namespace.name, "apply", "-f", "-"], Some(&subscription)).expect_err("immutable");
    assert!(error.contains("spec.from"), "{error}");
}
