//! Manifests as users write them.

use klambda_core::subscription::Ordering;
use klambda_functions::defaults::{self, Amounts};
use klambda_functions::resource::{Form, Language, Resource, ResourceKind};
use klambda_functions::scalar::{Cpu, Duration, Size};
use proptest::prelude::*;
use serde_json::{Value, json};

fn yaml(text: &str) -> Value {
    serde_saphyr::from_str(text).unwrap()
}

fn told(value: &Value) -> Vec<String> {
    Resource::parse(value, Form::Manifest).unwrap_err().iter().map(ToString::to_string).collect()
}

const WHOLE: &str = r#"
apiVersion: lambda.knative.io/v1alpha1
kind: LambdaFunction
metadata:
  name: my-function
  namespace: lambda-dev
spec:
  source:
    type: minio
    minio:
      endpoint: minio.minio.svc.cluster.local:9000
      bucket: knative-lambda-functions
      key: functions/my-function.zip
      secretRef: { name: minio-credentials }
  runtime: { language: nodejs, version: "22", handler: index.handler }
  scaling: { minReplicas: 0, maxReplicas: 10, targetConcurrency: 5 }
  resources:
    requests: { memory: 64Mi, cpu: 50m }
    limits: { memory: 128Mi, cpu: 0.1 }
  env:
  - name: API_KEY
    valueFrom: { secretKeyRef: { name: api-secrets, key: api-key } }
  - name: REGION
    value: eu
  triggers:
  - broker: knative-lambda-broker-dev
    filter: { type: my.event.type, source: my.event.source }
  - filters: [{ prefix: { type: order. } }]
  build: { timeout: 10m, registry: localhost:5001/lambda, imagePullSecret: registry, tag: v1, insecure: true }
  ordering: ordered
  orderingPolicy:
    key: { attribute: partitionkey }
    sequence: { attribute: sequence, start: 1 }
    gap: { timeout: 30s, action: skip }
    buffer: { maxEvents: 1000, maxBytes: 16Mi }
    onFailure: park
  retry: { attempts: unlimited, backoff: 1s, maxBackoff: 60s, timeout: 30s }
  concurrency: 64
  idempotency: { ttl: 24h }
status:
  phase: Ready
"#;

#[test]
fn the_documented_example_reads() {
    let resource = Resource::parse(&yaml(WHOLE), Form::Manifest).unwrap();
    let spec = &resource.spec;
    assert_eq!(resource.metadata.namespace, "lambda-dev");
    assert_eq!(spec.runtime.as_ref().unwrap().language, Language::Nodejs);
    assert_eq!(spec.resources.limits.memory, Some(Size::mebi(128)));
    assert_eq!(spec.resources.limits.cpu, Some(Cpu { millis: 100 }));
    assert_eq!(spec.build.timeout, Duration::from_secs(600));
    assert_eq!(spec.ordering, Ordering::Ordered);
    assert_eq!(Resource::from_stored(&resource.to_stored()).unwrap(), resource);
}

#[test]
fn defaults_are_filled_in() {
    let resource = Resource::parse(&crate::inline("x"), Form::Manifest).unwrap();
    let spec = resource.to_json()["spec"].clone();
    assert_eq!(spec["runtime"]["handler"], "index.handler");
    let scaling = json!({ "minReplicas": 0, "maxReplicas": 50, "targetConcurrency": 10, "scaleToZeroGracePeriod": "30s" });
    assert_eq!(spec["scaling"], scaling);
    assert_eq!(spec["build"], json!({ "timeout": "30m" }));
    assert_eq!((&spec["ordering"], &spec["triggers"][0]["broker"]), (&json!("unordered"), &json!("default")));
    assert_eq!(spec.get("resources"), None, "only written limits are limits");
    let expected = Amounts {
        request_memory: Size::mebi(32),
        request_cpu: Cpu { millis: 25 },
        limit_memory: Size::mebi(64),
        limit_cpu: Cpu { millis: 50 },
    };
    assert_eq!(defaults::amounts(&resource.spec.resources), expected);
}

#[test]
fn the_first_agent_manifest_applies_as_written() {
    let manifest = yaml(
        "apiVersion: lambda.knative.dev/v1alpha1\nkind: LambdaAgent\nmetadata:\n  name: test-ordered\nspec:\n  ordering: ordered\n  # ... rest of spec\n",
    );
    let resource = Resource::parse(&manifest, Form::Manifest).unwrap();
    assert_eq!((resource.kind, resource.spec.ordering), (ResourceKind::LambdaAgent, Ordering::Ordered));
    let mut platform = crate::platform::Platform::new(crate::created(&manifest));
    platform.settle();
    let status = &platform.resource().status;
    assert_eq!(status.conditions[0].reason, "SourceMissing");
    let function = yaml(
        "apiVersion: lambda.knative.dev/v1alpha1\nkind: LambdaFunction\nmetadata: {name: a}\nspec: {}\n",
    );
    assert_eq!(
        told(&function),
        [
            "apiVersion: must be lambda.knative.io/v1alpha1",
            "spec.source: missing: set a source, such as type: inline or type: git",
        ]
    );
}

