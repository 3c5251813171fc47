//! Recovery: writes a log, then damages it. Recovery returns what was written or reports the damage with its
//! location.
#![no_main]

use bytes::Bytes;
use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_fuzz::input::Input;
use klambda_fuzz::seal;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::inspect::inspect;
use klambda_store::log::{Error, Log, Options};
use klambda_store::record::is_event;
use klambda_store::recovery::{self, Checkpoint, Report};
use klambda_store::segment::{FRAME_ALIGN, FRAME_HEADER, HEADER, Segment};
use libfuzzer_sys::fuzz_target;
use std::sync::Arc;

const SEGMENT_BYTES: u64 = 2048;
const OPTIONS: Options = Options { segment_bytes: SEGMENT_BYTES, reserve_bytes: 128, tail_bytes: 512 };
const BEGINNING: Checkpoint = Checkpoint { address: LogAddress(0), next_position: Position(1) };

type Record = (LogAddress, Bytes, Position);

#[derive(Clone, Copy, PartialEq)]
enum Harm {
    None,
    /// Damage as a disk causes it.
    Bytes,
    /// Damage with valid checksums, which a disk does not cause. This only checks that nothing panics and that
    /// opening twice gives the same result.
    Sealed,
}

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let disk = MemoryDisk::new();
    let written = write(&disk, &mut input);
    let harm = damage(&disk, &mut input);
    let census = inspect(&disk, BEGINNING, &mut |_, _, _| Ok(()));
    match open(&disk) {
        Ok((mut log, report, records)) => {
            if harm != Harm::Sealed {
                check_prefix(&records, &written, harm);
                check_reader(&log, &records);
                let census = census.expect("a log that opens can be inspected");
                assert!(census.damage.is_empty(), "{:?}", census.damage);
                assert_eq!((census.records, census.frames), (report.records, report.frames));
                assert_eq!(census.cut.map(|cut| cut.bytes), report.cut.map(|(_, bytes)| bytes));
            }
            let (_, again, same) = open(&disk).expect("the log opens again");
            assert_eq!((same.len(), again.cut), (records.len(), None));
            assert_eq!(same, records);
            if harm != Harm::Sealed {
                go_on(&disk, &mut log, records);
            }
        }
        Err(Error::Damaged { offset, .. }) => {
            assert!(harm != Harm::None, "damage is reported for an intact log");
            assert!(
                offset <= SEGMENT_BYTES || harm == Harm::Sealed,
                "the reported offset is outside the file"
            );
            assert!(
                census.is_ok_and(|census| !census.damage.is_empty()),
                "inspection must report the damage too"
            );
        }
        Err(other) => panic!("{other}"),
    }
});

fn open(disk: &MemoryDisk) -> Result<(Log, Report, Vec<Record>), Error> {
    let mut records = Vec::new();
    let (log, report) =
        recovery::open(Arc::new(disk.clone()), OPTIONS, BEGINNING, Millis(1), &mut |at, body, position| {
            records.push((at, body, position));
            Ok(())
        })?;
    assert_eq!(report.records, records.len() as u64);
    Ok((log, report, records))
}

/// Writes records. Returns those that reached the disk.
fn write(disk: &MemoryDisk, input: &mut Input<'_>) -> Vec<Record> {
    let (mut log, _, _) = open(disk).expect("a new log");
    let (mut written, mut flushed) = (Vec::new(), 0);
    for _ in 0..32 {
        match input.byte() % 8 {
            0 => break,
            1..=4 => append(&mut log, input, &mut written),
            5 => {
                log.flush().expect("the disk has no faults");
                flushed = written.len();
            }
            6 => sync(&mut log),
            _ => prepare(&mut log),
        }
    }
    log.flush().expect("the disk has no faults");
    if input.flag() {
        sync(&mut log);
    }
    assert!(flushed <= written.len());
    written
}

fn append(log: &mut Log, input: &mut Input<'_>, written: &mut Vec<Record>) {
    let kind = input.byte() % 8;
    let length = usize::from(input.byte()) * 3;
    let body: Vec<u8> = std::iter::once(kind).chain((0..length).map(|n| (n + written.len()) as u8)).collect();
    let position = log.next_position();
    match log.append(&body, is_event(&body)) {
        Ok(at) => written.push((at, body.into(), position)),
        Err(Error::Full) => prepare(log),
        Err(other) => panic!("{other}"),
    }
}

