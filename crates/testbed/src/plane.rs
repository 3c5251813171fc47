//! A running control plane: etcd, the API server, its controllers, and Knative Serving's webhook and controller.

use crate::arguments;
use crate::binaries::{self, CONTROL_PLANE, ETCD, KNATIVE, KUBERNETES, KWOK, cluster_folder};
use crate::slot::{Place, Slot};
use crate::template::Template;
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::fs::{self, File};
use std::io::Write;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A start takes 15 s at most on an idle machine. Busy machines get more time.
const START_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);
/// Kinds that kwok plays. It starts only when the API server serves them.
const PLAYED: &str = "podautoscalers.autoscaling.internal.knative.dev,ingresses.networking.internal.knative.dev,\
                      brokers.eventing.knative.dev,triggers.eventing.knative.dev,exchanges.rabbitmq.com,\
                      queues.rabbitmq.com,bindings.rabbitmq.com,policies.rabbitmq.com";
/// A Service that Knative's webhook accepts, to see that it judges.
const PROBE: &str = r#"{"apiVersion": "serving.knative.dev/v1", "kind": "Service", "metadata": {"name": "probe", "namespace": "default"}, "spec": {"template": {"spec": {"containers": [{"image": "registry.test/probe:1"}]}}}}"#;

/// A control plane of one test process. It ends with the value, or with the process.
pub struct ControlPlane {
    slot: Slot,
    kubectl: PathBuf,
    processes: Vec<Process>,
    started: Instant,
}

struct Process {
    name: &'static str,
    log: PathBuf,
    child: Child,
}

static SHARED: OnceLock<Result<ControlPlane>> = OnceLock::new();

impl ControlPlane {
    /// Starts a control plane. Programs that the cache lacks are built first, which takes minutes.
    pub fn start() -> Result<Self> {
        binaries::build(&CONTROL_PLANE)?;
        let template = Template::current()?;
        if !template.exists() {
            Self::make(&template)?;
        }
        let mut plane = Self::new()?;
        template.restore(&arguments::etcd_folder(plane.place()))?;
        plane.start_kubernetes()?;
        plane.start_knative()?;
        Ok(plane)
    }

    fn new() -> Result<Self> {
        let (slot, kubectl) = (Slot::take()?, KUBERNETES.program("kubectl")?);
        Ok(Self { slot, kubectl, processes: Vec::new(), started: Instant::now() })
    }

