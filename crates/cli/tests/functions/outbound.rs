//! The outbound guard through the real binary: what it refuses when a document is written, what at delivery, and what it
//! lets through.

use crate::support::eventually;
use crate::support::process::{Receiver, Server, agent};
use serde_json::{Value, json};
use std::net::ToSocketAddrs;
use std::path::Path;

const TOKEN: &str = "a-token-of-the-operator";

struct World {
    server: Server,
    folder: tempfile::TempDir,
}

impl World {
    /// A server that requires a token, so its guard is on.
    fn new(settings: &[(&str, &str)]) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let server = start(folder.path(), settings);
        World { server, folder }
    }

    /// Kills the server, and starts it with other settings.
    fn restart(self, settings: &[(&str, &str)]) -> World {
        let World { server, folder } = self;
        drop(server);
        World { server: start(folder.path(), settings), folder }
    }

    fn put(&self, path: &str, document: &Value) -> (u16, Value) {
        let request = agent().put(format!("{}{path}", self.server.url)).header("authorization", bearer());
        let mut answer = request.send_json(document).expect("an answer");
        (answer.status().as_u16(), answer.body_mut().read_json().expect("JSON"))
    }

    fn get(&self, path: &str) -> String {
        let request = agent().get(format!("{}{path}", self.server.url)).header("authorization", bearer());
        request.call().expect("an answer").body_mut().read_to_string().expect("text")
    }

    fn subscribe(&self, name: &str, url: &str) -> (u16, Value) {
        let spec = json!({ "target": { "url": url }, "ordering": "ordered", "retry": { "attempts": 2 } });
        let document = json!({ "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription",
            "metadata": { "name": name }, "spec": spec });
        self.put(&format!("/api/v1/subscriptions/{name}"), &document)
    }

    fn apply(&self, name: &str, source: &Value) -> (u16, Value) {
        let spec = json!({ "source": source, "runtime": { "language": "nodejs" } });
        let document = json!({ "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction",
            "metadata": { "name": name }, "spec": spec });
        self.put(&format!("/api/v1/lambda/functions/{name}?apply=true"), &document)
    }

    fn send(&self, id: &str) {
        let event = json!({ "specversion": "1.0", "type": "order.placed", "source": "/shop", "id": id,
            "partitionkey": "k" });
        let request = agent().post(format!("{}/api/v1/events", self.server.url));
        let request = request.header("authorization", bearer()).content_type("application/cloudevents+json");
        assert_eq!(request.send(event.to_string()).expect("an answer").status(), 202);
    }

    fn lane(&self, subscription: &str) -> Value {
        let page: Value = serde_json::from_str(&self.get("/api/v1/lanes")).expect("JSON");
        let lanes = page["items"].as_array().cloned().unwrap_or_default();
        lanes.into_iter().find(|lane| lane["subscription"] == subscription).unwrap_or_default()
    }
}

fn bearer() -> String {
    format!("Bearer {TOKEN}")
}

fn start(folder: &Path, settings: &[(&str, &str)]) -> Server {
    let tokens = folder.join("tokens");
    std::fs::write(&tokens, TOKEN).expect("a token");
    let mut settings = settings.to_vec();
    settings.push(("KLAMBDA_TOKEN_FILE", tokens.to_str().expect("a path")));
    Server::with(folder, &settings)
}

/// The name of this machine, if it means loopback, as it does on most. No check of the spelling sees that.
fn name_of_loopback() -> Option<String> {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").ok()?.trim().to_owned();
    let found: Vec<_> = (name.as_str(), 80).to_socket_addrs().ok()?.collect();
    found.iter().all(|address| address.ip().is_loopback()).then_some(name)
}

