//! The log is the single source of truth. Records are appended to a frame in memory. A frame is passed to the kernel
//! in one write. A sync makes everything written durable. Writing never waits for a sync: syncs are jobs that run on
//! another thread.
//!
//! # Guarantees
//! - Data covered by a finished sync survives everything except damage to the disk itself.
//! - Recovery finds a prefix of what was written, at least up to the last finished sync.
//! - After a failed sync, the log rejects all writes (`Error::Poisoned`). Only a restart shows what the disk
//!   kept.
//! - The blocks of a segment are written before it is used, so a full disk is detected when a segment is prepared.

mod frame;
mod jobs;
mod locate;
mod reader;
mod sequential;
mod tail;

pub use jobs::{PrepareJob, SyncJob};
pub use reader::{Frame, LogReader};
pub use sequential::Sequential;

use frame::FrameBuffer;
use jobs::SPARE;
use klambda_core::os_error::in_words;
use klambda_core::planted::{self, Bug};
use tail::Tail;

use crate::address::LogAddress;
use crate::disk::{Disk, File, are_names_lost};
use crate::segment::{FRAME_HEADER, HEADER, Segment, SegmentHeader};
use crate::witness::Witness;
use bytes::Bytes;
use klambda_core::ids::Position;
use klambda_core::time::Millis;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub segment_bytes: u64,
    /// Space reserved for acknowledgements and decisions when the disk is full.
    pub reserve_bytes: u64,
    /// Size of the newest part of the log that stays in memory.
    pub tail_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: 64 << 20, reserve_bytes: 8 << 20, tail_bytes: 16 << 20 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No prepared space for this record. There may be space when the next segment is ready.
    #[error("the log is full")]
    Full,
    #[error("the log stopped after a failed write or sync; restart to recover")]
    Poisoned,
    #[error("{file}: damaged at offset {offset}: {what}")]
    Damaged { file: String, offset: u64, what: String },
    /// Retention removed the record.
    #[error("no record at {0}: it is older than the log")]
    Gone(LogAddress),
    #[error("{file}: {}", in_words(source))]
    Io { file: String, source: io::Error },
}

pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    /// Oldest first. Writes go to the last one.
    segments: Arc<RwLock<VecDeque<Segment>>>,
    active: Segment,
    spare: Spare,
    frame: FrameBuffer,
    next_position: Position,
    syncing: Syncing,
    tail: Tail,
    poisoned: bool,
    /// The creation time for the next segment.
    now: Millis,
}

/// The segment after the active one.
#[derive(Default)]
struct Spare {
    file: Option<Arc<dyn File>>,
    preparing: bool,
}

/// How far the log is durable, and what the next sync covers.
struct Syncing {
    synced: Arc<AtomicU64>,
    running: bool,
    /// The active file, and the files written before it since the last sync.
    files: Vec<Arc<dyn File>>,
    names: bool,
    witness: Witness,
}

/// A frame of at least this size is written before the next record. The newest frames stay in memory, and allocators
/// can reuse buffers of moderate size.
const FRAME_BYTES_FULL: usize = 64 << 10;

impl Log {
    /// Continues writing where recovery ended. `segments` must not be empty unless the folder is new.
    pub(crate) fn resume(
        disk: Arc<dyn Disk>,
        options: Options,
        segments: VecDeque<Segment>,
        end: LogAddress,
        next_position: Position,
        now: Millis,
    ) -> Option<Log> {
        let active = segments.back()?.clone();
        let syncing = Syncing {
            synced: Arc::new(AtomicU64::new(end.0)),
            running: false,
            files: vec![active.file.clone()],
            names: true,
            witness: Witness::open(&*disk),
        };
        Some(Log {
            disk,
            options,
            segments: Arc::new(RwLock::new(segments)),
            active,
            spare: Spare::default(),
            frame: FrameBuffer::new(end, next_position),
            next_position,
            syncing,
            tail: Tail { frames: VecDeque::new(), bytes: 0, bytes_max: options.tail_bytes },
            poisoned: false,
            now,
        })
    }

    /// Creates the first segment of a new folder.
    pub(crate) fn first_segment(disk: &Arc<dyn Disk>, options: &Options, now: Millis) -> io::Result<Segment> {
        let file = PrepareJob::new(disk.clone(), options.segment_bytes, 0).run()?;
        let header = SegmentHeader {
            base: LogAddress(0),
            capacity: options.segment_bytes,
            previous_end: LogAddress(0),
            first_position: Position(1),
            created: now,
        };
        let segment = Segment::begin(&**disk, SPARE, file, header)?;
        segment.file.sync()?;
        disk.sync_names()?;
        Ok(segment)
    }

    /// The address of the next record of this length. It is known before the record is encoded, so that records can
    /// refer to it.
    pub fn next_address(&self, length: usize) -> LogAddress {
        if self.fits(length) {
            self.frame.end()
        } else {
            LogAddress(self.active.end().0 + HEADER + FRAME_HEADER as u64)
        }
    }