fn sync(log: &mut Log) {
    if let Some(job) = log.sync_job() {
        let result = job.run();
        log.sync_done(job.up_to, result).expect("the disk has no faults");
    }
}

fn prepare(log: &mut Log) {
    if let Some(job) = log.prepare_job(0) {
        let had_room = log.prepare_done(job.run()).expect("the disk has no faults");
        had_room.expect("the disk has space");
    }
}

fn damage(disk: &MemoryDisk, input: &mut Input<'_>) -> Harm {
    let names: Vec<String> =
        disk.list().expect("names").into_iter().filter(|name| name.starts_with("log-")).collect();
    let mut harm = Harm::None;
    for _ in 0..input.byte() % 4 {
        let name = &names[input.below(names.len())];
        let (offset, seals) = (input.below(SEGMENT_BYTES as usize), input.byte() % 4 == 3);
        let bytes = input.bytes();
        let bytes = &bytes[..bytes.len().min(SEGMENT_BYTES as usize - offset)];
        let file = disk.open(name).expect("a file of the log");
        let mut before = vec![0; bytes.len()];
        file.read_at(&mut before, offset as u64).expect("a read");
        if before == bytes {
            continue;
        }
        file.write_at(bytes, offset as u64).expect("a write");
        harm = match seals {
            true => Harm::Sealed,
            false if harm == Harm::None => Harm::Bytes,
            false => harm,
        };
        if seals {
            reseal(disk, name, offset as u64);
        }
    }
    harm
}

/// Corrects the checksum of the segment header or frame header before this offset.
fn reseal(disk: &MemoryDisk, name: &str, offset: u64) {
    let file = disk.open(name).expect("a file of the log");
    if offset < HEADER {
        let mut header = [0; HEADER as usize];
        file.read_at(&mut header, 0).expect("a read");
        file.write_at(&crc32fast::hash(&header[..60]).to_le_bytes(), 60).expect("a write");
        return;
    }
    let slot = offset / FRAME_ALIGN * FRAME_ALIGN;
    let base = Segment::base_of(name).expect("a segment");
    let mut header = [0; FRAME_HEADER];
    file.read_at(&mut header, slot).expect("a read");
    file.write_at(&seal::record(base.0 + slot, &header[..28]).to_le_bytes(), slot + 28).expect("a write");
}

/// The records must be a prefix of what was written. Without damage, all of them must be there.
fn check_prefix(records: &[Record], written: &[Record], harm: Harm) {
    assert!(records.len() <= written.len(), "more records than were written");
    assert_eq!(*records, written[..records.len()]);
    assert!(harm != Harm::None || records.len() == written.len(), "a record is missing");
}

/// All ways to read a record give the same result.
fn check_reader(log: &Log, records: &[Record]) {
    let reader = log.reader();
    let places: Vec<LogAddress> = records.iter().map(|(at, _, _)| *at).collect();
    let positions = reader.positions(&places).expect("positions");
    for ((at, body, position), found) in records.iter().zip(positions) {
        assert_eq!(reader.read(*at).expect("a record"), body);
        assert_eq!(log.read(*at).expect("a record"), body);
        assert_eq!(found, is_event(body).then_some(*position));
    }
    let mut count = 0;
    let mut at = LogAddress(0);
    while let Some(frame) = reader.frame(at).expect("a frame") {
        count += frame.records.len();
        at = frame.next;
    }
    assert_eq!(count, records.len());
}

/// After recovery, the log accepts another record, which is there when the log is opened again.
fn go_on(disk: &MemoryDisk, log: &mut Log, mut records: Vec<Record>) {
    let position = log.next_position();
    let body = Bytes::from_static(b"\x01one more");
    prepare(log);
    let at = log.append(&body, true).expect("the log has space");
    records.push((at, body, position));
    log.flush().expect("the disk has no faults");
    sync(log);
    let (_, report, found) = open(disk).expect("the log is intact");
    assert_eq!((found, report.cut), (records, None));
}
