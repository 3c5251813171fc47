//! The limits and folders of the machine.

use super::cache;
use crate::{logs, source};
use klambda_outbound as outbound;
use klambda_secrets::Reader;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

#[derive(Clone)]
pub struct Options {
    /// Holds artifacts, sources and files of processes.
    pub folder: PathBuf,
    /// The program and arguments that run [`crate::child::main`].
    pub helper: Vec<OsString>,
    /// Secrets and config maps: a folder for each, a file for each key.
    pub secrets: Option<PathBuf>,
    /// Stored secrets. They take precedence over the folder.
    pub stored_secrets: Option<Arc<dyn Reader>>,
    /// Reject code, because on this machine it would run as the user of this process.
    pub isolation_required: bool,
    pub builds_max: usize,
    pub replicas_max: usize,
    /// Time limit for the first response of a replica.
    pub start_timeout: Duration,
    /// Time limit for open calls when their replica is stopped.
    pub drain: Duration,
    pub fetch: source::Limits,
    /// Limits the addresses of sources, and of functions that run at a URL.
    pub outbound: outbound::Guard,
    /// Limits of the shared build cache.
    pub cache: cache::Limits,
    /// Limits of the log of each function.
    pub logs: logs::Limits,
}

impl Options {
    pub fn new(folder: PathBuf, helper: Vec<OsString>) -> Options {
        Options {
            folder,
            helper,
            secrets: None,
            stored_secrets: None,
            isolation_required: false,
            builds_max: 2,
            replicas_max: 500,
            start_timeout: Duration::from_secs(60),
            drain: Duration::from_secs(30),
            fetch: source::Limits::default(),
            outbound: outbound::Guard::off(),
            cache: cache::Limits { bytes: 10 << 30, age: Duration::from_secs(30 * 86_400) },
            logs: logs::Limits::default(),
        }
    }
}
