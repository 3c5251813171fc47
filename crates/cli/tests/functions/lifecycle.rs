//! Changes, failures and restarts.

use crate::support::eventually;
use crate::support::process::{Receiver, agent};
use crate::world::{NODE_HELLO, World, is, node};
use rustix::process::Signal;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// Answers never stop while a new version takes over.
#[test]
fn an_update_is_handed_over() {
    let world = World::new();
    world.apply("f", &node("exports.handler = () => ({ version: 1 });"));
    world.ready("f");
    let (stop, calls) = (AtomicBool::new(false), AtomicU32::new(0));
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                let (status, body) = world.invoke("f", &json!({}));
                assert_eq!(status, 200, "{body}");
                calls.fetch_add(1, Ordering::Relaxed);
            }
        });
        let changed = world.apply("f", &node("exports.handler = () => ({ version: 2 });"));
        assert_eq!(changed["change"], "configured");
        world.until("f", "the new version serves", |seen| {
            seen["status"]["observedGeneration"] == 2 && is(seen, "DeployReady", "True")
        });
        eventually("it answers", || match world.invoke("f", &json!({})) {
            (200, body) if body["version"] == 2 => Ok(()),
            (_, body) => Err(body.to_string()),
        });
        stop.store(true, Ordering::Relaxed);
    });
    assert!(calls.load(Ordering::Relaxed) > 0);
}

#[test]
fn what_cannot_be_built_or_started_leaves_the_old_version_serving() {
    let world = World::new();
    world.apply("f", &node(NODE_HELLO));
    world.ready("f");
    for (code, condition, reason) in [
        ("exports.handler = (", "BuildReady", "SyntaxError"),
        (
            "if (process.env.K_SERVICE) throw new Error('not here'); exports.handler = () => 1;",
            "DeployReady",
            "LoadError",
        ),
    ] {
        world.apply("f", &node(code));
        let seen = world.until("f", reason, |seen| {
            let conditions = crate::world::conditions(seen);
            conditions.iter().any(|one| one["type"] == condition && one["reason"] == reason)
        });
        assert_eq!(seen["status"]["phase"], "Ready", "{seen:#}");
        assert!(is(&seen, "ServiceReady", "True"));
        assert_eq!(world.invoke("f", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    }
    world.apply("f", &node("exports.handler = () => ({ back: true });"));
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({})), (200, json!({ "back": true })));
}

