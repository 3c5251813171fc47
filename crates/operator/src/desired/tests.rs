use super::*;
use crate::desired::build::Try;
use crate::read::read;
use crate::snapshot::name;
use std::sync::Arc;

fn resource(spec: Value) -> Resource {
    let object = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction",
        "metadata": { "name": "pay", "namespace": "shop", "uid": "u" }, "spec": spec,
    });
    let read = read(&object);
    assert!(read.faults.is_empty(), "{:?}", read.faults);
    read.resource
}

fn code(more: Value) -> Resource {
    let mut spec = json!({ "source": { "type": "inline", "inline": { "code": "x" } }, "runtime": { "language": "nodejs" } });
    spec.as_object_mut().expect("object").extend(more.as_object().expect("object").clone());
    resource(spec)
}

fn snapshot(class: Option<&str>) -> Snapshot {
    let annotations = class.map(|class| json!({ "eventing.knative.dev/broker.class": class }));
    let broker = json!({ "metadata": { "name": "default", "annotations": annotations } });
    let installed = Kind::ALL.iter().filter_map(|kind| kind.definition()).collect();
    Snapshot { brokers: vec![Arc::new(broker)], installed: Arc::new(installed), ..Snapshot::default() }
}

fn triggers_on(class: Option<&str>, triggers: Value) -> Vec<Value> {
    let children =
        triggers::triggers(&code(json!({ "triggers": triggers })), &snapshot(class), &Config::default());
    children.into_iter().map(|child| child.manifest["spec"].clone()).collect()
}

#[test]
fn a_trigger_sends_to_the_dispatcher_and_always_has_a_dead_letter_sink() {
    let specs = triggers_on(None, json!([{ "filter": { "type": "order.placed" } }]));
    let uri = "http://dispatcher.knative-lambda-operator.svc.cluster.local/api/v1/namespaces/shop/events";
    assert_eq!(specs[0]["filters"], json!([{ "exact": { "type": "order.placed" } }]));
    assert_eq!(specs[0]["subscriber"]["uri"], uri);
    assert_eq!(specs[0]["delivery"]["deadLetterSink"]["uri"], uri);
    assert_eq!(specs[0]["delivery"]["retry"], 5);
    assert!(specs[0].get("filter").is_none());
}

#[test]
fn rabbitmq_brokers_get_one_trigger_for_each_exact_filter() {
    let any = json!([{ "filters": [
        { "any": [{ "exact": { "type": "a" } }, { "exact": { "type": "b" } }] }, { "exact": { "source": "/s" } },
    ] }]);
    let mut types: Vec<Value> = triggers_on(Some("RabbitMQBroker"), any)
        .iter()
        .map(|spec| spec["filter"]["attributes"].clone())
        .collect();
    types.sort_by_key(ToString::to_string);
    assert_eq!(types, [json!({ "source": "/s", "type": "a" }), json!({ "source": "/s", "type": "b" })]);
    // What RabbitMQ cannot express comes unfiltered. The dispatcher filters.
    let prefix = json!([{ "filters": [{ "prefix": { "type": "order." } }] }]);
    let specs = triggers_on(Some("RabbitMQBroker"), prefix);
    assert_eq!((specs.len(), &specs[0]["filter"], &specs[0]["filters"]), (1, &Value::Null, &Value::Null));
    let contradiction = json!([{ "filters": [{ "exact": { "type": "a" } }, { "exact": { "type": "b" } }] }]);
    assert!(triggers_on(Some("RabbitMQBroker"), contradiction).is_empty());
}

#[test]
fn a_broker_is_created_only_by_choice() {
    let resource = code(json!({ "triggers": [{ "broker": "mine" }] }));
    assert!(triggers::missing_brokers(&resource, &snapshot(None), &Config::default()).is_empty());
    let config = Config { broker_class: Some("MTChannelBasedBroker".into()), ..Config::default() };
    let brokers = triggers::missing_brokers(&resource, &snapshot(None), &config);
    assert_eq!((brokers.len(), brokers[0].name.as_str()), (1, "mine"));
}

