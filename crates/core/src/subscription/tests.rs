use super::*;
use crate::filter::Filter;
use crate::key::{Pointer, SequenceSource, Source};
use crate::time::Millis;
use proptest::prelude::*;
use serde_json::json;

fn with(spec: Value) -> Value {
    json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": { "name": "orders" }, "spec": spec })
}

fn minimal() -> Value {
    with(json!({ "target": { "url": "http://127.0.0.1:9000/" } }))
}

fn told(value: &Value) -> Vec<String> {
    Document::parse(value).expect_err("a document with faults").iter().map(ToString::to_string).collect()
}

#[test]
fn defaults_are_filled_in() {
    let document = Document::parse(&minimal()).expect("valid");
    assert_eq!(document.spec.ordering, Ordering::Unordered);
    assert_eq!(document.spec.retry, Retry::default());
    let mut expected = with(json!({
        "filters": [], "target": { "url": "http://127.0.0.1:9000/", "protocol": "http1" }, "from": "latest",
        "ordering": "unordered", "concurrency": 256, "idempotency": { "ttl": "24h" }, "sequenceTtl": "24h", "paused": false,
        "retry": { "attempts": 5, "backoff": "1s", "maxBackoff": "1m", "timeout": "30s" },
        "backlog": { "maxEvents": 10_000_000, "maxBytes": "10Gi", "maxAge": "0s", "onFull": "lag" },
        "deadLetters": { "maxEvents": 50_000, "ttl": "7d", "overflow": "drop-head" },
    }));
    expected["metadata"]["namespace"] = "default".into();
    assert_eq!(document.to_json(), expected);
}

#[test]
fn a_function_takes_the_place_of_a_url() {
    let name = format!("lambda.{}.{}", "n".repeat(63), "f".repeat(63));
    let mut value =
        with(json!({ "target": { "function": { "namespace": "n".repeat(63), "name": "f".repeat(63) } } }));
    value["metadata"]["name"] = name.as_str().into();
    let document = Document::parse(&value).expect("valid");
    assert!(Document::is_managed(&name) && !Document::is_managed("lambdas.orders"));
    assert_eq!(document.to_json()["spec"]["target"], value["spec"]["target"]);
    assert_eq!(Document::parse(&document.to_stored_json()), Ok(document));
    let both = with(json!({ "target": { "url": "http://h/", "function": { "namespace": "a.b" } } }));
    assert_eq!(
        told(&both),
        [
            "spec.target.function.name: missing",
            "spec.target.function.namespace: must have 1 to 63 of the characters a-z, 0-9 and -, and must begin and end with a letter or digit",
            "spec.target.url: cannot be combined with function",
        ]
    );
    let mut long = minimal();
    long["metadata"]["name"] = "n".repeat(64).into();
    assert_eq!(told(&long).len(), 1);
}

#[test]
fn the_documented_example_reads() {
    let document = Document::parse(&with(json!({
        "filters": [{ "prefix": { "type": "order." } }],
        "target": { "url": "http://127.0.0.1:9000/", "headers": { "x-team": "shop" } },
        "from": "latest",
        "ordering": "ordered",
        "orderingPolicy": {
            "key": { "attribute": "partitionkey" },
            "sequence": { "attribute": "sequence" },
            "strict": false,
            "gap": { "timeout": "30s", "action": "skip" },
            "buffer": { "maxEvents": 1000, "maxBytes": "16Mi" },
            "onFailure": "park",
        },
        "retry": { "attempts": 5, "backoff": "1s", "maxBackoff": "60s", "timeout": "30s" },
        "concurrency": 256,
        "idempotency": { "ttl": "24h" },
    })));
    let spec = document.expect("valid").spec;
    let expected = OrderingPolicy {
        key: Source::Attribute("partitionkey".into()),
        sequence: Some(SequenceRule {
            source: SequenceSource::Attribute("sequence".into()),
            start: Start::Auto,
        }),
        ..OrderingPolicy::default()
    };
    assert_eq!(spec.policy, expected);
}

