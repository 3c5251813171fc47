use super::*;
use crate::read::read;
use klambda_functions::resource::{Aspect, Phase};
use serde_json::json;
use std::collections::BTreeSet;

/// A cluster in memory: applies what a step asks for, and plays Kubernetes and Knative.
struct World {
    object: Value,
    snapshot: Snapshot,
    config: Config,
    now: u64,
    writes: usize,
}

const DIGEST: &str = "sha256:0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

fn function() -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction",
        "metadata": { "name": "pay", "namespace": "shop", "uid": "u-1", "generation": 1, "creationTimestamp": "2026-01-01T00:00:00Z" },
        "spec": {
            "source": { "type": "inline", "inline": { "code": "exports.handler = () => 1" } },
            "runtime": { "language": "nodejs" },
            "triggers": [{ "filter": { "type": "order.placed" } }],
        },
    })
}

fn all_kinds() -> Arc<BTreeSet<String>> {
    Arc::new(Kind::ALL.iter().filter_map(|kind| kind.definition()).collect())
}

impl World {
    fn new() -> World {
        let snapshot = Snapshot { installed: all_kinds(), ..Snapshot::default() };
        World { object: function(), snapshot, config: Config::default(), now: 1_800_000_000_000, writes: 0 }
    }

    fn resource(&self) -> Resource {
        let read = read(&self.object);
        assert!(read.faults.is_empty(), "{:?}", read.faults);
        read.resource
    }

    /// One reconcile, with everything stored.
    fn reconcile(&mut self) -> Step {
        self.now += 1000;
        let resource = self.resource();
        let step =
            step(&resource, "lambda.knative.io/v1alpha1", &self.snapshot, &self.config, Millis(self.now));
        for doomed in &step.delete {
            self.writes += 1;
            self.delete(doomed);
        }
        for child in &step.apply {
            self.apply(child);
        }
        let status = crate::read::status_json(&step.plan.status, &step.plan.counters);
        if self.object["status"] != status {
            self.writes += 1;
            self.object["status"] = status;
        }
        step
    }

    /// Until nothing changes.
    fn settle(&mut self) -> Status {
        for _ in 0..20 {
            let before = self.writes;
            let step = self.reconcile();
            if self.writes == before {
                return step.plan.status;
            }
        }
        panic!("it does not settle");
    }

    fn list(&mut self, kind: Kind) -> &mut Vec<Arc<Value>> {
        match kind {
            Kind::Job => &mut self.snapshot.jobs,
            Kind::ConfigMap => &mut self.snapshot.config_maps,
            Kind::Trigger => &mut self.snapshot.triggers,
            _ => &mut self.snapshot.policies,
        }
    }

    fn apply(&mut self, child: &Child) {
        let one = |object: &Option<Arc<Value>>| object.clone();
        let live = match child.kind {
            Kind::Service => one(&self.snapshot.service),
            Kind::Subscription => one(&self.snapshot.subscription),
            Kind::ServiceAccount => {
                self.snapshot.has_build_account = true;
                return;
            }
            kind => self.list(kind).iter().find(|object| snapshot::name(object) == child.name).cloned(),
        };
        if live.as_ref().is_some_and(|live| child.is_immutable() || child.is_covered_by(live)) {
            return;
        }
        self.writes += 1;
        let mut object = child.manifest.clone();
        object["metadata"]["uid"] = format!("{}-{}", child.name, self.writes).into();
        object["metadata"]["creationTimestamp"] = Millis(self.now).rfc3339().into();
        if let Some(live) = &live {
            object["status"] = live["status"].clone();
        }
        let object = Arc::new(object);
        match child.kind {
            Kind::Service => self.snapshot.service = Some(object),
            Kind::Subscription => self.snapshot.subscription = Some(object),
            kind => {
                let name = child.name.clone();
                self.list(kind).retain(|known| snapshot::name(known) != name);
                self.list(kind).push(object);
            }
        }
    }

    fn delete(&mut self, doomed: &Doomed) {
        match doomed.kind {
            Kind::Service => self.snapshot.service = None,
            Kind::Subscription => self.snapshot.subscription = None,
            kind => self.list(kind).retain(|known| snapshot::name(known) != doomed.name),
        }
    }

    /// The Job ends.
    fn end_job(&mut self, condition: Value, list: &str, container: &str, exit: i32, message: &str) {
        let mut job = Value::clone(self.snapshot.jobs.last().expect("a job"));
        job["status"]["conditions"] = json!([condition]);
        let name = snapshot::name(&job).to_owned();
        let pod = json!({ "metadata": { "name": "p", "labels": { names::BUILD: name } },
            "status": { list: [{ "name": container, "state": { "terminated": { "exitCode": exit, "message": message } } }] } });
        *self.snapshot.jobs.last_mut().expect("a job") = Arc::new(job);
        self.snapshot.pods = vec![Arc::new(pod)];
    }

    fn succeed(&mut self) {
        self.end_job(
            json!({ "type": "Complete", "status": "True" }),
            "containerStatuses",
            "build",
            0,
            DIGEST,
        );
    }

