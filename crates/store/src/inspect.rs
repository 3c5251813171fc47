//! Reads a log without changing it: every segment, frame and record, with all checksums. Used by `check`.
//!
//! It reads like recovery, so both agree on where the log ends. Unlike recovery, it starts at the oldest segment and
//! continues after damage, so that it reports all damage.

use crate::address::LogAddress;
use crate::disk::Disk;
use crate::log::Error;
use crate::recovery::{self, Checkpoint, Listed, OnRecord, Scan};
use crate::segment::{self, FRAME_ALIGN, FRAME_HEADER, FrameHeader, Segment};
use crate::witness;
use klambda_core::ids::Position;

/// The contents of a log.
#[derive(Debug, Default)]
pub struct Census {
    pub segments: u64,
    /// Total size of all segment files.
    pub bytes: u64,
    pub frames: u64,
    pub records: u64,
    /// The address where the log begins.
    pub first: LogAddress,
    pub first_position: Position,
    pub next_position: Position,
    /// Incomplete writes that no sync covered. Recovery truncates them.
    pub cut: Option<Tail>,
    /// Damage, in log order.
    pub damage: Vec<Error>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tail {
    pub file: String,
    pub offset: u64,
    pub bytes: u64,
}

/// Reads the whole log. `on_record` gets the records up to the first damage. An error from `on_record` ends the
/// inspection.
pub fn inspect(
    disk: &dyn Disk,
    checkpoint: Checkpoint,
    on_record: &mut OnRecord<'_>,
) -> Result<Census, Error> {
    let listed = match Listed::read(disk, checkpoint) {
        Ok(listed) => listed,
        Err(damage @ Error::Damaged { .. }) => return inspect_pieces(disk, damage),
        Err(other) => return Err(other),
    };
    // Even if no segment header is readable, frames may show what was durable.
    let oldest = |oldest: &Segment| Checkpoint { address: oldest.base, next_position: oldest.first_position };
    let from = listed.segments.front().map_or(checkpoint, oldest);
    let durable = checkpoint.address.max(witness::read(disk));
    let mut scan = Scan::new(&listed.segments, from, durable);
    let outcome = scan.run(&listed, on_record);
    let mut census = Census {
        segments: listed.segments.len() as u64,
        bytes: listed.segments.iter().map(|segment| segment.capacity).sum(),
        frames: scan.report.frames,
        records: scan.report.records,
        first: from.address,
        first_position: from.next_position,
        next_position: scan.next_position,
        ..Census::default()
    };
    match outcome {
        Ok(()) => census.cut = tail(&listed, &scan)?,
        Err(damage @ Error::Damaged { .. }) => {
            census.damage.push(damage);
            for segment in listed.segments.iter().skip(scan.segment) {
                verify(segment, scan.at, &mut census)?;
            }
        }
        Err(other) => return Err(other),
    }
    Ok(census)
}

/// The bytes that recovery would truncate: from the end of the log to the end of the last file.
fn tail(listed: &Listed, scan: &Scan) -> Result<Option<Tail>, Error> {
    let later = listed.segments.iter().skip(scan.segment + 1).chain(&listed.unsynced);
    let mut bytes: u64 = later.map(|later| later.capacity).sum();
    let (mut file, mut offset) = (Segment::name(scan.at), 0);
    if let Some(segment) = listed.segments.get(scan.segment) {
        bytes += recovery::unsynced_tail(segment, scan.at)?.iter().map(|range| range.1).sum::<u64>();
        (file, offset) = (Segment::name(segment.base), segment.offset(scan.at));
    }
    Ok((bytes > 0).then_some(Tail { file, offset, bytes }))
}

/// The files do not form a log, so each file is checked separately.
fn inspect_pieces(disk: &dyn Disk, damage: Error) -> Result<Census, Error> {
    let io = |source| Error::Io { file: "log".into(), source };
    let mut census = Census { damage: vec![damage], ..Census::default() };
    for name in disk.list().map_err(io)? {
        let Some(base) = Segment::base_of(&name) else { continue };
        if let Some(segment) = Segment::open(disk, base).map_err(io)? {
            census.segments += 1;
            census.bytes += segment.capacity;
            verify(&segment, segment.start(), &mut census)?;
        }
    }
    Ok(census)
}

/// Counts the intact frames of the segment, starting at `from`. Reports the places where an intact frame should be
/// but is not.
fn verify(segment: &Segment, from: LogAddress, census: &mut Census) -> Result<(), Error> {
    let mut at = from.max(segment.start());
    loop {
        match frame_at(segment, at)? {
            Some((header, Some(records))) => {
                census.frames += 1;
                census.records += records as u64;
                at = LogAddress(at.0 + header.stride());
            }
            found => {
                let after = found.map_or(at.0 + FRAME_ALIGN, |(header, _)| at.0 + header.stride());
                let Some(next) = next_frame(segment, LogAddress(after))? else { return Ok(()) };
                census.name(segment, at);
                at = next;
            }
        }
    }
}

impl Census {
    fn name(&mut self, segment: &Segment, at: LogAddress) {
        let (file, offset) = (Segment::name(segment.base), segment.offset(at));
        let named = |error: &Error| matches!(error, Error::Damaged { file: f, offset: o, .. } if *f == file && *o == offset);
        if !self.damage.iter().any(named) {
            self.damage.push(recovery::damaged(&file, offset, "a frame is damaged"));
        }
    }
}

/// The frame at this address if its header is valid, and its number of records if the whole frame is valid.
fn frame_at(segment: &Segment, at: LogAddress) -> Result<Option<(FrameHeader, Option<usize>)>, Error> {
    let mut head = [0; FRAME_HEADER];
    let n = recovery::read_at(segment, at, &mut head)?;
    let Some(header) = FrameHeader::decode(&head[..n], at) else { return Ok(None) };
    if at.0 + header.stride() > segment.end().0 {
        return Ok(None);
    }
    let mut frame = vec![0; FRAME_HEADER + header.length as usize];
    let n = recovery::read_at(segment, at, &mut frame)?;
    let records = segment::records(&frame[..n], at, &header);
    Ok(Some((header, records.map(|records| records.len()))))
}

/// The next address, starting at `from`, that has a valid frame header.
fn next_frame(segment: &Segment, from: LogAddress) -> Result<Option<LogAddress>, Error> {
    let mut found = None;
    recovery::for_each_chunk(segment, from, segment.end(), &mut |start, bytes| {
        for offset in (0..bytes.len()).step_by(FRAME_ALIGN as usize) {
            let at = LogAddress(start.0 + offset as u64);
            if found.is_none() && bytes[offset] != 0 && FrameHeader::decode(&bytes[offset..], at).is_some() {
                found = Some(at);
            }
        }
    })?;
    Ok(found)
}
