//! The page at `/ui`, in a real browser against the real server.
//!
//! `./test` installs the browser and the tools under `target/testbed`, and runs these tests.

mod support;

use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use support::process::{Process, Receiver, Server, agent, wait_until_ready};
use support::{KLAMBDA, eventually, free_port, repository};
use tempfile::TempDir;

const TOKEN: &str = "an-admin-of-the-page-tests";
const HOSTILE: &str = "<img src=x onerror=alert(1)>";

/// A server that requires tokens, with a target that fails for some keys.
struct World {
    folder: TempDir,
    server: Server,
    receiver: Receiver,
}

impl World {
    fn start() -> World {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("token");
        std::fs::write(&file, TOKEN).expect("a file");
        std::fs::write(folder.path().join("status"), FAILING.map(|key| format!("500 {key}\n")).concat())
            .expect("a file");
        let status = folder.path().join("status");
        let receiver = Receiver::start(
            folder.path(),
            &["--status-file", status.to_str().expect("text"), "--fail-key", HOSTILE],
        );
        let file = file.to_str().expect("text");
        let settings = [("KLAMBDA_TOKEN_FILE", file), ("KLAMBDA_OUTBOUND_ALLOW", "127.0.0.0/8")];
        let server = Server::with(folder.path(), &settings);
        World { folder, server, receiver }
    }

    fn ask(&self, method: &str, path: &str, body: &Value, media: &str) -> Value {
        let request = ureq::http::Request::builder()
            .method(method)
            .uri(format!("{}/api/v1/{path}", self.server.url))
            .header("authorization", format!("Bearer {TOKEN}"))
            .header("content-type", media)
            .body(body.to_string())
            .expect("a request");
        let mut answer = agent().run(request).expect("an answer");
        let text = answer.body_mut().read_to_string().expect("text");
        assert!(answer.status().is_success(), "{method} {path}: {text}");
        serde_json::from_str(&text).expect("JSON")
    }

    fn write(&self, method: &str, path: &str, body: &Value) -> Value {
        self.ask(method, path, body, "application/json")
    }

    fn read(&self, path: &str) -> Value {
        let request = agent().get(format!("{}/api/v1/{path}", self.server.url));
        let mut answer =
            request.header("authorization", format!("Bearer {TOKEN}")).call().expect("an answer");
        serde_json::from_str(&answer.body_mut().read_to_string().expect("text")).expect("JSON")
    }

