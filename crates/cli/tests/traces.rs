//! Traces through the real binary, into a receiver with the official protobuf definitions of OTLP.
//!
//! `./test` installs what the receiver needs under `target/testbed` and runs these.

mod support;

use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};
use support::process::{Process, Receiver, Server, agent};
use support::{eventually, free_port, repository};

const PRODUCER: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
const TRACE: &str = "0af7651916cd43dd8448eb211c80319c";
const ACCEPT: &str = "operator.api.handle";
const ATTEMPT: &str = "operator.event.process";

/// The receiver of traces.
struct Collector {
    process: Process,
    grpc: u64,
    http: u64,
}

impl Collector {
    fn start(folder: &Path, arguments: &[&str]) -> Collector {
        let given = std::env::var_os("KLAMBDA_TESTBED").map(PathBuf::from);
        let testbed = given.unwrap_or_else(|| repository().join("target/testbed"));
        let mut command = Command::new(testbed.join("venv/bin/python"));
        command.arg(repository().join("testbed/traces/receiver.py")).args(arguments);
        let process = Process::start(&mut command, &folder.join("collector.log"));
        let ports: Value = eventually("the collector listens", || {
            let printed = process.printed();
            let line = printed.lines().next().ok_or_else(|| "nothing printed".to_owned())?;
            serde_json::from_str(line).map_err(|error| format!("{error}: {printed}"))
        });
        let port = |name: &str| ports[name].as_u64().expect("a port");
        Collector { grpc: port("grpc"), http: port("http"), process }
    }

    fn http(&self) -> String {
        format!("http://127.0.0.1:{}", self.http)
    }

    fn grpc(&self) -> String {
        format!("http://127.0.0.1:{}", self.grpc)
    }

    fn spans(&self) -> Vec<Value> {
        let printed = self.process.printed();
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        whole.lines().skip(1).filter_map(|line| serde_json::from_str(line).ok()).collect()
    }

    /// Waits for this number of spans of this name that fit.
    fn wait(&self, name: &str, count: usize, fits: impl Fn(&Value) -> bool) -> Vec<Value> {
        eventually(&format!("{count} spans {name}"), || {
            let all = self.spans();
            let found: Vec<Value> =
                all.iter().filter(|span| span["name"] == name && fits(span)).cloned().collect();
            if found.len() >= count { Ok(found) } else { Err(format!("{all:#?}")) }
        })
    }

    /// The spans about one event.
    fn of_event(&self, name: &str, id: &str, count: usize) -> Vec<Value> {
        self.wait(name, count, |span| span["attributes"]["cloudevents.event_id"] == id)
    }
}

/// A server that exports to this endpoint, quickly.
fn serve(folder: &Path, endpoint: &str, more: &[(&str, &str)]) -> Server {
    let mut variables = vec![
        ("OTEL_EXPORTER_OTLP_ENDPOINT", endpoint),
        ("OTEL_BSP_SCHEDULE_DELAY", "50"),
        ("KLAMBDA_LOG_FORMAT", "json"),
    ];
    variables.extend(more);
    Server::with(folder, &variables)
}

const ALL: (&str, &str) = ("OTEL_TRACES_SAMPLER", "parentbased_always_on");

fn put(url: String, document: &Value) {
    let mut answer = agent().put(url).send_json(document).expect("an answer");
    let status = answer.status().as_u16();
    assert!((200..300).contains(&status), "{status} {:?}", answer.body_mut().read_to_string());
}

fn subscribe(server: &Server, target: &str, kind: &str) {
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "orders"},
        "spec": {
            "target": {"url": target}, "ordering": "ordered", "filters": [{"exact": {"type": kind}}],
            "orderingPolicy": {"key": {"attribute": "source"}},
            "retry": {"attempts": 5, "backoff": "10ms", "maxBackoff": "20ms"},
        },
    });
    put(format!("{}/api/v1/subscriptions/orders", server.url), &document);
}

fn event(id: &str, kind: &str, traceparent: Option<&str>) -> Value {
    let mut event = json!({"specversion": "1.0", "id": id, "source": "/shop", "type": kind, "partitionkey": "k",
        "correlationid": "c-1", "data": {"n": 1}});
    if let Some(traceparent) = traceparent {
        event["traceparent"] = traceparent.into();
    }
    event
}

