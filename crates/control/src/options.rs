//! What the control plane may use, and where it keeps things.

use crate::platform::cache;
use klambda_functions::plan;
use klambda_local::source;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Clone, Debug)]
pub struct Options {
    /// Holds artifacts, sources and what processes write.
    pub folder: PathBuf,
    /// The program, and the words after it, that lead to `klambda_local::child::main`.
    pub helper: Vec<OsString>,
    /// Where secrets and config maps are: a folder for each, a file for each key.
    pub secrets: Option<PathBuf>,
    /// Functions and agents together.
    pub functions_max: usize,
    pub builds_max: usize,
    pub replicas_max: usize,
    /// How long a replica may take to its first answer.
    pub start_timeout: Duration,
    pub fetch: source::Limits,
    pub limits: plan::Limits,
    /// What the shared cache of builds may hold.
    pub cache: cache::Limits,
    /// Functions that are counted by name; the others are counted together.
    pub named_max: usize,
    /// Where this server is reached, for the addresses in statuses.
    pub url: String,
}

impl Options {
    pub fn new(folder: PathBuf, helper: Vec<OsString>) -> Options {
        Options {
            folder,
            helper,
            secrets: None,
            functions_max: 10_000,
            builds_max: 2,
            replicas_max: 500,
            start_timeout: Duration::from_secs(60),
            fetch: source::Limits::default(),
            limits: plan::Limits::default(),
            cache: cache::Limits { bytes: 10 << 30, age: Duration::from_secs(30 * 86_400) },
            named_max: 100,
            url: String::new(),
        }
    }
}