    /// Documents of all kinds, and lanes in all states.
    fn fill(&self) {
        let url = &self.receiver.url;
        let key = json!({"attribute": "partitionkey"});
        let orders = json!({
            "filters": [{"prefix": {"type": "order."}}], "target": {"url": url}, "ordering": "ordered",
            "orderingPolicy": {"key": key, "sequence": {"attribute": "sequence", "start": 1}, "gap": {"timeout": "1h", "action": "park"}},
            "retry": {"attempts": 2, "backoff": "20ms"},
        });
        let mail = json!({"filters": [{"prefix": {"type": "mail."}}], "target": {"url": url}, "retry": {"attempts": 1}});
        let unreachable = json!({
            "filters": [{"prefix": {"type": "other."}}], "target": {"url": "http://127.0.0.1:9/"}, "ordering": "ordered",
            "retry": {"attempts": "unlimited", "backoff": "100ms", "maxBackoff": "1s"},
        });
        for (name, spec) in [("orders", orders), ("mail", mail), ("unreachable", unreachable)] {
            let document = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name}, "spec": spec});
            self.write("PUT", &format!("subscriptions/{name}"), &document);
        }
        let endpoint = json!({"name": "partner", "url": format!("{url}hooks"), "types": ["order.*"], "workflowKey": "partitionkey"});
        self.write("POST", "webhooks/endpoints", &endpoint);
        self.write("PUT", "namespaces/shop", &json!({"spec": {"limits": {"subscriptions": 5}}}));
        self.write("POST", "lambda/functions", &function("hello", CODE));
        self.write("POST", "lambda/functions", &function("wrong", "exports.handler = (("));
        let sent = self.ask("POST", "events", &json!(events()), "application/cloudevents-batch+json");
        for result in sent["results"].as_array().expect("results") {
            assert_eq!(result["status"], "accepted", "{result}");
        }
    }

    fn until(&self, what: &str, path: &str, is_so: impl Fn(&Value) -> bool) {
        eventually(what, || Some(self.read(path)).filter(&is_so).ok_or_else(|| self.read(path).to_string()));
    }

    /// Waits until every lane has come to rest and the function has two revisions.
    fn settle(&self) {
        let at = |path: &'static str| move |value: &Value| value.pointer(path).cloned().unwrap_or_default();
        for key in ["bad", "skip", "purge"] {
            let is_parked = |lane: &Value| at("/state")(lane) == "parked";
            self.until("a parked lane", &format!("lanes/orders/{key}"), is_parked);
        }
        self.until("a gap", "lanes/orders/order-gap", |lane| {
            at("/state")(lane) == "gap" && at("/depth")(lane) == 2
        });
        self.until("an open breaker", "subscriptions/unreachable", |one| {
            at("/status/breaker/state")(one) != "closed"
        });
        self.until("a failed function", "lambda/functions/wrong", |one| at("/status/phase")(one) == "Failed");
        let has_revisions = |count: usize| {
            move |page: &Value| page["items"].as_array().is_some_and(|items| items.len() >= count)
        };
        self.until("a revision", "lambda/functions/hello/revisions", has_revisions(1));
        let changed = json!({"spec": {"source": {"inline": {"code": format!("// again\n{CODE}")}}}});
        self.write("PUT", "lambda/functions/hello", &changed);
        self.until("two revisions", "lambda/functions/hello/revisions", has_revisions(2));
        self.write("POST", "lambda/functions/hello/invoke", &json!({"name": "you"}));
        self.until("a log line", "lambda/functions/hello/logs", has_revisions(1));
    }

    fn tokens(&self) -> Value {
        let mut tokens = json!({});
        for role in ["viewer", "operator", "developer", "admin"] {
            let made = self.write("POST", "tokens", &json!({"name": role, "role": role, "namespaces": "*"}));
            tokens[role] = made["token"].clone();
        }
        tokens
    }

    fn letter(&self) -> String {
        let page = self.read("dlq?subscription=orders&key=bad");
        page["items"][0]["id"].as_str().expect("a dead letter").to_owned()
    }
}

const FAILING: [&str; 3] = ["bad", "skip", "purge"];
const CODE: &str =
    "exports.handler = async (event) => { console.log('said', event.id); return { hello: event.data }; };";

fn function(name: &str, code: &str) -> Value {
    json!({"metadata": {"name": name}, "spec": {
        "source": {"type": "inline", "inline": {"code": code}}, "runtime": {"language": "nodejs"},
        "triggers": [{"filters": [{"prefix": {"type": "hello."}}]}],
    }})
}

fn events() -> Vec<Value> {
    let ordered = |id: String, kind: &str, key: &str, sequence: u64| {
        json!({"specversion": "1.0", "id": id, "source": "/shop", "type": kind, "partitionkey": key, "sequence": sequence.to_string(),
            "data": {"total": 7, "large": 12345678901234567890u64, "name": HOSTILE, "parts": [{"sku": "a"}, null, true]}})
    };
    let many = |key: &'static str, count: u64| (1..=count).map(move |n| (format!("{key}-{n}"), key, n));
    let mut events: Vec<Value> = ["order-1", "bad", "skip", "purge"]
        .into_iter()
        .flat_map(|key| many(key, 4))
        .map(|(id, key, n)| ordered(id, "order.paid", key, n))
        .collect();
    events.extend([1, 2, 5, 6].map(|n| ordered(format!("gap-{n}"), "order.paid", "order-gap", n)));
    events.extend([1, 2].map(|n| ordered(format!("{HOSTILE}{n}"), &format!("order.{HOSTILE}"), HOSTILE, n)));
    events.extend((1..=12).map(|n| ordered(format!("other-{n}"), "other.x", &format!("key-{n}"), n)));
    events.push(json!({"specversion": "1.0", "id": "binary", "source": "/shop", "type": "mail.sent",
        "datacontenttype": "application/octet-stream", "data_base64": "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="}));
    events.push(json!({"specversion": "1.0", "id": "hello-1", "source": "/shop", "type": "hello.there", "data": {"name": "you"}}));
    events
}