    pub fn set_now(&mut self, now: Millis) {
        self.now = now;
    }

    pub fn next_position(&self) -> Position {
        self.next_position
    }

    /// True if an event of this length fits without using the reserve.
    pub fn has_room_for_events(&self, length: usize) -> bool {
        self.room() >= length as u64 + self.options.reserve_bytes + FRAME_HEADER as u64 * 2
    }

    /// True if there is space for many more records.
    pub fn has_room_for_many(&self) -> bool {
        self.has_room_for_events((self.options.segment_bytes as usize / 4).min(1 << 20))
    }

    pub fn has_room_for_steps(&self, length: usize) -> bool {
        !self.poisoned && (self.spare.file.is_some() || self.fits(length))
    }

    /// The maximum size of a record.
    pub fn record_bytes_max(&self) -> usize {
        (self.options.segment_bytes - HEADER) as usize / 2
    }

    fn room(&self) -> u64 {
        let left = self.active.end().0.saturating_sub(self.frame.end().0);
        left + self.spare.file.as_ref().map_or(0, |_| self.options.segment_bytes)
    }

    fn fits(&self, length: usize) -> bool {
        self.frame.end_with(length) <= self.active.end()
    }

    /// Appends an encoded record.
    pub fn append(&mut self, body: &[u8], is_event: bool) -> Result<LogAddress, Error> {
        self.append_with(body.len(), is_event, &mut |out| out.extend_from_slice(body))
    }

    /// Appends a record that `encode` writes directly into the frame in memory, without another copy. The record must
    /// not be longer than `length_max`. `is_event`: the record uses the next position.
    pub fn append_with(
        &mut self,
        length_max: usize,
        is_event: bool,
        encode: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<LogAddress, Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        if !self.frame.grouped {
            self.make_room(length_max)?;
        } else if !self.fits(length_max) {
            return Err(Error::Full);
        }
        let at = self.frame.push(length_max, encode);
        self.next_position.0 += u64::from(is_event);
        Ok(at)
    }

