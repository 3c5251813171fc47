//! Commit groups, and the thread that writes and syncs them.

use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::{Arc, mpsc};
use std::thread;

use anyhow::{Context, bail};
use rustix::event::{EventfdFlags, eventfd};

use super::lanes::{LaneId, Place};
use crate::bench::wire::http::Request;

const EVENT: u8 = 1;
const ACKNOWLEDGED: u8 = 2;

/// Events that are written and synced together. Events have the format in which they are delivered, so their bytes are
/// copied once.
#[derive(Default)]
pub struct Group {
    pub bytes: Vec<u8>,
    pub events: Vec<(LaneId, Range<u32>)>,
    /// The producers that wait for this group.
    pub waiting: Vec<u32>,
}

/// A group on disk.
pub struct Synced {
    pub bytes: Arc<Vec<u8>>,
    pub events: Vec<(LaneId, Range<u32>)>,
}

impl Group {
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    pub fn append_event(&mut self, producer: u32, lane: LaneId, request_line: &[u8], request: &Request) {
        let record = self.bytes.len();
        self.bytes.extend_from_slice(&[EVENT, 0, 0, 0, 0]);
        let start = self.bytes.len();
        self.bytes.extend_from_slice(request_line);
        for header in request.headers.iter().filter(|header| is_passed_on(header.name)) {
            self.bytes.extend_from_slice(header.name.as_bytes());
            self.bytes.extend_from_slice(b": ");
            self.bytes.extend_from_slice(header.value);
            self.bytes.extend_from_slice(b"\r\n");
        }
        self.bytes.extend_from_slice(b"\r\n");
        self.bytes.extend_from_slice(request.body);
        let length = (self.bytes.len() - start) as u32;
        self.bytes[record + 1..start].copy_from_slice(&length.to_le_bytes());
        self.events.push((lane, start as u32..self.bytes.len() as u32));
        self.waiting.push(producer);
    }

    pub fn append_acknowledgement(&mut self, place: &Place) {
        self.bytes.push(ACKNOWLEDGED);
        self.bytes.extend_from_slice(&place.lane.0.to_le_bytes());
    }
}

fn is_passed_on(header: &str) -> bool {
    let prefix = header.as_bytes().get(..3).unwrap_or_default();
    prefix.eq_ignore_ascii_case(b"ce-")
        || header.eq_ignore_ascii_case("content-type")
        || header.eq_ignore_ascii_case("content-length")
}

/// The disk's side: one group at a time, appended and synced by a thread of its own. Segments zeroed in advance were
/// measured too: a little faster for lone events, slower under load, since the zeros take their share of the disk.
pub struct Committer {
    groups: mpsc::Sender<Arc<Vec<u8>>>,
    outcomes: mpsc::Receiver<io::Result<()>>,
    done: Arc<OwnedFd>,
    writing: Option<(Synced, Vec<u32>)>,
}

impl Committer {
    pub fn start(folder: &Path) -> anyhow::Result<Self> {
        let log = File::create_new(folder.join("log")).context("the ceiling's log")?;
        let done = Arc::new(eventfd(0, EventfdFlags::CLOEXEC)?);
        let (groups, incoming) = mpsc::channel();
        let (outgoing, outcomes) = mpsc::channel();
        let signal = Arc::clone(&done);
        thread::Builder::new()
            .name("commit".into())
            .spawn(move || commit_each(log, &incoming, &outgoing, &signal))?;
        Ok(Self { groups, outcomes, done, writing: None })
    }

    /// Readable when a group is synced.
    pub fn done(&self) -> BorrowedFd<'_> {
        self.done.as_fd()
    }

    pub fn busy(&self) -> bool {
        self.writing.is_some()
    }

    pub fn commit(&mut self, group: Group) {
        let bytes = Arc::new(group.bytes);
        // The thread ends only with an outcome that `finish` returns as an error.
        let _ = self.groups.send(Arc::clone(&bytes));
        self.writing = Some((Synced { bytes, events: group.events }, group.waiting));
    }

    pub fn finish(&mut self) -> anyhow::Result<(Synced, Vec<u32>)> {
        rustix::io::read(&*self.done, &mut [0; 8])?;
        self.outcomes.recv().context("the commit thread is gone")?.context("the ceiling's log")?;
        let Some(group) = self.writing.take() else { bail!("nothing was being committed") };
        Ok(group)
    }
}

fn commit_each(
    mut log: File,
    groups: &mpsc::Receiver<Arc<Vec<u8>>>,
    outcomes: &mpsc::Sender<io::Result<()>>,
    done: &OwnedFd,
) {
    for bytes in groups {
        let outcome = log.write_all(&bytes).and_then(|()| log.sync_data());
        drop(bytes);
        let failed = outcome.is_err();
        if outcomes.send(outcome).is_err() || rustix::io::write(done, &1_u64.to_ne_bytes()).is_err() || failed
        {
            return;
        }
    }
}