fn testbed() -> PathBuf {
    let given = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
    given.unwrap_or_else(|| repository().join("target/testbed"))
}

/// A script of the browser. It prints what is wrong and fails.
fn script(name: &str, url: &str) -> Command {
    let mut command = Command::new("node");
    command.arg(repository().join("testbed/ui").join(name));
    command.env("KLAMBDA_URL", url).env("KLAMBDA_TESTBED", testbed());
    command.env("KLAMBDA_SHOTS", shots());
    command
}

fn succeeds(mut command: Command) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let (said, wrong) = (String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    println!("{said}");
    assert!(output.status.success(), "{said}\n{wrong}");
}

#[test]
#[ignore = "needs a browser; ./test installs it"]
fn every_page_and_action_for_every_role() {
    let world = World::start();
    world.fill();
    world.settle();
    let (tokens, letter) = (world.tokens().to_string(), world.letter());
    for name in ["walk.mjs", "act.mjs"] {
        let mut command = script(name, &world.server.url);
        command.env("KLAMBDA_TOKENS", &tokens).env("KLAMBDA_LETTER", &letter);
        command.env("KLAMBDA_RECEIVER", &world.receiver.url);
        command.env("KLAMBDA_STATUS_FILE", world.folder.path().join("status"));
        succeeds(command);
    }
}

#[test]
#[ignore = "needs a browser; ./test installs it"]
fn the_page_is_small_and_fast_and_needs_no_token_on_loopback() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::start(folder.path());
    succeeds(script("reach.mjs", &server.url));
}

/// A million lanes with an optimised binary (`KLAMBDA_BIN`), fewer with one for debugging.
#[test]
#[ignore = "needs a browser; ./test installs it"]
fn very_many_lanes_are_listed_without_a_stall() {
    let folder = tempfile::tempdir().expect("a folder");
    let optimised = std::env::var_os("KLAMBDA_BIN");
    let lanes = if optimised.is_some() { 1_000_000 } else { 30_000 };
    let address = format!("127.0.0.1:{}", free_port());
    let mut command = Command::new(optimised.unwrap_or_else(|| KLAMBDA.into()));
    command.args(["serve", "--listen", &address, "--data"]).arg(folder.path().join("data"));
    let mut process = Process::start(&mut command, &folder.path().join("serve.log"));
    let url = format!("http://{address}");
    wait_until_ready(&url, &mut process);
    let waiting = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "waiting"},
        "spec": {"filters": [{"exact": {"type": "waits"}}], "target": {"url": "http://127.0.0.1:9/"}, "ordering": "ordered", "paused": true},
    });
    let put =
        agent().put(format!("{url}/api/v1/subscriptions/waiting")).send_json(&waiting).expect("an answer");
    assert!(put.status().is_success(), "{put:?}");
    fill_lanes(&url, lanes);
    let mut command = script("lanes.mjs", &url);
    command.env("KLAMBDA_LANES", lanes.to_string());
    succeeds(command);
}

/// One event for each lane, in batches.
fn fill_lanes(url: &str, lanes: u64) {
    const BATCH: u64 = 1000;
    let next = AtomicU64::new(0);
    let send = || {
        let client = agent();
        loop {
            let first = next.fetch_add(BATCH, SeqCst);
            if first >= lanes {
                break;
            }
            let event = |n: u64| json!({"specversion": "1.0", "id": n.to_string(), "source": "/seed", "type": "waits", "partitionkey": format!("key-{n}")});
            let batch: Vec<Value> = (first..first + BATCH).map(event).collect();
            let request = client.post(format!("{url}/api/v1/events"));
            let request = request.header("content-type", "application/cloudevents-batch+json");
            let answer = request.send(json!(batch).to_string()).expect("an answer");
            assert!(answer.status().is_success(), "{answer:?}");
        }
    };
    std::thread::scope(|scope| {
        [(); 3].map(|()| scope.spawn(send)).map(|thread| thread.join().expect("sent"))
    });
}