#[test]
fn a_service_has_scaling_environment_and_a_restricted_container() {
    let resource = code(json!({
        "scaling": { "minReplicas": 1, "maxReplicas": 5, "targetConcurrency": 7, "scaleToZeroGracePeriod": "1m" },
        "env": [{ "name": "A", "value": "1" }, { "name": "B", "valueFrom": { "secretKeyRef": { "name": "db", "key": "k", "optional": true } } }],
        "secretFiles": [{ "secret": "tls", "path": "/etc/tls" }],
        "retry": { "timeout": "90s" },
        "build": { "imagePullSecret": "pull" },
    }));
    let wanted = Wanted { version: "v1".into(), image: "r/shop/pay@sha256:1".into() };
    let owned = Owned { resource: &resource, api_version: "lambda.knative.io/v1alpha1" };
    let child = service::service(&owned, &wanted, &Config::default());
    let template = &child.manifest["spec"]["template"];
    let annotations = &template["metadata"]["annotations"];
    assert_eq!(annotations["autoscaling.knative.dev/min-scale"], "1");
    assert_eq!(annotations["autoscaling.knative.dev/max-scale"], "5");
    assert_eq!(annotations["autoscaling.knative.dev/target"], "7");
    assert_eq!(annotations["autoscaling.knative.dev/scale-to-zero-pod-retention-period"], "60s");
    assert!(
        child.manifest["metadata"]["annotations"]
            .as_object()
            .expect("some")
            .keys()
            .all(|key| !key.contains("autoscaling"))
    );
    let spec = &template["spec"];
    assert_eq!((&spec["containerConcurrency"], &spec["timeoutSeconds"]), (&json!(14), &json!(90)));
    assert_eq!(spec["imagePullSecrets"], json!([{ "name": "pull" }]));
    let container = &spec["containers"][0];
    assert_eq!(
        container["env"][5]["valueFrom"]["secretKeyRef"],
        json!({ "name": "db", "key": "k", "optional": true })
    );
    assert_eq!(container["volumeMounts"].as_array().map(Vec::len), Some(3));
    let security = &container["securityContext"];
    assert_eq!(
        (&security["runAsNonRoot"], &security["allowPrivilegeEscalation"]),
        (&json!(true), &json!(false))
    );
    assert_eq!(security["capabilities"]["drop"], json!(["ALL"]));
    assert_eq!(child.manifest["metadata"]["ownerReferences"][0]["uid"], "u");
}

#[test]
fn a_build_gives_each_container_only_its_secrets() {
    let resource = resource(json!({
        "source": { "type": "git", "git": { "url": "https://e.example/r.git", "secretRef": { "name": "deploy-key" } } },
        "runtime": { "language": "go" },
        "build": { "timeout": "10m", "imagePullSecret": "push" },
        "env": [{ "name": "SECRET", "value": "in the clear" }],
    }));
    let owned = Owned { resource: &resource, api_version: "lambda.knative.io/v1alpha1" };
    let build = Try { name: "pay-build-1".into(), inputs: "i".into(), artifact: "a".into(), number: 2 };
    let children = build::children(&owned, &build, &Config::default());
    let kinds: Vec<Kind> = children.iter().map(|child| child.kind).collect();
    assert_eq!(kinds, [Kind::ServiceAccount, Kind::ConfigMap, Kind::Job]);
    assert!(!children[1].manifest.to_string().contains("in the clear"));
    let job = &children[2].manifest;
    assert_eq!(name(job), "pay-build-1");
    assert_eq!(
        (&job["spec"]["backoffLimit"], &job["spec"]["activeDeadlineSeconds"]),
        (&json!(3), &json!(600))
    );
    let pod = &job["spec"]["template"]["spec"];
    assert_eq!(
        (&pod["automountServiceAccountToken"], &pod["restartPolicy"]),
        (&json!(false), &json!("Never"))
    );
    let mounts = |container: &Value| container["volumeMounts"].to_string();
    let (fetch, builder) = (&pod["initContainers"][0], &pod["containers"][0]);
    assert!(
        mounts(fetch).contains("/klambda/secrets/shop/deploy-key") && !mounts(fetch).contains("registry")
    );
    assert!(mounts(builder).contains("/klambda/registry") && !mounts(builder).contains("secrets"));
    assert_eq!(fetch["securityContext"]["runAsNonRoot"], true);
    assert_eq!(builder["securityContext"]["privileged"], Value::Null);
    assert_eq!(builder["env"][0]["value"], "localhost:5001/shop/pay:a");
}

#[test]
fn the_subscription_calls_the_address_in_the_cluster() {
    let resource = code(json!({ "triggers": [{}], "ordering": "ordered" }));
    let children =
        children(&resource, "lambda.knative.io/v1alpha1", None, &snapshot(None), &Config::default());
    let subscription = children.iter().find(|child| child.kind == Kind::Subscription).expect("one");
    assert_eq!(subscription.name, "lambda.shop.pay");
    assert_eq!(
        subscription.manifest["spec"]["target"],
        json!({ "url": "http://pay.shop.svc.cluster.local" })
    );
    assert_eq!(subscription.manifest["spec"]["ordering"], "ordered");
    let parsed = klambda_core::subscription::Document::parse(&json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": { "name": "x" },
        "spec": subscription.manifest["spec"],
    }));
    assert!(parsed.is_ok(), "{:?}", parsed.err());
}

#[test]
fn policies_of_the_mesh_are_opt_in() {
    let (resource, wanted) = (code(json!({})), Wanted { version: "v".into(), image: "i".into() });
    let of = |config: &Config, snapshot: &Snapshot| {
        let all = children(&resource, "lambda.knative.io/v1alpha1", Some(&wanted), snapshot, config);
        all.iter().filter(|child| mesh::KINDS.contains(&child.kind)).count()
    };
    let config = Config { linkerd: true, ..Config::default() };
    assert_eq!((of(&Config::default(), &snapshot(None)), of(&config, &snapshot(None))), (0, 3));
    let without = Snapshot {
        installed: Arc::new(["services.serving.knative.dev".to_owned()].into()),
        ..snapshot(None)
    };
    assert_eq!(of(&config, &without), 0);
}