#[test]
fn after_a_kill_nothing_is_left_and_it_is_ready_without_a_build() {
    let mut world = World::new();
    let mut spec = node(NODE_HELLO);
    spec["triggers"] = json!([{ "filter": { "type": "t" } }]);
    spec["scaling"] = json!({ "minReplicas": 1 });
    world.apply("f", &spec);
    world.ready("f");
    // The API may briefly show a state that is not durable yet.
    let before = eventually("all of it is reported", || {
        let (events, shown) = (world.events("lambda.*"), world.function("f"));
        let is_status = |item: &&Value| item["event"]["type"] == "lambda.status.updated";
        let last = events.iter().rfind(is_status).map(|item| item["event"]["data"]["conditions"].clone());
        match last.as_ref() == Some(&shown["status"]["conditions"]) {
            true => Ok(events.len()),
            false => Err(format!("{last:#?} is not {shown:#}")),
        }
    });
    let pids: Vec<String> = world.children().iter().filter_map(|file| pid(file)).collect();
    assert!(!pids.is_empty());
    let process = world.process.take().expect("it runs");
    let server = rustix::process::Pid::from_raw(process.id() as i32).expect("a pid");
    rustix::process::kill_process(server, Signal::KILL).expect("killed");
    eventually("no child is left", || {
        let left: Vec<&String> = pids.iter().filter(|pid| is_alive(pid)).collect();
        if left.is_empty() { Ok(()) } else { Err(format!("{left:?}")) }
    });
    drop(process);
    world.start();
    let seen = world.function("f");
    assert_eq!(seen["status"]["phase"], "Ready", "{seen:#}");
    assert_eq!(world.invoke("f", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    assert_eq!(world.events("lambda.build.*").len(), 2, "started and completed, once");
    assert_eq!(world.events("lambda.*").len(), before, "a restart changes nothing, and tells nothing");
}

fn pid(file: &str) -> Option<String> {
    file.split('.').next().filter(|pid| pid.parse::<u32>().is_ok()).map(str::to_owned)
}

fn is_alive(pid: &str) -> bool {
    let stat = std::fs::read_to_string(Path::new("/proc").join(pid).join("stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, rest)| !rest.starts_with('Z'))
}

/// Each event of the first makes one of the second, however often it is repeated.
#[test]
fn functions_chain_by_what_they_return() {
    let world = World::new();
    let mut first = node(
        "exports.handler = (event) => ({ specversion: '1.0', type: 'step.two', source: '/first', data: event.data });",
    );
    first["triggers"] = json!([{ "filter": { "type": "step.one" } }]);
    let mut second = node("exports.handler = (event) => { console.log(`seen ${event.data.n}`); };");
    second["triggers"] = json!([{ "filter": { "type": "step.two" } }]);
    world.apply("first", &first);
    world.apply("second", &second);
    world.ready("first");
    world.ready("second");
    for n in 0..5 {
        world.send("step.one", &n.to_string(), "k", &json!({ "n": n }));
    }
    let seen = eventually("all reach the second", || {
        let mut seen = world.printed("second");
        seen.sort();
        if seen.len() >= 5 { Ok(seen) } else { Err(format!("{seen:?}")) }
    });
    assert_eq!(seen, (0..5).map(|n| format!("seen {n}")).collect::<Vec<String>>());
    assert_eq!(world.events("step.two").len(), 5);
    let (_, answered) = world.invoke("second", &json!({ "n": 9 }));
    assert_eq!(answered, Value::String(String::new()), "nothing returned");
}

#[test]
fn writes_are_checked() {
    let world = World::new();
    world.apply("f", &node(NODE_HELLO));
    let path = "/api/v1/lambda/functions/f";
    let seen = world.ready("f");
    let stale =
        json!({ "metadata": { "resourceVersion": "1" }, "spec": { "scaling": { "maxReplicas": 2 } } });
    assert_eq!(world.put(path, &stale).0, 409);
    let (status, body) = world.put(path, &json!({ "spec": { "scaling": { "maxReplicas": 2 } } }));
    assert_eq!((status, &body["message"]), (200, &json!("LambdaFunction updated successfully")));
    assert_eq!(world.function("f")["spec"]["source"], seen["spec"]["source"]);
    world.until("f", "scales otherwise", |seen| {
        seen["status"]["serviceStatus"]["scaling"]["maxReplicas"] == 2
    });
    assert_eq!(world.events("lambda.build.*").len(), 2, "a change of scaling builds nothing");
    let bad = json!({ "metadata": { "name": "Not A Name" },
        "spec": { "runtime": { "language": "cobol" }, "scaling": { "maxReplicas": 0 }, "colour": "red" } });
    let (status, body) = world.post("/api/v1/lambda/functions", &bad);
    assert_eq!(status, 422);
    let paths: Vec<&str> = body["faults"]
        .as_array()
        .expect("faults")
        .iter()
        .filter_map(|fault| fault["path"].as_str())
        .collect();
    for path in ["metadata.name", "spec.runtime.language", "spec.scaling.maxReplicas", "spec.colour"] {
        assert!(paths.contains(&path), "{path} not in {paths:?}");
    }
    assert_eq!(world.post("/api/v1/lambda/agents", &json!({ "metadata": { "name": "f" } })).0, 409);
    assert_eq!(world.get("/api/v1/lambda/functions/f?namespace=other").0, 404);
    assert_eq!(world.invoke("nobody", &json!({})).0, 404);
}

#[test]
fn secrets_come_from_files_and_are_nowhere_else() {
    let secrets = tempfile::tempdir().expect("a folder");
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_SECRETS", secrets.path().display().to_string())]);
    let mut spec = node("exports.handler = () => ({ length: process.env.TOKEN.length });");
    spec["env"] =
        json!([{ "name": "TOKEN", "valueFrom": { "secretKeyRef": { "name": "s", "key": "token" } } }]);
    world.apply("f", &spec);
    let seen = world.failed("f", "SecretNotFound");
    assert!(seen.to_string().contains("needs secret s, which does not exist"), "{seen:#}");
    std::fs::create_dir_all(secrets.path().join("default/s")).expect("made");
    std::fs::write(secrets.path().join("default/s/token"), "hush-hush\n").expect("written");
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({})), (200, json!({ "length": 9 })));
    assert!(!world.function("f").to_string().contains("hush-hush"));
    let log = std::fs::read_to_string(world.folder.path().join("serve.log")).expect("a log");
    assert!(!log.contains("hush-hush"));
}

#[test]
fn what_runs_elsewhere_is_called_there() {
    let world = World::new();
    let receiver = Receiver::start(world.folder.path(), &[]);
    let spec = json!({ "source": { "type": "url", "url": { "url": receiver.url } },
        "triggers": [{ "filter": { "type": "t" } }] });
    let document = json!({ "metadata": { "name": "away" }, "spec": spec });
    assert_eq!(world.post("/api/v1/lambda/agents", &document).0, 202);
    eventually("it is ready", || match world.get("/api/v1/lambda/agents/away").1 {
        seen if seen["status"]["phase"] == "Ready" => Ok(()),
        seen => Err(format!("{seen:#}")),
    });
    world.send("t", "1", "k", &json!({ "n": 1 }));
    let (status, body) = world.post("/api/v1/lambda/agents/away/invoke", &json!({ "n": 2 }));
    assert!((200..300).contains(&status), "{status} {body}");
    eventually("both reach it", || match receiver.received().len() {
        2 => Ok(()),
        count => Err(format!("{count} {}", receiver.process.printed())),
    });

    // It answers with events, as one that runs here may; and events follow it when it moves.
    let answer = "({ specversion: '1.0', type: 'u', source: '/inner', data: event.data })";
    world.apply("inner", &node(&format!("exports.handler = (event) => {answer};")));
    world.ready("inner");
    let inner = format!("{}/api/v1/lambda/functions/inner/invoke", world.url);
    let moved = json!({ "spec": { "source": { "url": { "url": inner } } } });
    assert_eq!(world.put("/api/v1/lambda/agents/away", &moved).0, 200);
    eventually("its address is known", || match world.get("/api/v1/subscriptions/lambda.default.away").1 {
        seen if seen["spec"]["target"]["url"] == inner => Ok(()),
        seen => Err(seen.to_string()),
    });
    world.send("t", "2", "k", &json!({ "n": 3 }));
    let replies = eventually("its reply is accepted", || match world.events("u") {
        replies if replies.is_empty() => Err("none".to_owned()),
        replies => Ok(replies),
    });
    let reply = &replies[0]["event"];
    assert_eq!((&reply["data"], &reply["source"]), (&json!({ "n": 3 }), &json!("/inner")));
}

/// Answers whatever it is asked, once it listens.
fn answer_at(address: &str) {
    use std::io::{Read as _, Write as _};
    let listener = std::net::TcpListener::bind(address).expect("the port is still free");
    std::thread::spawn(move || {
        for mut peer in listener.incoming().map_while(Result::ok) {
            let _ = peer.read(&mut [0; 4096]);
            let _ = peer
                .write_all(b"HTTP/1.1 404 Not Found\r\nconnection: close\r\ncontent-length: 4\r\n\r\naway");
        }
    });
}

#[test]
fn a_url_takes_over_when_it_answers() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_START_TIMEOUT", "1s".into())]);
    let address = format!("127.0.0.1:{}", crate::support::free_port());
    let away = json!({ "source": { "type": "url", "url": { "url": format!("http://{address}/") } } });
    world.apply("f", &node(NODE_HELLO));
    world.ready("f");
    world.apply("f", &away);
    world.apply("only", &away);
    let reason = |seen: &Value, reason: &str| {
        crate::world::conditions(seen)
            .iter()
            .any(|one| one["type"] == "DeployReady" && one["reason"] == reason)
    };
    let seen = world.until("f", "nobody answers", |seen| reason(seen, "UrlUnreachable"));
    assert_eq!(seen["status"]["phase"], "Ready", "{seen:#}");
    assert!(is(&seen, "ServiceReady", "True"));
    assert_eq!(world.invoke("f", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    world.failed("only", "UrlUnreachable");
    assert_eq!(world.invoke("only", &json!({})).0, 503);
    answer_at(&address);
    for name in ["f", "only"] {
        world.ready(name);
        assert_eq!(world.invoke(name, &json!({})), (404, json!("away")));
    }
}

#[test]
fn deleting_drains_and_leaves_dead_letters() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_DRAIN", "1s".into())]);
    let mut spec = node("exports.handler = () => { throw new Error('never'); };");
    spec["triggers"] = json!([{ "filter": { "type": "t" } }]);
    spec["retry"] = json!({ "attempts": "unlimited", "backoff": "100ms", "maxBackoff": "100ms" });
    world.apply("f", &spec);
    world.ready("f");
    world.send("t", "1", "k", &json!({}));
    assert_eq!(world.delete("/api/v1/lambda/functions/f").0, 202);
    assert_eq!(world.delete("/api/v1/lambda/functions/f").0, 202, "asking twice is the same");
    let (status, body) =
        world.post("/api/v1/lambda/functions", &json!({ "metadata": { "name": "f" }, "spec": spec }));
    assert_eq!(status, 409, "{body}");
    eventually("it is gone", || match world.get("/api/v1/lambda/functions/f").0 {
        404 => Ok(()),
        status => Err(status.to_string()),
    });
    let (_, letters) = world.get("/api/v1/dlq");
    assert_eq!(letters["items"][0]["reason"], "unavailable", "{letters}");
    assert_eq!(world.children(), Vec::<String>::new());
    world.apply("f", &node(NODE_HELLO));
    world.ready("f");
}

#[test]
fn a_start_removes_what_nobody_needs() {
    let mut world = World::with(vec![("KLAMBDA_FUNCTIONS_REVISIONS", "1".into())]);
    world.apply("f", &node(NODE_HELLO));
    world.ready("f");
    world.apply("f", &node("exports.handler = () => ({ version: 2 });"));
    world.ready("f");
    let artifacts = world.folder.path().join("data/functions/artifacts");
    let count = || std::fs::read_dir(&artifacts).expect("a folder").count();
    assert_eq!(count(), 2);
    world.process.take().expect("it runs").stop();
    world.start();
    assert_eq!(world.function("f")["status"]["phase"], "Ready");
    assert_eq!(world.invoke("f", &json!({})), (200, json!({ "version": 2 })));
    assert_eq!(count(), 1);
}

#[test]
fn clients_are_limited_where_that_is_asked_for() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_RATE_LIMITS_DELETES", "1".into())]);
    let delete =
        || agent().delete(format!("{}/api/v1/lambda/functions/none", world.url)).call().expect("an answer");
    let first = delete();
    assert_eq!(
        (first.status().as_u16(), &first.headers()["x-ratelimit-limit"]),
        (404, &"1".parse().expect("a value"))
    );
    let second = delete();
    assert_eq!(second.status(), 429);
    assert!(second.headers().contains_key("retry-after"));
    assert_eq!(world.get("/api/v1/lambda/functions").0, 200);
}
