//! A running control plane: etcd, the API server, its controllers, and Knative Serving's webhook and controller.

use crate::binaries::{self, CONTROL_PLANE, ETCD, KNATIVE, KUBERNETES, KWOK, cluster_folder};
use crate::certificates::{Authority, User, token_key, write};
use crate::knative;
use crate::slot::{Place, Slot};
use anyhow::{Context, Result, bail, ensure};
use serde_json::json;
use std::collections::BTreeSet;
use std::fs::{self, File};
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// A start takes 15 s at most on an idle machine. Busy machines get more time.
const START_LIMIT: Duration = Duration::from_secs(180);
const POLL: Duration = Duration::from_millis(100);
const CLUSTER_ADDRESSES: &str = "10.96.0.0/16";
const NODE: &str = r#"{"apiVersion": "v1", "kind": "Node", "metadata": {"name": "node-0", "labels": {"kubernetes.io/os": "linux", "kubernetes.io/hostname": "node-0"}}}"#;
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
        let slot = Slot::take()?;
        let kubectl = KUBERNETES.program("kubectl")?;
        let mut plane = Self { slot, kubectl, processes: Vec::new(), started: Instant::now() };
        plane.start_kubernetes()?;
        plane.start_knative()?;
        Ok(plane)
    }

    /// The control plane that all tests of this process share. It ends when the process ends.
    pub fn shared() -> Result<&'static Self> {
        SHARED.get_or_init(Self::start).as_ref().map_err(|error| anyhow::anyhow!("{error:#}"))
    }

    /// A kubeconfig with all rights.
    pub fn kubeconfig(&self) -> PathBuf {
        kubeconfig(self.slot.place())
    }

    pub fn kubectl(&self) -> &Path {
        &self.kubectl
    }

    /// `kubectl` with all rights on this control plane.
    pub fn kubectl_command(&self) -> Command {
        let mut command = Command::new(&self.kubectl);
        command.arg("--kubeconfig").arg(self.kubeconfig()).env_remove("KUBECONFIG");
        command
    }

    /// The address on which this machine is reached from the control plane. Webhooks under test listen here.
    pub fn machine(&self) -> Ipv4Addr {
        self.slot.place().machine()
    }

    pub fn place(&self) -> Place {
        self.slot.place()
    }

    /// Leaves the control plane running after this process, until `Place::end_kept`.
    pub fn keep(self) -> Result<Place> {
        self.slot.keep()
    }

    fn start_kubernetes(&mut self) -> Result<()> {
        let place = self.slot.place();
        let keys = write_keys(place)?;
        self.spawn("etcd", &ETCD.program("etcd")?, &etcd(place), &[])?;
        self.spawn("kube-apiserver", &KUBERNETES.program("kube-apiserver")?, &api_server(place, &keys), &[])?;
        self.wait("the API server", &["get", "--raw", "/readyz"], None)?;
        let manager = controller_manager(place, &keys);
        self.spawn("kube-controller-manager", &KUBERNETES.program("kube-controller-manager")?, &manager, &[])?;
        let scheduler = kubeconfig_of(place, "scheduler");
        let scheduler = [format!("--kubeconfig={scheduler}"), "--leader-elect=false".into(), "--secure-port=0".into()];
        self.spawn("kube-scheduler", &KUBERNETES.program("kube-scheduler")?, &scheduler, &[])
    }

    fn start_knative(&mut self) -> Result<()> {
        let (definitions, objects) = knative::manifests()?;
        let mut files = vec![definitions];
        files.extend(other_definitions()?);
        self.apply(&files, None)?;
        self.kubectl_run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], None)?;
        let stages = cluster_folder().join("stages.yaml");
        self.spawn("kwok", &KWOK.program("kwok")?, &kwok(self.slot.place(), &stages), &[])?;
        self.apply(&[objects], None)?;
        self.apply(&[], Some(NODE))?;
        // The rights of Knative's service account are collected by the controller manager.
        let rights = ["get", "clusterrole", "knative-serving-admin", "-o", "jsonpath={.rules[0].verbs[0]}"];
        self.wait_for_output("the rights of Knative's controllers", &rights)?;
        for (name, ports) in [("webhook", ["443", "8008", "9090"]), ("controller", ["", "8009", "9091"])] {
            self.spawn(name, &KNATIVE.program(name)?, &[], &knative_environment(self.slot.place(), name, ports))?;
        }
        self.wait_for_output("the default service account", &["get", "serviceaccount", "default", "-o", "name"])?;
        self.wait("Knative's webhook", &["create", "--dry-run=server", "-f", "-"], Some(PROBE))?;
        let node = ["wait", "--for=condition=Ready", "node/node-0", "--timeout=60s"];
        self.kubectl_run(&node, None).map(drop)
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

    fn spawn(&mut self, name: &'static str, program: &Path, arguments: &[String], variables: &[(&str, String)]) -> Result<()> {
        let log = self.slot.place().folder().join(format!("{name}.log"));
        let file = File::create(&log).with_context(|| format!("creating {}", log.display()))?;
        let mut command = self.slot.place().command(program);
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
                bail!("{what} is not ready after {} s: {error:#}\n{}", START_LIMIT.as_secs(), logs.join("\n"));
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
    use std::io::Write;
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
    place.folder().join("admin.kubeconfig")
}

