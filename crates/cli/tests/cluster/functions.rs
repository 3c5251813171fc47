//! The life of a function: built, deployed, updated, healed, deleted.

use crate::harness::{Namespace, Operator, eventually, function};
use serde_json::{Value, json};
use std::time::Duration;

fn image(namespace: &Namespace, name: &str) -> String {
    let service = namespace.get("services.serving.knative.dev", name);
    let container = &service["spec"]["template"]["spec"]["containers"][0];
    container["image"].as_str().unwrap_or_default().to_owned()
}

fn reason(function: &Value, condition: &str) -> String {
    let conditions = function["status"]["conditions"].as_array().cloned().unwrap_or_default();
    let found = conditions.iter().find(|known| known["type"] == condition);
    found.map(|known| known["reason"].as_str().unwrap_or_default().to_owned()).unwrap_or_default()
}

#[test]
#[ignore = "needs a control plane"]
fn a_function_is_built_deployed_updated_healed_and_deleted() {
    let namespace = Namespace::new("life");
    let operator = Operator::start(&namespace);
    namespace.apply(&function("pay", "exports.handler = () => 1"));
    let ready = namespace.wait_phase("pay", "Ready");
    let first = image(&namespace, "pay");
    assert!(first.starts_with("registry.test/") && first.contains("@sha256:"), "{first}");
    assert_eq!(ready["status"]["buildStatus"]["imageURI"], first);
    assert_eq!(ready["status"]["serviceStatus"]["ready"], true);
    assert_eq!(namespace.list("jobs").len(), 1);
    let subscription =
        namespace.get("subscriptions.lambda.knative.io", &format!("lambda.{}.pay", namespace.name));
    assert_eq!(
        subscription["spec"]["target"]["url"],
        format!("http://pay.{}.svc.cluster.local", namespace.name)
    );
    nothing_is_written(&operator);
    update(&namespace, &first);
    drift(&namespace);
    namespace.kubectl(&["delete", "lambdafunction", "pay", "--timeout=60s"]).expect("deleted");
    eventually("everything is gone", || {
        let left = ["services.serving.knative.dev", "jobs", "subscriptions.lambda.knative.io", "configmaps"];
        let left: usize = left
            .iter()
            .map(|kind| {
                namespace
                    .list(kind)
                    .iter()
                    .filter(|object| object["metadata"]["name"] != "kube-root-ca.crt")
                    .count()
            })
            .sum();
        if left == 0 { Ok(()) } else { Err(format!("{left} objects")) }
    });
}

/// A function that does not change causes no write.
fn nothing_is_written(operator: &Operator) {
    // The statuses of Knative may still change for a moment.
    let mut before = operator.metric("operator_api_writes_total");
    eventually("no write in three seconds", || {
        std::thread::sleep(Duration::from_secs(3));
        let now = operator.metric("operator_api_writes_total");
        let was = std::mem::replace(&mut before, now);
        if now == was { Ok(()) } else { Err(format!("{} writes", now - was)) }
    });
}

fn update(namespace: &Namespace, first: &str) {
    namespace.apply(&function("pay", "exports.handler = () => 2"));
    eventually("the new version", || {
        let now = image(namespace, "pay");
        if now != first && !now.is_empty() { Ok(()) } else { Err(now) }
    });
    let ready = namespace.wait("pay", "generation 2 serves", |function| {
        function["status"]["phase"] == "Ready" && function["status"]["serviceStatus"]["generation"] == 2
    });
    assert_eq!(namespace.list("jobs").len(), 2);
    assert_eq!(ready["status"]["revisions"].as_array().map(Vec::len), Some(2));
}

