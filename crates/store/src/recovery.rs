//! Opening a log after anything at all.
//!
//! Frames are read from the checkpoint to the first one that is not whole. Then one question decides: was that place
//! durable once? A later frame that says so (`synced`), or a later segment that begins after it and says so, proves
//! damage, and the log is refused. Otherwise it is the tail of writes that no sync ever covered: it is cut, by zeroing it,
//! before anything new is written, so that nothing of it can come back. All of this can be done any number of times.

use crate::disk::Disk;
use crate::log::{Error, Log, Options};
use crate::segment::{self, FRAME_ALIGN, FRAME_HEADER, FrameHeader, Segment};
use bytes::Bytes;
use klambda_core::ids::{Address, Position};
use klambda_core::time::Millis;
use std::collections::VecDeque;
use std::sync::Arc;

/// What opening found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub records: u64,
    pub frames: u64,
    /// An unsynced tail that was not whole: where, and how many bytes.
    pub cut: Option<(Address, u64)>,
}

/// Where the tables leave off.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Checkpoint {
    pub address: Address,
    pub next_position: Position,
}

pub type OnRecord<'a> = dyn FnMut(Address, Bytes, Position) -> Result<(), Error> + 'a;

/// Opens the log, hands every record since the checkpoint to `on_record` and is ready to write.
pub fn open(
    disk: Arc<dyn Disk>,
    options: Options,
    from: Checkpoint,
    now: Millis,
    on_record: &mut OnRecord<'_>,
) -> Result<(Log, Report), Error> {
    let mut segments = list_segments(&*disk, from)?;
    if segments.is_empty() {
        let first = Log::first_segment(&disk, &options, now)
            .map_err(|source| Error::Io { file: "log".into(), source })?;
        segments.push_back(first);
    }
    let mut scan = Scan::new(&segments, from);
    scan.run(&segments, on_record)?;
    let Scan { at, segment: last, next_position, mut report, .. } = scan;
    cut(&*disk, &mut segments, last, at, &mut report)?;
    let log = Log::resume(disk, options, segments, at, next_position, now)
        .ok_or_else(|| Error::Damaged { file: "log".into(), offset: 0, what: "no segment".into() })?;
    Ok((log, report))
}

/// Reads the log without changing anything: what `check` does.
pub fn inspect(disk: &dyn Disk, from: Checkpoint, on_record: &mut OnRecord<'_>) -> Result<Report, Error> {
    let segments = list_segments(disk, from)?;
    let mut scan = Scan::new(&segments, from);
    scan.run(&segments, on_record)?;
    if let Some(segment) = segments.get(scan.segment) {
        let junk = unsynced_tail(segment, scan.at)?;
        scan.report.cut = (!junk.is_empty()).then_some((scan.at, junk.iter().map(|range| range.1).sum()));
    }
    Ok(scan.report)
}

/// All segments in order. A file whose header never became durable can only be the newest: it is passed over.
fn list_segments(disk: &dyn Disk, from: Checkpoint) -> Result<VecDeque<Segment>, Error> {
    let io = |file: &str| {
        let file = file.to_owned();
        move |source| Error::Io { file, source }
    };
    let mut bases: Vec<Address> =
        disk.list().map_err(io("data folder"))?.iter().filter_map(|name| Segment::base_of(name)).collect();
    bases.sort_unstable();
    let newest = bases.last().copied();
    let mut segments: VecDeque<Segment> = VecDeque::new();
    for base in bases {
        let name = Segment::name(base);
        match Segment::open(disk, base).map_err(io(&name))? {
            Some(segment) => {
                check_order(segments.back(), &segment)?;
                segments.push_back(segment);
            }
            None if Some(base) == newest && base > from.address => {}
            None => return Err(damaged(&name, 0, "the segment's header is damaged")),
        }
    }
    let covered = segments.iter().any(|s| s.base <= from.address && from.address <= s.end());
    if !covered && from.address > Address(0) {
        return Err(damaged(&Segment::name(from.address), 0, "the segment with the checkpoint is missing"));
    }
    Ok(segments)
}

fn check_order(before: Option<&Segment>, segment: &Segment) -> Result<(), Error> {
    match before {
        Some(before) if before.end() != segment.base => {
            Err(damaged(&Segment::name(before.end()), 0, "a segment is missing"))
        }
        _ => Ok(()),
    }
}

struct Scan {
    segment: usize,
    at: Address,
    next_position: Position,
    report: Report,
    /// The furthest any frame so far says was durable.
    synced: Address,
}

impl Scan {
    fn new(segments: &VecDeque<Segment>, from: Checkpoint) -> Scan {
        let segment = segments.partition_point(|s| s.base <= from.address).saturating_sub(1);
        let at = segments.get(segment).map_or(from.address, |s| from.address.max(s.start()));
        Scan { segment, at, next_position: from.next_position, report: Report::default(), synced: from.address }
    }

    fn run(&mut self, segments: &VecDeque<Segment>, on_record: &mut OnRecord<'_>) -> Result<(), Error> {
        while let Some(segment) = segments.get(self.segment) {
            self.run_segment(segment, on_record)?;
            match segments.get(self.segment + 1) {
                // The log went on in the next segment from exactly here.
                Some(next) if next.previous_end == self.at => {
                    self.segment += 1;
                    self.at = next.start();
                }
                _ => return self.refuse_if_durable(segments),
            }
        }
        Ok(())
    }