#[test]
fn all_faults_are_told_at_once() {
    let faults = told(&json!({
        "apiVersion": "v1", "kind": KIND, "metadata": { "name": "Orders" }, "sepc": {},
        "spec": {
            "filters": [{ "exact": { "type": "" } }],
            "target": {
                "url": "https://u:p@h/", "protocol": "http2",
                "headers": { "ce-id": "x", "Host": "h", "x-a": "***", "x-b": { "flie": "f" }, "bad name": "x" },
                "tls": { "certFile": "/c" },
            },
            "from": "yesterday",
            "ordering": "orderd",
            "retry": { "attempts": 0, "backoff": "1x", "timeout": "2h", "maxBackof": "1s" },
            "concurrency": 0,
            "idempotency": "24h",
            "backlog": { "maxBytes": true },
            "paused": "no",
        },
    }));
    let expected = [
        "apiVersion: must be lambda.knative.io/v1alpha1",
        "metadata.name: must have 1 to 63 of the characters a-z, 0-9, - and ., and must begin and end with a letter or digit",
        "sepc: unknown field `sepc`: did you mean `spec`?",
        "spec.backlog.maxBytes: must be a size, such as 16Mi",
        "spec.concurrency: must be between 1 and 65536",
        "spec.filters[0].exact.type: must not be empty",
        "spec.from: must be latest, earliest or an RFC 3339 time, such as 2026-08-01T12:00:00Z",
        "spec.idempotency: must be an object",
        "spec.ordering: unknown value `orderd`: did you mean `ordered`?",
        "spec.paused: must be true or false",
        "spec.retry.attempts: must be a whole number from 1, or unlimited",
        "spec.retry.backoff: `1x` is not a duration: write 500ms, 30s, 1m30s, 24h or 7d",
        "spec.retry.maxBackof: unknown field `maxBackof`: did you mean `maxBackoff`?",
        "spec.retry.timeout: must be between 1ms and 1h",
        "spec.target.headers.Host: this header is set by the delivery and cannot be changed",
        "spec.target.headers.bad name: not a valid header name",
        "spec.target.headers.ce-id: headers that begin with ce- are reserved for the event",
        "spec.target.headers.x-a: *** is the placeholder for a hidden value; send the value itself",
        "spec.target.headers.x-b: must be a string, {\"file\": \"/path\"} or {\"env\": \"NAME\"}",
        "spec.target.protocol: unknown value `http2`: did you mean `http1`?",
        "spec.target.tls.keyFile: missing: a client certificate requires its key",
        "spec.target.url: must not contain a user or password; send them in a header from a file or the environment",
    ];
    assert_eq!(faults, expected);
}

#[test]
fn what_does_not_belong_together_is_refused() {
    let target = json!({ "url": "http://h/" });
    let policy =
        |policy: Value| with(json!({ "target": target, "ordering": "ordered", "orderingPolicy": policy }));
    let cases = [
        (json!({}), "apiVersion: missing"),
        (with(json!({})), "spec.target: missing: must be an object with at least a url"),
        (with(json!({ "target": {} })), "spec.target.url: missing"),
        (
            with(json!({ "target": target, "orderingPolicy": { "strict": true } })),
            "spec.orderingPolicy: requires ordering: ordered; set ordering or remove orderingPolicy",
        ),
        (policy(json!({ "key": {} })), "spec.orderingPolicy.key: must have an attribute or a pointer"),
        (
            policy(json!({ "sequence": { "start": 3 } })),
            "spec.orderingPolicy.sequence: must have an attribute or a pointer",
        ),
        (
            policy(json!({ "key": { "pointer": "a" } })),
            "spec.orderingPolicy.key.pointer: a JSON pointer must begin with /, such as /order/id",
        ),
        (
            policy(json!({ "key": { "pointer": "/a", "attribute": "b" } })),
            "spec.orderingPolicy.key: specify either attribute or pointer, not both",
        ),
        (
            with(json!({ "target": { "url": "https://h/", "protocol": "h2c" } })),
            "spec.target.protocol: h2c is HTTP/2 without TLS and requires an http:// URL",
        ),
        (
            with(json!({ "target": { "url": "http://h/", "tls": { "caFile": "/ca" } } })),
            "spec.target.tls: requires an https:// URL",
        ),
        (
            with(json!({ "target": target, "retry": { "backoff": "10s", "maxBackoff": "1s" } })),
            "spec.retry.maxBackoff: must not be shorter than backoff",
        ),
    ];
    for (document, expected) in cases {
        assert_eq!(told(&document)[0], expected);
    }
    let slow = with(json!({ "target": target, "retry": { "backoff": "5m" } }));
    assert_eq!(Document::parse(&slow).expect("valid").spec.retry.max_backoff_ms, 300_000);
}

