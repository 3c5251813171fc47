//! Opens a log after any kind of shutdown or crash.
//!
//! Recovery reads frames from the checkpoint to the first frame that is not intact. Then it decides whether that
//! place was once durable. It was if a later frame says so (`synced`), in this segment or a later one, or if the
//! checkpoint or the `witness` does. In that case the log is damaged and refused. Otherwise, the place is the tail of
//! writes that no sync covered. Recovery truncates the tail before anything new is written: it removes later
//! segments, newest first, and overwrites the rest with zeros. So nothing of the tail can reappear.
//!
//! Frames beyond the last proven sync are written again and synced, because after a failed sync the kernel may show
//! bytes that it will never write. Recovery can be repeated any number of times.

use crate::address::LogAddress;
use crate::disk::Disk;
use crate::log::{Error, Log, Options};
use crate::segment::{self, FRAME_ALIGN, FRAME_HEADER, FrameHeader, Segment};
use crate::witness;
use bytes::Bytes;
use klambda_core::ids::Position;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use std::collections::VecDeque;
use std::io;
use std::sync::Arc;

/// The result of opening a log.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub frames: u64,
    /// The incomplete unsynced tail that was truncated: its address and size in bytes.
    pub cut: Option<(LogAddress, u64)>,
}

/// The end of the state that the tables contain.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub address: LogAddress,
    pub next_position: Position,
}

pub type OnRecord<'a> = dyn FnMut(LogAddress, Bytes, Position) -> Result<(), Error> + 'a;

/// Opens the log, passes every record since the checkpoint to `on_record`, and prepares the log for writing.
pub fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    from: Checkpoint,
    now: Millis,
    on_record: &mut OnRecord<'_>,
) -> Result<(Log, Report), Error> {
    let mut listed = Listed::read(&*disk, from)?;
    let durable = from.address.max(witness::read(&*disk));
    let mut scan = Scan::new(&listed.segments, from, durable);
    scan.run(&listed, on_record)?;
    listed.segments.truncate(scan.segment + 1);
    let removed =
        remove_after(&*disk, &listed.segments).map_err(|source| Error::Io { file: "log".into(), source })?;
    if listed.segments.is_empty() {
        let first = Log::first_segment(&disk, &options, now)
            .map_err(|source| Error::Io { file: "log".into(), source })?;
        scan.at = first.start();
        listed.segments.push_back(first);
    }
    clean_end(&*disk, &listed.segments, &mut scan, removed)?;
    let Scan { at, next_position, report, .. } = scan;
    let log = Log::resume(disk, options, listed.segments, at, next_position, now).ok_or_else(|| {
        Error::Damaged { file: "log".into(), offset: 0, what: "the log has no segment".into() }
    })?;
    Ok((log, report))
}

/// The files of the log, oldest first.
pub(crate) struct Listed {
    pub(crate) segments: VecDeque<Segment>,
    /// The files from the first one whose header never became durable. Nothing in them was durable.
    pub(crate) unsynced: Vec<Segment>,
}

impl Listed {
    pub(crate) fn read(disk: &dyn Disk, from: Checkpoint) -> Result<Listed, Error> {
        let io = |file: &str| {
            let file = file.to_owned();
            move |source| Error::Io { file, source }
        };
        let names = disk.list().map_err(io("data folder"))?;
        let mut bases: Vec<LogAddress> = names.iter().filter_map(|name| Segment::base_of(name)).collect();
        bases.sort_unstable();
        let mut listed = Listed { segments: VecDeque::new(), unsynced: Vec::new() };
        for base in bases {
            let name = Segment::name(base);
            match Segment::open(disk, base).map_err(io(&name))? {
                Some(segment) if listed.unsynced.is_empty() => {
                    check_order(listed.segments.back(), &segment)?;
                    check_length(&segment)?;
                    listed.segments.push_back(segment);
                }
                None if base < from.address => return Err(damaged(&name, 0, BAD_HEADER)),
                _ => listed.unsynced.push(Segment::without_header(disk, base).map_err(io(&name))?),
            }
        }
        let is_new = listed.segments.is_empty() && from.address == LogAddress(0);
        let covered = listed.segments.iter().any(|s| s.base <= from.address && from.address <= s.end());
        match covered || is_new {
            true => Ok(listed),
            false => {
                Err(damaged(&Segment::name(from.address), 0, "the segment with the checkpoint is missing"))
            }
        }
    }
}

const BAD_HEADER: &str = "the header of the segment is damaged";

fn check_order(before: Option<&Segment>, segment: &Segment) -> Result<(), Error> {
    match before {
        Some(before) if before.end() != segment.base => {
            Err(damaged(&Segment::name(before.end()), 0, "a segment is missing"))
        }
        _ => Ok(()),
    }
}

/// A segment has its full length before it is used, so a shorter file is damaged.
fn check_length(segment: &Segment) -> Result<(), Error> {
    let name = Segment::name(segment.base);
    match segment.file.len() {
        Ok(length) if length < segment.capacity => Err(damaged(&name, length, "the file is truncated")),
        Ok(_) => Ok(()),
        Err(source) => Err(Error::Io { file: name, source }),
    }
}