fn kubeconfig_of(place: Place, user: &str) -> String {
    place.folder().join(format!("{user}.kubeconfig")).display().to_string()
}

/// Users with a kubeconfig. Knative's processes have exactly the rights of their service account.
const USERS: [(&str, User<'_>); 4] = [
    ("admin", User { name: "admin", group: Some("system:masters") }),
    ("controller-manager", User { name: "system:kube-controller-manager", group: None }),
    ("scheduler", User { name: "system:kube-scheduler", group: None }),
    ("knative", User { name: "system:serviceaccount:knative-serving:controller", group: Some("system:serviceaccounts") }),
];

/// Writes keys, certificates and kubeconfigs, and returns the folder of the keys.
fn write_keys(place: Place) -> Result<PathBuf> {
    let folder = place.folder().join("keys");
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let authority = Authority::new()?;
    write(&folder.join("ca.crt"), &authority.pem())?;
    let address = place.address().to_string();
    let names = ["localhost", "127.0.0.1", &address, "10.96.0.1", "kubernetes.default", "kubernetes.default.svc"];
    authority.server(&names)?.write(&folder, "server")?;
    write(&folder.join("tokens.key"), &token_key()?)?;
    for (file, user) in USERS {
        authority.client(user)?.write(&folder, file)?;
        let keys = folder.display();
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "testbed",
            "clusters": [{"name": "testbed", "cluster": {
                "server": format!("https://{address}:6443"), "certificate-authority": format!("{keys}/ca.crt")}}],
            "users": [{"name": file, "user": {
                "client-certificate": format!("{keys}/{file}.crt"), "client-key": format!("{keys}/{file}.key")}}],
            "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": file}}],
        });
        write(Path::new(&kubeconfig_of(place, file)), &serde_json::to_string_pretty(&config)?)?;
    }
    Ok(folder)
}

