//! Failures that stop the engine, and damage that does not.

use klambda_core::os_error::in_words;
use klambda_core::wire::Malformed;
use klambda_store::{log, manifest, table};
use std::io;

/// The store failed. Nothing can be guaranteed until a restart.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error(transparent)]
    Table(#[from] table::Error),
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error("this version cannot decode a record of the log: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    State(String),
    #[error("data folder: {}", in_words(.0))]
    Io(#[from] io::Error),
}

impl Failure {
    /// True if only the data that was read is lost and everything else can continue.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Failure::Log(log::Error::Damaged { .. } | log::Error::Gone(_)) | Failure::Malformed(_))
    }
}

/// Returns `None` for data that is damaged or gone. The damage is logged and does not stop the engine.
pub(crate) fn if_readable<T>(read: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match read {
        Err(failure) if failure.is_damage() => {
            tracing::error!(%failure, "Could not read an event from the log");
            Ok(None)
        }
        read => read.map(Some),
    }
}