pub(crate) struct Scan {
    /// The index of the segment in which the log ends.
    pub(crate) segment: usize,
    pub(crate) at: LogAddress,
    pub(crate) next_position: Position,
    pub(crate) report: Report,
    /// The highest address known to have been durable.
    synced: LogAddress,
}

impl Scan {
    /// `durable`: the address up to which the log is known to be durable without reading it.
    pub(crate) fn new(segments: &VecDeque<Segment>, from: Checkpoint, durable: LogAddress) -> Scan {
        let segment = segments.partition_point(|s| s.base <= from.address).saturating_sub(1);
        let at = segments.get(segment).map_or(from.address, |s| from.address.max(s.start()));
        Scan { segment, at, next_position: from.next_position, report: Report::default(), synced: durable }
    }

    /// Reads to the end of the log and sets `at` to it.
    pub(crate) fn run(&mut self, listed: &Listed, on_record: &mut OnRecord<'_>) -> Result<(), Error> {
        while let Some(segment) = listed.segments.get(self.segment) {
            self.run_segment(segment, on_record)?;
            match listed.segments.get(self.segment + 1) {
                // The log continues in the next segment exactly from here.
                Some(next) if next.previous_end == self.at => {
                    self.segment += 1;
                    self.at = next.start();
                    self.must_count_from(next.first_position, next, next.base)?;
                }
                _ => break,
            }
        }
        self.refuse_if_durable(listed)
    }

    fn run_segment(&mut self, segment: &Segment, on_record: &mut OnRecord<'_>) -> Result<(), Error> {
        let mut window = Window { segment, start: self.at, bytes: Bytes::new() };
        loop {
            let head = window.read(self.at, FRAME_HEADER)?;
            let Some(header) = FrameHeader::decode(&head, self.at) else { return Ok(()) };
            let frame = window.read(self.at, FRAME_HEADER + header.length as usize)?;
            let Some(records) = segment::records(&frame, self.at, &header) else { return Ok(()) };
            let next = LogAddress(self.at.0 + header.stride());
            if planted::is_on(Bug::RecoveryStopsEarly)
                && FrameHeader::decode(&window.read(next, FRAME_HEADER)?, next).is_none()
            {
                return Ok(());
            }
            self.must_count_from(header.first_position, segment, self.at)?;
            for (at, range) in records {
                let body = frame.slice(range);
                let is_event = crate::record::is_event(&body);
                on_record(at, body, self.next_position)?;
                self.next_position.0 += u64::from(is_event);
                self.report.records += 1;
            }
            self.report.frames += 1;
            self.synced = self.synced.max(header.synced);
            self.at = next;
        }
    }

    /// Positions are counted, not stored. Every stored position must match the count.
    fn must_count_from(&self, named: Position, segment: &Segment, at: LogAddress) -> Result<(), Error> {
        if named == self.next_position {
            return Ok(());
        }
        let what = format!("expected position {}, but found position {named}", self.next_position);
        Err(damaged(&Segment::name(segment.base), segment.offset(at), &what))
    }

    /// The frame at `self.at` is not intact. This is damage if anything later shows that this place was durable.
    fn refuse_if_durable(&self, listed: &Listed) -> Result<(), Error> {
        let mut durable = self.synced;
        for segment in listed.segments.iter().skip(self.segment).chain(&listed.unsynced) {
            durable = durable.max(synced_after(segment, self.at.max(segment.start()))?);
        }
        if durable <= self.at {
            return Ok(());
        }
        let here = listed.segments.get(self.segment);
        if let Some(lost) = listed.unsynced.first()
            && !here.is_some_and(|here| self.has_remains(here))
        {
            return Err(damaged(&Segment::name(lost.base), 0, BAD_HEADER));
        }
        let (base, offset) = here.map_or((self.at, 0), |here| (here.base, here.offset(self.at)));
        Err(damaged(&Segment::name(base), offset, "a durable frame is damaged"))
    }

    /// True if there are non-zero bytes at the place of the next frame.
    fn has_remains(&self, segment: &Segment) -> bool {
        let mut head = [0; FRAME_HEADER];
        read_at(segment, self.at, &mut head).is_ok() && head != [0; FRAME_HEADER] && self.at < segment.end()
    }
}

/// The highest durable address in all intact frame headers from `at` on.
fn synced_after(segment: &Segment, at: LogAddress) -> Result<LogAddress, Error> {
    let mut durable = LogAddress(0);
    for_each_chunk(segment, at, segment.end(), &mut |start, bytes| {
        for offset in (0..bytes.len()).step_by(FRAME_ALIGN as usize) {
            let slot = &bytes[offset..];
            if slot[0] != 0
                && let Some(header) = FrameHeader::decode(slot, LogAddress(start.0 + offset as u64))
            {
                durable = durable.max(header.synced);
            }
        }
    })?;
    Ok(durable)
}

