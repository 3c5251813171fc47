//! The log: the single truth. Records are appended to a frame in memory, a frame is handed to the kernel in one write,
//! and a sync makes everything written durable. Writing never waits for a sync: syncs are jobs that another thread runs.
//!
//! # Promises
//! - What a finished sync covered survives anything but damage to the disk itself.
//! - Recovery finds a prefix of what was written, at least up to the last finished sync.
//! - After a failed sync nothing is written any more (`Error::Poisoned`): only a restart tells what the disk kept.
//! - A segment's blocks are written before it is used, so a full disk shows when a segment is prepared.

mod jobs;
mod locate;
mod reader;
mod tail;

pub use jobs::{PrepareJob, SyncJob};
pub use reader::{Frame, LogReader};

use jobs::SPARE;
use klambda_core::planted::{self, Bug};
use tail::Tail;

use crate::disk::{Disk, File, are_names_lost};
use crate::segment::{self, FRAME_HEADER, FrameHeader, HEADER, RECORD_HEADER, Segment, SegmentHeader};
use crate::witness::Witness;
use bytes::Bytes;
use klambda_core::ids::{Address, Position};
use klambda_core::time::Millis;
use std::collections::VecDeque;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub segment_bytes: u64,
    /// Kept free for acknowledgements and decisions when the disk is full.
    pub reserve_bytes: u64,
    /// How much of the newest log stays in memory.
    pub tail_bytes: usize,
}

impl Default for Options {
    fn default() -> Self {
        Options { segment_bytes: 64 << 20, reserve_bytes: 8 << 20, tail_bytes: 16 << 20 }
    }
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No prepared room for this record; more may come when the next segment is ready.
    #[error("the log has no room")]
    Full,
    #[error("the log stopped after a failed write or sync; restart to recover")]
    Poisoned,
    #[error("{file}: damaged at offset {offset}: {what}")]
    Damaged { file: String, offset: u64, what: String },
    /// Retention removed it.
    #[error("no record at {0}: it is older than the log")]
    Gone(Address),
    #[error("{file}: {source}")]
    Io { file: String, source: io::Error },
}

pub struct Log {
    disk: Arc<dyn Disk>,
    options: Options,
    /// Oldest first; the last one is written to.
    segments: Arc<RwLock<VecDeque<Segment>>>,
    active: Segment,
    spare: Option<Arc<dyn File>>,
    preparing: bool,
    /// The frame being built: header, then records.
    frame: Vec<u8>,
    frame_count: u32,
    /// Records that belong together are being appended: they must end up in one frame.
    grouped: bool,
    frame_position: Position,
    frame_start: Address,
    next_position: Position,
    synced: Arc<AtomicU64>,
    syncing: bool,
    /// Files that a sync must cover: the active one and those before it since the last sync.
    unsynced: Vec<Arc<dyn File>>,
    names_unsynced: bool,
    witness: Witness,
    keep_free_bytes: u64,
    tail: Tail,
    poisoned: bool,
    /// When the next segment begins, should it begin now.
    now: Millis,
}

/// A frame of this size is written, whatever else comes: the newest frames stay in memory, and pieces of a modest size
/// are what an allocator can use again.
const FRAME_BYTES_FULL: usize = 64 << 10;

impl Log {
    /// Where recovery ended is where writing goes on. `segments` must not be empty unless the folder is new.
    pub(crate) fn resume(
        disk: Arc<dyn Disk>,
        options: Options,
        segments: VecDeque<Segment>,
        end: Address,
        next_position: Position,
        now: Millis,
    ) -> Option<Log> {
        let active = segments.back()?.clone();
        Some(Log {
            witness: Witness::open(&*disk),
            keep_free_bytes: 0,
            disk,
            options,
            segments: Arc::new(RwLock::new(segments)),
            unsynced: vec![active.file.clone()],
            active,
            spare: None,
            preparing: false,
            frame: vec![0; FRAME_HEADER],
            frame_count: 0,
            grouped: false,
            frame_position: next_position,
            frame_start: end,
            next_position,
            synced: Arc::new(AtomicU64::new(end.0)),
            syncing: false,
            names_unsynced: true,
            tail: Tail { frames: VecDeque::new(), bytes: 0, bytes_max: options.tail_bytes },
            poisoned: false,
            now,
        })
    }