/// Sends one event, or several as a batch, with these headers.
fn send(server: &Server, body: &Value, headers: &[(&str, &str)]) -> u16 {
    let media =
        if body.is_array() { "application/cloudevents-batch+json" } else { "application/cloudevents+json" };
    let mut request = agent().post(format!("{}/api/v1/events", server.url)).content_type(media);
    for (name, value) in headers {
        request = request.header(*name, *value);
    }
    request.send(body.to_string()).expect("an answer").status().as_u16()
}

fn metrics(server: &Server, accept: &str) -> String {
    let request = agent().get(format!("{}/metrics", server.url)).header("accept", accept);
    request.call().expect("metrics").body_mut().read_to_string().expect("text")
}

fn counted(server: &Server, series: &str) -> f64 {
    let text = metrics(server, "text/plain");
    let line =
        text.lines().find(|line| line.starts_with(series)).unwrap_or_else(|| panic!("{series}: {text}"));
    line.rsplit(' ').next().and_then(|value| value.parse().ok()).expect("a number")
}

fn link(span: &Value) -> Value {
    json!({"trace": span["trace"], "span": span["span"]})
}

/// Checks that the calls for an event are children of the request that accepted it, in the trace of the producer.
fn check_one_trace(collector: &Collector, id: &str, attempts: usize) -> (Value, Vec<Value>) {
    let accept = collector.of_event(ACCEPT, id, 1).remove(0);
    let calls = collector.of_event(ATTEMPT, id, attempts);
    assert_eq!(calls.len(), attempts, "{calls:#?}");
    assert_eq!((&accept["trace"], &accept["parent"]), (&json!(TRACE), &json!("b7ad6b7169203331")));
    for call in &calls {
        assert_eq!((&call["trace"], &call["parent"]), (&accept["trace"], &accept["span"]), "{call:#}");
        assert!(call["attributes"]["klambda.wait_ms"].is_i64(), "{call:#}");
    }
    assert_eq!(accept["attributes"]["correlation.id"], "c-1");
    (accept, calls)
}

