//! What the owner of a function asks for.

use super::delivery::{Backlog, DeadLetters, Idempotency, Ordering, OrderingPolicy, Retry};
use super::source::Source;
use crate::defaults;
use crate::scalar::{Cpu, Duration, Size};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.orderingPolicy) || self.ordering == 'ordered'", "message": "orderingPolicy has no meaning without ordering: ordered" },
    { "rule": "!has(self.source) || self.source.type in ['image', 'url'] || has(self.runtime)", "message": "code that is to be built needs a runtime" },
]))]
pub struct Spec {
    /// Where the code is. An agent may be applied before it has one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Needed for code that is built; an image or a URL brings its own.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    pub scaling: Scaling,
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Which events reach it: those that match any of these. None: it is only invoked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub triggers: Vec<Trigger>,
    pub build: Build,
    pub ordering: Ordering,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ordering_policy: Option<Box<OrderingPolicy>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry: Option<Box<Retry>>,
    /// Requests open at once; what all replicas together can take where it is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub idempotency: Option<Box<Idempotency>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sequence_ttl: Option<Duration>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub backlog: Option<Box<Backlog>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub dead_letters: Option<Box<DeadLetters>>,
    /// `latest`, `earliest` or a time: where in the log its triggers begin.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Events wait while this is set.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

impl Spec {
    /// Where it runs already, if it is not built or started here.
    pub fn url(&self) -> Option<&str> {
        Some(self.source.as_ref()?.url.as_ref()?.url.as_str())
    }

    /// How long one call may take.
    pub fn call_timeout(&self) -> Duration {
        let stated = self.retry.as_ref().and_then(|retry| retry.timeout);
        stated.unwrap_or(defaults::CALL_TIMEOUT)
    }
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Language {
    #[default]
    Nodejs,
    Python,
    Go,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["language"]))]
pub struct Runtime {
    #[schemars(extend("default" = null))]
    pub language: Language,
    /// The version the platform has, where it is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `file.function`.
    pub handler: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "self.minReplicas <= self.maxReplicas", "message": "minReplicas must not be more than maxReplicas" },
]))]
pub struct Scaling {
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: u32,
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: u32,
    /// Requests that one replica is meant to have open at once.
    #[schemars(range(min = 1, max = 10000))]
    pub target_concurrency: u32,
    pub scale_to_zero_grace_period: Duration,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Resources {
    #[serde(skip_serializing_if = "Requests::is_empty")]
    pub requests: Requests,
    #[serde(skip_serializing_if = "Limits::is_empty")]
    pub limits: Limits,
}

/// What was written; what was not is in [`defaults::amounts`]. The schema's defaults are a cluster's to fill in.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Requests {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::REQUEST_MEMORY))]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::REQUEST_CPU))]
    pub cpu: Option<Cpu>,
}

/// The same for limits. On one machine only those that are written are enforced.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Limits {
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LIMIT_MEMORY))]
    pub memory: Option<Size>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("default" = defaults::LIMIT_CPU))]
    pub cpu: Option<Cpu>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name"], "x-kubernetes-validations" = [
    { "rule": "!(has(self.value) && has(self.valueFrom))", "message": "give either value or valueFrom" },
]))]
pub struct EnvVar {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub value_from: Option<Box<ValueFrom>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "has(self.secretKeyRef) != has(self.configMapKeyRef)", "message": "give either secretKeyRef or configMapKeyRef" },
]))]
pub struct ValueFrom {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret_key_ref: Option<KeyRef>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub config_map_key_ref: Option<KeyRef>,
}

/// One entry of a secret or a config map of the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "key"]))]
pub struct KeyRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// Left out of the environment where it does not exist, instead of a fault.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!(has(self.filter) && has(self.filters))", "message": "give either filter or filters" },
]))]
pub struct Trigger {
    /// On one machine every name means the local log.
    pub broker: String,
    /// Attributes that must be equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Box<ExactFilter>>,
    /// The filters of a subscription; all must match.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("items" = { "type": "object", "x-kubernetes-preserve-unknown-fields": true }))]
    pub filters: Option<Box<Vec<Value>>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "has(self.type) || has(self.source)", "message": "name a type, a source or both" },
]))]
pub struct ExactFilter {
    #[serde(rename = "type", skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Build {
    pub timeout: Duration,
    /// Where built images are pushed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The secret with the registry's credentials.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// The tag of the built image; its content hash where it is not named.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Speak to the registry without TLS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Build on every change of the spec, even of content that was built before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force_rebuild: bool,
    /// Install Python packages that exist only as source. Building one runs its `setup.py`; else only wheels are installed.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub allow_source_distributions: bool,
}

impl Language {
    pub fn name(self) -> &'static str {
        match self {
            Language::Nodejs => "nodejs",
            Language::Python => "python",
            Language::Go => "go",
        }
    }
}

impl Resources {
    fn is_empty(&self) -> bool {
        *self == Resources::default()
    }
}

impl Requests {
    fn is_empty(&self) -> bool {
        *self == Requests::default()
    }
}

impl Limits {
    fn is_empty(&self) -> bool {
        *self == Limits::default()
    }
}

impl Default for Runtime {
    fn default() -> Runtime {
        Runtime { language: Language::default(), version: None, handler: defaults::HANDLER.to_owned() }
    }
}

impl Default for Scaling {
    fn default() -> Scaling {
        Scaling {
            min_replicas: 0,
            max_replicas: defaults::REPLICAS_MAX,
            target_concurrency: defaults::TARGET_CONCURRENCY,
            scale_to_zero_grace_period: defaults::GRACE_PERIOD,
        }
    }
}

impl Default for Trigger {
    fn default() -> Trigger {
        Trigger { broker: defaults::BROKER.to_owned(), filter: None, filters: None }
    }
}

impl Default for Build {
    fn default() -> Build {
        Build {
            timeout: defaults::BUILD_TIMEOUT,
            registry: None,
            image_pull_secret: None,
            tag: None,
            insecure: false,
            force_rebuild: false,
            allow_source_distributions: false,
        }
    }
}