    /// The first segment of a new folder.
    pub(crate) fn first_segment(disk: &Arc<dyn Disk>, options: &Options, now: Millis) -> io::Result<Segment> {
        let file = PrepareJob::new(disk.clone(), options.segment_bytes, 0).run()?;
        let header = SegmentHeader {
            base: Address(0),
            capacity: options.segment_bytes,
            previous_end: Address(0),
            first_position: Position(1),
            created: now,
        };
        let segment = Segment::begin(&**disk, SPARE, file, header)?;
        segment.file.sync()?;
        disk.sync_names()?;
        Ok(segment)
    }

    /// The address the next record of this length gets: known before it is encoded, so that records can be chained.
    pub fn next_address(&self, length: usize) -> Address {
        if self.fits(length) {
            Address(self.frame_start.0 + self.frame.len() as u64)
        } else {
            Address(self.active.end().0 + HEADER + FRAME_HEADER as u64)
        }
    }

    pub fn set_now(&mut self, now: Millis) {
        self.now = now;
    }

    pub fn next_position(&self) -> Position {
        self.next_position
    }

    /// Events may only use what leaves the reserve untouched.
    pub fn has_room_for_events(&self, length: usize) -> bool {
        self.room() >= length as u64 + self.options.reserve_bytes + FRAME_HEADER as u64 * 2
    }

    /// There is room for a good deal more, so that whoever writes many records may go on.
    pub fn has_room_for_many(&self) -> bool {
        self.has_room_for_events((self.options.segment_bytes as usize / 4).min(1 << 20))
    }

    pub fn has_room_for_steps(&self, length: usize) -> bool {
        !self.poisoned && (self.spare.is_some() || self.fits(length))
    }

    /// The largest record that any segment can hold.
    pub fn record_bytes_max(&self) -> usize {
        (self.options.segment_bytes - HEADER) as usize / 2
    }

    fn room(&self) -> u64 {
        let left = self.active.end().0.saturating_sub(self.frame_start.0 + self.frame.len() as u64);
        left + self.spare.as_ref().map_or(0, |_| self.options.segment_bytes)
    }

    fn fits(&self, length: usize) -> bool {
        let end = self.frame_start.0 + (self.frame.len() + RECORD_HEADER + length) as u64;
        end.next_multiple_of(segment::FRAME_ALIGN) <= self.active.end().0
    }

    /// Appends a record that is there already.
    pub fn append(&mut self, body: &[u8], is_event: bool) -> Result<Address, Error> {
        self.append_with(body.len(), is_event, &mut |out| out.extend_from_slice(body))
    }