#[test]
fn every_source_reads() {
    for source in [
        "{ minio: { bucket: code, key: a.zip } }",
        "{ type: s3, s3: { bucket: code, key: a.tar.gz, region: eu-west-1, secretRef: { name: aws } } }",
        "{ type: gcs, gcs: { bucket: code, key: a.zip, project: p } }",
        "{ type: git, git: { url: 'https://example.com/shop.git', ref: main, path: functions/pay } }",
        "{ type: git, git: { url: 'git@example.com:shop.git', secretRef: { name: deploy-key } } }",
        "{ type: inline, inline: { code: 'exports.handler = () => 1', dependencies: '{}' } }",
        "{ type: folder, folder: { path: /srv/hello } }",
        "{ type: image, image: { uri: 'ghcr.io/team/agent@sha256:abc', port: 9000 } }",
        "{ type: url, url: { url: 'http://127.0.0.1:9000/hook' } }",
    ] {
        let mut manifest = crate::inline("x");
        manifest["spec"]["source"] = yaml(source);
        assert_eq!(Resource::parse(&manifest, Form::Manifest).err(), None, "{source}");
    }
}

#[test]
fn all_faults_are_told_at_once() {
    let manifest = yaml(
        r#"
apiVersion: v1
kind: LambdaFunction
metadata: { name: My_Function, labels: { team: [a] }, nmae: x }
sepc: {}
spec:
  source:
    type: git
    git: { url: "https://u:p@h/r.git", ref: --upload-pack=x, path: ../.. }
    minio: { bucket: code, key: a.zip, accessKey: AKIA, secretKey: s }
  runtime: { language: nodjs, version: 22, handler: index }
  scaling: { minReplicas: 9, maxReplicas: 3, targetConcurrency: 0, scaleToZeroGracePeriod: 2h, maxReplica: 1 }
  resources: { requests: { memory: 2Gi }, limits: { memory: 1Gi, cpu: lots } }
  env:
  - { name: 1A, value: x }
  - { name: PORT, value: "1" }
  - { name: B, value: x, valueFrom: { secretKeyRef: { name: s } } }
  - { name: B }
  triggers:
  - filter: { type: a }
    filters: [{ exact: { type: "" } }]
  - filter: {}
  - filters: [{ prefx: { type: a } }]
  build: { timeout: 0s, tag: "-x", registry: "https://h" }
  orderingPolicy: { strict: true }
  retry: { attempts: 0, backof: 1s }
  concurrency: 0
"#,
    );
    let expected = [
        "apiVersion: must be lambda.knative.io/v1alpha1",
        "metadata.labels.team: must be a string",
        "metadata.name: a name must have 1 to 63 of the characters a-z, 0-9 and -, and must begin and end with a letter or digit",
        "metadata.nmae: unknown field `nmae`: did you mean `name`?",
        "sepc: unknown field `sepc`: did you mean `spec`?",
    ];
    let faults = told(&manifest);
    assert_eq!(faults[..5], expected);
    for fault in [
        "spec.source.minio: the source type is git: set type: minio or remove this field",
        "spec.source.minio.accessKey: do not write secrets into a manifest: use a secret and name it in secretRef",
        "spec.source.minio.secretKey: do not write secrets into a manifest: use a secret and name it in secretRef",
        "spec.source.git.url: must not contain a password: store it in a secret and refer to it with secretRef",
        "spec.source.git.ref: must be a branch, a tag or a commit",
        "spec.source.git.path: must be a folder inside the repository, without ..",
        "spec.runtime.language: unknown value `nodjs`: did you mean `nodejs`?",
        "spec.runtime.version: must be a string: write \"22\"",
        "spec.runtime.handler: must be file.function, such as index.handler",
        "spec.scaling.minReplicas: must not be greater than maxReplicas",
        "spec.scaling.targetConcurrency: must be between 1 and 10000",
        "spec.scaling.scaleToZeroGracePeriod: must be between 0s and 1h",
        "spec.scaling.maxReplica: unknown field `maxReplica`: did you mean `maxReplicas`?",
        "spec.resources.requests.memory: must not be greater than the limit",
        "spec.resources.limits.cpu: is not a CPU quantity: write 250m, 0.5 or 2",
        "spec.env[0].name: must contain only letters, digits and _, and must not start with a digit",
        "spec.env[1].name: is reserved for the platform: use another name",
        "spec.env[2]: set either value or valueFrom, not both",
        "spec.env[2].valueFrom.secretKeyRef.key: missing",
        "spec.env[3].name: `B` is set twice",
        "spec.triggers[0]: set either filter or filters, not both",
        "spec.triggers[0].filters[0].exact.type: must not be empty",
        "spec.triggers[1].filter: set type, source or both",
        "spec.triggers[2].filters[0].prefx: unknown filter dialect `prefx`: did you mean `prefix`?",
        "spec.build.timeout: must be between 1s and 24h",
        "spec.build.tag: must be at most 128 letters, digits, -, _ and .",
        "spec.build.registry: must be host/path without https://",
        "spec.orderingPolicy: requires ordering: ordered; set ordering or remove orderingPolicy",
        "spec.retry.attempts: must be a whole number from 1, or unlimited",
        "spec.retry.backof: unknown field `backof`: did you mean `backoff`?",
        "spec.concurrency: must be between 1 and 65536",
    ] {
        assert!(faults.iter().any(|told| told == fault), "not reported: {fault}\n{faults:#?}");
    }
    assert_eq!(faults.len(), 36, "{faults:#?}");
}