fn goes_over(endpoint: impl Fn(&Collector) -> (String, &'static str), protocol: &str) {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let receiver = Receiver::start(folder.path(), &[]);
    let (endpoint, name) = endpoint(&collector);
    let more = [
        ("OTEL_EXPORTER_OTLP_PROTOCOL", name),
        ("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20secret-7"),
        ("OTEL_SERVICE_NAME", "shop"),
        ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test"),
    ];
    let server = serve(folder.path(), &endpoint, &more);
    subscribe(&server, &receiver.url, "order.placed");
    assert_eq!(send(&server, &event("e1", "order.placed", Some(PRODUCER)), &[]), 202);
    let (accept, calls) = check_one_trace(&collector, "e1", 1);
    assert_eq!(
        (&accept["protocol"], &accept["authorization"]),
        (&json!(protocol), &json!("Bearer secret-7"))
    );
    assert_eq!((&accept["kind"], &calls[0]["kind"]), (&json!(2), &json!(3)), "a server and a client");
    let resource = &accept["resource"];
    assert_eq!(
        (&resource["service.name"], &resource["deployment.environment"]),
        (&json!("shop"), &json!("test"))
    );
    assert_eq!(accept["attributes"]["event.type"], "order.placed");
    let delivered = &receiver.received()[0];
    let ours = format!("00-{TRACE}-{}-01", calls[0]["span"].as_str().expect("an id"));
    assert_eq!(delivered["traceparent"], json!(ours), "{delivered:#}");
    assert_eq!(delivered["producerTraceparent"], json!(PRODUCER), "{delivered:#}");
    check_exemplars(&server, &calls[0]);
    assert!(!server.process.printed().contains("secret-7"), "a secret in the log");
}

fn check_exemplars(server: &Server, call: &Value) {
    let id = format!("trace_id=\"{TRACE}\",span_id=\"{}\"", call["span"].as_str().expect("an id"));
    let open = metrics(server, "application/openmetrics-text;version=1.0.0");
    for name in ["operator_event_processing_duration_seconds_bucket", "klambda_event_delivery_seconds_bucket"]
    {
        assert!(open.lines().any(|line| line.starts_with(name) && line.contains(&id)), "{name}: {open}");
    }
    assert!(
        open.lines()
            .any(|line| line.starts_with("klambda_accept_duration_seconds_bucket") && line.contains(TRACE))
    );
    assert!(!metrics(server, "text/plain").contains("trace_id"));
    assert!(counted(server, "klambda_spans_exported_total") >= 2.0);
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn http() {
    goes_over(|collector| (collector.http(), "http/protobuf"), "http");
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn grpc() {
    goes_over(|collector| (collector.grpc(), "grpc"), "grpc");
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn retries_are_attempts_of_one_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let dead = format!("http://127.0.0.1:{}/", free_port());
    let server = serve(folder.path(), &collector.http(), &[]);
    subscribe(&server, &dead, "order.placed");
    // The context of the request is that of an event without one.
    assert_eq!(send(&server, &event("e1", "order.placed", None), &[("traceparent", PRODUCER)]), 202);
    let (accept, calls) = check_one_trace(&collector, "e1", 3);
    let numbers: Vec<&Value> = calls.iter().map(|call| &call["attributes"]["klambda.attempt"]).collect();
    assert_eq!(numbers[..3], [&json!(1), &json!(2), &json!(3)]);
    assert!(calls.iter().all(|call| call["status"] == 2), "failed");
    // The same event again: skipped, and not the span that accepted it.
    assert_eq!(send(&server, &event("e1", "order.placed", Some(PRODUCER)), &[]), 200);
    let both = collector.of_event(ACCEPT, "e1", 2);
    assert_eq!(
        (&both[1]["attributes"]["klambda.result"], &both[1]["trace"]),
        (&json!("skipped"), &json!(TRACE))
    );
    assert_ne!(both[0]["span"], both[1]["span"]);
    let line = eventually("a log line", || {
        let printed = server.process.printed();
        let line = printed.lines().find(|line| line.contains("Duplicate event skipped")).map(str::to_owned);
        line.ok_or(printed)
    });
    let line: Value = serde_json::from_str(&line).expect("JSON");
    assert_eq!((&line["trace_id"], &line["span_id"]), (&json!(TRACE), &accept["span"]), "{line}");
    assert_eq!((&line["event_id"], &line["correlation_id"]), (&json!("e1"), &json!("c-1")), "{line}");
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn sampling_follows_the_producer_and_otherwise_the_share() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let receiver = Receiver::start(folder.path(), &[]);
    let server = serve(folder.path(), &collector.http(), &[]);
    subscribe(&server, &receiver.url, "order.placed");
    let unsampled = PRODUCER.replace("-01", "-00");
    let mut batch: Vec<Value> = (0..1000).map(|n| event(&format!("n{n}"), "order.placed", None)).collect();
    assert_eq!(send(&server, &json!(batch), &[]), 202);
    batch = (0..20).map(|n| event(&format!("u{n}"), "order.placed", Some(&unsampled))).collect();
    batch.push(event("last", "order.placed", Some(PRODUCER)));
    assert_eq!(send(&server, &json!(batch), &[]), 202);
    collector.of_event(ATTEMPT, "last", 1);
    let spans = collector.spans();
    let ids = |name: &str| -> BTreeSet<String> {
        let named = spans.iter().filter(|span| span["name"] == name);
        named
            .map(|span| span["attributes"]["cloudevents.event_id"].as_str().unwrap_or_default().to_owned())
            .collect()
    };
    let (accepted, called) = (ids(ACCEPT), ids(ATTEMPT));
    assert_eq!(accepted, called, "each part of a trace makes the same decision");
    assert!(!accepted.iter().any(|id| id.starts_with('u')), "the producer decided");
    assert!((40..200).contains(&accepted.len()), "a tenth of 1000: {}", accepted.len());
    let received = receiver.received();
    let of = |id: &str| received.iter().find(|delivery| delivery["id"] == id).expect("delivered");
    assert_eq!(of("u1")["traceparent"], json!(unsampled), "passed on");
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn a_batch_of_a_webhook_endpoint_is_linked() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let receiver = Receiver::start(folder.path(), &[]);
    let server = serve(folder.path(), &collector.grpc(), &[ALL, ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")]);
    let document = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": {"name": "partner"},
        "spec": {"url": receiver.url, "batch": {"maxEvents": 10}, "workflowKey": {"attribute": "partitionkey"}},
    });
    put(format!("{}/api/v1/webhooks/endpoints/partner", server.url), &document);
    let batch: Vec<Value> = (0..5).map(|n| event(&format!("e{n}"), "order.placed", None)).collect();
    assert_eq!(send(&server, &json!(batch), &[]), 202);
    let calls = collector.wait(ATTEMPT, 5, |span| span["attributes"]["klambda.subscription"].is_string());
    let several: Vec<&Value> =
        calls.iter().filter(|call| !call["attributes"]["klambda.batch_events"].is_null()).collect();
    assert!(several.len() >= 2, "no call had several events: {calls:#?}");
    let lead = several
        .iter()
        .find(|call| call["links"].as_array().is_some_and(|links| links.len() + 1 == several.len()));
    let lead = lead.unwrap_or_else(|| panic!("no span is linked with the others: {several:#?}"));
    for other in several.iter().filter(|other| other["span"] != lead["span"]) {
        assert_eq!(other["links"], json!([link(lead)]), "{other:#}");
        assert_ne!(other["trace"], lead["trace"]);
    }
}

const NODE: &str = "exports.handler = (event, context) => ({specversion: '1.0', type: 'seen.node', source: '/n', \
    data: {traceparent: context.traceparent, producer: event.traceparent}});";
const PYTHON: &str = "def handler(event, context):\n    return {'specversion': '1.0', 'type': 'seen.python', 'source': '/p', \
    'data': {'traceparent': context.traceparent, 'producer': event.traceparent}}\n";
const GO: &str = "package main\n\nimport (\n\t\"context\"\n\t\"klambda\"\n)\n\n\
    func handler(ctx context.Context, event klambda.Event) (any, error) {\n\
    \tseen := map[string]string{\"traceparent\": klambda.From(ctx).Traceparent, \"producer\": event.Extension(\"traceparent\")}\n\
    \treturn klambda.NewEvent(\"seen.go\", \"/g\", seen), nil\n}\n";

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn handlers_of_each_language_continue_the_trace_and_replies_are_linked() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let receiver = Receiver::start(folder.path(), &[]);
    let server = serve(folder.path(), &collector.http(), &[ALL]);
    support::shell::share_cache(&folder.path().join("data/functions"));
    for (name, language, code) in [("node", "nodejs", NODE), ("python", "python", PYTHON), ("go", "go", GO)] {
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction", "metadata": {"name": name},
            "spec": {
                "source": {"type": "inline", "inline": {"code": code}},
                "runtime": {"language": language, "handler": "index.handler"},
                "triggers": [{"filter": {"type": format!("call.{name}")}}],
            },
        });
        let url = format!("{}/api/v1/lambda/functions/{name}", server.url);
        put(format!("{url}?apply=true"), &document);
        eventually("the function is ready", || {
            let mut answer = agent().get(&url).call().map_err(|error| error.to_string())?;
            let seen: Value = answer.body_mut().read_json().map_err(|error| error.to_string())?;
            if seen["status"]["phase"] == "Ready" { Ok(()) } else { Err(format!("{seen:#}")) }
        });
        check_language(&server, &collector, &receiver, name);
    }
    for name in ["operator.reconcile", "operator.build.create", "operator.service.create"] {
        let spans = collector.wait(name, 3, |_| true);
        assert!(spans.iter().all(|span| span["attributes"]["function.phase"].is_string()), "{spans:#?}");
    }
    let first = collector.wait("operator.reconcile", 3, |span| span["parent"] == "");
    let build = collector.wait("operator.build.create", 3, |_| true);
    assert!(build.iter().all(|build| first.iter().any(|plan| plan["span"] == build["parent"])), "{build:#?}");
}