fn drift(namespace: &Namespace) {
    let wanted = image(namespace, "pay");
    let patch = json!([{ "op": "replace", "path": "/spec/template/spec/containers/0/image", "value": "registry.test/evil@sha256:1111111111111111111111111111111111111111111111111111111111111111" }]);
    namespace
        .kubectl(&["patch", "services.serving.knative.dev", "pay", "--type=json", "-p", &patch.to_string()])
        .expect("patched");
    eventually("the image is right again", || {
        let now = image(namespace, "pay");
        if now == wanted { Ok(()) } else { Err(now) }
    });
    namespace.kubectl(&["delete", "services.serving.knative.dev", "pay", "--wait=true"]).expect("deleted");
    eventually("the service is back", || {
        let now = image(namespace, "pay");
        if now == wanted { Ok(()) } else { Err(now) }
    });
    namespace.wait_phase("pay", "Ready");
}

#[test]
#[ignore = "needs a control plane"]
fn failures_have_their_reasons() {
    let namespace = Namespace::new("fail");
    let _operator = Operator::start(&namespace);
    let mut stalls = function("a-outcome-stall", "x");
    stalls["spec"]["build"] = json!({ "timeout": "3s" });
    namespace.apply(&stalls);
    namespace.apply(&function("b-outcome-crash", "x"));
    namespace.apply(&json!({
        "apiVersion": "lambda.knative.dev/v1alpha1", "kind": "LambdaAgent", "metadata": { "name": "c" },
        "spec": { "source": { "type": "image", "image": { "uri": "registry.test/agent:1" } } },
    }));
    let timeout = namespace.wait_phase("a-outcome-stall", "Failed");
    assert_eq!(reason(&timeout, "BuildReady"), "BuildTimeout");
    eventually("the agent of the other group is ready", || {
        let agent = namespace.get("lambdaagents.lambda.knative.dev", "c");
        if agent["status"]["phase"] == "Ready" { Ok(()) } else { Err(agent["status"].to_string()) }
    });
    // The same name in the first group is taken.
    namespace.apply(&function("c", "x"));
    let taken = namespace.wait_phase("c", "Failed");
    assert_eq!(reason(&taken, "DeployReady"), "NameTaken");
    namespace.kubectl(&["delete", "lambdafunction", "c", "--timeout=60s"]).expect("deleted");
    assert_eq!(
        namespace.get("services.serving.knative.dev", "c")["metadata"]["name"],
        "c",
        "it is of the other"
    );
    let events = namespace.list("events");
    assert!(events.iter().any(|event| event["reason"] == "BuildTimeout"), "people are told");
}

/// The operator is killed again and again while functions roll out.
#[test]
#[ignore = "needs a control plane"]
fn kills_at_any_moment_end_in_the_same_state() {
    let namespace = Namespace::new("kill");
    let names: Vec<String> = (0..6).map(|number| format!("f{number}")).collect();
    for name in &names {
        namespace.apply(&function(name, "exports.handler = () => 1"));
    }
    let kills = std::env::var("KLAMBDA_TEST_KILLS").ok().and_then(|text| text.parse().ok()).unwrap_or(12);
    let mut seed = getrandom::u64().expect("random");
    eprintln!("seed {seed}");
    for kill in 0..kills {
        let mut operator = Operator::start(&namespace);
        // A killed leader leaves a lease that nobody may take for 15 seconds. Tests delete it.
        eventually("a leader", || if operator.leads() { Ok(()) } else { Err("no leader".into()) });
        seed = seed.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        std::thread::sleep(Duration::from_millis((seed >> 33) % 1500));
        operator.kill();
        let _ = namespace.kubectl(&["delete", "lease", "--all"]);
        if kill == kills / 2 {
            names.iter().for_each(|name| namespace.apply(&function(name, "exports.handler = () => 2")));
        }
    }
    let _operator = Operator::start(&namespace);
    for name in &names {
        let ready = namespace.wait(name, "generation 2 serves", |function| {
            function["status"]["phase"] == "Ready" && function["status"]["serviceStatus"]["generation"] == 2
        });
        assert_eq!(ready["status"]["buildStatus"]["imageURI"], image(&namespace, name));
    }
    let jobs = namespace.list("jobs").len();
    assert!(jobs <= 2 * names.len(), "{jobs} jobs for {} builds", 2 * names.len());
}