fn etcd(place: Place) -> Vec<String> {
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    vec![
        format!("--data-dir={}", place.folder().join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        // What is stored ends with the tests.
        "--unsafe-no-fsync".into(),
        "--log-level=warn".into(),
    ]
}

fn api_server(place: Place, keys: &Path) -> Vec<String> {
    let (keys, address) = (keys.display(), place.address());
    vec![
        "--etcd-servers=http://127.0.0.1:2379".into(),
        "--secure-port=6443".into(),
        format!("--bind-address={address}"),
        format!("--advertise-address={address}"),
        format!("--client-ca-file={keys}/ca.crt"),
        format!("--tls-cert-file={keys}/server.crt"),
        format!("--tls-private-key-file={keys}/server.key"),
        "--service-account-issuer=https://kubernetes.default.svc".into(),
        format!("--service-account-key-file={keys}/tokens.key"),
        format!("--service-account-signing-key-file={keys}/tokens.key"),
        "--authorization-mode=RBAC".into(),
        format!("--service-cluster-ip-range={CLUSTER_ADDRESSES}"),
        "--allow-privileged=true".into(),
        "--endpoint-reconciler-type=none".into(),
        // No kubelet sends heartbeats, so no controller would remove the taint of a new node.
        "--disable-admission-plugins=TaintNodesByCondition".into(),
    ]
}

fn controller_manager(place: Place, keys: &Path) -> Vec<String> {
    // Controllers of clouds, and those that need heartbeats of a real node.
    let off = "nodeipam,-node-route-controller,-cloud-node-lifecycle-controller,-service-lb-controller,\
               -node-lifecycle-controller,-taint-eviction-controller";
    vec![
        format!("--kubeconfig={}", kubeconfig_of(place, "controller-manager")),
        format!("--service-account-private-key-file={}/tokens.key", keys.display()),
        format!("--root-ca-file={}/ca.crt", keys.display()),
        "--use-service-account-credentials=true".into(),
        "--leader-elect=false".into(),
        "--secure-port=0".into(),
        format!("--controllers=*,-{off}"),
    ]
}

fn kwok(place: Place, stages: &Path) -> Vec<String> {
    vec![
        format!("--kubeconfig={}", kubeconfig_of(place, "admin")),
        format!("--config={}", stages.display()),
        "--manage-all-nodes=true".into(),
        "--cidr=10.244.0.1/16".into(),
        "--node-ip=10.243.0.1".into(),
        "--server-address=".into(),
    ]
}

/// Variables of a process of Knative. Its ports are those of the webhook, of profiles and of metrics.
fn knative_environment(place: Place, name: &str, ports: [&str; 3]) -> Vec<(&'static str, String)> {
    vec![
        ("KUBECONFIG", kubeconfig_of(place, "knative")),
        ("SYSTEM_NAMESPACE", knative::NAMESPACE.into()),
        ("POD_NAME", format!("{name}-0")),
        ("CONFIG_LOGGING_NAME", "config-logging".into()),
        ("CONFIG_OBSERVABILITY_NAME", "config-observability".into()),
        ("CONFIG_LEADERELECTION_NAME", "config-leader-election".into()),
        ("METRICS_DOMAIN", "knative.dev/internal/serving".into()),
        ("WEBHOOK_NAME", "webhook".into()),
        ("WEBHOOK_PORT", ports[0].into()),
        ("PROFILING_PORT", ports[1].into()),
        ("METRICS_PROMETHEUS_PORT", ports[2].into()),
    ]
}

/// Definitions of projects that do not run here. Real ones, if a folder has them, replace our reduced ones of the same
/// name. Knative Serving's come from its modules and match its controller.
fn other_definitions() -> Result<Vec<PathBuf>> {
    let mut seen: BTreeSet<String> = knative::crd_names()?.into_iter().collect();
    let mut files = Vec::new();
    let folders = [real_definitions(), Some(cluster_folder().join("crds"))];
    for folder in folders.into_iter().flatten() {
        for file in knative::yaml_files(&folder)? {
            let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
            if seen.insert(name) {
                files.push(file);
            }
        }
    }
    Ok(files)
}

/// The folder of `KLAMBDA_CRDS`, or one beside the repository.
fn real_definitions() -> Option<PathBuf> {
    let folder = match std::env::var_os("KLAMBDA_CRDS") {
        Some(folder) => PathBuf::from(folder),
        None => Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/crds"),
    };
    folder.is_dir().then_some(folder)
}
