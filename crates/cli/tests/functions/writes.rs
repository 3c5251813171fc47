//! Documents over REST: derived names, merged parts and rejected documents.

use crate::support::eventually;
use crate::world::{NODE_HELLO, World, node};
use klambda_core::time::Millis;
use klambda_dispatch::documents::{CONTENT_BYTES_MAX, Expected, Write};
use klambda_dispatch::{Config, Engine};
use klambda_functions::resource::{Form, ResourceKind};
use klambda_functions::write::{self, Birth};
use klambda_store::real_disk::RealDisk;
use serde_json::{Value, json};
use std::sync::Arc;

const FUNCTIONS: &str = "/api/v1/lambda/functions";
const AGENTS: &str = "/api/v1/lambda/agents";

fn manifest(group: &str, name: &str) -> Value {
    json!({ "apiVersion": format!("{group}/v1alpha1"), "kind": "LambdaAgent", "metadata": { "name": name },
        "spec": { "source": { "type": "url", "url": { "url": "http://127.0.0.1:9/" } } } })
}

fn paths(body: &Value) -> Vec<&str> {
    let faults = body["faults"].as_array().map(Vec::as_slice).unwrap_or_default();
    faults.iter().filter_map(|fault| fault["path"].as_str()).collect()
}

#[test]
fn a_name_that_is_not_given_is_derived() {
    let world = World::new();
    let runtime = json!({ "language": "nodejs" });
    let git = json!({ "type": "git", "git": { "url": "http://127.0.0.1:9/team/My_Shop.git" } });
    let key = json!({ "type": "minio", "minio": { "endpoint": "http://127.0.0.1:9", "bucket": "code", "key": "x/orders.zip" } });
    for (source, expected) in [(git, "my-shop"), (key, "orders")] {
        let (status, body) =
            world.post(FUNCTIONS, &json!({ "spec": { "source": source, "runtime": runtime } }));
        assert_eq!((status, &body["name"]), (202, &json!(expected)), "{body}");
        assert!(body["status"].is_string() && body["message"].is_string(), "{body}");
    }
    let names: Vec<Value> =
        [0, 1].map(|_| world.post(FUNCTIONS, &json!({ "spec": node(NODE_HELLO) })).1["name"].clone()).into();
    assert!(names[0].is_string() && names[0] != names[1], "{names:?}");
    let (status, seen) = world.get(&format!("{FUNCTIONS}/{}", names[0].as_str().expect("a name")));
    assert_eq!(status, 200);
    assert!(["metadata", "spec", "status"].iter().all(|part| seen[part].is_object()), "{seen:#}");
}

#[test]
fn parts_are_merged_and_old_versions_refused() {
    let world = World::new();
    world.apply("f", &node(NODE_HELLO));
    let before = world.ready("f");
    let path = format!("{FUNCTIONS}/f");
    let (status, body) = world.patch(&path, &json!({ "spec": { "env": [{ "name": "A", "value": "1" }] } }));
    assert_eq!(
        (status, &body["status"], &body["name"]),
        (200, &before["status"]["phase"], &before["metadata"]["name"]),
        "{body}"
    );
    let (status, body) = world.put(&path, &json!({ "spec": { "scaling": { "maxReplicas": 7 } } }));
    assert_eq!((status, &body["message"]), (200, &json!("LambdaFunction updated successfully")), "{body}");
    let (_, now) = world.get(&path);
    assert_eq!(
        (&now["spec"]["env"][0]["name"], &now["spec"]["source"]),
        (&json!("A"), &before["spec"]["source"]),
        "{now}"
    );
    let stale = json!({ "metadata": { "resourceVersion": before["metadata"]["resourceVersion"] },
        "spec": { "scaling": { "maxReplicas": 1 } } });
    assert_eq!((world.put(&path, &stale).0, world.patch(&path, &stale).0), (409, 409));
    let old = before["metadata"]["resourceVersion"].as_str().expect("a version");
    assert_eq!(world.delete(&format!("{path}?resourceVersion={old}")).0, 409);

    // Fields that others set and the file does not contain stay. Applying the file twice changes nothing.
    let generation = world.ready("f")["metadata"]["generation"].clone();
    assert_eq!(world.apply("f", &node(NODE_HELLO))["change"], "unchanged");
    let seen = world.ready("f");
    assert_eq!(
        (&seen["metadata"]["generation"], &seen["spec"]["scaling"]["maxReplicas"]),
        (&generation, &json!(7))
    );
    assert_eq!(world.events("lambda.build.completed").len(), 1, "nothing of this builds");
}

