//! Received events act as the calls over REST do.

use crate::support::eventually;
use crate::world::{NODE_HELLO, World, node};
use serde_json::{Value, json};

#[test]
fn events_create_change_and_delete_and_bad_ones_are_dead_letters() {
    let world = World::new();
    // Nothing but its data says which function it is for.
    world.send("lambda.function.created", "1", "", &json!({ "name": "f", "spec": node(NODE_HELLO) }));
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    let change = json!({ "name": "f", "spec": { "scaling": { "maxReplicas": 3 } } });
    world.send("lambda.function.updated", "2", "f", &change);
    world.until("f", "is changed", |seen| seen["spec"]["scaling"]["maxReplicas"] == 3);
    world.send("network.notifi.lambda.build.start", "3", "f", &json!({ "function_name": "f" }));
    eventually("it is built again", || match world.events("lambda.build.completed").len() {
        2 => Ok(()),
        count => Err(count.to_string()),
    });
    let artifacts = world.folder.path().join("data/functions/artifacts");
    assert_eq!(std::fs::read_dir(artifacts).expect("a folder").count(), 2, "though its content is the same");
    world.send("lambda.function.deleted", "4", "f", &json!({ "nam": "f" }));
    let letters = eventually("a dead letter", || {
        let (_, page) = world.get("/api/v1/dlq");
        let items = page["items"].as_array().cloned().unwrap_or_default();
        if items.is_empty() { Err(page.to_string()) } else { Ok(items) }
    });
    assert_eq!(letters[0]["reason"], "validation", "{letters:?}");
    // One that is created again waits until the one before it is gone.
    let uid = world.function("f")["metadata"]["uid"].clone();
    world.send("lambda.function.deleted", "5", "f", &json!({ "name": "f" }));
    world.send("lambda.function.created", "6", "f", &json!({ "name": "f", "spec": node(NODE_HELLO) }));
    world.until("f", "is another", |seen| {
        seen["metadata"]["uid"].is_string()
            && seen["metadata"]["uid"] != uid
            && seen["status"]["phase"] == "Ready"
    });
    // A name that an agent has is not one for a function.
    let agent = json!({ "name": "f", "kind": "LambdaAgent", "spec": {} });
    world.send("lambda.function.created", "7", "f", &agent);
    eventually("a second dead letter", || match world.get("/api/v1/dlq").1["items"].clone() {
        Value::Array(letters) if letters.len() == 2 => Ok(()),
        other => Err(other.to_string()),
    });
    world.send("lambda.function.deleted", "8", "f", &json!({ "name": "f" }));
    eventually("it is gone", || match world.get("/api/v1/lambda/functions/f").0 {
        404 => Ok(()),
        status => Err(status.to_string()),
    });
    // The audit log has the requester. Requests that change nothing have no entry.
    let (_, audit) = world.get("/api/v1/audit");
    let noted: Vec<String> = audit["items"].as_array().expect("a list").iter().map(noted).collect();
    let expected = ["8 delete", "6 create", "5 delete", "3 rebuild", "2 put", "1 create"];
    assert_eq!(
        noted,
        expected.map(|deed| {
            let (id, verb) = deed.split_once(' ').expect("two words");
            format!("event {id} of /test {verb} function default/f")
        })
    );
    // Event numbers continue over all functions that had the same name.
    let told = eventually("both ends are reported", || {
        let told = told_of(&world, "/lambda/default/f");
        let ends = told.iter().filter(|event| event["type"] == "lambda.function.deleted").count();
        if ends == 2 { Ok(told) } else { Err(format!("{told:?}")) }
    });
    let numbers: Vec<Option<usize>> =
        told.iter().map(|event| event["sequence"].as_str().and_then(|number| number.parse().ok())).collect();
    assert_eq!(numbers, (1..=told.len()).map(Some).collect::<Vec<_>>());
}

fn noted(entry: &Value) -> String {
    let text = |member: &str| entry[member].as_str().unwrap_or_default();
    format!("{} {} {} {}/{}", text("who"), text("verb"), text("kind"), text("namespace"), text("name"))
}

