//! The processes of a control plane: their keys, arguments and variables.

use crate::certificates::{Authority, User, write, write_token_key};
use crate::knative;
use crate::slot::Place;
use anyhow::{Context, Result};
use serde_json::{Value, json};
use std::fs;
use std::path::{Path, PathBuf};

const CLUSTER_ADDRESSES: &str = "10.96.0.0/16";

pub fn kubeconfig_of(place: Place, user: &str) -> String {
    place.folder().join(format!("{user}.kubeconfig")).display().to_string()
}

/// Users with a kubeconfig. Knative's processes have exactly the rights of their service account.
const USERS: [(&str, User<'_>); 4] = [
    ("admin", User { name: "admin", group: Some("system:masters") }),
    ("controller-manager", User { name: "system:kube-controller-manager", group: None }),
    ("scheduler", User { name: "system:kube-scheduler", group: None }),
    (
        "knative",
        User {
            name: "system:serviceaccount:knative-serving:controller",
            group: Some("system:serviceaccounts"),
        },
    ),
];

/// Writes the kubeconfig of a user with these credentials.
pub fn write_kubeconfig(place: Place, name: &str, credentials: &Value) -> Result<PathBuf> {
    let file = PathBuf::from(kubeconfig_of(place, name));
    let authority = place.folder().join("keys/ca.crt");
    let server = format!("https://{}:6443", place.address());
    let config = json!({
        "apiVersion": "v1", "kind": "Config", "current-context": "testbed",
        "clusters": [{"name": "testbed", "cluster": {"server": server, "certificate-authority": authority}}],
        "users": [{"name": name, "user": credentials}],
        "contexts": [{"name": "testbed", "context": {"cluster": "testbed", "user": name}}],
    });
    write(&file, &serde_json::to_string_pretty(&config)?)?;
    Ok(file)
}

/// Writes keys, certificates and kubeconfigs, and returns the folder of the keys.
pub fn write_keys(place: Place) -> Result<PathBuf> {
    let folder = place.folder().join("keys");
    fs::create_dir(&folder).with_context(|| format!("creating {}", folder.display()))?;
    let authority = Authority::new()?;
    write(&folder.join("ca.crt"), &authority.pem())?;
    let address = place.address().to_string();
    let names =
        ["localhost", "127.0.0.1", &address, "10.96.0.1", "kubernetes.default", "kubernetes.default.svc"];
    authority.server(&names)?.write(&folder, "server")?;
    write_token_key(&folder)?;
    for (file, user) in USERS {
        authority.client(user)?.write(&folder, file)?;
        let keys = folder.display();
        let user = json!({"client-certificate": format!("{keys}/{file}.crt"), "client-key": format!("{keys}/{file}.key")});
        write_kubeconfig(place, file, &user)?;
    }
    Ok(folder)
}

/// Where the API server's objects are.
pub fn etcd_folder(place: Place) -> PathBuf {
    place.folder().join("etcd")
}

pub fn etcd(place: Place) -> Vec<String> {
    let (client, peer) = ("http://127.0.0.1:2379", "http://127.0.0.1:2380");
    vec![
        format!("--data-dir={}", etcd_folder(place).display()),
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

pub fn api_server(place: Place, keys: &Path) -> Vec<String> {
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
        format!("--service-account-key-file={keys}/tokens.pub"),
        format!("--service-account-signing-key-file={keys}/tokens.key"),
        "--authorization-mode=RBAC".into(),
        format!("--service-cluster-ip-range={CLUSTER_ADDRESSES}"),
        "--allow-privileged=true".into(),
        "--endpoint-reconciler-type=none".into(),
        // No kubelet sends heartbeats, so no controller would remove the taint of a new node.
        "--disable-admission-plugins=TaintNodesByCondition".into(),
    ]
}

pub fn controller_manager(place: Place, keys: &Path) -> Vec<String> {
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

pub fn scheduler(place: Place) -> Vec<String> {
    let kubeconfig = kubeconfig_of(place, "scheduler");
    vec![format!("--kubeconfig={kubeconfig}"), "--leader-elect=false".into(), "--secure-port=0".into()]
}

pub fn kwok(place: Place, stages: &Path) -> Vec<String> {
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
pub fn knative_environment(place: Place, name: &str, ports: [&str; 3]) -> Vec<(&'static str, String)> {
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
