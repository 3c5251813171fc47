//! Tests of what recovery proves from the log alone, and of the state it leaves. The witness file may be lost in
//! practice, so tests of the log's own proof remove it.

use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::{Disk, read_exact_at};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::inspect::inspect;
use klambda_store::log::{Error, Log, Options};
use klambda_store::recovery::{self, Checkpoint, Report};
use klambda_store::segment::{FRAME_HEADER, FrameHeader, HEADER, Segment};
use klambda_store::witness;
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 16 << 10;
const OPTIONS: Options =
    Options { segment_bytes: SEGMENT_BYTES, reserve_bytes: 2 << 10, tail_bytes: 4 << 10 };
const BEGINNING: Checkpoint = Checkpoint { address: LogAddress(0), next_position: Position(1) };

type Opened = Result<(Log, Report, Vec<(LogAddress, Vec<u8>)>), Error>;

fn open_with(disk: &MemoryDisk, options: Options) -> Opened {
    let mut found = Vec::new();
    let (log, report) =
        recovery::open(Arc::new(disk.clone()), options, BEGINNING, Millis(1), &mut |at, body, _| {
            found.push((at, body.to_vec()));
            Ok(())
        })?;
    Ok((log, report, found))
}

fn open(disk: &MemoryDisk) -> Opened {
    open_with(disk, OPTIONS)
}

/// An event of this length, identified by its number.
fn body(n: u8, length: usize) -> Vec<u8> {
    let mut body = vec![n; length];
    body[0] = 1;
    body
}

/// Writes a frame with one record. Returns the address of the frame.
fn frame(log: &mut Log, body: &[u8]) -> LogAddress {
    if let Some(job) = log.prepare_job(0) {
        log.prepare_done(job.run()).expect("the log works").expect("the disk has space");
    }
    let record = log.append(body, true).expect("the log has space");
    log.flush().expect("flush succeeds");
    LogAddress(record.0 - FRAME_HEADER as u64)
}

fn sync(log: &mut Log) {
    let job = log.sync_job().expect("a sync is due");
    let result = job.run();
    log.sync_done(job.up_to, result).expect("sync succeeds");
}

fn file_of(at: LogAddress) -> (String, u64) {
    (Segment::name(LogAddress(at.0 / SEGMENT_BYTES * SEGMENT_BYTES)), at.0 % SEGMENT_BYTES)
}

fn flip(disk: &MemoryDisk, at: LogAddress) {
    let (name, offset) = file_of(at);
    disk.flip_bit(&name, offset * 8);
}

/// The bytes of a segment from this offset on.
fn rest(disk: &MemoryDisk, name: &str, offset: u64) -> Vec<u8> {
    let mut bytes = vec![0; (SEGMENT_BYTES - offset) as usize];
    read_exact_at(&*disk.open(name).expect("open succeeds"), &mut bytes, offset).expect("read succeeds");
    bytes
}

fn refused(opened: Opened) -> (String, u64, String) {
    match opened.map(|(_, _, found)| found.len()) {
        Err(Error::Damaged { file, offset, what }) => (file, offset, what),
        other => panic!("{other:?}"),
    }
}

/// Three groups, each synced, with one record per frame.
fn three_groups() -> (MemoryDisk, Vec<LogAddress>) {
    let disk = MemoryDisk::new();
    let (mut log, _, _) = open(&disk).expect("a new log");
    let mut frames = Vec::new();
    for n in 0..3 {
        frames.push(frame(&mut log, &body(n, 5000)));
        sync(&mut log);
    }
    (disk, frames)
}

#[test]
fn a_later_frame_proves_an_earlier_one_without_the_witness() {
    let (disk, frames) = three_groups();
    witness::forget(&disk).expect("remove succeeds");
    for at in &frames[..2] {
        let image = disk.clone_image();
        flip(&image, LogAddress(at.0 + 100));
        let (name, offset) = file_of(*at);
        let (file, at, what) = refused(open(&image));
        assert_eq!((file, at), (name, offset));
        assert_eq!(what, "a durable frame is damaged");
    }
}

