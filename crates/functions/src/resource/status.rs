//! What became of what was asked for.

use super::spec::Scaling;
use crate::failure::Reason;
use crate::scalar::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What a status takes at most as JSON, together with what the server adds to the metadata of what was written. All texts
/// in it are cut so that it holds.
pub const STATUS_BYTES_MAX: usize = 64 << 10;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Phase {
    #[default]
    Pending,
    Building,
    Deploying,
    Ready,
    Failed,
    Deleting,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct Status {
    pub phase: Phase,
    /// The generation of the spec that this status speaks of.
    pub observed_generation: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_status: Option<Box<BuildStatus>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_status: Option<Box<ServiceStatus>>,
    /// The last lines of what failed last: a fetch, a build or a process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_lines: Vec<String>,
}

/// What the control plane remembers of a resource from one plan to the next. It is stored with the resource and shown to
/// nobody.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counters {
    /// Events about resources of this name so far. Numbers the next ones.
    pub transitions: u64,
    /// Fetches and builds begun so far. Each has a number, which tells its answer from that of another.
    pub tries: u64,
    /// The number of the current build's last fetch, and of its last build; zero before the first.
    pub fetch_try: u64,
    pub build_try: u64,
}

/// The type of a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
pub enum Aspect {
    SourceReady,
    BuildReady,
    DeployReady,
    ServiceReady,
    BrokerReady,
    TriggersReady,
    #[serde(rename = "DLQReady")]
    DlqReady,
    #[serde(rename = "AIAgentReady")]
    AiAgentReady,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum Truth {
    True,
    False,
    #[default]
    Unknown,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Condition {
    #[serde(rename = "type")]
    pub aspect: Aspect,
    pub status: Truth,
    pub reason: String,
    pub message: String,
    pub last_transition_time: Time,
    pub observed_generation: u64,
}

/// How a build ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Completed,
    Failed,
    Timeout,
    Cancelled,
    Stopped,
}

/// The build of the inputs that the spec names now: fetching them and making an artifact of them.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BuildStatus {
    /// Names the build; made of its inputs.
    pub job_name: String,
    /// The inputs as written: source, runtime, build, and the last request to build again.
    pub inputs: String,
    /// The content that was fetched.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// The content hash of the artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    #[serde(rename = "imageURI", skip_serializing_if = "Option::is_none")]
    pub image_uri: Option<String>,
    /// Tries so far of the step it is at: fetching, then building.
    pub attempts: u32,
    /// When the first of these tries began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the time of the try that runs began to count: not while it waits for others.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When a try that failed is made again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<Outcome>,
    /// The word for what went wrong, and whether it was the source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub source_failed: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct ServiceStatus {
    pub service_name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub url: Option<String>,
    pub ready: bool,
    pub replicas: u32,
    /// The version that serves, or did last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// What it was last seen to scale by.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

impl Outcome {
    /// What it comes to when a build fails so.
    pub fn of(reason: Reason) -> Outcome {
        match reason {
            Reason::BuildTimeout | Reason::BuildStalled => Outcome::Timeout,
            Reason::BuildCancelled => Outcome::Cancelled,
            Reason::BuildStopped => Outcome::Stopped,
            _ => Outcome::Failed,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Outcome::Completed => "completed",
            Outcome::Failed => "failed",
            Outcome::Timeout => "timeout",
            Outcome::Cancelled => "cancelled",
            Outcome::Stopped => "stopped",
        }
    }
}

impl Phase {
    pub const ALL: [Phase; 6] =
        [Phase::Pending, Phase::Building, Phase::Deploying, Phase::Ready, Phase::Failed, Phase::Deleting];

    pub fn name(self) -> &'static str {
        match self {
            Phase::Pending => "Pending",
            Phase::Building => "Building",
            Phase::Deploying => "Deploying",
            Phase::Ready => "Ready",
            Phase::Failed => "Failed",
            Phase::Deleting => "Deleting",
        }
    }
}

impl Aspect {
    pub const ALL: [Aspect; 8] = [
        Aspect::SourceReady,
        Aspect::BuildReady,
        Aspect::DeployReady,
        Aspect::ServiceReady,
        Aspect::BrokerReady,
        Aspect::TriggersReady,
        Aspect::DlqReady,
        Aspect::AiAgentReady,
    ];
}

impl Counters {
    /// The next fetch and the next build belong to another build than the last ones.
    pub(crate) fn forget_tries(&mut self) {
        (self.fetch_try, self.build_try) = (0, 0);
    }
}

impl Status {
    pub fn condition(&self, aspect: Aspect) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.aspect == aspect)
    }

    /// Leaves what happened, and takes away what explains it.
    pub(super) fn shorten(&mut self) {
        self.log_lines.clear();
        self.conditions.iter_mut().for_each(|condition| condition.message.clear());
        if let Some(build) = &mut self.build_status {
            build.error = None;
        }
    }

    pub fn is_true(&self, aspect: Aspect) -> bool {
        self.condition(aspect).is_some_and(|condition| condition.status == Truth::True)
    }
}
