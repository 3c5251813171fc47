//! Processes that serve: each is handed its listening socket as its standard input, so that callers may connect before
//! it is up; their requests wait in the kernel.
//!
//! - A process dies with this program, also when that is killed ([`crate::child`]); what still got away is ended at the
//!   next start ([`leftovers`]).
//! - It is a process group of its own and is signalled as one; what left the group ends with it as well ([`strays`]).
//! - What it prints is kept in memory, the last of it ([`logs`]).
//! - Limits hold only where they are stated ([`limits`]).
//!
//! **Invariant:** the parent-death signal is tied to the thread that started a process, so all are started by one
//! thread that lives as long as the program.

use klambda_core::address::Address;
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
pub mod logs;
pub(crate) mod mark;
pub(crate) mod proc;
mod spawner;
mod strays;
mod tended;

pub use limits::Limits;
pub use spawner::{Options, Spawner};
pub use tended::{Tended, Tender};

/// What to run.
#[derive(Clone, Debug, Default)]
pub struct Command {
    pub program: PathBuf,
    pub arguments: Vec<String>,
    /// Where it runs.
    pub folder: PathBuf,
    /// All of its environment, but for `PATH` and what says where its socket is.
    pub environment: Vec<(String, String)>,
    pub limits: Limits,
    /// The container that it is the client of. A daemon's container outlives its client.
    pub container: Option<String>,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Exit {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    /// It was ended for using more memory than this, its limit.
    pub out_of_memory: Option<u64>,
}

impl std::fmt::Display for Exit {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match (self.out_of_memory, self.code, self.signal) {
            (Some(limit), _, _) => {
                write!(formatter, "used more memory than its limit of {}", format_bytes(limit))
            }
            (_, Some(code), _) => write!(formatter, "ended with exit code {code}"),
            (_, None, Some(signal)) => write!(formatter, "was ended by signal {signal}"),
            (_, None, None) => formatter.write_str("ended"),
        }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot start {program}: {error}")]
    Start { program: String, error: std::io::Error },
    #[error("no socket to listen on: {0}")]
    Listen(std::io::Error),
    #[error("the part of this program that starts processes has ended")]
    Ended,
}

/// Calls that wait for a process to take them. The kernel may allow fewer.
const CALLS_WAITING_MAX: i32 = 4096;

/// A socket that already listens, under a name that the kernel gives.
pub fn listen() -> Result<(OwnedFd, Address), Error> {
    let listen = || -> std::io::Result<(OwnedFd, Address)> {
        let socket =
            rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new_unnamed())?;
        rustix::net::listen(&socket, CALLS_WAITING_MAX)?;
        let bound = SocketAddrUnix::try_from(rustix::net::getsockname(&socket)?)?;
        let name = bound.abstract_name().and_then(|name| std::str::from_utf8(name).ok());
        let name = name.ok_or_else(|| std::io::Error::other("the kernel gave it no name"))?;
        Ok((socket, Address::Local(name.into())))
    };
    listen().map_err(Error::Listen)
}

/// A started process. A clone is the same process; letting go of all of them does not end it.
#[derive(Clone, Debug)]
pub struct Process {
    pid: Pid,
    exit: watch::Receiver<Option<Exit>>,
    /// What of the limits could not be kept, in words.
    notes: Arc<[String]>,
}

impl Process {
    pub fn pid(&self) -> i32 {
        self.pid.as_raw_nonzero().get()
    }

    pub fn notes(&self) -> &[String] {
        &self.notes
    }

    /// Waits for its end. All it printed is in its logs by then.
    pub async fn exited(&self) -> Exit {
        let mut exit = self.exit.clone();
        match exit.wait_for(Option::is_some).await.map(|exit| *exit) {
            Ok(Some(exit)) => exit,
            // Whoever watched it is gone, with the whole runtime.
            _ => Exit { code: None, signal: None, out_of_memory: None },
        }
    }

    pub fn has_exited(&self) -> bool {
        self.exit.borrow().is_some()
    }

    /// Asks it to end, and ends it after `drain`.
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

    /// Not after its end: the number may be another's by then. Its group's remains were killed at its end.
    fn signal(&self, signal: Signal) {
        if !self.has_exited() {
            let _ = kill_process_group(self.pid, signal);
        }
    }
}
