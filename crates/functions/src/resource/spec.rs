//! The spec of a function. The delivery fields have the schema of subscriptions, and are kept as written for
//! [`crate::triggers`].

use super::source::Source;
use crate::defaults;
use crate::scalar::{Cpu, Duration, Size};
use klambda_core::quantity::parse_duration_ms;
use klambda_core::subscription::{
    Backlog, DeadLetters, From, Idempotency, Ordering, OrderingPolicy, Retry, SequenceTtl,
};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value;

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!has(self.orderingPolicy) || self.ordering == 'ordered'", "message": "orderingPolicy requires ordering: ordered", "fieldPath": ".orderingPolicy" },
    { "rule": "!has(self.source) || self.source.type in ['image', 'url'] || has(self.runtime)", "message": "code needs a runtime", "fieldPath": ".runtime" },
]))]
pub struct Spec {
    /// The source of the code. Optional for agents.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// Required for code. Images and URLs need none.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<Runtime>,
    pub scaling: Scaling,
    #[serde(skip_serializing_if = "Resources::is_empty")]
    pub resources: Resources,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 256), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["name"]))]
    pub env: Vec<EnvVar>,
    /// Secrets that replicas read as files.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["secret"]))]
    pub secret_files: Vec<SecretFiles>,
    /// The function receives events that match any of these triggers. Without triggers it runs only when invoked.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 64), extend("x-kubernetes-list-type" = "atomic"))]
    pub triggers: Vec<Trigger>,
    pub build: Build,
    /// Whether the events of one key are delivered one after the other.
    pub ordering: Ordering,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<OrderingPolicy>")]
    pub ordering_policy: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Retry>")]
    pub retry: Option<Value>,
    /// Maximum number of open requests. The default is the capacity of all replicas together.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 65536))]
    pub concurrency: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Idempotency>")]
    pub idempotency: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<SequenceTtl>")]
    pub sequence_ttl: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<Backlog>")]
    pub backlog: Option<Value>,
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<DeadLetters>")]
    pub dead_letters: Option<Value>,
    /// Where in the log the triggers start: `latest`, `earliest` or a time.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Option<From>")]
    pub from: Option<String>,
    /// While true, events are accepted but not delivered.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub paused: bool,
}

impl Spec {
    /// The URL of a function that runs outside this platform.
    pub fn url(&self) -> Option<&str> {
        Some(self.source.as_ref()?.url.as_ref()?.url.as_str())
    }

    /// Timeout of one call.
    pub fn call_timeout(&self) -> Duration {
        let stated = self.retry.as_ref().and_then(|retry| parse_duration_ms(retry["timeout"].as_str()?).ok());
        stated.map_or(defaults::CALL_TIMEOUT, |ms| Duration { ms })
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
    /// The default is the installed version.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// `file.function`.
    pub handler: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "self.minReplicas <= self.maxReplicas", "message": "minReplicas must not be greater than maxReplicas", "fieldPath": ".minReplicas" },
]))]
pub struct Scaling {
    #[schemars(range(min = 0, max = 1000))]
    pub min_replicas: u32,
    #[schemars(range(min = 1, max = 1000))]
    pub max_replicas: u32,
    /// Number of open requests that one replica should handle at once.
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

/// Requests as written. [`defaults::amounts`] fills in missing ones; the schema defaults are for clusters.
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

/// Limits as written. A single machine enforces only these.
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

/// One entry of a secret or config map in the same namespace.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["name", "key"]))]
pub struct KeyRef {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub name: String,
    #[serde(skip_serializing_if = "String::is_empty")]
    pub key: String,
    /// If true, a missing secret or key leaves the variable unset instead of failing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

/// The keys of a secret of the same namespace as files: `$KLAMBDA_SECRETS/SECRET/KEY`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("required" = ["secret"]))]
pub struct SecretFiles {
    #[serde(skip_serializing_if = "String::is_empty")]
    pub secret: String,
    /// A second folder in which a container finds the files.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// Leave the files out if the secret does not exist, instead of failing.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub optional: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-validations" = [
    { "rule": "!(has(self.filter) && has(self.filters))", "message": "give either filter or filters" },
]))]
pub struct Trigger {
    /// On a single machine every broker is the local log.
    pub broker: String,
    /// Attributes that must be equal.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub filter: Option<Box<ExactFilter>>,
    /// Filters as in a subscription; all must match.
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
    /// The registry that built images are pushed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub registry: Option<String>,
    /// The secret with the credentials of the registry.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_pull_secret: Option<String>,
    /// The tag of the built image. The default is its content hash.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tag: Option<String>,
    /// Connect to the registry without TLS.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub insecure: bool,
    /// Build on every change of the spec, even if the content was built before.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub force_rebuild: bool,
    /// Install Python packages that exist only as source. This runs their `setup.py`. The default is to install only wheels.
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