    /// Knative makes a revision of the template, ready or failed.
    fn reveal(&mut self, number: u64, ready: Value) {
        let mut service = Value::clone(self.snapshot.service.as_ref().expect("a service"));
        let revision = format!("pay-{number:05}");
        let is_ready = ready["status"] == "True";
        let annotations = service["spec"]["template"]["metadata"]["annotations"].clone();
        self.snapshot.revisions.push(Arc::new(json!({
            "metadata": { "name": revision, "annotations": annotations, "labels": { "serving.knative.dev/configurationGeneration": number.to_string() } },
            "status": { "conditions": [ready], "actualReplicas": 1 },
        })));
        service["status"]["latestCreatedRevisionName"] = revision.clone().into();
        service["status"]["url"] = "http://pay.shop.example.com".into();
        if is_ready {
            service["status"]["traffic"] = json!([{ "revisionName": revision, "percent": 100 }]);
            service["status"]["conditions"] =
                json!([{ "type": "Ready", "status": "True" }, { "type": "RoutesReady", "status": "True" }]);
        } else {
            let routes = service["status"]["traffic"].is_array();
            let routes = if routes { "True" } else { "False" };
            service["status"]["conditions"] =
                json!([{ "type": "Ready", "status": "False" }, { "type": "RoutesReady", "status": routes }]);
        }
        self.snapshot.service = Some(Arc::new(service));
    }

    fn reveal_ready(&mut self, number: u64) {
        self.reveal(number, json!({ "type": "Ready", "status": "True" }));
    }

    fn image(&self) -> String {
        let service = self.snapshot.service.as_ref().expect("a service");
        service["spec"]["template"]["spec"]["containers"][0]["image"].as_str().expect("image").to_owned()
    }

    fn ready() -> World {
        let mut world = World::new();
        world.settle();
        world.succeed();
        world.settle();
        world.reveal_ready(1);
        assert_eq!(world.settle().phase, Phase::Ready);
        world
    }
}

use klambda_functions::resource::Status;

#[test]
fn a_function_is_built_deployed_and_ready() {
    let mut world = World::new();
    let status = world.settle();
    assert_eq!(status.phase, Phase::Building);
    assert_eq!((world.snapshot.jobs.len(), world.snapshot.config_maps.len()), (1, 1));
    assert!(world.snapshot.service.is_none(), "there is no image yet");
    assert!(world.snapshot.subscription.is_some(), "early events wait in it");
    world.succeed();
    assert_eq!(world.settle().phase, Phase::Deploying);
    assert_eq!(world.image(), format!("localhost:5001/shop/pay@{DIGEST}"));
    assert!(world.snapshot.config_maps.is_empty(), "only builds need it");
    world.reveal_ready(1);
    let status = world.settle();
    assert_eq!(status.phase, Phase::Ready);
    let service = status.service_status.expect("serving");
    assert_eq!(service.url.as_deref(), Some("http://pay.shop.example.com"));
    assert_eq!((service.replicas, service.generation), (1, 1));
    assert_eq!(status.revisions.len(), 1);
    let before = world.writes;
    world.reconcile();
    assert_eq!(world.writes, before, "nothing changes, nothing is written");
}

#[test]
fn a_crash_after_any_write_ends_in_the_same_state() {
    // The status of every second reconcile is lost, as if the process died before it wrote it.
    let mut world = World::new();
    for round in 0..6 {
        let stored = world.object["status"].clone();
        world.reconcile();
        if round % 2 == 0 {
            world.object["status"] = stored;
        }
    }
    assert_eq!(world.snapshot.jobs.len(), 1, "a retry never makes a second Job");
    world.succeed();
    world.settle();
    world.reveal_ready(1);
    let status = world.settle();
    assert_eq!(status.phase, Phase::Ready);
    assert_eq!(status.build_status.expect("built").attempts, 1);
}

#[test]
fn failures_of_builds_have_their_reasons() {
    let failed = |reason: &str| json!({ "type": "Failed", "status": "True", "reason": reason, "message": "Job has failed" });
    let cases = [
        (failed("DeadlineExceeded"), "containerStatuses", "build", "", Aspect::BuildReady, "BuildTimeout"),
        (
            failed("BackoffLimitExceeded"),
            "containerStatuses",
            "build",
            "npm ERR! 1\nnpm ERR! 2",
            Aspect::BuildReady,
            "BuildFailed",
        ),
        (
            failed("PodFailurePolicy"),
            "initContainerStatuses",
            "fetch",
            r#"{"reason":"SourceNotFound","detail":"no such branch"}"#,
            Aspect::BuildReady,
            "SourceNotFound",
        ),
    ];
    for (condition, list, container, message, aspect, reason) in cases {
        let mut world = World::new();
        world.settle();
        world.end_job(condition, list, container, 1, message);
        let status = world.settle();
        assert_eq!(status.phase, Phase::Failed, "{reason}");
        assert_eq!(status.condition(aspect).expect("said").reason, reason);
        assert_eq!(status.log_lines.len(), message.lines().filter(|line| line.starts_with("npm")).count());
        assert_eq!(world.snapshot.jobs.len(), 1);
    }
}