/// A fault is reported once, at its place, without faults that only follow from it.
#[test]
fn a_fault_is_told_for_what_it_is() {
    let source = |source: &str| {
        let manifest = format!(
            "apiVersion: lambda.knative.io/v1alpha1\nkind: LambdaFunction\nmetadata: {{ name: f }}\nspec: {{ source: {source} }}"
        );
        let faults = told(&yaml(&manifest));
        faults.into_iter().filter(|fault| !fault.starts_with("spec.runtime")).collect::<Vec<_>>()
    };
    let kinds = source("{ type: inlin, inline: { code: x } }");
    assert_eq!(kinds, ["spec.source.type: unknown value `inlin`: did you mean `inline`?"]);
    let keyed = |key: &str| {
        told(&yaml(&format!(
            "apiVersion: lambda.knative.io/v1alpha1\nkind: LambdaAgent\nmetadata: {{ name: f }}\nspec: {{ ordering: ordered, orderingPolicy: {{ key: {key} }} }}"
        )))
    };
    assert_eq!(keyed("{ attribute: X }").len(), 1);
    assert_eq!(keyed("{}"), ["spec.orderingPolicy.key: must have an attribute or a pointer"]);
    let file = source("{ type: git, git: { url: 'file:///srv/shop.git', path: /greeter/ } }");
    assert_eq!(
        file,
        [
            "spec.source.git.path: must be relative to the root of the repository, without a leading /",
            "spec.source.git.url: must not be a file URL: use type: folder instead",
        ]
    );
}

fn arbitrary() -> impl Strategy<Value = Value> {
    let leaf = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        any::<i64>().prop_map(Value::from),
        "[a-z0-9.:/-]{0,12}".prop_map(Value::from),
    ];
    leaf.prop_recursive(3, 24, 4, |inner| {
        prop_oneof![
            prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
            prop::collection::btree_map("type|name|key|value|url|[a-z]{1,6}", inner, 0..4)
                .prop_map(|map| json!(map)),
        ]
    })
}

proptest! {
    /// Any document parses to a resource or to faults, and a parsed resource can be serialized and parsed again.
    #[test]
    fn no_document_panics(
        value in arbitrary(),
        place in prop::sample::select(vec![
            "/metadata", "/spec", "/spec/source", "/spec/source/minio", "/spec/source/minio/bucket", "/spec/runtime",
            "/spec/scaling", "/spec/scaling/maxReplicas", "/spec/resources", "/spec/resources/limits/cpu", "/spec/env",
            "/spec/env/0", "/spec/triggers", "/spec/triggers/1", "/spec/triggers/1/filters", "/spec/build",
            "/spec/orderingPolicy", "/spec/orderingPolicy/sequence/start", "/spec/retry/attempts", "/spec/concurrency",
        ]),
    ) {
        let mut manifest = yaml(WHOLE);
        *manifest.pointer_mut(place).unwrap() = value;
        if let Ok(resource) = Resource::parse(&manifest, Form::Manifest) {
            prop_assert_eq!(Resource::parse(&resource.to_json(), Form::Manifest), Ok(resource));
        }
    }
}
