//! The 17 event types: each emitted event parses as its type, and received commands act.

use crate::platform::Platform;
use crate::{created, git};
use klambda_core::event::{Data as EventData, Event, Form as DataForm};
use klambda_core::kinds::EventKind;
use klambda_core::time::Millis;
use klambda_functions::events::{
    Command, Data, Identity, Named, ParserStatus, build_event, command, kind_of, parse_data,
};
use klambda_functions::resource::{Form, ResourceKind};
use klambda_functions::write;
use serde_json::{Value, json};

fn event(kind: &str, data: &Value) -> Event {
    let data = EventData { bytes: data.to_string().into(), form: DataForm::Json };
    Event { id: "1".into(), source: "/s".into(), kind: kind.into(), attributes: vec![], data: Some(data) }
}

fn asked(kind: &str, data: Value) -> Command {
    command(&event(kind, &data), "default").unwrap().unwrap()
}

fn told(kind: &str, data: Value) -> Vec<String> {
    command(&event(kind, &data), "default").unwrap_err().iter().map(ToString::to_string).collect()
}

fn hello() -> Named {
    Named { kind: ResourceKind::LambdaFunction, namespace: "default".into(), name: "hello".into() }
}

#[test]
fn what_is_emitted_reads_as_its_type() {
    let mut platform = Platform::new(created(&git("https://h/shop.git")));
    platform.settle();
    platform.resource = Some(write::delete(platform.resource(), platform.now));
    platform.settle();
    for event in &platform.events {
        let kind = EventKind::parse(&event.kind).unwrap();
        let data: Value = serde_json::from_slice(&event.data.as_ref().unwrap().bytes).unwrap();
        let parsed = parse_data(kind, &data);
        assert!(parsed.is_ok(), "{kind:?}: {parsed:?}");
        assert_eq!(event.attribute("partitionkey").unwrap(), "default/hello");
        if let Ok(Data::Build(build)) = parsed {
            assert_eq!(build.build_id.len(), 32);
        }
    }
}

#[test]
fn every_type_has_its_data() {
    for kind in EventKind::ALL {
        let faults = parse_data(*kind, &json!({})).unwrap_err();
        assert!(!faults.is_empty(), "{kind:?}");
        assert_eq!(parse_data(*kind, &json!([])).unwrap_err()[0].to_string(), "data: must be an object");
    }
    let faults = parse_data(
        EventKind::StatusUpdated,
        &json!({ "function_name": 1, "phase": "Redy", "health_status": "ill" }),
    );
    let faults: Vec<String> = faults.unwrap_err().iter().map(ToString::to_string).collect();
    assert_eq!(
        faults,
        [
            "data.phase: unknown phase `Redy`: did you mean `Ready`?",
            "data.function_name: must be a string",
            "data.health_status: must be healthy, unhealthy or unknown",
        ]
    );
}

#[test]
fn the_same_transition_has_the_same_id() {
    let resource = created(&git("https://h/shop.git"));
    let made = |transition: u64, kind: EventKind| {
        build_event(&Identity::of(&resource, transition), kind, &json!({}), Millis(transition)).id
    };
    assert_eq!(made(1, EventKind::BuildStarted), made(1, EventKind::BuildStarted));
    assert_ne!(made(1, EventKind::BuildStarted), made(2, EventKind::BuildStarted));
    assert_ne!(made(1, EventKind::BuildStarted), made(1, EventKind::BuildFailed));
}

