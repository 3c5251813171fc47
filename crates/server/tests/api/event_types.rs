//! Event types, and the check of events by their schemas.

use crate::world::{Answer, World};
use serde_json::{Value, json};

fn event_type(name: &str, spec: Value) -> Value {
    json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "EventType", "metadata": {"name": name}, "spec": spec})
}

/// A schema with one required number.
fn requires(member: &str) -> Value {
    json!({"type": "object", "required": [member], "properties": {member: {"type": "number", "minimum": 0}}})
}

async fn describe(world: &World, path: &str, name: &str, spec: Value) {
    let put = world.put(&format!("{path}/event-types/{name}"), &event_type(name, spec)).await;
    assert!(put.status == 201 || put.status == 200, "{put:?}");
}

async fn check(world: &World, namespace: &str, check: &str) {
    let put =
        world.put(&format!("/api/v1/namespaces/{namespace}"), &json!({"spec": {"schemaCheck": check}})).await;
    assert!(put.status == 201 || put.status == 200, "{put:?}");
}

async fn send(world: &World, path: &str, id: &str, data: &str, more: &[(&str, &str)]) -> Answer {
    let headers = [
        ("ce-specversion", "1.0"),
        ("ce-id", id),
        ("ce-source", "/shop"),
        ("ce-type", "order.placed"),
        ("ce-partitionkey", "k"),
        ("content-type", "application/json"),
    ];
    world.ask("POST", &format!("{path}/events"), &[&headers, more].concat(), data).await
}

#[tokio::test]
async fn an_event_type_is_written_read_listed_and_deleted() {
    let world = World::new().await;
    const ALL: &str = "/api/v1/event-types";
    let spec = json!({"description": "An order.", "schema": requires("total"), "example": {"total": 7}});
    let document = event_type("order.placed", spec.clone());
    let dry = world.put(&format!("{ALL}/order.placed?dryRun=true"), &document).await.json();
    assert_eq!(
        (&dry["change"], &dry["document"]["spec"]["type"]),
        (&json!("created"), &json!("order.placed"))
    );
    assert_eq!(world.get(&format!("{ALL}/order.placed")).await.status, 404, "a dry run changes nothing");

    let created = world.post(ALL, document.clone()).await;
    assert_eq!(created.status, 201, "{created:?}");
    assert_eq!(created.headers["location"], "/api/v1/event-types/order.placed");
    let shown = world.get(&format!("{ALL}/order.placed")).await.json();
    assert_eq!(shown, created.json());
    assert_eq!(shown["spec"]["schema"], spec["schema"]);
    assert!(shown["metadata"]["createdAt"].is_string(), "{shown}");
    assert_eq!(world.post(ALL, document.clone()).await.problem(), "conflict");
    let star = [("if-none-match", "*"), ("content-type", "application/json")];
    let put = world.ask("PUT", &format!("{ALL}/order.placed"), &star, &document.to_string()).await;
    assert_eq!((put.status, put.problem()), (412, "exists".to_owned()));

    let again = world.put(&format!("{ALL}/order.placed?dryRun=true"), &shown).await.json();
    assert_eq!(again["change"], "unchanged", "what is shown can be sent back");
    let changed = world.put(&format!("{ALL}/order.placed"), &event_type("order.placed", json!({}))).await;
    assert_eq!((changed.status, &changed.json()["metadata"]), (200, &shown["metadata"]));

    describe(&world, "/api/v1", "upper", json!({"type": "com.Example/Order"})).await;
    let second = world.post(ALL, event_type("other", json!({"type": "com.Example/Order"}))).await;
    assert_eq!(second.problem(), "conflict");
    assert!(second.text().contains("upper"), "{second:?}");
    let page = world.get(&format!("{ALL}?limit=1")).await.json();
    assert_eq!(page["items"][0]["metadata"]["name"], "order.placed");
    let rest = world.get(&format!("{ALL}?limit=1&cursor={}", page["next"].as_str().unwrap())).await.json();
    assert_eq!((&rest["items"][0]["metadata"]["name"], &rest["next"]), (&json!("upper"), &Value::Null));

    let deleted = world.delete(&format!("{ALL}/upper")).await;
    assert_eq!((deleted.status, &deleted.json()["spec"]["type"]), (200, &json!("com.Example/Order")));
    assert_eq!(world.delete(&format!("{ALL}/upper")).await.problem(), "not-found");
    let audit = world.get("/api/v1/audit").await.json();
    let entries: Vec<_> =
        audit["items"].as_array().unwrap().iter().map(|one| (&one["verb"], &one["name"])).collect();
    assert!(entries.contains(&(&json!("create"), &json!("order.placed"))), "{audit}");
    assert_eq!(
        (&audit["items"][0]["kind"], &audit["items"][0]["verb"]),
        (&json!("eventtype"), &json!("delete"))
    );
}