#[test]
fn limits_hold_to_the_byte() {
    let url = |length: usize| format!("http://127.0.0.1/{}", "x".repeat(length - 17));
    let of_url = |length: usize| with(json!({ "target": { "url": url(length) } }));
    assert!(Document::parse(&of_url(4096)).is_ok());
    assert!(told(&of_url(4097))[0].contains("longer than 4096 bytes"));
    let of_headers = |count: usize, length: usize| {
        let headers: serde_json::Map<String, Value> =
            (0..count).map(|n| (format!("x-{n}"), "v".repeat(length).into())).collect();
        with(json!({ "target": { "url": url(20), "headers": headers } }))
    };
    assert!(Document::parse(&of_headers(64, 8192)).is_ok());
    for count in [65, 70] {
        assert!(told(&of_headers(count, 1))[0].contains("at most 64 members"));
    }
    for length in [8193, 9000] {
        assert!(told(&of_headers(1, length))[0].contains("longer than 8192 bytes"));
    }
    let ttl = |ttl: &str| with(json!({ "target": { "url": url(20) }, "sequenceTtl": ttl }));
    assert!(Document::parse(&ttl("3650d")).is_ok() && Document::parse(&ttl("3700d")).is_err());
}

#[test]
fn one_mistake_is_told_once() {
    let two = json!({ "url": "http://127.0.0.1/", "headers": { "x-a": { "file": "/a", "env": "B" } } });
    assert_eq!(told(&with(json!({ "target": two }))).len(), 1);
    for target in [json!({ "url": 5 }), json!({})] {
        let faults = told(&with(json!({ "target": target })));
        assert_eq!(faults.len(), 1, "{faults:?}");
    }
}

#[test]
fn secrets_are_stored_but_not_shown() {
    let headers = json!({ "Authorization": "Bearer x", "x-api-key": { "env": "KEY" }, "x-team": "shop", "x-f": { "file": "/f" } });
    let document = Document::parse(&with(json!({ "target": { "url": "http://h/", "headers": headers } })))
        .expect("valid");
    let shown = document.to_json();
    let expected = json!({ "authorization": "***", "x-api-key": { "env": "KEY" }, "x-team": "shop", "x-f": { "file": "/f" } });
    assert_eq!(shown["spec"]["target"]["headers"], expected);
    assert!(Document::parse(&shown).is_err());
    assert_eq!(document.to_stored_json()["spec"]["target"]["headers"]["authorization"], "Bearer x");
    assert!(!format!("{document:?}").contains("Bearer"));
}

#[test]
fn what_is_hidden_stays_where_it_was() {
    let target = |url: &str, headers: Value| with(json!({ "target": { "url": url, "headers": headers } }));
    let secrets = json!({ "Authorization": "Bearer x", "x-token": "***t" });
    let before = Document::parse(&target("http://h:1/a", secrets)).expect("valid");
    let shown = before.to_json();
    assert_eq!(Document::given(&shown, Some(&before)).expect("the same again"), before);
    let headers = json!({ "AUTHORIZATION": "***", "x-token": "new" });
    let changed = Document::given(&target("http://h:1/b", headers), Some(&before)).expect("valid");
    let stored = &changed.to_stored_json()["spec"]["target"]["headers"];
    assert_eq!(*stored, json!({ "authorization": "Bearer x", "x-token": "new" }));
    for (url, name) in
        [("http://h:2/a", "authorization"), ("https://h:1/a", "authorization"), ("http://h:1/a", "cookie")]
    {
        let elsewhere = target(url, json!({ name: "***" }));
        assert!(Document::given(&elsewhere, Some(&before)).is_err(), "{elsewhere}");
    }
    assert!(Document::given(&shown, None).is_err());
}