#[test]
fn received_events_act() {
    let spec = json!({ "source": { "minio": { "bucket": "code", "key": "a.zip" } }, "runtime": { "language": "nodejs" } });
    let Command::Create { form, document } = asked("lambda.function.created", json!({ "spec": spec })) else {
        panic!("not a creation");
    };
    assert_eq!(form, Form::Body(ResourceKind::LambdaFunction));
    assert_eq!(write::create(&document, form, crate::birth(1)).unwrap().metadata.name, "a");
    let agent = asked(
        "lambda.function.created",
        json!({ "kind": "LambdaAgent", "name": "a", "namespace": "n", "spec": {} }),
    );
    let expected = json!({ "metadata": { "name": "a", "namespace": "n" }, "spec": {} });
    assert_eq!(agent, Command::Create { form: Form::Body(ResourceKind::LambdaAgent), document: expected });

    let change = json!({ "scaling": { "maxReplicas": 2 } });
    let update = asked("lambda.function.updated", json!({ "name": "hello", "spec": change }));
    assert_eq!(update, Command::Update { named: hello(), body: json!({ "spec": change }) });
    let deletion = asked("lambda.function.deleted", json!({ "metadata": { "name": "hello" } }));
    assert_eq!(deletion, Command::Delete { named: hello() });

    let build = json!({ "function_name": "hello" });
    for start in ["lambda.build.started", "network.notifi.lambda.build.start"] {
        assert_eq!(asked(start, build.clone()), Command::Rebuild { named: hello() });
    }
    assert_eq!(asked("lambda.build.stopped", build.clone()), Command::StopBuilds { named: hello() });
    assert_eq!(asked("lambda.build.cancelled", build), Command::CancelBuild { named: hello() });

    let parser = json!({ "function_name": "hello", "parser_id": "p", "execution_id": "e" });
    for start in ["lambda.parser.started", "network.notifi.lambda.parser.start"] {
        let Command::RunParser { named, parser } = asked(start, parser.clone()) else { panic!("no parser") };
        assert_eq!((named, parser.status), (hello(), ParserStatus::Started));
    }
    assert!(matches!(asked("lambda.parser.failed", parser), Command::ParserEnded { .. }));
    for silent in
        ["lambda.build.completed", "lambda.service.created", "lambda.status.updated", "order.placed"]
    {
        assert_eq!(command(&event(silent, &json!("x")), "default"), Ok(None), "{silent}");
    }
    assert_eq!(kind_of("lambda.health.check"), Some(EventKind::HealthCheck));
}

#[test]
fn invalid_data_is_told() {
    assert_eq!(
        told("lambda.function.created", json!({ "kind": "Function" })),
        [
            "data.kind: unknown kind `Function`: expected one of LambdaFunction, LambdaAgent",
            "data.spec: missing",
        ]
    );
    assert_eq!(told("lambda.function.deleted", json!({})), ["data.name: missing"]);
    assert_eq!(told("lambda.build.started", json!({ "function_name": "A b", "namespace": "-" })).len(), 2);
    assert_eq!(
        told("lambda.parser.started", json!({ "status": "failed" })),
        [
            "data.status: must be started in an event of this type",
            "data.parser_id: missing",
            "data.function_name: missing",
            "data.execution_id: missing",
        ]
    );
    assert_eq!(told("lambda.build.started", json!([1])), ["data: must be an object"]);
    let bogus = json!({ "function_name": "evf", "build_id": 7, "status": "bogus", "duration_seconds": "x", "who": 1 });
    for kind in ["started", "cancelled", "stopped"] {
        assert_eq!(
            told(&format!("lambda.build.{kind}"), bogus.clone()),
            [
                format!("data.status: must be {kind} in an event of this type"),
                "data.build_id: must be a string".to_owned(),
                "data.duration_seconds: must be a number of at least 0".to_owned(),
                "data.who: unknown member `who`: expected one of function_name, namespace, kind, build_id, job_name, \
                 image_uri, status, error, duration_seconds"
                    .to_owned(),
            ]
        );
    }
    // The faults of a function and of the data around it are reported together.
    let created =
        json!({ "nmae": "f", "name": "A b", "status": 1, "spec": { "source": { "type": "inlin" }, "x": 1 } });
    assert_eq!(
        told("lambda.function.created", created)
            .iter()
            .map(|fault| &fault[..fault.find(':').unwrap()])
            .collect::<Vec<_>>(),
        ["data.status", "data.name", "data.spec.source.type", "data.spec.x", "data.nmae"]
    );
    assert_eq!(
        told("lambda.function.updated", json!({ "name": "f", "spec": [], "metadata": 1, "stat": 1 })),
        [
            "data.metadata: must be an object",
            "data.spec: must be an object",
            "data.stat: unknown member `stat`: did you mean `status`?",
        ]
    );
}