    fn run_segment(&mut self, segment: &Segment, on_record: &mut OnRecord<'_>) -> Result<(), Error> {
        let mut window = Window { segment, start: self.at, bytes: Bytes::new() };
        loop {
            let head = window.read(self.at, FRAME_HEADER)?;
            let Some(header) = FrameHeader::decode(&head, self.at) else { return Ok(()) };
            let frame = window.read(self.at, FRAME_HEADER + header.length as usize)?;
            let Some(records) = segment::records(&frame, self.at, &header) else { return Ok(()) };
            for (at, range) in records {
                let body = frame.slice(range);
                let is_event = crate::record::is_event(&body);
                on_record(at, body, self.next_position)?;
                self.next_position.0 += u64::from(is_event);
                self.report.records += 1;
            }
            self.report.frames += 1;
            self.synced = self.synced.max(header.synced);
            self.at = Address(self.at.0 + header.stride());
        }
    }

    /// The frame at `self.at` is not whole. Damage, if anything later says that this place was durable.
    fn refuse_if_durable(&self, segments: &VecDeque<Segment>) -> Result<(), Error> {
        let here = &segments[self.segment];
        let mut durable = self.synced;
        for segment in segments.iter().skip(self.segment) {
            durable = durable.max(synced_after(segment, self.at.max(segment.start()))?);
        }
        if durable > self.at {
            return Err(damaged(
                &Segment::name(here.base),
                here.offset(self.at),
                "a frame that was durable is damaged",
            ));
        }
        Ok(())
    }
}

/// The furthest that any whole frame header from `at` on says was durable.
fn synced_after(segment: &Segment, at: Address) -> Result<Address, Error> {
    let mut durable = Address(0);
    for_each_chunk(segment, at, &mut |start, bytes| {
        for offset in (0..bytes.len()).step_by(FRAME_ALIGN as usize) {
            let slot = &bytes[offset..];
            if slot[0] != 0
                && let Some(header) = FrameHeader::decode(slot, Address(start.0 + offset as u64))
            {
                durable = durable.max(header.synced);
            }
        }
    })?;
    Ok(durable)
}

/// Ranges (offset, length) of bytes after the log's end that are not zero.
fn unsynced_tail(segment: &Segment, at: Address) -> Result<Vec<(u64, u64)>, Error> {
    const BLOCK: usize = 4096;
    let mut found = Vec::new();
    for_each_chunk(segment, at, &mut |start, bytes| {
        for (n, block) in bytes.chunks(BLOCK).enumerate() {
            if block.iter().any(|byte| *byte != 0) {
                found.push((segment.offset(start) + (n * BLOCK) as u64, block.len() as u64));
            }
        }
    })?;
    Ok(found)
}

/// A segment can be large: it is never in memory as a whole.
const CHUNK: usize = 1 << 20;

fn for_each_chunk(segment: &Segment, at: Address, f: &mut dyn FnMut(Address, &[u8])) -> Result<(), Error> {
    let mut chunk = vec![0; CHUNK];
    let mut at = at;
    while at < segment.end() {
        let want = CHUNK.min((segment.end().0 - at.0) as usize);
        let n = read_at(segment, at, &mut chunk[..want])?;
        if n == 0 {
            break;
        }
        f(at, &chunk[..n]);
        at.0 += n as u64;
    }
    Ok(())
}

fn read_at(segment: &Segment, at: Address, buf: &mut [u8]) -> Result<usize, Error> {
    let io = |source| Error::Io { file: Segment::name(segment.base), source };
    segment.file.read_at(buf, segment.offset(at)).map_err(io)
}

/// Reads a segment from front to back in large pieces.
struct Window<'a> {
    segment: &'a Segment,
    start: Address,
    bytes: Bytes,
}

impl Window<'_> {
    /// `length` bytes from `at`, or what there is of them.
    fn read(&mut self, at: Address, length: usize) -> Result<Bytes, Error> {
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

/// Makes the end of the log clean: zeros after it, and no later segment.
fn cut(
    disk: &dyn Disk,
    segments: &mut VecDeque<Segment>,
    last: usize,
    at: Address,
    report: &mut Report,
) -> Result<(), Error> {
    let io = |source| Error::Io { file: "log".into(), source };
    let known: Vec<Address> = segments.iter().take(last + 1).map(|segment| segment.base).collect();
    let mut bytes = 0;
    for name in disk.list().map_err(io)? {
        if Segment::base_of(&name).is_some_and(|base| !known.contains(&base)) {
            disk.remove(&name).map_err(io)?;
            bytes += 1;
        }
    }
    segments.truncate(last + 1);
    if bytes > 0 {
        disk.sync_names().map_err(io)?;
    }
    let Some(segment) = segments.get(last) else { return Ok(()) };
    for (offset, length) in unsynced_tail(segment, at)? {
        segment.file.write_at(&vec![0; length as usize], offset).map_err(io)?;
        bytes += length;
    }
    if bytes > 0 {
        report.cut = Some((at, bytes));
    }
    // What recovery builds on must be as durable as if it had been synced: a second crash may not take it back.
    segments.iter().skip(last.saturating_sub(1)).try_for_each(|segment| segment.file.sync()).map_err(io)
}

fn damaged(file: &str, offset: u64, what: &str) -> Error {
    Error::Damaged { file: file.into(), offset, what: what.into() }
}
