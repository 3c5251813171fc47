//! The states that make the alerts fire, and the end of each cause.

use crate::instance::{Instance, Target};
use crate::monitor::Monitor;
use crate::small_disk::SmallDisk;
use crate::support::process::agent;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::Duration;

/// One alert. `trouble` is called again and again, with the number of the call, until the alert fires. `repair` ends the
/// cause; the runbook does the rest.
pub struct Case<'a> {
    pub alert: &'static str,
    /// Labels that tell the alert of this case from others.
    pub labels: Vec<(&'static str, String)>,
    pub variables: Vec<(&'static str, String)>,
    pub trouble: Box<dyn FnMut(u32) + Send + 'a>,
    pub repair: Box<dyn FnMut() + Send + 'a>,
}

/// A namespace of a server for one case.
#[derive(Clone)]
struct Place<'a> {
    server: &'a Instance,
    namespace: String,
}

impl<'a> Place<'a> {
    fn new(server: &'a Instance, alert: &str) -> Place<'a> {
        let namespace = alert.to_ascii_lowercase();
        server.klambda("default", &["namespace", "create", &namespace]);
        Place { server, namespace }
    }

    fn target(&self, status: &str, more: &[&str]) -> Target {
        Target::start(&self.server.folder.join(&self.namespace), status, more)
    }

    fn subscribe(&self, url: &str, more: &Value) {
        let mut spec = json!({ "target": { "url": url } });
        if let (Value::Object(spec), Value::Object(more)) = (&mut spec, more.clone()) {
            spec.extend(more);
        }
        self.server.apply(&self.namespace, "orders", "Subscription", &spec);
    }

    fn send(&self, words: &[&str]) {
        self.server.klambda(&self.namespace, &[&["event", "send", "--type", "order.placed"], words].concat());
    }

    fn function(&self, code: &str) {
        let spec = json!({
            "source": { "type": "inline", "inline": { "code": code } },
            "runtime": { "language": "nodejs" },
        });
        self.server.apply(&self.namespace, "hello", "LambdaFunction", &spec);
    }

    fn wait_until_ready(&self) {
        self.server.klambda(&self.namespace, &["wait", "function/hello", "--timeout", "2m"]);
    }

    fn case(
        self,
        alert: &'static str,
        (label, value): (&'static str, &str),
        trouble: impl FnMut(u32) + Send + 'a,
        repair: impl FnMut() + Send + 'a,
    ) -> Case<'a> {
        let variable = match label {
            "function_name" => "FUNCTION",
            _ => "SUBSCRIPTION",
        };
        Case {
            alert,
            labels: vec![("namespace", self.namespace.clone()), (label, value.to_owned())],
            variables: vec![
                ("KLAMBDA_SERVER", self.server.url()),
                ("KLAMBDA_NAMESPACE", self.namespace.clone()),
                (variable, value.to_owned()),
            ],
            trouble: Box::new(trouble),
            repair: Box::new(repair),
        }
    }
}

const ORDERS: (&str, &str) = ("subscription", "orders");
const HELLO: (&str, &str) = ("function_name", "hello");

/// Builds a case. It does so in its own thread, because a setup can take seconds.
pub type Setup<'a> = Box<dyn FnOnce() -> Case<'a> + Send + 'a>;

/// Cases of a server with its disk and a working network.
pub fn of_server(server: &Instance) -> Vec<Setup<'_>> {
    let all: [fn(&Instance) -> Case<'_>; 13] = [
        event_order_violation,
        duplicate_event_processing,
        high_dlq_depth,
        lane_parked,
        backlog_old,
        subscription_behind,
        events_dropped,
        circuit_breaker_open,
        endpoint_disabled,
        high_rate_limit_hits,
        build_job_failures,
        high_error_rate,
        high_latency,
    ];
    all.into_iter().map(|case| Box::new(move || case(server)) as Setup<'_>).collect()
}

fn event_order_violation(server: &Instance) -> Case<'_> {
    let alert = "EventOrderViolation";
    let place = Place::new(server, alert);
    let target = place.target("200", &[]);
    let policy =
        json!({ "strict": true, "sequence": { "attribute": "sequence" }, "gap": { "timeout": "1ms" } });
    place.subscribe(&target.url, &json!({ "ordering": "ordered", "orderingPolicy": policy }));
    let sender = place.clone();
    let trouble = move |n| {
        let key = format!("k{n}");
        for sequence in ["1", "3"] {
            sender.send(&["--key", &key, "--sequence", sequence]);
        }
        std::thread::sleep(Duration::from_millis(100));
        sender.send(&["--key", &key, "--sequence", "2"]);
    };
    place.case(alert, ORDERS, trouble, move || target.answer("200"))
}