/// A truncated tail must not reappear after the records that are written in its place.
#[test]
fn the_tail_that_was_cut_cannot_come_back() {
    let disk = MemoryDisk::new();
    let (mut log, _, _) = open(&disk).expect("a new log");
    frame(&mut log, &body(0, 100));
    sync(&mut log);
    // Unsynced: the first frame is torn, the frames after it are intact and span several blocks of 4 KiB.
    let torn = frame(&mut log, &body(1, 1000));
    for n in 2..14 {
        frame(&mut log, &body(n, 1000));
    }
    let (name, end) = file_of(torn);
    flip(&disk, LogAddress(torn.0 + 100));

    let census = inspect(&disk, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
    let (mut log, report, found) = open(&disk).expect("the tail is truncated");
    assert_eq!((found.len(), report.records, report.frames), (1, 1, 1));
    let cut = report.cut.expect("a tail was truncated");
    assert_eq!((cut.0, census.cut.map(|tail| tail.bytes)), (torn, Some(cut.1)));
    assert!(cut.1 >= 13_000, "{} bytes", cut.1);
    assert!(rest(&disk, &name, end).iter().all(|byte| *byte == 0), "only zeros follow the end of the log");

    assert_eq!(frame(&mut log, &body(9, 1000)), torn, "the new frame takes the place of the torn one");
    let (_, report, found) = open(&disk).expect("the log is intact");
    assert_eq!((found.len(), report.records, report.frames, report.cut), (2, 2, 2, None));
    assert_eq!(found[1].1, body(9, 1000));
}

/// The checksums are valid but the position is wrong. Only the count can detect this.
#[test]
fn a_frame_that_names_another_position_is_damage() {
    let (disk, frames) = three_groups();
    let (name, offset) = file_of(frames[1]);
    let header = rest(&disk, &name, offset);
    let header = FrameHeader::decode(&header, frames[1]).expect("a frame");
    let wrong = FrameHeader { first_position: Position(header.first_position.0 + 1), ..header };
    disk.open(&name)
        .and_then(|file| file.write_at(&wrong.encode(frames[1]), offset))
        .expect("write succeeds");
    let (file, at, what) = refused(open(&disk));
    assert_eq!((file, at), (name, offset));
    assert_eq!(what, "expected position 2, but found position 3");
}

/// Both the end of a segment and the header of the next one are damaged. The error reports the first.
#[test]
fn of_two_damaged_places_the_first_is_named() {
    let disk = MemoryDisk::new();
    let (mut log, _, _) = open(&disk).expect("a new log");
    let mut frames = Vec::new();
    // Two groups in the second segment: the later one proves the earlier one.
    for n in 0..5 {
        frames.push(frame(&mut log, &body(n, 5000)));
        sync(&mut log);
    }
    assert!(frames[2].0 < SEGMENT_BYTES && frames[3].0 > SEGMENT_BYTES);
    let second = Segment::name(LogAddress(SEGMENT_BYTES));
    disk.flip_bit(&second, 0);
    assert_eq!(refused(open(&disk.clone_image())).0, second, "only the header is damaged");
    flip(&disk, LogAddress(frames[2].0 + 100));
    let (file, offset, _) = refused(open(&disk));
    assert_eq!((file, offset), file_of(frames[2]));
}

/// Files are read in pieces of a megabyte, and records span the boundaries.
#[test]
fn a_log_longer_than_one_piece_is_read_whole() {
    let options = Options { segment_bytes: 4 << 20, ..OPTIONS };
    let disk = MemoryDisk::new();
    let (mut log, _, _) = open_with(&disk, options).expect("a new log");
    let bodies: Vec<Vec<u8>> = (0..30).map(|n| body(n, 90_000 + usize::from(n))).collect();
    let frames: Vec<LogAddress> = bodies.iter().map(|body| frame(&mut log, body)).collect();
    sync(&mut log);
    let (_, report, found) = open_with(&disk, options).expect("the log is intact");
    assert_eq!(report, Report { records: 30, frames: 30, cut: None });
    assert!(found.iter().map(|(_, found)| found).eq(&bodies));

    // A torn tail of more than a megabyte that was never durable is completely overwritten with zeros.
    let (mut log, _, _) = open_with(&disk, options).expect("the log is intact");
    let torn = frame(&mut log, &body(77, 500_000));
    frame(&mut log, &body(78, 800_000));
    disk.flip_bit(&Segment::name(LogAddress(0)), (torn.0 + 99) * 8);
    let (_, report, found) = open_with(&disk, options).expect("the tail is truncated");
    assert_eq!((found.len(), report.cut.map(|cut| cut.0)), (30, Some(torn)));
    let mut bytes = vec![0; (options.segment_bytes - torn.0) as usize];
    let file = disk.open(&Segment::name(LogAddress(0))).expect("open succeeds");
    read_exact_at(&*file, &mut bytes, torn.0).expect("read succeeds");
    assert!(bytes.iter().all(|byte| *byte == 0));
    assert!(frames[0] == LogAddress(HEADER) && torn.0 > 2 << 20, "the frames are at the expected addresses");
}

#[test]
fn a_file_without_room_for_a_header_is_none_and_one_with_nothing_else_is_cut_short() {
    let first = Segment::name(LogAddress(0));
    let disk = MemoryDisk::new();
    disk.create(&first).and_then(|file| file.write_at(b"only these", 0)).expect("write succeeds");
    let (_, report, found) = open(&disk).expect("a new log begins");
    assert_eq!((found.len(), report.cut.map(|cut| cut.1)), (0, Some(10)));

    let (disk, _) = three_groups();
    let header = rest(&disk, &first, 0)[..HEADER as usize].to_vec();
    disk.create(&first).and_then(|file| file.write_at(&header, 0)).expect("write succeeds");
    assert_eq!(refused(open(&disk)), (first, HEADER, "the file is truncated".to_owned()));
}

/// A log can grow beyond 32-bit addresses.
#[test]
fn headers_hold_large_numbers_and_know_their_place() {
    let large = |n: u64| 0x0102_0304_0506_0700 + n;
    let header = FrameHeader {
        length: 0x0a0b_0c0d,
        first_position: Position(large(1)),
        synced: LogAddress(large(2)),
        count: 7,
    };
    let at = LogAddress(large(0));
    let bytes = header.encode(at);
    assert_eq!(FrameHeader::decode(&bytes, at), Some(header));
    assert_eq!(FrameHeader::decode(&bytes, LogAddress(at.0 + 32)), None, "decoded at the wrong address");
    assert_eq!(FrameHeader::decode(&bytes[..FRAME_HEADER - 1], at), None, "a truncated header");
    for bit in 0..8 * FRAME_HEADER {
        let mut wrong = bytes;
        wrong[bit / 8] ^= 1 << (bit % 8);
        assert_eq!(FrameHeader::decode(&wrong, at), None, "bit {bit}");
    }
}