    /// Starts a group: all records until `end_group` go into one frame, so that after a crash either all or none of
    /// them exist. `length_max` is their maximum total length including headers. Do not flush within a group.
    pub fn begin_group(&mut self, length_max: usize) -> Result<(), Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        self.make_room(length_max)?;
        self.frame.grouped = true;
        Ok(())
    }

    pub fn end_group(&mut self) {
        self.frame.grouped = false;
    }

    /// Ensures that the next records fit into the current frame or the next segment. Flushes a full frame first,
    /// because the header of the next frame needs space too.
    fn make_room(&mut self, length_max: usize) -> Result<(), Error> {
        if self.frame.bytes.len() >= FRAME_BYTES_FULL {
            self.flush()?;
        }
        if self.fits(length_max) {
            return Ok(());
        }
        if length_max > self.record_bytes_max() {
            return Err(Error::Full);
        }
        self.roll()
    }

    fn roll(&mut self) -> Result<(), Error> {
        let Some(file) = self.spare.file.clone() else { return Err(Error::Full) };
        if planted::is_on(Bug::StepsLostAtSwitch) && self.frame.position == self.next_position {
            self.frame.restart(self.frame.start, self.next_position);
        }
        self.flush()?;
        let header = SegmentHeader {
            base: self.active.end(),
            capacity: self.options.segment_bytes,
            previous_end: self.frame.start,
            first_position: self.next_position,
            created: self.now,
        };
        assert!(
            header.previous_end <= header.base,
            "the previous segment must end before the new one begins"
        );
        let segment =
            Segment::begin(&*self.disk, SPARE, file, header).map_err(|source| self.poison(source))?;
        self.spare.file = None;
        if planted::is_on(Bug::OldSegmentUnsynced) {
            self.syncing.files.clear();
        }
        self.syncing.files.push(segment.file.clone());
        self.syncing.names = true;
        self.frame.start = segment.start();
        self.active = segment.clone();
        write(&self.segments).push_back(segment);
        Ok(())
    }

    fn poison(&mut self, source: io::Error) -> Error {
        self.poisoned = true;
        Error::Io { file: Segment::name(self.active.base), source }
    }

    /// Passes all records so far to the kernel.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        if self.frame.count == 0 {
            return Ok(());
        }
        let header = self.frame.seal(self.synced());
        let (start, bytes) = (self.frame.start, &self.frame.bytes);
        let offset = self.active.offset(start);
        assert!(offset + bytes.len() as u64 <= self.active.capacity, "a frame must end within its segment");
        self.active.file.write_at(bytes, offset).map_err(|source| self.poison(source))?;
        self.tail.push(start, Bytes::copy_from_slice(&self.frame.bytes));
        self.frame.restart(LogAddress(start.0 + header.stride()), self.next_position);
        Ok(())
    }

    /// All bytes below this address have been passed to the kernel.
    pub fn written(&self) -> LogAddress {
        self.frame.start
    }

    pub fn synced(&self) -> LogAddress {
        LogAddress(self.syncing.synced.load(Ordering::Acquire))
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    pub fn needs_sync(&self) -> bool {
        self.written() > self.synced()
    }

    pub fn is_syncing(&self) -> bool {
        self.syncing.running
    }

    /// A job that syncs everything written. `None` if a sync is running or there is nothing new.
    pub fn sync_job(&mut self) -> Option<SyncJob> {
        if self.syncing.running || self.poisoned || !self.needs_sync() {
            return None;
        }
        self.syncing.running = true;
        let names = std::mem::take(&mut self.syncing.names);
        let files = std::mem::replace(&mut self.syncing.files, vec![self.active.file.clone()]);
        let (disk, witness) = (self.disk.clone(), self.syncing.witness.clone());
        Some(SyncJob { disk, files, names, witness, from: self.synced(), up_to: self.written() })
    }

    pub fn sync_done(&mut self, up_to: LogAddress, result: io::Result<()>) -> Result<(), Error> {
        self.syncing.running = false;
        if planted::is_on(Bug::FailedSyncForgiven) && result.is_err() {
            return Ok(());
        }
        result.map_err(|source| self.poison(source))?;
        assert!(
            self.synced() <= up_to && up_to <= self.written(),
            "a sync must cover at least the previous one and at most what was written"
        );
        self.syncing.synced.store(up_to.0, Ordering::Release);
        Ok(())
    }

    /// A job that prepares the next segment, if one is needed.
    /// The segment leaves `keep_free_bytes` of the disk for other files.
    pub fn prepare_job(&mut self, keep_free_bytes: u64) -> Option<PrepareJob> {
        if self.spare.preparing || self.poisoned || self.spare.file.is_some() {
            return None;
        }
        self.spare.preparing = true;
        Some(PrepareJob::new(self.disk.clone(), self.options.segment_bytes, keep_free_bytes))
    }

    pub fn has_spare(&self) -> bool {
        self.spare.file.is_some()
    }

    /// The inner result is an error if the disk is full. If file names are lost, the log stops with an error.
    pub fn prepare_done(&mut self, result: io::Result<Arc<dyn File>>) -> Result<io::Result<()>, Error> {
        self.spare.preparing = false;
        match result {
            Ok(spare) => self.spare.file = Some(spare),
            Err(error) if are_names_lost(&error) => return Err(self.poison(error)),
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    /// The body of a record, with its checksum verified.
    pub fn read(&self, at: LogAddress) -> Result<Bytes, Error> {
        if at >= self.frame.start {
            return self.frame.record(at).ok_or_else(|| self.damaged(at, "no such record"));
        }
        if let Some(body) = self.tail.read(at) {
            return Ok(body);
        }
        self.reader().read(at)
    }

    /// The body of a record that is in memory, without a copy. `None` if the record is only on disk.
    pub fn in_memory(&self, at: LogAddress) -> Option<&[u8]> {
        if at < self.frame.start { self.tail.body(at) } else { self.frame.body(at) }
    }

    /// Like `read`, but only from memory.
    pub fn cached(&self, at: LogAddress) -> Option<Bytes> {
        if at < self.frame.start { self.tail.read(at) } else { self.frame.record(at) }
    }

    /// Number of bytes of the newest log in memory.
    pub fn tail_bytes(&self) -> usize {
        self.tail.bytes
    }

    fn damaged(&self, at: LogAddress, what: &str) -> Error {
        Error::Damaged {
            file: Segment::name(self.active.base),
            offset: self.active.offset(at),
            what: what.into(),
        }
    }

    /// A reader for other threads. It sees only durable records.
    pub fn reader(&self) -> LogReader {
        LogReader { segments: self.segments.clone(), synced: self.syncing.synced.clone() }
    }

    /// All segments, oldest first.
    pub fn segments(&self) -> Vec<Segment> {
        read(&self.segments).iter().cloned().collect()
    }

    pub fn oldest(&self) -> LogAddress {
        read(&self.segments).front().map_or(LogAddress(0), |segment| segment.base)
    }

    pub fn active_base(&self) -> LogAddress {
        self.active.base
    }

    pub fn bytes(&self) -> u64 {
        read(&self.segments).iter().map(|segment| segment.capacity).sum()
    }

    /// Removes the oldest segment from the log. Returns the name of its file, which a chore must delete.
    pub fn drop_oldest(&mut self) -> Option<String> {
        let synced = self.synced();
        let mut segments = write(&self.segments);
        // The next segment must be durable, because a log must exist after a crash.
        if segments.get(1).is_none_or(|next| synced < next.start()) {
            return None;
        }
        segments.pop_front().map(|segment| Segment::name(segment.base))
    }
}

fn read(segments: &RwLock<VecDeque<Segment>>) -> std::sync::RwLockReadGuard<'_, VecDeque<Segment>> {
    segments.read().expect("no thread panics while it holds the segment list")
}

fn write(segments: &RwLock<VecDeque<Segment>>) -> std::sync::RwLockWriteGuard<'_, VecDeque<Segment>> {
    segments.write().expect("no thread panics while it holds the segment list")
}