/// The ranges (offset, length) after the end of the log that are not zero.
pub(crate) fn unsynced_tail(segment: &Segment, at: LogAddress) -> Result<Vec<(u64, u64)>, Error> {
    const BLOCK: usize = 4096;
    let mut found = Vec::new();
    for_each_chunk(segment, at, segment.end(), &mut |start, bytes| {
        for (n, block) in bytes.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                found.push((segment.offset(start) + (n * BLOCK) as u64, block.len() as u64));
            }
        }
    })?;
    Ok(found)
}

/// Segments can be large, so they are read in chunks.
const CHUNK: usize = 1 << 20;

pub(crate) fn for_each_chunk(
    segment: &Segment,
    from: LogAddress,
    end: LogAddress,
    f: &mut dyn FnMut(LogAddress, &[u8]),
) -> Result<(), Error> {
    let mut chunk = vec![0; CHUNK];
    let mut at = from;
    while at < end {
        let want = CHUNK.min((end.0 - at.0) as usize);
        let n = read_at(segment, at, &mut chunk[..want])?;
        if n == 0 {
            break;
        }
        f(at, &chunk[..n]);
        at.0 += n as u64;
    }
    Ok(())
}

pub(crate) fn read_at(segment: &Segment, at: LogAddress, buf: &mut [u8]) -> Result<usize, Error> {
    let io = |source| Error::Io { file: Segment::name(segment.base), source };
    segment.file.read_at(buf, segment.offset(at)).map_err(io)
}

/// Reads a segment sequentially in large pieces.
struct Window<'a> {
    segment: &'a Segment,
    start: LogAddress,
    bytes: Bytes,
}

impl Window<'_> {
    /// Reads `length` bytes from `at`, or fewer at the end of the segment.
    fn read(&mut self, at: LogAddress, length: usize) -> Result<Bytes, Error> {
        let length = length.min(self.segment.end().0.saturating_sub(at.0) as usize);
        if at < self.start || (at.0 - self.start.0) as usize + length > self.bytes.len() {
            let want = length.max(CHUNK).min(self.segment.end().0.saturating_sub(at.0) as usize);
            let mut bytes = vec![0; want];
            let n = read_at(self.segment, at, &mut bytes)?;
            bytes.truncate(n);
            self.bytes = bytes.into();
            self.start = at;
        }
        let offset = (at.0 - self.start.0) as usize;
        Ok(self.bytes.slice(offset.min(self.bytes.len())..(offset + length).min(self.bytes.len())))
    }
}

/// Makes the end of the log clean and durable: only zeros after it, and everything before it synced. `removed`: the
/// number of bytes already removed.
fn clean_end(
    disk: &dyn Disk,
    segments: &VecDeque<Segment>,
    scan: &mut Scan,
    removed: u64,
) -> Result<(), Error> {
    let io = |source| Error::Io { file: "log".into(), source };
    let mut bytes = removed;
    let Some(segment) = segments.back() else { return Ok(()) };
    for (offset, length) in unsynced_tail(segment, scan.at)? {
        segment.file.write_at(&vec![0; length as usize], offset).map_err(io)?;
        bytes += length;
    }
    scan.report.cut = (bytes > 0).then_some((scan.at, bytes));
    // This also covers the name of a segment that was created just before the process ended.
    disk.sync_names().map_err(io)?;
    let mut end = scan.at;
    for segment in segments.iter().rev() {
        rewrite(segment, scan.synced.max(segment.base), end)?;
        segment.file.sync().map_err(io)?;
        if segment.base <= scan.synced {
            break;
        }
        end = segment.previous_end;
    }
    Ok(())
}

/// Removes segments beyond the end of the log, newest first, so that a crash in between leaves no hole. Returns their
/// total size.
fn remove_after(disk: &dyn Disk, segments: &VecDeque<Segment>) -> io::Result<u64> {
    let known: Vec<LogAddress> = segments.iter().map(|segment| segment.base).collect();
    let mut bases: Vec<LogAddress> = disk.list()?.iter().filter_map(|name| Segment::base_of(name)).collect();
    bases.retain(|base| !known.contains(base));
    bases.sort_unstable_by(|a, b| b.cmp(a));
    let mut bytes = 0;
    for base in bases {
        let name = Segment::name(base);
        bytes += disk.open(&name)?.len()?;
        disk.remove(&name)?;
        disk.sync_names()?;
    }
    Ok(bytes)
}

/// Writes the existing bytes again, so that the next sync covers them regardless of earlier failures.
fn rewrite(segment: &Segment, from: LogAddress, end: LogAddress) -> Result<(), Error> {
    let mut failed = Ok(());
    for_each_chunk(segment, from, end, &mut |at, bytes| {
        if failed.is_ok() {
            failed = segment.file.write_at(bytes, segment.offset(at));
        }
    })?;
    failed.map_err(|source| Error::Io { file: Segment::name(segment.base), source })
}

pub(crate) fn damaged(file: &str, offset: u64, what: &str) -> Error {
    Error::Damaged { file: file.into(), offset, what: what.into() }
}
