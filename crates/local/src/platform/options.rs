//! What the machine may use, and where it keeps things.

use super::cache;
use crate::source;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Holds artifacts, sources and what processes write.
    pub folder: PathBuf,
    /// The program, and the words after it, that lead to [`crate::child::main`].
    pub helper: Vec<OsString>,
    /// Where secrets and config maps are: a folder for each, a file for each key.
    pub secrets: Option<PathBuf>,
    pub builds_max: usize,
    pub replicas_max: usize,
    /// How long a replica may take to its first answer.
    pub start_timeout: Duration,
    /// How long calls may take to end when their replica is no longer wanted.
    pub drain: Duration,
    pub fetch: source::Limits,
    /// What the shared cache of builds may hold.
    pub cache: cache::Limits,
}

impl Options {
    pub fn new(folder: PathBuf, helper: Vec<OsString>) -> Options {
        Options {
            folder,
            helper,
            secrets: None,
            builds_max: 2,
            replicas_max: 500,
            start_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            fetch: source::Limits::default(),
            cache: cache::Limits { bytes: 10 << 30, age: Duration::from_secs(30 * 86_400) },
        }
    }
}
