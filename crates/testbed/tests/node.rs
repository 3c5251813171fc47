//! A whole node: an image is built by a Job, runs as a Knative Service, scales to zero and starts again.
//!
//! Needs root, Go and Debian packages. `./test cluster` runs it.

use serde_json::{Value, json};
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};
use testbed::{ControlPlane, Place, node};

const LIMIT: Duration = Duration::from_secs(120);

struct Cluster(ControlPlane);

impl Cluster {
    fn kubectl(&self, arguments: &[&str], document: Option<&Value>) -> String {
        let mut command = self.0.kubectl_command();
        command.args(arguments);
        let document = document.map(Value::to_string);
        testbed::run(command, document.as_deref()).unwrap_or_else(|error| panic!("{arguments:?}: {error:#}"))
    }

    fn apply(&self, document: &Value) {
        self.kubectl(&["apply", "-f", "-"], Some(document));
    }

    fn wait(&self, condition: &str, object: &str) {
        self.kubectl(&["wait", &format!("--for=condition={condition}"), object, "--timeout=120s"], None);
    }

    /// Builds an image in the cluster and returns its digest.
    fn build(&self, name: &str, message: &str) -> String {
        let registry = node::registry(self.0.place());
        let context = json!({"Dockerfile": format!("FROM {registry}/hello:1\nCOPY message /message\n"), "message": message});
        self.apply(
            &json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": context}),
        );
        self.apply(&build_job(name, &registry));
        self.wait("Complete", &format!("job/{name}"));
        let path = "jsonpath={.items[0].status.containerStatuses[0].state.terminated.message}";
        let digest = self.kubectl(&["get", "pods", "-l", &format!("job-name={name}"), "-o", path], None);
        assert!(digest.starts_with("sha256:"), "{digest}");
        format!("{registry}/{name}@{}", digest.trim())
    }

    fn call(&self, name: &str) -> String {
        let path = "jsonpath={.spec.clusterIP}";
        let gateway = self.kubectl(&["get", "service", "kourier", "-n", "kourier-system", "-o", path], None);
        let mut curl = Command::new("curl");
        curl.args([
            "-sSf",
            "-m",
            "30",
            "-H",
            &format!("Host: {name}.default.example.com"),
            &format!("http://{gateway}/"),
        ]);
        testbed::run(curl, None).expect("an answer")
    }
}

/// The capabilities that buildah needs to make a user namespace of its own.
fn build_job(name: &str, registry: &str) -> Value {
    let capabilities = ["CHOWN", "DAC_OVERRIDE", "FOWNER", "SETUID", "SETGID", "SETFCAP", "SYS_CHROOT"];
    let script = format!(
        "buildah bud --tls-verify=false -t {registry}/{name}:1 /context && \
         buildah push --tls-verify=false --digestfile /dev/termination-log {registry}/{name}:1"
    );
    let container = json!({
        "name": "build", "image": format!("{registry}/builder:1"), "command": ["/bin/sh", "-c", script],
        "securityContext": {"seccompProfile": {"type": "Unconfined"}, "capabilities": {"drop": ["ALL"], "add": capabilities}},
        "volumeMounts": [
            {"name": "context", "mountPath": "/context"},
            {"name": "storage", "mountPath": "/var/lib/containers"},
            {"name": "temporary", "mountPath": "/tmp"},
        ],
    });
    json!({
        "apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name},
        "spec": {"backoffLimit": 0, "template": {"spec": {
            "restartPolicy": "Never", "automountServiceAccountToken": false, "containers": [container],
            "volumes": [
                {"name": "context", "configMap": {"name": name}},
                {"name": "storage", "emptyDir": {}},
                {"name": "temporary", "emptyDir": {}},
            ],
        }}},
    })
}

#[test]
#[ignore = "needs root, Go and Debian packages; ./test cluster runs it"]
fn a_function_is_built_runs_and_scales_to_zero() {
    let started = Instant::now();
    let cluster = Cluster(node::start().expect("a node"));
    let place = cluster.0.place();
    println!("node with Knative after {:?}", started.elapsed());

    let image = cluster.build("hello", "built in the cluster");
    println!("built after {:?}", started.elapsed());
    let spec = json!({"template": {"spec": {"containers": [{"image": image}]}}});
    let service = json!({"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "hello"}, "spec": spec});
    cluster.apply(&service);
    cluster.wait("Ready", "services.serving.knative.dev/hello");
    assert_eq!(cluster.call("hello"), "built in the cluster");
    println!("answered after {:?}", started.elapsed());

    let replicas = ["get", "deployment", "hello-00001-deployment", "-o", "jsonpath={.spec.replicas}"];
    let waiting = Instant::now();
    while cluster.kubectl(&replicas, None) != "0" {
        assert!(waiting.elapsed() < LIMIT, "not scaled to zero");
        sleep(Duration::from_millis(200));
    }
    println!("at zero after {:?}", started.elapsed());
    let called = Instant::now();
    assert_eq!(cluster.call("hello"), "built in the cluster");
    println!("cold start: {:?}", called.elapsed());

    drop(cluster);
    assert_nothing_is_left(place);
}

fn assert_nothing_is_left(place: Place) {
    assert!(!place.folder().exists() && !place.data().exists());
    assert!(!std::path::Path::new("/run/netns").join(place.namespace()).exists());
    let mounts = std::fs::read_to_string("/proc/mounts").expect("mounts");
    assert!(!mounts.contains(&place.data().display().to_string()), "{mounts}");
}