#[test]
fn no_event_has_data_for_an_attribute() {
    let policy = json!({ "key": { "attribute": "data" }, "sequence": { "attribute": "data" } });
    let spec = json!({ "target": { "url": "http://h/" }, "ordering": "ordered", "orderingPolicy": policy });
    let faults = Document::given(&with(spec.clone()), None).expect_err("refused");
    let paths: Vec<&str> = faults.iter().map(|fault| fault.path.as_str()).collect();
    assert_eq!(paths, ["spec.orderingPolicy.key.attribute", "spec.orderingPolicy.sequence.attribute"]);
    assert!(Document::parse(&with(spec)).is_ok(), "a stored document stays readable");
    for name in ["data_base64", "Subject", "x-y", ""] {
        let policy = json!({ "key": { "attribute": name } });
        let spec =
            json!({ "target": { "url": "http://h/" }, "ordering": "ordered", "orderingPolicy": policy });
        assert!(Document::parse(&with(spec)).is_err(), "{name}");
    }
}

#[test]
fn what_the_server_added_may_come_back() {
    let mut value = minimal();
    value["status"] = json!({ "phase": "active" });
    value["metadata"]["createdAt"] = json!("2026-08-01T12:00:00Z");
    assert!(Document::parse(&value).is_ok());
}

#[test]
fn null_is_as_absent() {
    let target = json!({ "url": "http://h/", "function": null, "headers": { "x-a": null }, "tls": null });
    let policy =
        json!({ "key": null, "sequence": { "attribute": "n", "pointer": null, "start": null }, "gap": null });
    let with_nulls = with(json!({
        "filters": null, "target": target, "from": null, "ordering": "ordered", "orderingPolicy": policy,
        "retry": { "attempts": null, "backoff": "5m", "maxBackoff": null }, "concurrency": null, "sequenceTtl": null,
        "idempotency": { "ttl": null }, "backlog": null, "deadLetters": null, "paused": null,
    }));
    let without = with(json!({
        "target": { "url": "http://h/" }, "ordering": "ordered", "orderingPolicy": { "sequence": { "attribute": "n" } },
        "retry": { "backoff": "5m" },
    }));
    assert_eq!(Document::parse(&with_nulls), Document::parse(&without));
    assert!(Document::parse(&without).is_ok());
}

#[test]
fn an_epoch_is_ordering_key_and_sequence() {
    let document = |spec: Value| {
        let mut all = json!({ "target": { "url": "http://h/" }, "ordering": "ordered" });
        all.as_object_mut().expect("object").extend(spec.as_object().expect("object").clone());
        Document::parse(&with(all)).expect("valid")
    };
    let base = document(json!({}));
    assert!(
        !base.epoch_differs(&document(json!({ "concurrency": 1, "orderingPolicy": { "strict": true } })))
    );
    assert!(base.epoch_differs(&document(json!({ "ordering": "unordered" }))));
    assert!(base.epoch_differs(&document(json!({ "orderingPolicy": { "key": { "pointer": "/a" } } }))));
    assert!(
        base.epoch_differs(&document(
            json!({ "orderingPolicy": { "sequence": { "attribute": "sequence" } } })
        ))
    );
}

fn attribute_or_pointer() -> impl Strategy<Value = Result<String, Pointer>> {
    prop_oneof![
        "[a-z0-9]{1,8}".prop_map(Ok),
        "(/([a-z]|~0|~1){0,4}){0,3}".prop_map(|text| Err(Pointer::parse(&text).expect("pointer"))),
    ]
}

fn policy() -> impl Strategy<Value = OrderingPolicy> {
    let key = prop::option::of(attribute_or_pointer()).prop_map(|place| match place {
        None => Source::Default,
        Some(Ok(name)) => Source::Attribute(name),
        Some(Err(pointer)) => Source::Pointer(pointer),
    });
    let sequence = prop::option::of(attribute_or_pointer().prop_map(|place| match place {
        Ok(name) => SequenceSource::Attribute(name),
        Err(pointer) => SequenceSource::Pointer(pointer),
    }));
    let start = prop_oneof![Just(Start::Auto), Just(Start::First), (0..u64::MAX).prop_map(Start::At)];
    let gap = (1..=1_000_000_000u64, prop_oneof![Just(GapAction::Skip), Just(GapAction::Park)]);
    let failure = prop_oneof![Just(OnFailure::Skip), Just(OnFailure::Park)];
    (key, sequence, start, any::<bool>(), gap, 1..=1000u64, 1024..=1u64 << 40, failure).prop_map(
        |(key, source, start, strict, (timeout_ms, action), events_max, bytes_max, on_failure)| {
            OrderingPolicy {
                key,
                sequence: source.map(|source| SequenceRule { source, start }),
                strict,
                gap: Gap { timeout_ms, action },
                buffer: Buffer { events_max, bytes_max },
                on_failure,
            }
        },
    )
}

