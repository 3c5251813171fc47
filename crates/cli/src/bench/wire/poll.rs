//! Readiness by epoll, edge-triggered: a socket is registered once and never touched again.

use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::{Timespec, epoll};
use rustix::time::{ClockId, clock_gettime};

/// Names a source: what kind of thing it is, and which one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Token {
    pub kind: u32,
    pub index: u32,
}

pub struct Poller {
    epoll: OwnedFd,
}

impl Poller {
    pub fn new() -> io::Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    /// A socket: reported once per change, so its owner reads until it is empty.
    pub fn add_socket(&self, source: impl AsFd, token: Token) -> io::Result<()> {
        self.add(source, token, epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET)
    }

    /// A listener, a pipe or an eventfd: reported as long as there is something to read.
    pub fn add_level(&self, source: impl AsFd, token: Token) -> io::Result<()> {
        self.add(source, token, epoll::EventFlags::IN)
    }

    fn add(&self, source: impl AsFd, token: Token, flags: epoll::EventFlags) -> io::Result<()> {
        let data = epoll::EventData::new_u64(u64::from(token.kind) << 32 | u64::from(token.index));
        Ok(epoll::add(&self.epoll, source, data, flags)?)
    }

    /// Waits for readiness, at most until `deadline_ns`; an interrupted wait is an empty one.
    pub fn wait(&self, ready: &mut Ready, deadline_ns: Option<u64>) -> io::Result<()> {
        ready.events.clear();
        let timeout = deadline_ns.map(|deadline| timespec(deadline.saturating_sub(now_ns())));
        match epoll::wait(&self.epoll, spare_capacity(&mut ready.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }
}

/// The sources that one wait found ready.
pub struct Ready {
    events: Vec<epoll::Event>,
}

impl Ready {
    pub fn new() -> Self {
        Self { events: Vec::with_capacity(1024) }
    }

    pub fn tokens(&self) -> impl Iterator<Item = Token> + '_ {
        self.events.iter().map(|event| {
            let data = event.data.u64();
            Token { kind: (data >> 32) as u32, index: data as u32 }
        })
    }
}

/// The driver's commands, one word per line on standard input.
pub struct Commands {
    partial: Vec<u8>,
}

impl Commands {
    pub fn new(poller: &Poller, token: Token) -> io::Result<Self> {
        poller.add_level(io::stdin(), token)?;
        Ok(Self { partial: Vec::new() })
    }

    /// The commands that have arrived; `None` once the driver is gone.
    pub fn read(&mut self) -> io::Result<Option<Vec<String>>> {
        let mut chunk = [0; 512];
        let count = rustix::io::read(io::stdin(), &mut chunk)?;
        if count == 0 {
            return Ok(None);
        }
        self.partial.extend_from_slice(&chunk[..count]);
        let whole = self.partial.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1);
        let lines = self.partial.drain(..whole).collect::<Vec<u8>>();
        Ok(Some(String::from_utf8_lossy(&lines).lines().map(str::to_owned).collect()))
    }
}

/// CLOCK_MONOTONIC, the same in every process of this machine.
pub fn now_ns() -> u64 {
    let now = clock_gettime(ClockId::Monotonic);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn timespec(nanos: u64) -> Timespec {
    let wait = Duration::from_nanos(nanos);
    Timespec { tv_sec: wait.as_secs() as i64, tv_nsec: i64::from(wait.subsec_nanos()) }
}