#[test]
fn an_update_builds_again_and_the_old_version_serves_until_the_new_one_answers() {
    let mut world = World::ready();
    let first = world.image();
    world.object["spec"]["source"]["inline"]["code"] = "exports.handler = () => 2".into();
    world.object["metadata"]["generation"] = 2.into();
    let status = world.settle();
    assert_eq!((status.phase, world.snapshot.jobs.len()), (Phase::Ready, 2));
    assert_eq!(world.image(), first, "untouched while the build runs");
    let other = DIGEST.replace('0', "f");
    world.end_job(json!({ "type": "Complete", "status": "True" }), "containerStatuses", "build", 0, &other);
    world.settle();
    assert!(world.image().ends_with(&other));
    world.reveal(2, json!({ "type": "Ready", "status": "False", "reason": "ExitCode1", "message": "Container failed with: boom" }));
    let status = world.settle();
    assert_eq!(status.condition(Aspect::DeployReady).expect("said").reason, "CrashLoop");
    assert_eq!(status.condition(Aspect::ServiceReady).expect("said").reason, "ServingPreviousVersion");
    assert_eq!((status.phase, status.log_lines), (Phase::Ready, vec!["boom".to_owned()]));
    world.snapshot.revisions.pop();
    world.reveal_ready(2);
    let status = world.settle();
    assert_eq!(status.service_status.expect("serving").generation, 2);
    assert_eq!(status.revisions.len(), 2);
}

#[test]
fn drift_heals_and_deleted_children_come_back() {
    let mut world = World::ready();
    let mut service = Value::clone(world.snapshot.service.as_ref().expect("service"));
    service["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:latest".into();
    world.snapshot.service = Some(Arc::new(service));
    world.snapshot.triggers.clear();
    world.snapshot.subscription = None;
    world.settle();
    assert!(world.image().ends_with(DIGEST));
    assert_eq!(world.snapshot.triggers.len(), 1);
    assert!(world.snapshot.subscription.is_some());
}

#[test]
fn a_new_scaling_is_the_same_version() {
    let mut world = World::ready();
    world.object["spec"]["scaling"] = json!({ "minReplicas": 2 });
    world.object["metadata"]["generation"] = 2.into();
    let status = world.settle();
    assert_eq!((status.phase, world.snapshot.jobs.len()), (Phase::Ready, 1));
    let service = world.snapshot.service.as_ref().expect("service");
    let annotations = &service["spec"]["template"]["metadata"]["annotations"];
    assert_eq!(annotations["autoscaling.knative.dev/min-scale"], "2");
    assert_eq!(status.service_status.expect("serving").scaling.expect("known").min_replicas, 2);
}

#[test]
fn a_changed_filter_is_another_trigger() {
    let mut world = World::ready();
    let before = snapshot::name(&world.snapshot.triggers[0]).to_owned();
    world.object["spec"]["triggers"][0]["filter"]["type"] = "order.paid".into();
    world.object["metadata"]["generation"] = 2.into();
    world.settle();
    assert_eq!(world.snapshot.triggers.len(), 1);
    assert_ne!(snapshot::name(&world.snapshot.triggers[0]), before);
}

#[test]
fn a_deletion_removes_everything_even_if_nothing_was_created() {
    let mut world = World::ready();
    world.object["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    let mut is_gone = false;
    for _ in 0..6 {
        is_gone |= world.reconcile().is_gone;
    }
    assert!(is_gone && world.snapshot.service.is_none() && world.snapshot.subscription.is_none());
    let mut world = World::new();
    world.object["metadata"]["deletionTimestamp"] = "2026-01-02T00:00:00Z".into();
    world.snapshot.installed = Arc::default();
    assert!(world.reconcile().is_gone);
}

#[test]
fn what_is_not_installed_is_a_condition() {
    let mut world = World::ready();
    let without = |kinds: &[Kind]| {
        let missing: Vec<String> = kinds.iter().filter_map(|kind| kind.definition()).collect();
        Arc::new(all_kinds().iter().filter(|name| !missing.contains(name)).cloned().collect::<BTreeSet<_>>())
    };
    world.snapshot.installed = without(&[Kind::Trigger, Kind::Broker]);
    world.snapshot.triggers.clear();
    let status = world.settle();
    assert_eq!(status.condition(Aspect::BrokerReady).expect("said").reason, "EventingNotInstalled");
    assert_eq!(status.phase, Phase::Ready);
    assert!(world.snapshot.triggers.is_empty());
    world.snapshot.installed = without(&[Kind::Service, Kind::Revision]);
    let status = world.settle();
    assert!(
        status
            .condition(Aspect::DeployReady)
            .expect("said")
            .message
            .contains("Knative Serving is not installed")
    );
}

#[test]
fn a_rebuild_makes_a_new_job() {
    let mut world = World::ready();
    world.object["metadata"]["annotations"] = json!({ "lambda.knative.io/rebuild": "now" });
    world.settle();
    assert_eq!(world.snapshot.jobs.len(), 2);
}