#[tokio::test]
async fn a_wrong_document_is_refused_with_its_place_and_changes_nothing() {
    let world = World::with(|config| config.limits.event_types = 1).await;
    for (spec, path) in [
        (json!({"schema": {"type": "strin"}}), "spec.schema/type"),
        (
            json!({"schema": {"properties": {"a": {"$ref": "http://127.0.0.1:1/x.json"}}}}),
            "spec.schema/properties/a/$ref",
        ),
        (json!({"schema": {"$ref": "#"}}), "spec.schema"),
        (json!({"schema": {"pattern": "(a+)\\1"}}), "spec.schema/pattern"),
        (json!({"schema": requires("total"), "example": {"total": -1}}), "spec.example/total"),
        (json!({"schema": {"title": "x".repeat(65 << 10)}}), "spec.schema"),
        (json!({"exmaple": 1}), "spec.exmaple"),
    ] {
        let refused = world.put("/api/v1/event-types/a", &event_type("a", spec)).await;
        assert_eq!((refused.status, refused.problem()), (422, "invalid-event-type".to_owned()));
        assert_eq!(refused.json()["faults"][0]["path"], path, "{refused:?}");
    }
    let elsewhere = world.put("/api/v1/event-types/a", &event_type("b", json!({}))).await;
    assert_eq!(elsewhere.json()["faults"][0]["path"], "metadata.name");
    assert_eq!(world.get("/api/v1/event-types").await.json()["items"], json!([]));
    describe(&world, "/api/v1", "a", json!({})).await;
    let full = world.put("/api/v1/event-types/b", &event_type("b", json!({}))).await;
    assert_eq!((full.status, full.problem()), (429, "limit-reached".to_owned()));
    assert!(full.text().contains("limits.eventTypes"), "{full:?}");
    let nowhere = world.put("/api/v1/namespaces/nowhere/event-types/a", &event_type("a", json!({}))).await;
    assert_eq!(nowhere.status, 404, "{nowhere:?}");
    let wrong = world.put("/api/v1/namespaces/default", &json!({"spec": {"schemaCheck": "strict"}})).await;
    assert_eq!(wrong.json()["faults"][0]["path"], "spec.schemaCheck");
}

#[tokio::test]
async fn reject_answers_422_and_accepts_the_rest() {
    let world = World::new().await;
    describe(&world, "/api/v1", "order.placed", json!({"schema": requires("total")})).await;
    check(&world, "default", "reject").await;
    assert_eq!(send(&world, "/api/v1", "good", "{\"total\": 7}", &[]).await.status, 202);
    let refused = send(&world, "/api/v1", "bad", "{\"total\": -7}", &[]).await;
    assert_eq!((refused.status, refused.problem()), (422, "schema-mismatch".to_owned()));
    let problem = refused.json();
    assert_eq!(
        (&problem["eventType"], &problem["pointer"], &problem["rule"]),
        (&json!("order.placed"), &json!("/total"), &json!("minimum"))
    );
    assert_eq!(problem["faults"][0]["path"], "data/total");
    assert!(problem["detail"].as_str().unwrap().contains("order.placed"), "{problem}");
    assert!(!refused.text().contains("-7"), "no value of the data: {problem}");
    for (id, content_type, data) in [
        ("text", "text/plain", "{\"total\": 7}"),
        ("broken", "application/json", "{"),
        ("empty", "application/json", ""),
    ] {
        let mut headers =
            vec![("ce-specversion", "1.0"), ("ce-id", id), ("ce-source", "/s"), ("ce-type", "order.placed")];
        headers.push(("content-type", content_type));
        let refused = world.ask("POST", "/api/v1/events", &headers, data).await;
        assert_eq!((refused.status, &refused.json()["rule"]), (422, &json!("json")), "{refused:?}");
    }

    let event = |id: &str, kind: &str, total: i64| json!({"specversion": "1.0", "id": id, "source": "/b", "type": kind, "data": {"total": total}});
    let batch =
        json!([event("1", "order.placed", 1), event("2", "order.placed", -1), event("3", "other", -1)]);
    let headers = [("content-type", "application/cloudevents-batch+json")];
    let answer = world.ask("POST", "/api/v1/events", &headers, &batch.to_string()).await;
    assert_eq!(answer.status, 202, "{answer:?}");
    let results = answer.json()["results"].clone();
    let statuses: Vec<_> = (0..3).map(|n| results[n]["status"].as_str().unwrap().to_owned()).collect();
    assert_eq!(statuses, ["accepted", "rejected", "accepted"]);
    assert_eq!((&results[1]["id"], &results[1]["problem"]["status"]), (&json!("2"), &json!(422)));
    let count = "klambda_schema_violations_total{namespace=\"default\",event_type=\"order.placed\",result=\"rejected\"}";
    assert_eq!(world.metric(count).await, 5.0);
}