    /// Makes the template with a control plane of its own.
    fn make(template: &Template) -> Result<()> {
        let mut plane = Self::new()?;
        plane.start_kubernetes()?;
        plane.apply(&template.definitions, None)?;
        plane.kubectl_run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], None)?;
        plane.apply(std::slice::from_ref(&template.objects), None)?;
        plane.apply(&[], Some(template.node))?;
        // The rights of Knative's service account are collected by the controller manager.
        let rights = ["get", "clusterrole", "knative-serving-admin", "-o", "jsonpath={.rules[0].verbs[0]}"];
        plane.wait_for_output("the role of Knative's controllers", &rights)?;
        plane.wait_for_output(
            "the default service account",
            &["get", "serviceaccount", "default", "-o", "name"],
        )?;
        plane.kill()?;
        template.save(&arguments::etcd_folder(plane.place()))
    }

    /// The control plane that all tests of this process share. It ends when the process ends.
    pub fn shared() -> Result<&'static Self> {
        SHARED.get_or_init(Self::start).as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(self.place())
    }

    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// Writes a kubeconfig with exactly the rights of a service account, and returns its path.
    pub fn kubeconfig_of_service_account(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.kubectl_run(&["create", "token", name, "-n", namespace, "--duration=24h"], None)?;
        arguments::write_kubeconfig(
            self.place(),
            &format!("{namespace}-{name}"),
            &json!({"token": token.trim()}),
        )
    }

    /// `kubectl` with all rights on this control plane.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig()).env_remove("KUBECONFIG");
        command
    }

    /// The address on which this machine is reached from the control plane. Webhooks under test listen here.
    pub fn machine(&self) -> Ipv4Addr {
        self.place().machine()
    }

    pub fn place(&self) -> Place {
        self.slot.place()
    }

    /// Leaves the control plane running after this process, until `Place::end_kept`.
    pub fn keep(self) -> Result<Place> {
        self.slot.keep()
    }

    fn start_kubernetes(&mut self) -> Result<()> {
        let place = self.place();
        let keys = arguments::write_keys(place)?;
        self.spawn("etcd", &ETCD.program("etcd")?, &arguments::etcd(place), &[])?;
        let server = arguments::api_server(place, &keys);
        self.spawn("kube-apiserver", &KUBERNETES.program("kube-apiserver")?, &server, &[])?;
        self.wait("the API server", &["get", "--raw", "/readyz"], None)?;
        let manager = arguments::controller_manager(place, &keys);
        self.spawn(
            "kube-controller-manager",
            &KUBERNETES.program("kube-controller-manager")?,
            &manager,
            &[],
        )?;
        self.spawn(
            "kube-scheduler",
            &KUBERNETES.program("kube-scheduler")?,
            &arguments::scheduler(place),
            &[],
        )
    }

    fn start_knative(&mut self) -> Result<()> {
        let place = self.place();
        for (name, ports) in [("webhook", ["443", "8008", "9090"]), ("controller", ["", "8009", "9091"])] {
            let variables = arguments::knative_environment(place, name, ports);
            self.spawn(name, &KNATIVE.program(name)?, &[], &variables)?;
        }
        self.wait("the definitions", &["get", PLAYED, "--all-namespaces"], None)?;
        let stages = cluster_folder().join("stages.yaml");
        self.spawn("kwok", &KWOK.program("kwok")?, &arguments::kwok(place, &stages), &[])?;
        self.wait("Knative's webhook", &["create", "--dry-run=server", "-f", "-"], Some(PROBE))?;
        self.kubectl_run(&["wait", "--for=condition=Ready", "node/node-0", "--timeout=60s"], None).map(drop)
    }

    /// Ends all processes and waits for them.
    fn kill(&mut self) -> Result<()> {
        while let Some(mut process) = self.processes.pop() {
            process.child.kill().with_context(|| format!("ending {}", process.name))?;
            process.child.wait().with_context(|| format!("waiting for {}", process.name))?;
        }
        Ok(())
    }

    fn apply(&self, files: &[PathBuf], text: Option<&str>) -> Result<()> {
        let mut arguments = vec!["apply", "--server-side", "--force-conflicts"];
        let names: Vec<String> = files.iter().map(|file| file.display().to_string()).collect();
        for name in &names {
            arguments.extend(["-f", name]);
        }
        if text.is_some() {
            arguments.extend(["-f", "-"]);
        }
        self.kubectl_run(&arguments, text).map(drop)
    }

    fn spawn(
        &mut self,
        name: &'static str,
        program: &Path,
        arguments: &[String],
        variables: &[(&str, String)],
    ) -> Result<()> {
        let log = self.place().folder().join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let mut command = self.place().command(program);
        command.args(arguments).envs(variables.iter().map(|(key, value)| (key, value)));
        command.stdin(Stdio::null()).stdout(file.try_clone()?).stderr(file);
        let child = command.spawn().with_context(|| format!("starting {name}"))?;
        self.processes.push(Process { name, log, child });
        Ok(())
    }

    /// Repeats a `kubectl` command until it succeeds.
    fn wait(&mut self, what: &str, arguments: &[&str], text: Option<&str>) -> Result<()> {
        self.wait_until(what, |plane| plane.kubectl_run(arguments, text).map(drop))
    }

    /// Repeats a `kubectl` command until it prints something.
    fn wait_for_output(&mut self, what: &str, arguments: &[&str]) -> Result<()> {
        self.wait_until(what, |plane| {
            let output = plane.kubectl_run(arguments, None)?;
            ensure!(!output.is_empty(), "it is empty");
            Ok(())
        })
    }

    fn wait_until(&mut self, what: &str, ready: impl Fn(&Self) -> Result<()>) -> Result<()> {
        loop {
            let Err(error) = ready(self) else { return Ok(()) };
            self.check_processes()?;
            if self.started.elapsed() > START_LIMIT {
                let logs: Vec<String> = self.processes.iter().map(Process::last_lines).collect();
                bail!(
                    "{what} is not ready after {} s: {error:#}\n{}",
                    START_LIMIT.as_secs(),
                    logs.join("\n")
                );
            }
            sleep(POLL);
        }
    }

    fn check_processes(&mut self) -> Result<()> {
        for process in &mut self.processes {
            if let Some(status) = process.child.try_wait()? {
                bail!("{} ended with {status}:\n{}", process.name, process.last_lines());
            }
        }
        Ok(())
    }

    fn kubectl_run(&self, arguments: &[&str], text: Option<&str>) -> Result<String> {
        let mut command = self.kubectl_command();
        command.args(arguments);
        run(command, text).with_context(|| format!("kubectl {}", arguments.join(" ")))
    }
}

impl Process {
    fn last_lines(&self) -> String {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let lines: Vec<&str> = text.lines().rev().take(10).collect();
        let lines: Vec<&str> = lines.into_iter().rev().collect();
        format!("-- {}\n{}", self.name, lines.join("\n"))
    }
}

/// Runs a command with the text as its input and returns its output. Its messages become the error.
pub fn run(mut command: Command, text: Option<&str>) -> Result<String> {
    command.stdin(if text.is_some() { Stdio::piped() } else { Stdio::null() });
    let mut child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().context("starting")?;
    if let (Some(text), Some(mut input)) = (text, child.stdin.take()) {
        // A command that fails early does not read its input. Its own message says more.
        let _ = input.write_all(text.as_bytes());
    }
    let output = child.wait_with_output()?;
    let message = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{}", message.trim());
    Ok(String::from_utf8_lossy(&output.stdout).into_owned())
}

/// The kubeconfig with all rights of the control plane at this place.
pub fn kubeconfig(place: Place) -> PathBuf {
    PathBuf::from(arguments::kubeconfig_of(place, "admin"))
}
