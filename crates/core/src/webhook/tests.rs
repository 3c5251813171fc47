use super::*;
use crate::scalar::Duration;

fn document(spec: Value) -> Value {
    json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": {"name": "partner"}, "spec": spec })
}

#[test]
fn the_defaults_are_those_of_the_reference() {
    let endpoint = Document::parse(&document(json!({"url": "https://p.example/hooks"}))).expect("valid");
    let subscription = endpoint.subscription();
    assert_eq!(subscription.name, "webhook.partner");
    assert_eq!(subscription.spec.ordering, Ordering::Ordered);
    assert_eq!(subscription.spec.retry.attempts, Some(10));
    let filters = json!(subscription.spec.filters);
    assert_eq!(filters, json!([{"not": {"prefix": {"type": "lambda."}}}]));
    assert_eq!(Document::of(&subscription), Some(endpoint));
}

#[test]
fn a_document_survives_the_log() {
    let spec = json!({
        "url": "https://p.example/hooks", "types": ["order.*", "refund"], "workflowKey": {"attribute": "subject"},
        "payload": {"form": "cloudevents", "pick": {"id": "/order/id"}}, "signature": "ed25519",
        "headers": {"x-api-key": {"secret": "partner", "key": "api-key"}},
        "tls": {"clientCertificate": {"secret": "partner-tls"}, "ca": {"secret": "partner-tls", "key": "own-ca"}},
        "orderingPolicy": {"sequence": {"attribute": "sequence"}, "strict": true},
        "retry": {"schedule": ["0s", "1s", "1d"], "timeout": "5s"}, "concurrency": 4, "disableAfter": "1h",
        "batch": {"maxEvents": 100, "maxBytes": "64Ki"},
    });
    let endpoint = Document::parse(&document(spec)).expect("valid");
    let stored = endpoint.subscription().to_stored_json();
    let read = subscription::Document::parse(&stored).expect("readable");
    assert_eq!(read, endpoint.subscription());
    assert_eq!(Document::of(&read), Some(endpoint.clone()));
    assert_eq!(Document::parse(&endpoint.to_json()), Ok(endpoint));
}

#[test]
fn all_faults_are_reported_at_once() {
    let spec = json!({
        "url": "ftp://x", "types": ["a*b", ""], "ordering": "unordered", "orderingPolicy": {},
        "headers": {"host": {"secret": "a", "key": "b"}}, "retry": {"schedule": ["8d"]}, "workflow": 1,
        "payload": {"pick": {"a": "b"}}, "batch": {"maxBytes": "64Ki"},
        "tls": {"ca": {"secret": "Partner"}, "clientCertificate": {}},
    });
    let faults = Document::parse(&document(spec)).expect_err("invalid");
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    for path in [
        "spec.url",
        "spec.types[0]",
        "spec.types[1]",
        "spec.orderingPolicy",
        "spec.batch",
        "spec.batch.maxEvents",
        "spec.headers.host",
        "spec.retry.schedule[0]",
        "spec.workflow",
        "spec.payload.pick.a",
        "spec.tls",
        "spec.tls.ca.secret",
        "spec.tls.clientCertificate.secret",
    ] {
        assert!(paths.contains(&path), "{path} is missing in {faults:?}");
    }
}

/// Earlier versions sent platform events to endpoints without types.
#[test]
fn the_filters_of_a_stored_endpoint_follow_from_its_types() {
    let endpoint = Document::parse(&document(json!({"url": "https://p.example/"}))).expect("valid");
    let mut stored = endpoint.subscription().to_stored_json();
    stored["spec"]["filters"] = json!([]);
    assert_eq!(subscription::Document::parse(&stored), Ok(endpoint.subscription()));
}

#[test]
fn every_secret_that_calls_need_is_known() {
    let spec = json!({
        "url": "https://p.example/", "headers": {"x-key": {"secret": "partner", "key": "api-key"}},
        "tls": {"clientCertificate": {"secret": "mine"}, "ca": {"secret": "theirs"}},
    });
    let endpoint = Document::parse(&document(spec)).expect("valid").to_json();
    let named = needed(&endpoint["spec"]);
    let named: Vec<(&str, &str, &str)> =
        named.iter().map(|needed| (needed.path.as_str(), needed.secret, needed.key)).collect();
    assert_eq!(
        named,
        [
            ("headers.x-key", "partner", "api-key"),
            ("tls.clientCertificate", "mine", "tls.crt"),
            ("tls.clientCertificate", "mine", "tls.key"),
            ("tls.ca", "theirs", "ca.crt"),
        ]
    );
}

#[test]
fn a_star_means_every_type() {
    let spec = json!({"url": "https://p.example/", "types": ["*", "order.*"]});
    let endpoint = Document::parse(&document(spec)).expect("valid");
    assert!(endpoint.subscription().spec.filters.is_empty());
}

#[test]
fn a_schedule_has_at_least_the_first_attempt() {
    let spec = json!({"url": "https://p.example/", "retry": {"schedule": []}});
    let faults = Document::parse(&document(spec)).expect_err("invalid");
    assert_eq!(faults[0].path, "spec.retry.schedule");
}

#[test]
fn the_schedule_is_followed_with_a_little_chance() {
    let retry = Retry { schedule: [0, 5, 100].map(Duration::from_secs).to_vec(), timeout_ms: 1 };
    for (failures, least, most) in [(1, 5000, 5500), (2, 100_000, 110_000), (9, 100_000, 110_000)] {
        for random in [0, 7, 12_345, u64::MAX] {
            let delay = retry.delay_ms(failures, None, random);
            assert!((least..=most).contains(&delay), "{delay} after {failures}");
        }
    }
    assert_eq!(retry.delay_ms(1, Some(60_000), 0), 60_000);
    assert_eq!(retry.delay_ms(1, Some(u64::MAX), 0), crate::retry::RETRY_AFTER_MS_MAX);
}