fn check_language(server: &Server, collector: &Collector, receiver: &Receiver, name: &str) {
    subscribe(server, &receiver.url, &format!("seen.{name}"));
    let id = format!("e-{name}");
    assert_eq!(send(server, &event(&id, &format!("call.{name}"), Some(PRODUCER)), &[]), 202);
    let (_, calls) = check_one_trace(collector, &id, 1);
    assert_eq!(calls[0]["attributes"]["function.name"], *name);
    let reply = eventually("the reply arrives", || {
        let received = receiver.received();
        let found = received.iter().find(|delivery| delivery["type"] == format!("seen.{name}")).cloned();
        found.ok_or_else(|| format!("{received:#?}"))
    });
    let ours = format!("00-{TRACE}-{}-01", calls[0]["span"].as_str().expect("an id"));
    let body: Value = serde_json::from_str(reply["body"].as_str().expect("a body")).expect("JSON");
    assert_eq!(body, json!({"traceparent": ours, "producer": PRODUCER}), "the handler sees both");
    assert_eq!(reply["producerTraceparent"], json!(ours), "the reply names its cause");
    let of_reply =
        collector.wait(ATTEMPT, 1, |span| span["attributes"]["event.type"] == format!("seen.{name}"));
    assert_eq!(of_reply[0]["links"], json!([link(&calls[0])]), "{:#}", of_reply[0]);
    assert_ne!(of_reply[0]["trace"], calls[0]["trace"]);
}