fn told_of(world: &World, source: &str) -> Vec<Value> {
    let events = world.events("lambda.*").into_iter().map(|mut one| one["event"].take());
    events.filter(|event| event["source"] == source).collect()
}

/// A build that never ends by itself: its dependency comes from a server that takes connections and says nothing.
fn endless() -> (std::net::TcpListener, Value) {
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let package = format!("http://{}/slow.tgz", silent.local_addr().expect("an address"));
    let mut spec = node(NODE_HELLO);
    spec["source"]["inline"]["dependencies"] = json!(json!({ "slow": package }).to_string());
    (silent, spec)
}

#[test]
fn events_cancel_stop_and_begin_builds() {
    let world = World::new();
    let (_silent, spec) = endless();
    let outcome = |seen: &Value, outcome: &str| seen["status"]["buildStatus"]["outcome"] == outcome;
    for (id, name, kind, reason, ended) in [
        ("1", "c", "lambda.build.cancelled", "BuildCancelled", "cancelled"),
        ("2", "s", "lambda.build.stopped", "BuildStopped", "stopped"),
    ] {
        world.apply(name, &spec);
        world.until(name, "is built", |seen| seen["status"]["phase"] == "Building");
        world.send(kind, id, name, &json!({ "function_name": name }));
        let seen = world.failed(name, reason);
        assert!(outcome(&seen, ended), "{seen:#}");
        eventually("it is reported", || match world.events(kind).len() {
            2 => Ok(()),
            count => Err(count.to_string()),
        });
    }
    // A stopped build runs again on request, with the current source.
    world.apply("s", &node(NODE_HELLO));
    world.send("lambda.build.started", "3", "s", &json!({ "function_name": "s" }));
    world.ready("s");
    assert_eq!(world.invoke("s", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    assert_eq!(world.get("/api/v1/dlq").1["items"], json!([]));
}

/// One that hangs holds up who waits behind it, but the time of those is not counted.
#[test]
fn a_build_that_waits_does_not_run_out_of_time() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_BUILDS", "1".into())]);
    let (silent, spec) = endless();
    world.apply("hangs", &spec);
    let _asked = silent.accept().expect("npm asks for the package: the build runs");
    let mut waits = node(NODE_HELLO);
    waits["build"] = json!({ "timeout": "1s" });
    world.apply("waits", &waits);
    let since = std::time::Instant::now();
    eventually("it waits for longer than it may take", || {
        let seen = world.until("waits", "it waits", |seen| {
            crate::world::conditions(seen).iter().any(|one| one["reason"] == "WaitingForSlot")
        });
        if since.elapsed().as_secs() >= 2 { Ok(()) } else { Err(format!("{seen:#}")) }
    });
    world.send("lambda.build.stopped", "1", "hangs", &json!({ "function_name": "hangs" }));
    world.ready("waits");
    let metrics = world.get("/metrics").1;
    let metrics = metrics.as_str().expect("text");
    for line in [r#"result="stopped"} 1"#, "klambda_build_jobs_waiting 0"] {
        assert!(metrics.contains(line), "{line} is not in {metrics}");
    }
}

#[test]
fn parsers_are_run_and_their_end_is_told() {
    let world = World::new();
    let code = "exports.handler = (event) => { if (event.data.parser_id === 'bad') throw new Error('no'); \
        console.log(`parsed ${event.data.execution_id}`); };";
    world.apply("p", &node(code));
    world.ready("p");
    let asked =
        |parser: &str, run: &str| json!({ "parser_id": parser, "function_name": "p", "execution_id": run });
    world.send("lambda.parser.started", "1", "p", &asked("good", "r1"));
    world.send("network.notifi.lambda.parser.start", "2", "p", &asked("good", "r2"));
    world.send("lambda.parser.started", "3", "p", &asked("bad", "r3"));
    world.send("lambda.parser.started", "4", "p", &json!({ "parser_id": "good" }));
    // One that cannot serve has failed, and one that is not there cannot be asked; neither holds up the others.
    world.apply("broken", &node("exports.handler = ("));
    world.failed("broken", "SyntaxError");
    for (id, name) in [("5", "broken"), ("6", "nobody")] {
        let asked = json!({ "parser_id": "good", "function_name": name, "execution_id": "r4" });
        world.send("lambda.parser.started", id, name, &asked);
    }
    let told = |kind: &str, count: usize| {
        eventually(kind, || match world.events(kind) {
            told if told.len() == count => Ok(told),
            told => Err(format!("{told:?}")),
        })
    };
    let ended = told("lambda.parser.completed", 2);
    let data = &ended[0]["event"]["data"];
    assert_eq!((&data["execution_id"], &data["status"]), (&json!("r1"), &json!("completed")));
    assert_eq!(ended[0]["event"]["sequence"], Value::Null, "it is no transition of the function");
    let failed = told("lambda.parser.failed", 2);
    let mut names: Vec<String> =
        failed.iter().map(|one| one["event"]["data"]["function_name"].to_string()).collect();
    names.sort();
    assert_eq!(names, ["\"broken\"", "\"p\""]);
    assert!(failed.iter().all(|one| one["event"]["data"]["error"].is_string()), "{failed:?}");
    let errors: Vec<&Value> = failed.iter().map(|one| &one["event"]["data"]["error"]).collect();
    assert!(errors.contains(&&json!("the function returned status 500: no")), "{errors:?}");
    eventually("both are printed", || match world.printed("p") {
        seen if ["parsed r1", "parsed r2"].iter().all(|one| seen.contains(&(*one).to_owned())) => Ok(()),
        seen => Err(format!("{seen:?}")),
    });
    let letters = eventually("a dead letter", || match world.get("/api/v1/dlq").1["items"].clone() {
        Value::Array(letters) if letters.len() == 2 => Ok(letters),
        other => Err(other.to_string()),
    });
    assert!(letters.iter().all(|letter| letter["reason"] == "validation"), "{letters:?}");
    let why = letters.iter().find(|letter| letter["eventId"] == "4").expect("the faulty one").to_string();
    assert!(why.contains("function_name") && why.contains("execution_id"), "{why}");
}

/// A `source` proves nothing: a command with the source of the server runs like any other.
#[test]
fn an_event_and_the_call_come_to_the_same() {
    let world = World::new();
    let mut spec = node(NODE_HELLO);
    spec["triggers"] = json!([{ "filter": { "type": "t", "source": "/test" } }]);
    spec["env"] = json!([{ "name": "A", "value": "1" }]);
    assert_eq!(
        world.post("/api/v1/lambda/functions", &json!({ "metadata": { "name": "rest" }, "spec": spec })).0,
        202
    );
    world.send("lambda.function.created", "1", "event", &json!({ "name": "event", "spec": spec }));
    let part = json!({ "spec": { "scaling": { "maxReplicas": 3 }, "env": [] } });
    assert_eq!(world.put("/api/v1/lambda/functions/rest", &part).0, 200);
    let mut change = part;
    change["name"] = json!("event");
    world.send("lambda.function.updated", "2", "event", &change);
    let settled = |name: &str| {
        world.until(name, "is changed", |seen| seen["spec"]["scaling"]["maxReplicas"] == 3);
        let mut seen = world.ready(name);
        for at in ["uid", "name", "resourceVersion", "creationTimestamp"] {
            seen["metadata"].as_object_mut().expect("metadata").remove(at);
        }
        let kinds: Vec<(Value, Value)> = crate::world::conditions(&seen)
            .into_iter()
            .map(|mut one| (one["type"].take(), one["status"].take()))
            .collect();
        (seen["metadata"].take(), seen["spec"].take(), seen["status"]["phase"].take(), kinds)
    };
    assert_eq!(settled("rest"), settled("event"));

    let emitted = world.events("lambda.function.created")[0]["event"]["source"].clone();
    let forged = emitted.as_str().expect("a source");
    world.send_from(forged, "lambda.function.deleted", "3", "event", &json!({ "name": "event" }));
    eventually("it is gone", || match world.get("/api/v1/lambda/functions/event").0 {
        404 => Ok(()),
        status => Err(status.to_string()),
    });
}
