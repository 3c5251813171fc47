//! What ends the engine, and what does not.

use klambda_core::wire::Malformed;
use klambda_store::{log, manifest, table};
use std::io;

/// The store gave up: nothing more can be promised until a restart.
#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error(transparent)]
    Table(#[from] table::Error),
    #[error(transparent)]
    Manifest(#[from] manifest::Error),
    #[error("the log says something this version does not understand: {0}")]
    Malformed(#[from] Malformed),
    #[error("{0}")]
    State(String),
    #[error("data folder: {0}")]
    Io(#[from] io::Error),
}

impl Failure {
    /// Only what was read is lost; everything else can go on.
    pub(crate) fn is_damage(&self) -> bool {
        matches!(self, Failure::Log(log::Error::Damaged { .. } | log::Error::Gone(_)) | Failure::Malformed(_))
    }
}

/// Nothing of what is damaged or gone: that is told, and is no failure of the store.
pub(crate) fn if_readable<T>(read: Result<T, Failure>) -> Result<Option<T>, Failure> {
    match read {
        Err(failure) if failure.is_damage() => {
            tracing::error!(%failure, "An event cannot be read back.");
            Ok(None)
        }
        read => read.map(Some),
    }
}
