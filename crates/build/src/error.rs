//! Errors of a build, with one variant for each case that callers handle differently.

use crate::Language;
use std::path::Path;
use std::time::Duration;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(
        "{language} {asked} is not installed on the server ({available}); install it or change runtime.version"
    )]
    VersionNotAvailable { language: Language, asked: String, available: String },
    #[error("dependency not found: {message}; check its name and version")]
    DependencyNotFound { message: String, log: Vec<String> },
    #[error("the source does not compile: {message}")]
    SyntaxError { message: String, log: Vec<String> },
    #[error("{message}")]
    HandlerMissing { message: String },
    #[error("the build timed out after {after:?}; raise build.timeout or use fewer dependencies")]
    Timeout { after: Duration, log: Vec<String> },
    #[error("the build stalled: no output and no CPU use for {after:?}")]
    Stalled { after: Duration, log: Vec<String> },
    #[error("the build was cancelled")]
    Cancelled,
    #[error("{message}")]
    Failed { message: String, log: Vec<String> },
}

impl Error {
    /// The reason in conditions and events.
    pub fn reason(&self) -> &'static str {
        match self {
            Error::VersionNotAvailable { .. } => "VersionNotAvailable",
            Error::DependencyNotFound { .. } => "DependencyNotFound",
            Error::SyntaxError { .. } => "SyntaxError",
            Error::HandlerMissing { .. } => "HandlerMissing",
            Error::Timeout { .. } => "Timeout",
            Error::Stalled { .. } => "Stalled",
            Error::Cancelled => "Cancelled",
            Error::Failed { .. } => "Failed",
        }
    }

    /// The last output lines of the tools.
    pub fn log(&self) -> &[String] {
        match self {
            Error::DependencyNotFound { log, .. }
            | Error::SyntaxError { log, .. }
            | Error::Timeout { log, .. }
            | Error::Stalled { log, .. }
            | Error::Failed { log, .. } => log,
            _ => &[],
        }
    }

    /// Whether a retry can succeed. False if the source itself is wrong.
    pub fn may_pass(&self) -> bool {
        matches!(self, Error::Failed { .. } | Error::Timeout { .. } | Error::Stalled { .. })
    }

    pub(crate) fn io(doing: &str, path: &Path, error: &std::io::Error) -> Error {
        Error::Failed { message: format!("{doing} {}: {error}", path.display()), log: Vec::new() }
    }
}
