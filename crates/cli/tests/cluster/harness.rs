//! kubectl, namespaces of tests, and operators as processes.

use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

fn kubeconfig() -> PathBuf {
    std::env::var_os("KLAMBDA_TEST_KUBECONFIG").expect("KLAMBDA_TEST_KUBECONFIG names a kubeconfig").into()
}

/// Runs kubectl. The error is its standard error.
pub fn kubectl(args: &[&str], input: Option<&Value>) -> Result<String, String> {
    let program = std::env::var_os("KLAMBDA_TEST_KUBECTL").unwrap_or_else(|| "kubectl".into());
    let mut command = Command::new(program);
    command.arg("--kubeconfig").arg(kubeconfig()).args(args);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("kubectl starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let text = input.map(ToString::to_string).unwrap_or_default();
    let writing = std::thread::spawn(move || {
        let _ = stdin.write_all(text.as_bytes());
    });
    let output = child.wait_with_output().expect("kubectl ends");
    let _ = writing.join();
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(String::from_utf8_lossy(&output.stderr).into_owned()),
    }
}

/// Applies the definitions of this repository once, and waits until they are served.
pub fn definitions() {
    static APPLIED: OnceLock<()> = OnceLock::new();
    APPLIED.get_or_init(|| {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../deploy/crds");
        kubectl(&["apply", "--server-side", "--force-conflicts", "-f", folder], None).expect("admitted");
        kubectl(&["wait", "--for=condition=Established", "--timeout=30s", "-f", folder], None)
            .expect("served");
    });
}

/// A namespace that is deleted with the value.
pub struct Namespace {
    pub name: String,
}

impl Namespace {
    pub fn new(word: &str) -> Namespace {
        definitions();
        let name = format!("{word}-{:08x}", getrandom::u32().expect("random"));
        kubectl(&["create", "namespace", &name], None).expect("a namespace");
        Namespace { name }
    }

    pub fn kubectl(&self, args: &[&str]) -> Result<String, String> {
        kubectl(&[&["-n", &self.name], args].concat(), None)
    }

    pub fn apply(&self, object: &Value) {
        kubectl(&["-n", &self.name, "apply", "-f", "-"], Some(object)).expect("applied");
    }

    /// An object, or `Null`.
    pub fn get(&self, kind: &str, name: &str) -> Value {
        let text = self.kubectl(&["get", kind, name, "-o", "json", "--ignore-not-found"]).expect("readable");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }

    pub fn list(&self, kind: &str) -> Vec<Value> {
        let text = self.kubectl(&["get", kind, "-o", "json"]).expect("readable");
        let list: Value = serde_json::from_str(&text).expect("JSON");
        list["items"].as_array().cloned().unwrap_or_default()
    }

    pub fn function(&self, name: &str) -> Value {
        self.get("lambdafunctions.lambda.knative.io", name)
    }

    /// Waits for a state of a function, and shows the last one if it does not come.
    pub fn wait(&self, name: &str, what: &str, is_there: impl Fn(&Value) -> bool) -> Value {
        eventually(what, || {
            let function = self.function(name);
            if is_there(&function) { Ok(function) } else { Err(format!("{:#}", function["status"])) }
        })
    }

    pub fn wait_phase(&self, name: &str, phase: &str) -> Value {
        self.wait(name, phase, |function| {
            function["status"]["phase"] == phase
                && function["status"]["observedGeneration"] == function["metadata"]["generation"]
        })
    }
}

impl Drop for Namespace {
    fn drop(&mut self) {
        // Functions whose operator is gone would keep the namespace forever.
        for kind in [
            "lambdafunctions.lambda.knative.io",
            "lambdaagents.lambda.knative.io",
            "lambdaagents.lambda.knative.dev",
        ] {
            for object in self.list(kind) {
                let name = object["metadata"]["name"].as_str().unwrap_or_default().to_owned();
                let patch = r#"{"metadata":{"finalizers":null}}"#;
                let _ = self.kubectl(&["patch", kind, &name, "--type=merge", "-p", patch]);
            }
        }
        let _ = kubectl(&["delete", "namespace", &self.name, "--wait=false"], None);
    }
}

/// Repeats until it succeeds, for two minutes.
pub fn eventually<T>(what: &str, mut look: impl FnMut() -> Result<T, String>) -> T {
    let until = Instant::now() + Duration::from_secs(120);
    loop {
        match look() {
            Ok(found) => return found,
            Err(last) if Instant::now() > until => panic!("{what} did not happen: {last}"),
            Err(_) => std::thread::sleep(Duration::from_millis(200)),
        }
    }
}

/// A function of inline code.
pub fn function(name: &str, code: &str) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction", "metadata": { "name": name },
        "spec": {
            "source": { "type": "inline", "inline": { "code": code } },
            "runtime": { "language": "nodejs" },
            "triggers": [{ "filter": { "type": "order.placed" } }],
        },
    })
}

/// An operator as a process, for one namespace. Killed when dropped.
pub struct Operator {
    child: Child,
    metrics: SocketAddr,
}

impl Operator {
    pub fn start(namespace: &Namespace) -> Operator {
        let mut command = Command::new(env!("CARGO_BIN_EXE_klambda"));
        command.arg("operator").arg("--kubeconfig").arg(kubeconfig());
        command.args(["--namespaces", &namespace.name, "--lease-namespace", &namespace.name]);
        command.args(["--metrics", "127.0.0.1:0", "--no-events", "--log-format", "json"]);
        command.args(["--registry", "registry.test"]);
        command.env_remove("RUST_LOG").stderr(Stdio::piped()).stdout(Stdio::null());
        let mut child = command.spawn().expect("the operator starts");
        let mut lines = BufReader::new(child.stderr.take().expect("a pipe")).lines();
        let metrics = loop {
            let line = lines.next().expect("the operator tells its address").expect("text");
            let told: Value = serde_json::from_str(&line).unwrap_or_default();
            if let Some(address) = told["metrics"].as_str() {
                break address.parse().expect("an address");
            }
        };
        let show = std::env::var_os("KLAMBDA_TEST_SHOW").is_some();
        std::thread::spawn(move || {
            for line in lines.map_while(Result::ok).filter(|_| show) {
                eprintln!("{line}");
            }
        });
        Operator { child, metrics }
    }

    /// kill -9.
    pub fn kill(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }

    /// One value of `/metrics`.
    pub fn metric(&self, name: &str) -> u64 {
        let mut stream = TcpStream::connect(self.metrics).expect("metrics");
        stream.write_all(b"GET /metrics HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n").expect("sent");
        let mut text = String::new();
        stream.read_to_string(&mut text).expect("answered");
        let line =
            text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).expect("a metric");
        line.parse().expect("a number")
    }

    pub fn leads(&self) -> bool {
        self.metric("operator_leader") == 1
    }
}

impl Drop for Operator {
    fn drop(&mut self) {
        self.kill();
    }
}