    /// Appends a record that is encoded straight into the frame in memory: no copy is made of it before the write.
    /// It may be no longer than `length_max`. `is_event`: it takes the next position.
    pub fn append_with(
        &mut self,
        length_max: usize,
        is_event: bool,
        encode: &mut dyn FnMut(&mut Vec<u8>),
    ) -> Result<Address, Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        if !self.grouped {
            self.make_room(length_max)?;
        } else if !self.fits(length_max) {
            return Err(Error::Full);
        }
        let start = self.frame.len();
        let at = Address(self.frame_start.0 + start as u64);
        self.frame.extend_from_slice(&[0; RECORD_HEADER]);
        encode(&mut self.frame);
        let (_, record) = self.frame.split_at_mut(start);
        let (header, body) = record.split_at_mut(RECORD_HEADER);
        assert!(body.len() <= length_max, "a record is longer than was said");
        header[..4].copy_from_slice(&(body.len() as u32).to_le_bytes());
        header[4..].copy_from_slice(&segment::checksum(at, body).to_le_bytes());
        self.frame_count += 1;
        self.next_position.0 += u64::from(is_event);
        Ok(at)
    }

    /// The records up to `end_group`, together no longer than `length_max` with their headers, stand in one frame: after
    /// a crash all of them are there or none. Nothing may be flushed in between.
    pub fn begin_group(&mut self, length_max: usize) -> Result<(), Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        self.make_room(length_max)?;
        self.grouped = true;
        Ok(())
    }

    pub fn end_group(&mut self) {
        self.grouped = false;
    }

    /// What comes next fits into the frame of now, or of the next segment. A frame that is large enough is ended first: the
    /// header of the next one takes room as well.
    fn make_room(&mut self, length_max: usize) -> Result<(), Error> {
        if self.frame.len() >= FRAME_BYTES_FULL {
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
        let Some(file) = self.spare.clone() else { return Err(Error::Full) };
        if planted::is_on(Bug::StepsLostAtSwitch) && self.frame_position == self.next_position {
            self.frame.truncate(FRAME_HEADER);
            self.frame_count = 0;
        }
        self.flush()?;
        let header = SegmentHeader {
            base: self.active.end(),
            capacity: self.options.segment_bytes,
            previous_end: self.frame_start,
            first_position: self.next_position,
            created: self.now,
        };
        assert!(header.previous_end <= header.base, "a segment begins where the one before it ends");
        let segment =
            Segment::begin(&*self.disk, SPARE, file, header).map_err(|source| self.poison(source))?;
        self.spare = None;
        if planted::is_on(Bug::OldSegmentUnsynced) {
            self.unsynced.clear();
        }
        self.unsynced.push(segment.file.clone());
        self.names_unsynced = true;
        self.frame_start = segment.start();
        self.active = segment.clone();
        write(&self.segments).push_back(segment);
        Ok(())
    }

    fn poison(&mut self, source: io::Error) -> Error {
        self.poisoned = true;
        Error::Io { file: Segment::name(self.active.base), source }
    }

    /// Hands all records so far to the kernel.
    pub fn flush(&mut self) -> Result<(), Error> {
        if self.poisoned {
            return Err(Error::Poisoned);
        }
        if self.frame_count == 0 {
            return Ok(());
        }
        assert!(!self.grouped, "a group stands in one frame");
        let header = FrameHeader {
            length: (self.frame.len() - FRAME_HEADER) as u32,
            first_position: self.frame_position,
            synced: self.synced(),
            count: self.frame_count,
        };
        self.frame[..FRAME_HEADER].copy_from_slice(&header.encode(self.frame_start));
        let offset = self.active.offset(self.frame_start);
        assert!(offset + self.frame.len() as u64 <= self.active.capacity, "a frame ends beyond its segment");
        self.active.file.write_at(&self.frame, offset).map_err(|source| self.poison(source))?;
        self.tail.push(self.frame_start, Bytes::copy_from_slice(&self.frame));
        self.frame.truncate(FRAME_HEADER);
        self.frame_start = Address(self.frame_start.0 + header.stride());
        self.frame_count = 0;
        self.frame_position = self.next_position;
        Ok(())
    }

    /// Everything below this has been handed to the kernel.
    pub fn written(&self) -> Address {
        self.frame_start
    }

    pub fn synced(&self) -> Address {
        Address(self.synced.load(Ordering::Acquire))
    }

    pub fn is_poisoned(&self) -> bool {
        self.poisoned
    }

    pub fn needs_sync(&self) -> bool {
        self.written() > self.synced()
    }

    pub fn is_syncing(&self) -> bool {
        self.syncing
    }

    /// A sync of all that is written, unless one is under way or nothing is new.
    pub fn sync_job(&mut self) -> Option<SyncJob> {
        if self.syncing || self.poisoned || !self.needs_sync() {
            return None;
        }
        self.syncing = true;
        let names = std::mem::take(&mut self.names_unsynced);
        let files = std::mem::replace(&mut self.unsynced, vec![self.active.file.clone()]);
        let (disk, witness) = (self.disk.clone(), self.witness.clone());
        Some(SyncJob { disk, files, names, witness, from: self.synced(), up_to: self.written() })
    }

    pub fn sync_done(&mut self, up_to: Address, result: io::Result<()>) -> Result<(), Error> {
        self.syncing = false;
        if planted::is_on(Bug::FailedSyncForgiven) && result.is_err() {
            return Ok(());
        }
        result.map_err(|source| self.poison(source))?;
        assert!(
            self.synced() <= up_to && up_to <= self.written(),
            "a sync covers what was written, and never less"
        );
        self.synced.store(up_to.0, Ordering::Release);
        Ok(())
    }

    /// The next segment should be prepared now.
    pub fn prepare_job(&mut self) -> Option<PrepareJob> {
        if self.preparing || self.poisoned || self.spare.is_some() {
            return None;
        }
        self.preparing = true;
        Some(PrepareJob::new(self.disk.clone(), self.options.segment_bytes, self.keep_free_bytes))
    }

    /// No segment is prepared from the last of the disk: so much is left to those who write other files.
    pub fn set_keep_free(&mut self, bytes: u64) {
        self.keep_free_bytes = bytes;
    }

    /// Answers whether the disk had room. Names that are lost with it stop the log.
    pub fn prepare_done(&mut self, result: io::Result<Arc<dyn File>>) -> Result<io::Result<()>, Error> {
        self.preparing = false;
        match result {
            Ok(spare) => self.spare = Some(spare),
            Err(error) if are_names_lost(&error) => return Err(self.poison(error)),
            Err(error) => return Ok(Err(error)),
        }
        Ok(Ok(()))
    }

    /// The body of one record, checked.
    pub fn read(&self, at: Address) -> Result<Bytes, Error> {
        if at >= self.frame_start {
            let offset = (at.0 - self.frame_start.0) as usize;
            let body = self.frame.get(offset..).and_then(|bytes| segment::record_body(bytes, at));
            return body.map(Bytes::copy_from_slice).ok_or_else(|| self.damaged(at, "no such record"));
        }
        if let Some(body) = self.tail.read(at) {
            return Ok(body);
        }
        self.reader().read(at)
    }

    /// As `read`, if that takes no disk.
    pub fn cached(&self, at: Address) -> Option<Bytes> {
        if at < self.frame_start {
            return self.tail.read(at);
        }
        let offset = usize::try_from(at.0 - self.frame_start.0).ok()?;
        segment::record_body(self.frame.get(offset..)?, at).map(Bytes::copy_from_slice)
    }

    /// How much of the newest log is in memory.
    pub fn tail_bytes(&self) -> usize {
        self.tail.bytes
    }

    fn damaged(&self, at: Address, what: &str) -> Error {
        Error::Damaged {
            file: Segment::name(self.active.base),
            offset: self.active.offset(at),
            what: what.into(),
        }
    }

    /// For other threads: sees only what is durable.
    pub fn reader(&self) -> LogReader {
        LogReader { segments: self.segments.clone(), synced: self.synced.clone() }
    }

    /// Base, end and beginning time of every segment, oldest first.
    pub fn segments(&self) -> Vec<Segment> {
        read(&self.segments).iter().cloned().collect()
    }

    pub fn oldest(&self) -> Address {
        read(&self.segments).front().map_or(Address(0), |segment| segment.base)
    }

    pub fn active_base(&self) -> Address {
        self.active.base
    }

    pub fn bytes(&self) -> u64 {
        read(&self.segments).iter().map(|segment| segment.capacity).sum()
    }

    /// Forgets the oldest segment. The name of its file is answered, to be removed by a chore.
    pub fn drop_oldest(&mut self) -> Option<String> {
        let synced = self.synced();
        let mut segments = write(&self.segments);
        // The next one must be durable: something has to be there after a crash.
        if segments.get(1).is_none_or(|next| synced < next.start()) {
            return None;
        }
        segments.pop_front().map(|segment| Segment::name(segment.base))
    }
}

fn read(segments: &RwLock<VecDeque<Segment>>) -> std::sync::RwLockReadGuard<'_, VecDeque<Segment>> {
    segments.read().expect("no one panics while holding the segment list")
}

fn write(segments: &RwLock<VecDeque<Segment>>) -> std::sync::RwLockWriteGuard<'_, VecDeque<Segment>> {
    segments.write().expect("no one panics while holding the segment list")
}
