//! The output of functions and builds, line by line. The form of a line is the same in the API and on disk.

use crate::scalar::Time;
use klambda_core::time::Millis;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "LogLine")]
pub struct Line {
    /// Counts from 0 for each function since the server started, without gaps. A slow reader can detect missed lines.
    pub number: u64,
    #[serde(with = "rfc3339")]
    #[schemars(with = "Time")]
    pub time: Millis,
    pub stream: Stream,
    /// The replica that printed it. None for builds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replica: Option<u64>,
    /// The generation of the spec that runs or is built.
    pub generation: u64,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub build: Option<Build>,
    /// The event that was handled, if the function says so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub event_id: Option<String>,
    pub text: String,
}

/// Identifies a build of a function.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[schemars(rename = "LogBuild")]
pub struct Build {
    /// Hash of the inputs of the build.
    pub hash: String,
    #[serde(with = "rfc3339")]
    #[schemars(with = "Time")]
    pub started: Millis,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "LogStream")]
pub enum Stream {
    Stdout,
    Stderr,
    /// The tools of a build.
    Build,
}

/// Selects lines.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Query {
    pub part: Part,
    /// At most this many earlier lines.
    pub tail: Option<usize>,
    pub since: Option<Millis>,
    pub generation: Option<u64>,
    pub event_id: Option<String>,
    /// Continue with new lines.
    pub follow: bool,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Part {
    /// The output of all replicas.
    #[default]
    Replicas,
    /// The output of the last replica that has ended.
    Previous,
    /// The output of the last build.
    Build,
}

mod rfc3339 {
    use klambda_core::time::Millis;
    use serde::{Deserialize, Deserializer, Serializer, de::Error};
    use std::borrow::Cow;

    pub fn serialize<S: Serializer>(time: &Millis, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&time.rfc3339())
    }

    pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Millis, D::Error> {
        let text = Cow::<str>::deserialize(deserializer)?;
        Millis::parse_rfc3339(&text).ok_or_else(|| D::Error::custom("not a time"))
    }
}