fn duplicate_event_processing(server: &Instance) -> Case<'_> {
    let alert = "DuplicateEventProcessing";
    let place = Place::new(server, alert);
    let target = place.target("200", &[]);
    place.subscribe(&target.url, &json!({}));
    let sender = place.clone();
    let trouble = move |_| {
        for _ in 0..5 {
            sender.send(&["--id", "same"]);
        }
    };
    place.case(alert, ORDERS, trouble, move || target.answer("200"))
}

fn high_dlq_depth(server: &Instance) -> Case<'_> {
    let alert = "HighDLQDepth";
    let place = Place::new(server, alert);
    let target = place.target("422", &[]);
    place.subscribe(&target.url, &json!({}));
    place.send(&["--count", "120"]);
    place.case(alert, ORDERS, |_| {}, move || target.answer("200"))
}

fn lane_parked(server: &Instance) -> Case<'_> {
    let alert = "LaneParked";
    let place = Place::new(server, alert);
    let target = place.target("422", &[]);
    place.subscribe(&target.url, &json!({ "ordering": "ordered" }));
    place.send(&["--key", "k", "--count", "3"]);
    place.case(alert, ORDERS, |_| {}, move || target.answer("200"))
}

/// The target is slow, and the subscription calls it once at a time.
fn backlog_old(server: &Instance) -> Case<'_> {
    let alert = "BacklogOld";
    let place = Place::new(server, alert);
    let target = place.target("200", &["--delay", "2s"]);
    place.subscribe(&target.url, &json!({ "concurrency": 1 }));
    place.send(&["--count", "60"]);
    place.case(alert, ORDERS, |_| {}, move || target.answer("200"))
}

fn subscription_behind(server: &Instance) -> Case<'_> {
    let alert = "SubscriptionBehind";
    let place = Place::new(server, alert);
    let target = place.target("200", &[]);
    place.subscribe(&target.url, &json!({ "backlog": { "maxEvents": 5 }, "paused": true }));
    place.send(&["--count", "50"]);
    place.case(alert, ORDERS, |_| {}, move || target.answer("200"))
}

fn events_dropped(server: &Instance) -> Case<'_> {
    let alert = "EventsDropped";
    let place = Place::new(server, alert);
    let target = place.target("200", &[]);
    place.subscribe(&target.url, &json!({ "backlog": { "maxEvents": 5, "onFull": "drop" }, "paused": true }));
    let sender = place.clone();
    place.case(alert, ORDERS, move |_| sender.send(&["--count", "10"]), move || target.answer("200"))
}

fn circuit_breaker_open(server: &Instance) -> Case<'_> {
    let alert = "CircuitBreakerOpen";
    let place = Place::new(server, alert);
    let target = place.target("503", &[]);
    let retry = json!({ "attempts": "unlimited", "backoff": "100ms", "maxBackoff": "500ms" });
    place.subscribe(&target.url, &json!({ "retry": retry }));
    place.send(&["--count", "50"]);
    place.case(alert, ORDERS, |_| {}, move || target.answer("200"))
}

fn endpoint_disabled(server: &Instance) -> Case<'_> {
    let alert = "EndpointDisabled";
    let place = Place::new(server, alert);
    let target = place.target("410", &[]);
    server.klambda(&place.namespace, &["webhook", "create", "partner", "--url", &target.url]);
    place.send(&["--key", "k"]);
    let mut case =
        place.case(alert, ("subscription", "webhook.partner"), |_| {}, move || target.answer("200"));
    case.variables.push(("ENDPOINT", "partner".to_owned()));
    case
}

fn high_rate_limit_hits(server: &Instance) -> Case<'_> {
    let url = format!("{}/api/v1/lambda/functions/none", server.url());
    let client = agent();
    let trouble = move |_| {
        for _ in 0..30 {
            let _ = client.delete(&url).call();
        }
    };
    let endpoint = "/api/v1/lambda/functions/{name}";
    Case {
        alert: "HighRateLimitHits",
        labels: vec![("endpoint", endpoint.to_owned())],
        variables: vec![("KLAMBDA_SERVER", server.url())],
        trouble: Box::new(trouble),
        repair: Box::new(|| {}),
    }
}

fn build_job_failures(server: &Instance) -> Case<'_> {
    let alert = "BuildJobFailures";
    let place = Place::new(server, alert);
    place.function("exports.handler = (");
    let [builder, repairer] = [(); 2].map(|()| place.clone());
    let trouble = move |n| {
        builder.function(&format!("exports.handler = ( // {n}"));
        let wait = ["wait", "function/hello", "--for=Failed", "--timeout", "5s"];
        server.try_klambda(&builder.namespace, &wait);
    };
    place.case(alert, HELLO, trouble, move || repairer.function(WORKS))
}

const WORKS: &str = "exports.handler = () => ({ ok: true });";