#[test]
fn forbidden_addresses_are_refused_when_they_are_written() {
    let world = World::new(&[]);
    for url in ["http://127.0.0.1:9000/", "http://2130706433/", "http://[::1]/", "http://localhost/"] {
        let (status, problem) = world.subscribe("orders", url);
        assert_eq!(status, 422, "{url}: {problem}");
        assert_eq!(problem["faults"][0]["path"], "spec.target.url", "{problem}");
        let told = problem["faults"][0]["message"].as_str().unwrap_or_default();
        assert!(told.contains("a loopback address") && told.contains("outbound.allow"), "{told}");
    }
    for (source, field) in [
        (json!({ "type": "url", "url": { "url": "http://169.254.169.254/latest" } }), "url.url"),
        (json!({ "type": "git", "git": { "url": "https://10.1.2.3/team/shop.git" } }), "git.url"),
        (json!({ "type": "git", "git": { "url": "git@192.168.1.1:team/shop.git" } }), "git.url"),
        (
            json!({ "type": "minio", "minio": { "endpoint": "localhost:9000", "bucket": "code", "key": "a.zip" } }),
            "minio.endpoint",
        ),
        (
            json!({ "type": "s3", "s3": { "endpoint": "http://[fd00::1]", "bucket": "code", "key": "a.zip" } }),
            "s3.endpoint",
        ),
    ] {
        let (status, problem) = world.apply("f", &source);
        assert_eq!(status, 422, "{source}: {problem}");
        assert_eq!(problem["faults"][0]["path"], format!("spec.source.{field}"), "{problem}");
        assert!(problem["faults"][0]["message"].to_string().contains("outbound.allow"), "{problem}");
    }
    assert_eq!(world.subscribe("public", "https://hooks.example/").0, 201);
}

#[test]
fn a_name_with_a_forbidden_address_waits_until_it_is_allowed() {
    let Some(name) = name_of_loopback() else {
        eprintln!("skipped: the name of this machine does not mean loopback");
        return;
    };
    let world = World::new(&[]);
    let receiver = Receiver::start(world.folder.path(), &[]);
    let port = receiver.url.trim_end_matches('/').rsplit(':').next().expect("a port").to_owned();
    assert_eq!(world.subscribe("orders", &format!("http://{name}:{port}/")).0, 201);
    world.send("1");
    let lane = eventually("the lane waits", || {
        let lane = world.lane("orders");
        if lane["waitsFor"].to_string().contains("outbound.allow") { Ok(lane) } else { Err(lane.to_string()) }
    });
    let told = lane["waitsFor"].as_str().unwrap_or_default();
    assert!(told.contains(&format!("{name} resolves to a loopback address")), "{told}");
    assert_eq!(lane["head"]["attempts"], 0, "no attempt was made: {lane}");
    let metrics = world.get("/metrics");
    let counted = metrics
        .lines()
        .find_map(|line| line.strip_prefix("klambda_outbound_refused_total{rule=\"loopback\"} "));
    assert!(counted.and_then(|count| count.parse::<u64>().ok()).is_some_and(|count| count >= 1), "{metrics}");
    assert_eq!(receiver.received().len(), 0);

    let world = world.restart(&[("KLAMBDA_OUTBOUND_ALLOW", "127.0.0.0/8=another")]);
    eventually("another namespace does not help", || {
        let lane = world.lane("orders");
        if lane["waitsFor"].to_string().contains("outbound.allow") { Ok(()) } else { Err(lane.to_string()) }
    });
    assert_eq!(receiver.received().len(), 0);

    let world = world.restart(&[("KLAMBDA_OUTBOUND_ALLOW", "127.0.0.0/8=default")]);
    eventually("the event arrives", || match receiver.received().len() {
        1 => Ok(()),
        count => Err(format!("{count} events; {}", world.lane("orders"))),
    });
    assert_eq!(world.subscribe("literal", &receiver.url).0, 201, "the entry allows the address too");
    let world = world.restart(&[("KLAMBDA_OUTBOUND_GUARD", "off")]);
    assert_eq!(world.subscribe("off", "http://localhost:9/").0, 201);
}