#[test]
fn both_groups_are_agents_and_two_kinds_of_filter_are_one_too_many() {
    let world = World::new();
    for (name, group) in [("io", "lambda.knative.io"), ("dev", "lambda.knative.dev")] {
        let path = format!("{AGENTS}/{name}?apply=true");
        let (status, body) = world.put(&path, &manifest(group, name));
        assert_eq!(status, 202, "{body}");
        assert_eq!(world.put(&path, &manifest(group, name)).1["change"], "unchanged");
    }
    let (status, body) = world.put(&format!("{AGENTS}/io?apply=true"), &manifest("lambda.knative.dev", "io"));
    assert_eq!((status, &body["change"]), (200, &json!("unchanged")), "the group is only a name: {body}");
    let mut function = manifest("lambda.knative.dev", "f");
    function["kind"] = json!("LambdaFunction");
    let (status, body) = world.put(&format!("{FUNCTIONS}/f?apply=true"), &function);
    assert_eq!((status, paths(&body)), (422, vec!["apiVersion"]), "{body}");

    let mut spec = node(NODE_HELLO);
    spec["triggers"] = json!([{ "filter": { "type": "t" } },
        { "filter": { "type": "t" }, "filters": [{ "exact": { "type": "t" } }] }]);
    spec["source"]["git"] = json!({ "url": "https://h/x.git", "token": "inline" });
    let (status, body) = world.post(FUNCTIONS, &json!({ "metadata": { "name": "two" }, "spec": spec }));
    assert_eq!(status, 422);
    let seen = paths(&body);
    assert!(seen.iter().any(|path| path.starts_with("spec.triggers[1]")), "{body:#}");
    assert!(seen.iter().any(|path| path.starts_with("spec.source")), "{body:#}");
    assert!(!seen.iter().any(|path| path.starts_with("spec.triggers[0]")), "{body:#}");
}

/// The size limit of a document leaves room for its status.
#[test]
fn what_leaves_no_room_for_its_status_is_refused() {
    let world = World::new();
    let padded = |bytes: usize| node(&format!("{NODE_HELLO}//{}", "x".repeat(bytes)));
    let document = |name: &str, bytes: usize| json!({ "metadata": { "name": name }, "spec": padded(bytes) });
    let (status, body) = world.post(FUNCTIONS, &document("large", 1_047_000));
    assert_eq!(status, 422, "{body}");
    assert!(body["detail"].as_str().is_some_and(|detail| detail.contains("960Ki")), "{body}");
    assert_eq!(world.post(FUNCTIONS, &document("fits", (960 << 10) - 4096)).0, 202);
    assert_eq!(world.post(FUNCTIONS, &document("small", 0)).0, 202);
    world.ready("small");
    world.ready("fits");
    let path = format!("{FUNCTIONS}/fits");
    assert_eq!(world.patch(&path, &json!({ "spec": padded(1_047_000) })).0, 422);
    assert_eq!(world.delete(&path).0, 202);
    gone(&world, "fits");
}

/// A version without that limit accepted documents that leave no room for a status. They block nothing and can be deleted.
#[test]
fn what_was_stored_too_large_blocks_nobody_and_can_go() {
    let mut world = World::new();
    world.process.take().expect("it runs").stop();
    let names = ["a-large", "b-small", "c-large"];
    let contents = [(CONTENT_BYTES_MAX - 64), 2000, CONTENT_BYTES_MAX];
    store_as_before(&world, names.into_iter().zip(contents));
    world.start();
    world.ready("b-small");
    for name in ["a-large", "c-large"] {
        let path = format!("{FUNCTIONS}/{name}");
        assert_eq!(world.function(name)["status"]["phase"], "Pending");
        let (status, body) = world.delete(&path);
        assert_eq!(status, 202, "{body}");
        gone(&world, name);
    }
}

fn gone(world: &World, name: &str) {
    eventually("it is gone", || match world.get(&format!("{FUNCTIONS}/{name}")) {
        (404, _) => Ok(()),
        (_, seen) => Err(seen["status"].to_string()),
    });
}

/// Functions as an engine stored them for clients, with documents of this number of bytes.
fn store_as_before(world: &World, functions: impl Iterator<Item = (&'static str, usize)>) {
    let disk = RealDisk::open(&world.folder.path().join("data")).expect("free");
    let now = Millis(1_700_000_000_000);
    let (mut engine, _) = Engine::open(Arc::new(disk), Config::default(), now, [1; 16]).expect("a folder");
    for (name, bytes) in functions {
        let made = |padding: usize| {
            let code = format!("{NODE_HELLO}//{}", "x".repeat(padding));
            let birth = Birth { uid: name.to_owned(), random: 1, now };
            let document = json!({ "metadata": { "name": name }, "spec": node(&code) });
            let form = Form::Body(ResourceKind::LambdaFunction);
            write::create(&document, form, birth).expect("it is valid").to_stored()
        };
        let content = made(bytes - made(0).len());
        assert_eq!(content.len(), bytes);
        let (key, expected) = (format!("default/{name}"), Expected::Absent);
        let write = Write { kind: "lambda".into(), key, content: Some(content), expected };
        engine.put_documents(&[write], &[]).expect("it fits");
    }
    engine.flush();
}