#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn a_killed_server_continues_the_trace() {
    let folder = tempfile::tempdir().expect("a folder");
    let collector = Collector::start(folder.path(), &[]);
    let server = serve(folder.path(), &collector.http(), &[]);
    let port = free_port();
    subscribe(&server, &format!("http://127.0.0.1:{port}/"), "order.placed");
    assert_eq!(send(&server, &event("e1", "order.placed", Some(PRODUCER)), &[]), 202);
    let accept = collector.of_event(ACCEPT, "e1", 1).remove(0);
    collector.of_event(ATTEMPT, "e1", 1);
    server.process.signal(rustix::process::Signal::KILL);
    drop(server);
    let address = format!("127.0.0.1:{port}");
    let receiver = Receiver::at(folder.path(), &address, &[]);
    let _server = serve(folder.path(), &collector.http(), &[]);
    let delivered = collector.wait(ATTEMPT, 1, |span| span["status"] == 0);
    assert_eq!((&delivered[0]["trace"], &delivered[0]["parent"]), (&json!(TRACE), &accept["span"]));
    let spans: BTreeSet<String> = collector.spans().iter().map(|span| span["span"].to_string()).collect();
    assert_eq!(spans.len(), collector.spans().len(), "no id twice");
    let ours = format!("00-{TRACE}-{}-01", delivered[0]["span"].as_str().expect("an id"));
    assert_eq!(receiver.received()[0]["traceparent"], json!(ours));
}

/// Neither a collector that is gone nor one that does not answer affects deliveries, and the queue is bounded.
#[test]
#[ignore = "needs the receiver: ./test installs it and runs this"]
fn a_dead_collector_has_no_effect_on_deliveries() {
    for hangs in [false, true] {
        let folder = tempfile::tempdir().expect("a folder");
        let collector = Collector::start(folder.path(), &["--hang"]);
        let gone = format!("http://127.0.0.1:{}", free_port());
        let endpoint = if hangs { collector.http() } else { gone };
        let receiver = Receiver::start(folder.path(), &[]);
        let few = [ALL, ("KLAMBDA_TRACES_QUEUE", "50"), ("OTEL_EXPORTER_OTLP_TIMEOUT", "2000")];
        let server = serve(folder.path(), &endpoint, &few);
        subscribe(&server, &receiver.url, "order.placed");
        for turn in 0..4 {
            let batch: Vec<Value> =
                (0..100).map(|n| event(&format!("{turn}-{n}"), "order.placed", None)).collect();
            assert_eq!(send(&server, &json!(batch), &[]), 202);
        }
        eventually("all events arrive", || match receiver.received().len() {
            400.. => Ok(()),
            count => Err(count.to_string()),
        });
        let full = counted(&server, "klambda_spans_dropped_total{reason=\"queue_full\"}");
        assert!(full > 0.0 && full < 800.0, "{full}");
        eventually("failed exports are counted", || {
            match counted(&server, "klambda_spans_dropped_total{reason=\"export_failed\"}") {
                count if count > 0.0 => Ok(()),
                count => Err(count.to_string()),
            }
        });
        assert!(server.process.printed().contains("Could not export traces"));
        let began = Instant::now();
        assert!(server.process.stop().success());
        assert!(began.elapsed() < Duration::from_secs(30), "the collector delays the end");
    }
}

#[test]
fn nothing_is_exported_without_an_endpoint_and_wrong_variables_are_named() {
    let folder = tempfile::tempdir().expect("a folder");
    let receiver = Receiver::start(folder.path(), &[]);
    let server = Server::start(folder.path());
    subscribe(&server, &receiver.url, "order.placed");
    assert_eq!(send(&server, &event("e1", "order.placed", None), &[("traceparent", PRODUCER)]), 202);
    let delivered = eventually("it arrives", || receiver.received().first().cloned().ok_or_else(String::new));
    assert_eq!(delivered["producerTraceparent"], Value::Null, "the event is not changed: {delivered:#}");
    assert_eq!(counted(&server, "klambda_spans_exported_total"), 0.0);
    drop(server);
    let mut command = Command::new(support::KLAMBDA);
    command.args(["serve", "--listen", "127.0.0.1:0", "--data"]).arg(folder.path().join("other"));
    command.env("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:1").env("OTEL_TRACES_SAMPLER", "sometimes");
    let output = command.output().expect("klambda");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success() && said.contains("OTEL_TRACES_SAMPLER") && said.contains("sometimes"),
        "{said}"
    );
}