#[tokio::test]
async fn flag_marks_the_event_and_only_the_server_says_so() {
    let world = World::new().await;
    world.subscribe("orders", json!({})).await;
    describe(&world, "/api/v1", "order.placed", json!({"schema": requires("total")})).await;
    check(&world, "default", "flag").await;
    let claimed = [("ce-schemastatus", "invalid")];
    assert_eq!(send(&world, "/api/v1", "1", "{\"total\": \"x\"}", &[]).await.status, 202);
    assert_eq!(send(&world, "/api/v1", "2", "{\"total\": 7}", &claimed).await.status, 202);
    assert_eq!(send(&world, "/api/v1", "3", "{}", &[("ce-schemastatus", "valid")]).await.status, 202);
    check(&world, "default", "off").await;
    assert_eq!(send(&world, "/api/v1", "4", "{}", &claimed).await.status, 202);
    world.target.until(|received| received.len() == 4).await;
    let marks: Vec<Option<String>> =
        world.target.received().iter().map(|event| event.headers.get("ce-schemastatus").cloned()).collect();
    let invalid = Some("invalid".to_owned());
    assert_eq!(
        marks,
        [invalid.clone(), None, invalid.clone(), invalid],
        "an unchecked attribute is passed on"
    );
    let count = "klambda_schema_violations_total{namespace=\"default\",event_type=\"order.placed\",result=\"flagged\"}";
    assert_eq!(world.metric(count).await, 2.0);
}

#[tokio::test]
async fn namespaces_have_their_own_schemas_and_keep_them_over_a_restart() {
    let world = World::new().await;
    for (namespace, member, mode) in [("a", "x", "reject"), ("b", "y", "flag"), ("c", "z", "off")] {
        check(&world, namespace, mode).await;
        let path = format!("/api/v1/namespaces/{namespace}");
        describe(&world, &path, "order.placed", json!({"schema": requires(member)})).await;
    }
    let before = world.get("/api/v1/event-types?namespace=*").await.json();
    assert_eq!(before["items"].as_array().map(Vec::len), Some(3));
    let world = world.restart().await;
    assert_eq!(world.get("/api/v1/event-types?namespace=*").await.json(), before);
    for (namespace, data, status, mark) in [
        ("a", "{\"x\": 1}", 202, Value::Null),
        ("a", "{\"y\": 1}", 422, Value::Null),
        ("b", "{\"y\": 1}", 202, Value::Null),
        ("b", "{\"x\": 1}", 202, json!("invalid")),
        ("c", "{\"x\": 1}", 202, Value::Null),
    ] {
        let path = format!("/api/v1/namespaces/{namespace}");
        let id = format!("{namespace}-{data}").replace('"', "");
        let sent = send(&world, &path, &id, data, &[]).await;
        assert_eq!(sent.status, status, "{sent:?}");
        if status == 202 {
            let log = world.get(&format!("{path}/events?order=desc&limit=1")).await.json();
            assert_eq!(log["items"][0]["event"]["schemastatus"], mark, "{log}");
        }
    }
    // A changed schema holds for the next event, a deleted one for none.
    describe(&world, "/api/v1/namespaces/a", "order.placed", json!({"schema": requires("y")})).await;
    assert_eq!(send(&world, "/api/v1/namespaces/a", "n1", "{\"x\": 1}", &[]).await.status, 422);
    assert_eq!(send(&world, "/api/v1/namespaces/a", "n2", "{\"y\": 1}", &[]).await.status, 202);
    let refused = world.delete("/api/v1/namespaces/a").await;
    assert_eq!(refused.problem(), "conflict");
    assert!(refused.text().contains("event types"), "{refused:?}");
    assert_eq!(world.delete("/api/v1/namespaces/a/event-types/order.placed").await.status, 200);
    assert_eq!(send(&world, "/api/v1/namespaces/a", "n3", "{}", &[]).await.status, 202);
}

/// Event types without a check change nothing: answers, stored events and deliveries are the same.
#[tokio::test]
async fn off_is_as_if_there_were_no_event_types() {
    let (with, without) = (World::new().await, World::new().await);
    describe(&with, "/api/v1", "order.placed", json!({"schema": {"const": "nothing matches"}})).await;
    let mut seen = Vec::new();
    for world in [&with, &without] {
        world.subscribe("orders", json!({})).await;
        let mut answers = Vec::new();
        for (n, data) in ["{\"total\":  1.10}", "{", "", "[1e400]", "\"x\""].into_iter().enumerate() {
            let more: &[(&str, &str)] = if n == 0 { &[("ce-schemastatus", "mine")] } else { &[] };
            let answer = send(world, "/api/v1", &n.to_string(), data, more).await;
            answers.push((answer.status, answer.text()));
        }
        world.target.until(|received| received.len() == 5).await;
        let log = world.get("/api/v1/events").await.json();
        let events: Vec<Value> =
            log["items"].as_array().unwrap().iter().map(|item| item["event"].clone()).collect();
        let mut received: Vec<_> = world.target.received();
        received.iter_mut().for_each(|event| drop(event.headers.remove("host")));
        seen.push((
            answers,
            events,
            received
                .iter()
                .map(|event| format!("{:?}{}", sorted(&event.headers), event.body))
                .collect::<Vec<_>>(),
        ));
    }
    assert_eq!(seen[0], seen[1]);
}

fn sorted(headers: &std::collections::HashMap<String, String>) -> Vec<(&String, &String)> {
    let mut headers: Vec<_> = headers.iter().collect();
    headers.sort();
    headers
}
