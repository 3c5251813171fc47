//! What the operator needs to know about its cluster.

use klambda_functions::plan::Limits;

#[derive(Clone, Debug, PartialEq)]
pub struct Config {
    /// Namespaces whose functions it manages. Empty means all.
    pub namespaces: Vec<String>,
    /// The domain of Services.
    pub cluster_domain: String,
    /// The URL of the dispatcher, without a path: it receives every event of a Trigger, and every dead letter.
    pub dispatcher: String,
    /// Whether the operator sends the events about functions to the dispatcher.
    pub emits: bool,
    pub build: Build,
    /// The class of Brokers that the operator creates. `None` means that it creates none.
    pub broker_class: Option<String>,
    /// Whether to write policies of Linkerd.
    pub linkerd: bool,
    pub limits: Limits,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Build {
    /// The image with `klambda`, which fetches sources.
    pub fetch_image: String,
    /// The image with buildah.
    pub builder_image: String,
    /// The registry that builds push to, `host[:port][/path]`.
    pub registry: String,
    /// The name under which nodes pull from it, if that differs.
    pub pull_registry: Option<String>,
    /// Connect to the registry without TLS.
    pub insecure: bool,
    /// A secret of type `kubernetes.io/dockerconfigjson` in the namespace of the function.
    pub push_secret: Option<String>,
    pub node_image: String,
    pub python_image: String,
    pub go_image: String,
    /// Image that compiled functions run in.
    pub static_image: String,
}

/// Tries of a Job before it fails.
pub const BACKOFF_LIMIT: u32 = 3;
/// Finished Jobs that are kept of a function.
pub const JOBS_KEPT: usize = 3;

impl Default for Config {
    fn default() -> Config {
        Config {
            namespaces: Vec::new(),
            cluster_domain: "cluster.local".to_owned(),
            dispatcher: "http://dispatcher.knative-lambda-operator.svc.cluster.local".to_owned(),
            emits: true,
            build: Build::default(),
            broker_class: None,
            linkerd: false,
            // The Job retries. Nodes may have to pull a large image before a version answers.
            limits: Limits { tries_max: 1, start_ms_max: 600_000, ..Limits::default() },
        }
    }
}

impl Default for Build {
    fn default() -> Build {
        Build {
            fetch_image: "klambda:latest".to_owned(),
            builder_image: "quay.io/buildah/stable:v1.42".to_owned(),
            registry: "localhost:5001".to_owned(),
            pull_registry: None,
            insecure: false,
            push_secret: None,
            node_image: "node:22-slim".to_owned(),
            python_image: "python:3.13-slim".to_owned(),
            go_image: "golang:1.25".to_owned(),
            static_image: "gcr.io/distroless/static-debian12:nonroot".to_owned(),
        }
    }
}

impl Config {
    pub fn manages(&self, namespace: &str) -> bool {
        self.namespaces.is_empty() || self.namespaces.iter().any(|managed| managed == namespace)
    }

    /// Where Triggers send the events of a namespace.
    pub fn events_url(&self, namespace: &str) -> String {
        format!("{}/api/v1/namespaces/{namespace}/events", self.dispatcher.trim_end_matches('/'))
    }
}
