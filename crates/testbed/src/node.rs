//! A whole node: the control plane, and containerd, kubelet, kube-proxy, CoreDNS, a registry, Knative Serving with its
//! autoscaler, and Kourier with Envoy as its gateway. Nothing is played.

use crate::arguments::{CLUSTER_ADDRESSES, Level, kubeconfig_of};
use crate::binaries::{
    self, CONTROL_PLANE, COREDNS, KNATIVE, KOURIER, KUBERNETES, NODE, cache_folder, cluster_folder,
};
use crate::certificates::write;
use crate::knative;
use crate::node_manifests;
use crate::plane::{ControlPlane, run};
use crate::slot::Place;
use anyhow::{Context, Result, ensure};
use serde_json::json;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

const POD_ADDRESSES: &str = "10.244.0.0/16";
const PAUSE: &str = "docker.io/testbed/pause:1";
/// Settings of the machine that the kubelet changes. They are restored.
const SYSCTLS: [&str; 6] = [
    "vm.overcommit_memory",
    "vm.panic_on_oom",
    "kernel.panic",
    "kernel.panic_on_oops",
    "kernel.keys.root_maxkeys",
    "kernel.keys.root_maxbytes",
];
/// Programs of Debian packages.
const TOOLS: [&str; 6] = ["containerd", "runc", "nft", "conntrack", "buildah", "docker-registry"];
const PACKAGES: &str = "containerd runc containernetworking-plugins nftables iptables conntrack buildah docker-registry curl python3-pip";

/// The registry of the node at this place.
pub fn registry(place: Place) -> String {
    format!("{}:5000", place.address())
}

/// Whether everything that a node needs is built and installed.
pub fn built() -> Result<bool> {
    Ok(binaries::built(&CONTROL_PLANE)? && binaries::built(&NODE)? && missing_tools().is_empty())
}

pub fn build() -> Result<()> {
    binaries::build(&CONTROL_PLANE)?;
    binaries::build(&NODE)?;
    let missing = missing_tools();
    ensure!(missing.is_empty(), "missing: {}; run: apt-get install {PACKAGES}", missing.join(", "));
    Ok(())
}

fn missing_tools() -> Vec<&'static str> {
    let found = |tool: &str| {
        Command::new("sh")
            .args(["-c", "command -v \"$0\"", tool])
            .output()
            .is_ok_and(|out| out.status.success())
    };
    TOOLS.into_iter().filter(|tool| !found(tool)).collect()
}

/// Starts a node. The control plane that is returned is its control plane, and ends all of it.
pub fn start() -> Result<ControlPlane> {
    build()?;
    let mut plane = ControlPlane::new()?;
    let place = plane.place();
    let data = place.data();
    fs::create_dir_all(data.join("cni")).with_context(|| format!("creating {}", data.display()))?;
    let mut sysctl = Command::new("sysctl");
    sysctl.args(SYSCTLS);
    write(&data.join("sysctls"), &run(sysctl, None)?)?;
    place.add_route(POD_ADDRESSES)?;
    place.add_route(CLUSTER_ADDRESSES)?;
    let mut forward = place.command(Path::new("sysctl"));
    forward.args(["-qw", "net.ipv4.ip_forward=1"]);
    run(forward, None).context("turning on forwarding in the namespace")?;
    start_registry(&mut plane)?;
    plane.start_kubernetes(Level::Node)?;
    start_containers(&mut plane)?;
    start_knative(&mut plane)?;
    Ok(plane)
}