/// Calls a function whose newest revision is bad. The one before works.
fn bad_revision<'a>(server: &'a Instance, alert: &'static str, bad: &str) -> Case<'a> {
    let place = Place::new(server, alert);
    place.function(WORKS);
    place.wait_until_ready();
    place.function(bad);
    place.wait_until_ready();
    let caller = place.clone();
    let trouble = move |_| {
        server.try_klambda(&caller.namespace, &["invoke", "hello"]);
    };
    place.case(alert, HELLO, trouble, || {})
}

fn high_error_rate(server: &Instance) -> Case<'_> {
    bad_revision(server, "LambdaFunctionHighErrorRate", "exports.handler = () => { throw new Error('no'); };")
}

fn high_latency(server: &Instance) -> Case<'_> {
    let slow = "exports.handler = () => new Promise((done) => setTimeout(() => done({}), 700));";
    bad_revision(server, "LambdaFunctionHighLatency", slow)
}

/// Both alerts on the delivery objective, for a server whose only target is slow.
pub fn of_slow_target(server: &Instance) -> Vec<Setup<'_>> {
    let place = Place::new(server, "objectives");
    let target = place.target("200", &["--delay", "2500ms"]);
    place.subscribe(&target.url, &json!({}));
    place.send(&["--count", "200"]);
    let target = Arc::new(target);
    let case = |alert: &'static str| {
        let (target, sender) = (Arc::clone(&target), place.clone());
        let case = Case {
            alert,
            labels: vec![("instance", server.address.clone())],
            variables: vec![("KLAMBDA_SERVER", server.url())],
            trouble: Box::new(move |_| sender.send(&["--count", "3"])),
            repair: Box::new(move || target.answer("200")),
        };
        Box::new(move || case) as Setup<'_>
    };
    ["DeliveryObjectiveFastBurn", "DeliveryObjectiveSlowBurn"].map(case).into()
}

/// Alerts of a server on a small disk, which a file fills.
pub fn of_full_disk<'a>(server: &'a Instance, disk: &'a SmallDisk) -> Vec<Setup<'a>> {
    let url = format!("{}/api/v1/events", server.url());
    let case = move |alert: &'static str, repair: Box<dyn FnMut() + Send + 'a>| {
        let url = url.clone();
        let trouble = move |n| {
            let event = json!({ "specversion": "1.0", "type": "a", "source": "/a", "id": format!("{alert}-{n}"),
                                "data": "x".repeat(500_000) });
            let request = agent().post(&url).header("content-type", "application/cloudevents+json");
            let _ = request.send(event.to_string());
        };
        let case = Case {
            alert,
            labels: vec![("instance", server.address.clone())],
            variables: vec![("KLAMBDA_SERVER", server.url())],
            trouble: Box::new(trouble),
            repair,
        };
        Box::new(move || case) as Setup<'a>
    };
    ["StoreFull", "DiskSpaceLow", "AcceptObjectiveFastBurn", "AcceptObjectiveSlowBurn"]
        .into_iter()
        .map(|alert| case(alert, Box::new(|| disk.grow_after(4))))
        .collect()
}

/// Alerts of a server with a small budget, whose function is built again and again after a quiet week.
pub fn of_cost<'a>(server: &'a Instance, monitor: &'a Monitor) -> Vec<Setup<'a>> {
    let place = Place::new(server, "cost");
    place.function(WORKS);
    let case =
        |alert: &'static str, label: (&'static str, &str), trouble: Box<dyn FnMut(u32) + Send + 'a>| {
            let mut case = place.clone().case(alert, HELLO, trouble, || {});
            case.labels = vec![(label.0, label.1.to_owned())];
            if label.0 != "namespace" {
                case.variables = vec![("KLAMBDA_SERVER", server.url())];
            }
            Box::new(move || case) as Setup<'a>
        };
    let builder = place.clone();
    let build = move |n| {
        if n == 0 {
            monitor.wait_for("klambda_cost_dollars_total offset 20s");
        }
        builder.function(&format!("{WORKS} // {n}"));
        builder.wait_until_ready();
    };
    vec![
        case("BudgetUsed", ("threshold", "80%"), Box::new(|_| {})),
        case("BudgetUsed", ("threshold", "90%"), Box::new(|_| {})),
        case("BudgetUsed", ("threshold", "100%"), Box::new(build)),
        case("CostAnomaly", ("instance", &server.address), Box::new(|_| {})),
        case("FunctionCostHigh", ("namespace", "cost"), Box::new(|_| {})),
    ]
}

pub fn server_down(server: &Instance) -> Setup<'_> {
    Box::new(move || Case {
        alert: "ServerDown",
        labels: vec![("instance", server.address.clone())],
        variables: vec![("KLAMBDA_SERVER", server.url())],
        trouble: Box::new(|n| {
            if n == 0 {
                server.stop();
            }
        }),
        repair: Box::new(|| server.start_again()),
    })
}
