//! Commands that run inside a cluster.

use clap::Args;
use std::net::SocketAddr;
use std::path::PathBuf;

/// Every replica watches. Only the holder of the lease writes.
#[derive(Debug, Args)]
pub struct Operator {
    /// Kubeconfig file [default: the service account of the pod, or $KUBECONFIG]
    #[arg(long, value_name = "FILE")]
    pub kubeconfig: Option<PathBuf>,
    /// Namespaces to manage, separated by commas [default: all]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    pub namespaces: Vec<String>,
    /// URL of the dispatcher, which receives the events of all Triggers
    #[arg(
        long,
        value_name = "URL",
        default_value = "http://dispatcher.knative-lambda-operator.svc.cluster.local"
    )]
    pub dispatcher: String,
    /// Do not send the events about functions to the dispatcher
    #[arg(long)]
    pub no_events: bool,
    /// Listen address of /metrics, /healthz and /readyz
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:9090")]
    pub metrics: SocketAddr,
    /// Name of the Lease that elects the leader
    #[arg(long, value_name = "NAME", default_value = "knative-lambda-operator")]
    pub lease: String,
    /// Namespace of the Lease
    #[arg(long, value_name = "NAME", env = "POD_NAMESPACE", default_value = "knative-lambda-operator")]
    pub lease_namespace: String,
    /// Name of this replica [default: the host name and a random number]
    #[arg(long, value_name = "NAME", env = "POD_NAME")]
    pub identity: Option<String>,
    /// Domain of the cluster
    #[arg(long, value_name = "DOMAIN", default_value = "cluster.local")]
    pub cluster_domain: String,
    /// Registry for built images
    #[arg(long, value_name = "HOST[/PATH]", default_value = "localhost:5001")]
    pub registry: String,
    /// Name of the registry for nodes, if it differs
    #[arg(long, value_name = "HOST[/PATH]")]
    pub pull_registry: Option<String>,
    /// Connect to the registry without TLS
    #[arg(long)]
    pub insecure_registry: bool,
    /// Secret with the credentials of the registry, in the namespace of each function
    #[arg(long, value_name = "NAME")]
    pub push_secret: Option<String>,
    /// Image that contains klambda, to fetch sources
    #[arg(long, value_name = "IMAGE", default_value = "klambda:latest")]
    pub fetch_image: String,
    /// Image that contains buildah, to build functions
    #[arg(long, value_name = "IMAGE", default_value = "quay.io/buildah/stable:v1.42")]
    pub builder_image: String,
    #[command(flatten)]
    pub images: BaseImages,
    /// Create missing Brokers with this class [default: create none]
    #[arg(long, value_name = "CLASS")]
    pub broker_class: Option<String>,
    /// Write policies of Linkerd for every function
    #[arg(long)]
    pub linkerd: bool,
    /// Log format: pretty or json
    #[arg(long, value_name = "FORMAT", default_value = "json", value_parser = ["pretty", "json"])]
    pub log_format: String,
    /// Log level: off, error, warn, info, debug, trace, or directives like info,kube=debug
    #[arg(long, value_name = "LEVEL", default_value = "info")]
    pub log_level: String,
}

/// The images that functions are built on. A version in a manifest replaces the version in the tag.
#[derive(Clone, Debug, Args)]
pub struct BaseImages {
    /// Base image of Node.js functions
    #[arg(long, value_name = "IMAGE", default_value = "node:22-slim")]
    pub node_image: String,
    /// Base image of Python functions
    #[arg(long, value_name = "IMAGE", default_value = "python:3.13-slim")]
    pub python_image: String,
    /// Image that compiles Go functions
    #[arg(long, value_name = "IMAGE", default_value = "golang:1.25")]
    pub go_image: String,
    /// Image that compiled functions run in
    #[arg(long, value_name = "IMAGE", default_value = "gcr.io/distroless/static-debian12:nonroot")]
    pub static_image: String,
}

/// The build Jobs of the operator run this. The exit code is 10 if a retry cannot help.
#[derive(Debug, Args)]
pub struct Fetch {
    /// File with the function (JSON or YAML)
    #[arg(short, long, value_name = "FILE")]
    pub file: PathBuf,
    /// Folder for the result: code, runtime and Dockerfile. It must not exist
    #[arg(long, value_name = "DIR")]
    pub into: PathBuf,
    /// Folder with secrets: NAMESPACE/SECRET/KEY
    #[arg(long, value_name = "DIR")]
    pub secrets: Option<PathBuf>,
    /// File for the result or the failure as JSON
    #[arg(long, value_name = "FILE")]
    pub result: Option<PathBuf>,
    #[command(flatten)]
    pub images: BaseImages,
}
