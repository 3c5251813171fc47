//! Documents over REST: names that are derived, parts that are merged, and what is refused.

use crate::world::{NODE_HELLO, World, node};
use serde_json::{Value, json};

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
    assert_eq!((status, &body["spec"]["source"]), (200, &before["spec"]["source"]), "{body}");
    let (status, body) = world.put(&path, &json!({ "spec": { "scaling": { "maxReplicas": 7 } } }));
    assert_eq!((status, &body["spec"]["env"][0]["name"]), (200, &json!("A")), "{body}");
    let stale = json!({ "metadata": { "resourceVersion": before["metadata"]["resourceVersion"] },
        "spec": { "scaling": { "maxReplicas": 1 } } });
    assert_eq!((world.put(&path, &stale).0, world.patch(&path, &stale).0), (409, 409));
    let old = before["metadata"]["resourceVersion"].as_str().expect("a version");
    assert_eq!(world.delete(&format!("{path}?resourceVersion={old}")).0, 409);

    // A file that says nothing of what others set leaves it, and twice it is the same.
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
