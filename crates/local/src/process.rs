//! Processes that serve requests. Each receives its listening socket as its standard input, so callers can connect before
//! it is up; their requests wait in the kernel.
//!
//! - A process dies with this program, even if the program is killed ([`crate::child`]). The next start kills any process
//!   that survived ([`leftovers`]).
//! - It has its own process group, which receives its signals. Processes that left the group are killed too ([`strays`]).
//! - Its output is kept ([`crate::logs`]).
//! - Limits apply only if they are set ([`limits`]).
//!
//! **Invariant:** the parent death signal depends on the thread that started a process. So one thread starts all processes,
//! and it lives as long as the program.

use crate::fleet::files::Files;
use klambda_core::address::ReplicaAddress;
use klambda_core::quantity::format_bytes;
use rustix::net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType};
use rustix::process::{Pid, Signal, kill_process_group};
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

pub mod leftovers;
pub mod limits;
pub(crate) mod mark;
pub(crate) mod proc;
mod spawner;
mod strays;
mod tracked;

pub use limits::Limits;
pub use spawner::{Options, Spawner};
pub use tracked::{ProcessTracker, TrackedProcess};

/// The command to run.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Its working directory.
    pub folder: PathBuf,
    /// Its whole environment, except `PATH` and the variables about its socket.
    pub environment: Vec<(String, String)>,
    pub limits: Limits,
    /// The container that this command is the client of. The container of a daemon outlives its client.
    pub container: Option<String>,
    /// Secrets that it finds as files. The starter of the command writes them.
    pub files: Option<Arc<Files>>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// It was killed because it used more memory than this limit.
    pub out_of_memory: Option<u64>,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.out_of_memory, self.code, self.signal) {
            (Some(limit), _, _) => {
                write!(formatter, "exceeded its memory limit of {}", format_bytes(limit))
            }
            (_, Some(code), _) => write!(formatter, "exited with code {code}"),
            (_, None, Some(signal)) => write!(formatter, "was killed by signal {signal}"),
            (_, None, None) => formatter.write_str("exited"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not start {program}: {error}")]
    Start { program: String, error: std::io::Error },
    #[error("could not create a socket: {0}")]
    Listen(std::io::Error),
    #[error("the thread that starts processes has stopped")]
    Ended,
}

/// Connections that may wait for a process. The kernel may allow fewer.
const CALLS_WAITING_MAX: i32 = 4096;

/// A listening socket with a name assigned by the kernel.
pub fn listen() -> Result<(OwnedFd, ReplicaAddress), Error> {
    let listen = || -> std::io::Result<(OwnedFd, ReplicaAddress)> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
        rustix::net::listen(&socket, CALLS_WAITING_MAX)?;
        let bound = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)?;
        let name = bound.abstract_name().and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| std::io::Error::other("the kernel assigned no name"))?;
        Ok((socket, ReplicaAddress::Local(name.into())))
    };
    listen().map_err(Error::Listen)
}

/// A started process. Clones refer to the same process. Dropping all of them does not stop it.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    exit: watch::Receiver<Option<Exit>>,
    /// Limits that could not be enforced, as text.
    notes: Arc<[String]>,
}

impl Process {
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits for its end. Its whole output is in the log by then.
    pub async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
            Ok(Some(exit)) => exit,
            // The watching task was dropped together with the runtime.
            _ => Exit { code: None, signal: None, out_of_memory: None },
        }
    }

    pub fn has_exited(&self) -> bool {
        self.exit.borrow().is_some()
    }

    /// Asks it to exit, and kills it after `drain`.
    pub async fn stop(&self, drain: Duration) -> Exit {
        self.signal(Signal::TERM);
        if let Ok(exit) = tokio::time::timeout(drain, self.exited()).await {
            return exit;
        }
        self.kill();
        self.exited().await
    }

    pub fn kill(&self) {
        self.signal(Signal::KILL);
    }

    /// Does nothing after its end, because the pid may be reused. The rest of its group was killed at its end.
    fn signal(&self, signal: Signal) {
        if !self.has_exited() {
            let _ = kill_process_group(self.pid, signal);
        }
    }
}