fn start_registry(plane: &mut ControlPlane) -> Result<()> {
    let place = plane.place();
    let (registry, storage) = (registry(place), cache_folder()?.join("registry"));
    fs::create_dir_all(&storage).with_context(|| format!("creating {}", storage.display()))?;
    let config = json!({
        "version": 0.1, "log": {"level": "warn"}, "http": {"addr": registry},
        "storage": {"filesystem": {"rootdirectory": storage}, "delete": {"enabled": true}},
    });
    let file = place.folder().join("registry.json");
    write(&file, &config.to_string())?;
    plane.spawn(
        "registry",
        Path::new("docker-registry"),
        &["serve".into(), file.display().to_string()],
        &[],
    )?;
    plane.wait_until("the registry", |_| {
        let mut curl = Command::new("curl");
        curl.args(["-sSf", &format!("http://{registry}/v2/")]);
        run(curl, None).map(drop)
    })?;
    let mut images = Command::new(cluster_folder().join("node/images.sh"));
    images.env("REGISTRY", &registry).env("CACHE", cache_folder()?);
    images.env("KNATIVE", KNATIVE.cache()?.join("bin")).env("KOURIER", KOURIER.cache()?.join("bin"));
    run(images, None).context("building images").map(drop)
}

/// containerd, the kubelet, kube-proxy and CoreDNS.
fn start_containers(plane: &mut ControlPlane) -> Result<()> {
    let place = plane.place();
    let data = place.data();
    let file = |name: &str| -> PathBuf { data.join(name) };
    write(&file("containerd.toml"), &containerd(place))?;
    let hosts = data.join("registries").join(registry(place));
    fs::create_dir_all(&hosts).with_context(|| format!("creating {}", hosts.display()))?;
    write(
        &hosts.join("hosts.toml"),
        &format!("server = \"http://{0}\"\n[host.\"http://{0}\"]\n", registry(place)),
    )?;
    write(&file("cni/10-testbed.conflist"), &cni(&data).to_string())?;
    let config = ["--config".into(), file("containerd.toml").display().to_string()];
    plane.spawn("containerd", Path::new("containerd"), &config, &[])?;
    let ctr = |arguments: &[&str]| {
        let mut command = Command::new("ctr");
        command.arg("-a").arg(file("containerd.sock")).args(["-n", "k8s.io"]).args(arguments);
        run(command, None).map(drop)
    };
    plane.wait_until("containerd", |_| ctr(&["version"]))?;
    let pause = cache_folder()?.join("pause.tar").display().to_string();
    ctr(&["images", "import", "--index-name", PAUSE, &pause])?;
    ctr(&["images", "label", PAUSE, "io.cri-containerd.image=managed", "io.cri-containerd.pinned=pinned"])?;

    write(&file("resolv.conf"), &format!("nameserver {}\n", place.address()))?;
    write(&file("kubelet.json"), &kubelet(place).to_string())?;
    let arguments = [
        format!("--config={}", file("kubelet.json").display()),
        format!("--kubeconfig={}", kubeconfig_of(place, "kubelet")),
        format!("--root-dir={}", file("kubelet").display()),
        format!("--cert-dir={}", file("kubelet/pki").display()),
        format!("--node-ip={}", place.address()),
        "--hostname-override=node-0".into(),
    ];
    plane.spawn("kubelet", &KUBERNETES.program("kubelet")?, &arguments, &[])?;
    write(&file("proxy.json"), &proxy(place).to_string())?;
    let arguments = [format!("--config={}", file("proxy.json").display())];
    plane.spawn("kube-proxy", &KUBERNETES.program("kube-proxy")?, &arguments, &[])?;
    write(&file("Corefile"), &corefile(place))?;
    let arguments = ["-conf".into(), file("Corefile").display().to_string()];
    plane.spawn("coredns", &COREDNS.program("coredns")?, &arguments, &[])?;
    let ready = ["get", "node", "node-0", "-o", r#"jsonpath={.status.conditions[?(@.status=="True")].type}"#];
    plane.wait_for_output("the node", &ready)?;
    plane.wait_for_output("the default service account", &["get", "serviceaccount", "default", "-o", "name"])
}

fn start_knative(plane: &mut ControlPlane) -> Result<()> {
    let objects = plane.place().folder().join("knative.json");
    node_manifests::write(&objects, &registry(plane.place()))?;
    plane.apply(&[knative::manifests()?.0], None)?;
    plane.kubectl_run(&["wait", "--for=condition=Established", "crd", "--all", "--timeout=60s"], None)?;
    plane.apply(&[objects], None)?;
    for namespace in [knative::NAMESPACE, "kourier-system"] {
        let wait =
            ["wait", "--for=condition=Available", "deployment", "--all", "-n", namespace, "--timeout=180s"];
        plane
            .kubectl_run(&wait, None)
            .context("Knative does not become available; see `kubectl get pods -A`")?;
    }
    Ok(())
}

fn containerd(place: Place) -> String {
    let data = place.data().display().to_string();
    format!(
        r#"version = 2
root = "{data}/containerd/root"
state = "{data}/containerd/state"
[grpc]
  address = "{data}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE}"
  restrict_oom_score_adj = true
  disable_apparmor = true
  netns_mounts_under_state_dir = true
  stream_server_address = "127.0.0.1"
  [plugins."io.containerd.grpc.v1.cri".registry]
    config_path = "{data}/registries"
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "overlayfs"
    [plugins."io.containerd.grpc.v1.cri".containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{data}/cni"
"#
    )
}

fn cni(data: &Path) -> serde_json::Value {
    json!({"cniVersion": "1.0.0", "name": "testbed", "plugins": [
        {"type": "bridge", "bridge": "cni0", "isGateway": true, "ipMasq": false, "hairpinMode": true, "ipam": {
            "type": "host-local", "dataDir": data.join("addresses"), "ranges": [[{"subnet": POD_ADDRESSES}]],
            "routes": [{"dst": "0.0.0.0/0"}]}},
        {"type": "portmap", "capabilities": {"portMappings": true}},
    ]})
}

fn kubelet(place: Place) -> serde_json::Value {
    let data = place.data();
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
        // Machines with the first version of control groups work too.
        "failCgroupV1": false, "cgroupDriver": "cgroupfs",
        "containerRuntimeEndpoint": format!("unix://{}/containerd.sock", data.display()),
        "address": place.address(), "healthzBindAddress": "127.0.0.1",
        "authentication": {"anonymous": {"enabled": false}, "webhook": {"enabled": false},
            "x509": {"clientCAFile": place.folder().join("keys/ca.crt")}},
        "authorization": {"mode": "AlwaysAllow"},
        "clusterDNS": [place.address()], "clusterDomain": "cluster.local", "resolvConf": data.join("resolv.conf"),
        "oomScoreAdj": 0, "failSwapOn": false, "imageGCHighThresholdPercent": 100,
        // The disk is shared with other work.
        "evictionHard": {"memory.available": "200Mi", "nodefs.available": "2Gi", "imagefs.available": "2Gi"},
        "nodeStatusUpdateFrequency": "5s", "syncFrequency": "10s",
        "volumePluginDir": data.join("kubelet/plugins"), "podLogsDir": data.join("logs"),
    })
}

fn proxy(place: Place) -> serde_json::Value {
    json!({
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1", "kind": "KubeProxyConfiguration", "mode": "nftables",
        "clientConnection": {"kubeconfig": kubeconfig_of(place, "proxy")},
        "hostnameOverride": "node-0", "clusterCIDR": POD_ADDRESSES, "bindAddress": place.address(),
        "healthzBindAddress": "127.0.0.1:10256", "metricsBindAddress": "127.0.0.1:10249",
        // Limits of the whole machine, which a namespace cannot change.
        "conntrack": {"maxPerCore": 0, "min": 0}, "oomScoreAdj": 0,
    })
}

fn corefile(place: Place) -> String {
    let (address, kubeconfig) = (place.address(), kubeconfig_of(place, "admin"));
    format!(
        ".:53 {{\n  bind {address}\n  errors\n  kubernetes cluster.local in-addr.arpa {{\n    kubeconfig {kubeconfig}\n    ttl 1\n  }}\n}}\n"
    )
}