fn target() -> impl Strategy<Value = Target> {
    let value = prop_oneof![
        "[!-~]{1,8}( [!-~]{1,4})?".prop_map(HeaderValue::Literal),
        "/[a-z]{1,8}".prop_map(HeaderValue::File),
        "[A-Z_]{1,8}".prop_map(HeaderValue::Env),
    ];
    let headers = prop::collection::btree_map("x-[a-z]{1,6}|authorization|cookie", value, 0..4);
    let urls = prop_oneof![
        Just(("http", Protocol::Http1)),
        Just(("http", Protocol::H2c)),
        Just(("https", Protocol::Http1))
    ];
    (urls, "[a-z]{1,8}(:[1-9][0-9]{0,3})?(/[a-z]{0,4})?", headers, any::<bool>()).prop_map(
        |((scheme, protocol), rest, headers, files)| {
            let file = (files && scheme == "https").then(|| "/f".to_owned());
            let tls = Tls { ca_file: file.clone(), cert_file: file.clone(), key_file: file };
            Target::Url(UrlTarget {
                url: format!("{scheme}://{rest}"),
                headers: headers.into_iter().collect(),
                protocol,
                tls,
            })
        },
    )
}

prop_compose! {
    fn document()(
        name in "[a-z]([a-z0-9.-]{0,10}[a-z0-9])?",
        target in target(),
        from in prop_oneof![Just(From::Latest), Just(From::Earliest), (0..4_000_000_000_000u64).prop_map(|ms| From::Time(Millis(ms)))],
        policy in prop::option::of(policy()),
        attempts in prop::option::of(1..u32::MAX),
        backoff_ms in 1..=3_600_000u64,
        more_ms in 0..=3_600_000u64,
        concurrency in 1..=65_536u32,
        ttl in 1..=1_000_000_000u64,
        sequence_ttl_ms in 0..=1_000_000_000u64,
        (bytes_max, age_max_ms, on_full, overflow, paused) in (
            1024..=1u64 << 60,
            0..=1_000_000_000u64,
            prop_oneof![Just(OnFull::Lag), Just(OnFull::Reject), Just(OnFull::Drop)],
            prop_oneof![Just(Overflow::DropHead), Just(Overflow::Reject)],
            any::<bool>(),
        ),
    ) -> Document {
        let filters = vec![Filter::Not(Box::new(Filter::Any(vec![Filter::Exact(vec![("type".into(), name.clone())])])))];
        Document { namespace: "shop".into(), name, spec: Spec {
            filters,
            target,
            from,
            ordering: if policy.is_some() { Ordering::Ordered } else { Ordering::Unordered },
            policy: policy.unwrap_or_default(),
            retry: Retry { attempts, backoff_ms, max_backoff_ms: backoff_ms + more_ms, timeout_ms: backoff_ms },
            concurrency,
            idempotency: Idempotency { ttl_ms: ttl },
            sequence_ttl_ms,
            backlog: Backlog { events_max: ttl, bytes_max, age_max_ms, on_full },
            dead_letters: DeadLetters { events_max: ttl, ttl_ms: ttl, overflow },
            paused,
        } }
    }
}

proptest! {
    #[test]
    fn what_is_stored_reads_back(document in document()) {
        prop_assert_eq!(Document::parse(&document.to_stored_json()), Ok(document));
    }

    #[test]
    fn no_document_panics(value in crate::arbitrary::json(), field in prop::sample::select(vec!["filters", "target", "retry", "orderingPolicy"])) {
        let mut spec = json!({ "target": { "url": "http://h/" }, "ordering": "ordered" });
        spec[field] = value.clone();
        let _ = (Document::parse(&with(spec)), Document::parse(&value));
    }
}