/// The pictures of the guide come from these tests: `KLAMBDA_PICTURES=update` renews them.
const PICTURES: [(&str, &str); 6] = [
    ("page-overview.png", "overview-light.png"),
    ("page-overview-phone.png", "overview-phone.png"),
    ("page-lane.png", "lane-light.png"),
    ("page-event.png", "event-dark.png"),
    ("page-function.png", "function-light.png"),
    ("page-sign-in.png", "sign-in-light.png"),
];

#[test]
fn the_pictures_of_the_guide_are_of_these_pages() {
    let guide = std::fs::read_to_string(repository().join("docs/guide/page.md")).expect("the guide");
    for (picture, shot) in PICTURES {
        let (picture, shot) = (repository().join("docs/guide").join(picture), shots().join(shot));
        if std::env::var_os("KLAMBDA_PICTURES").is_some_and(|what| what == "update") {
            std::fs::copy(&shot, &picture).unwrap_or_else(|error| panic!("{}: {error}", shot.display()));
        }
        let bytes = std::fs::read(&picture).unwrap_or_else(|error| panic!("{}: {error}", picture.display()));
        assert!(bytes.starts_with(b"\x89PNG") && bytes.len() < 200 << 10, "{}", picture.display());
        let name = picture.file_name().expect("a name").to_string_lossy().into_owned();
        assert!(guide.contains(&format!("]({name})")), "the guide does not show {name}");
    }
}

fn shots() -> PathBuf {
    repository().join("target/page")
}

/// npm `oidc-provider` signs the users in.
#[test]
#[ignore = "needs a browser and npm packages; ./test installs them"]
fn people_sign_in_at_an_identity_provider() {
    let folder = tempfile::tempdir().expect("a folder");
    let (issuer, address) =
        (format!("http://127.0.0.1:{}", free_port()), format!("127.0.0.1:{}", free_port()));
    let (url, secret) = (format!("http://{address}"), "a-client-secret-of-the-page-tests");
    let file = folder.path().join("client-secret");
    std::fs::write(&file, secret).expect("a file");
    let mut command = script("provider.mjs", &url);
    command.env("KLAMBDA_ISSUER", &issuer).env("KLAMBDA_CLIENT_SECRET", secret);
    let provider = Process::start(&mut command, &folder.path().join("provider.log"));
    let discovery = format!("{issuer}/.well-known/openid-configuration");
    eventually("the provider answers", || match agent().get(&discovery).call() {
        Ok(answer) if answer.status() == 200 => Ok(()),
        other => Err(format!("{other:?}: {}", provider.printed())),
    });
    let keys = format!("{issuer}/jwks");
    let server = Server::at(
        &address,
        folder.path(),
        &[
            ("KLAMBDA_AUTH_JWT_ISSUER", &issuer),
            ("KLAMBDA_AUTH_JWT_AUDIENCE", "klambda"),
            ("KLAMBDA_AUTH_JWT_JWKS_URL", &keys),
            ("KLAMBDA_AUTH_OIDC_CLIENT_ID", "page"),
            ("KLAMBDA_AUTH_OIDC_CLIENT_SECRET_FILE", file.to_str().expect("text")),
            ("KLAMBDA_AUTH_OIDC_PUBLIC_URL", &url),
        ],
    );
    let mut command = script("sign-in.mjs", &server.url);
    command.env("KLAMBDA_ISSUER", &issuer).env("KLAMBDA_CLIENT_SECRET", secret);
    command.env("KLAMBDA_SECRET_FILE", &file);
    succeeds(command);
    let log = server.process.printed();
    assert!(!log.contains(secret) && !log.contains("eyJ"), "{log}");
}
