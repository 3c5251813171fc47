//! The status of a function.

use super::spec::Scaling;
use crate::failure::Reason;
use crate::scalar::Time;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Maximum size of a status as JSON, including the metadata that the server adds. All texts in a status are truncated to
/// stay within this limit.
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
    /// The generation of the spec that this status describes.
    pub observed_generation: u64,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["type"]))]
    pub conditions: Vec<Condition>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub build_status: Option<Box<BuildStatus>>,
    /// The build of a rollback. The next plan uses it as `build_status`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub restored: Option<Box<BuildStatus>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_status: Option<Box<ServiceStatus>>,
    /// Who wrote the current spec, by the name in the audit log.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_by: Option<String>,
    /// The kept revisions, oldest first. The last one serves, or served last.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[schemars(extend("x-kubernetes-list-type" = "map", "x-kubernetes-list-map-keys" = ["number"]))]
    pub revisions: Vec<RevisionRef>,
    /// The version that was deployed last and has not served yet. It becomes a revision when it serves.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub candidate: Option<Box<RevisionRef>>,
    /// The last log lines of the last failure: of a fetch, a build or a process.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub log_lines: Vec<String>,
}

/// The counters that the control plane keeps between plans. They are stored with the resource and not shown to users.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Counters {
    /// Number of events about resources with this name. Numbers the next events.
    pub transitions: u64,
    /// Number of started fetches and builds. Each gets a number, which identifies its result.
    pub tries: u64,
    /// The numbers of the last fetch and the last build of the current build; zero before the first.
    pub fetch_try: u64,
    pub build_try: u64,
    /// The secrets of the source when it was last fetched, as a number; zero before the first time.
    pub source_secrets: u64,
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
pub enum BuildOutcome {
    Completed,
    Failed,
    Timeout,
    Cancelled,
    Stopped,
}

/// The build of the current inputs: the fetch and the build of the artifact.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(default, rename_all = "camelCase")]
pub struct BuildStatus {
    /// The name of the build, derived from its inputs.
    pub job_name: String,
    /// Hash of the inputs as written: source, runtime, build settings and the last requested rebuild.
    pub inputs: String,
    /// The digest of the fetched source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    /// The fetched commit of a git source.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The content hash of the artifact.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hash: Option<String>,
    #[serde(rename = "imageURI", skip_serializing_if = "Option::is_none")]
    pub image_uri: Option<String>,
    /// The digest of the image, if the container engine reports one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image_digest: Option<String>,
    /// Number of tries of the current step: the fetch, then the build.
    pub attempts: u32,
    /// When the first of these tries started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub tried_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub started_at: Option<Time>,
    /// When the running try started. Time in the queue does not count.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub running_since: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub completed_at: Option<Time>,
    /// When a failed try is retried.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_at: Option<Time>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub outcome: Option<BuildOutcome>,
    /// The reason of the failure, and whether the source caused it.
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
    /// The version that serves, or served last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub version: Option<String>,
    /// The generation of the spec that serves, and its revision.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub revision: Option<u64>,
    /// The scaling settings that are in effect.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub scaling: Option<Scaling>,
}

/// A revision, without its spec.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct RevisionRef {
    /// Increases by one with each revision of the function.
    pub number: u64,
    /// Generation of the spec.
    pub generation: u64,
    /// Without the secrets that it ran with.
    pub version: String,
    /// The content hash of its artifact.
    pub artifact: String,
    /// Hash of the version and the spec, without scaling and `paused`.
    pub content: String,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u64) -> bool {
    *number == 0
}

impl BuildOutcome {
    /// The outcome of a build that failed for this reason.
    pub fn of(reason: Reason) -> BuildOutcome {
        match reason {
            Reason::BuildTimeout | Reason::BuildStalled => BuildOutcome::Timeout,
            Reason::BuildCancelled => BuildOutcome::Cancelled,
            Reason::BuildStopped => BuildOutcome::Stopped,
            _ => BuildOutcome::Failed,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            BuildOutcome::Completed => "completed",
            BuildOutcome::Failed => "failed",
            BuildOutcome::Timeout => "timeout",
            BuildOutcome::Cancelled => "cancelled",
            BuildOutcome::Stopped => "stopped",
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
    /// Resets the numbers, because the next fetch and build belong to a new build.
    pub(crate) fn forget_tries(&mut self) {
        (self.fetch_try, self.build_try) = (0, 0);
    }
}

impl Status {
    pub fn condition(&self, aspect: Aspect) -> Option<&Condition> {
        self.conditions.iter().find(|condition| condition.aspect == aspect)
    }

    /// Keeps the facts and drops the messages.
    pub(super) fn shorten(&mut self) {
        self.log_lines.clear();
        self.conditions.iter_mut().for_each(|condition| condition.message.clear());
        if let Some(build) = &mut self.build_status {
            build.error = None;
        }
    }

    /// The kept revisions and the candidate.
    pub fn all_revisions(&self) -> impl Iterator<Item = &RevisionRef> {
        self.revisions.iter().chain(self.candidate.as_deref())
    }

    /// The number of the next revision. The newest revision is always kept, so no number is reused.
    pub fn next_revision(&self) -> u64 {
        self.revisions.last().map_or(1, |newest| newest.number + 1)
    }

    pub fn is_true(&self, aspect: Aspect) -> bool {
        self.condition(aspect).is_some_and(|condition| condition.status == Truth::True)
    }
}
