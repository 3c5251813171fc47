//! Tests of the guarantees of the log on a disk that tears, loses, fails and fills up.

mod log_harness;

use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::{Disk, read_exact_at};
use klambda_store::faulty_disk::{MemoryDisk, Op};
use klambda_store::inspect;
use klambda_store::log::{Error, Log, Options};
use klambda_store::recovery::{self, Checkpoint};
use klambda_store::segment::{FRAME_HEADER, FrameHeader, HEADER, Segment};
use log_harness::{BEGINNING, Harness, OPTIONS, SEGMENT_BYTES, body, open, sync};
use proptest::prelude::*;
use std::sync::Arc;

#[derive(Clone, Debug)]
enum Act {
    Append {
        event: bool,
        length: usize,
    },
    /// Fills the segment up to its last byte.
    Fill,
    Flush,
    /// Starts a sync. It ends at the next `EndSync`; writes may come in between.
    BeginSync,
    EndSync,
    Prepare,
    Read,
    Retire,
    Fail(Op, u64),
    Kill,
    Crash {
        seed: u64,
        kept: u64,
    },
}

fn act() -> impl Strategy<Value = Act> {
    let op = prop::sample::select(vec![
        Op::Read,
        Op::Write,
        Op::Sync,
        Op::SyncNames,
        Op::Create,
        Op::Rename,
        Op::Remove,
    ]);
    prop_oneof![
        12 => (any::<bool>(), 1..3000_usize).prop_map(|(event, length)| Act::Append { event, length }),
        2 => Just(Act::Fill),
        6 => Just(Act::Flush),
        4 => Just(Act::BeginSync),
        4 => Just(Act::EndSync),
        6 => Just(Act::Prepare),
        2 => Just(Act::Read),
        1 => Just(Act::Retire),
        1 => (op, 1..6_u64).prop_map(|(op, n)| Act::Fail(op, n)),
        1 => Just(Act::Kill),
        2 => (any::<u64>(), 0..5_u64).prop_map(|(seed, kept)| Act::Crash { seed, kept }),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, max_shrink_iters: 4000, ..ProptestConfig::default() })]

    /// After any sequence of events, recovery finds a prefix of what was written, with everything that a finished
    /// sync covered.
    #[test]
    fn nothing_that_was_synced_is_ever_missing(acts in prop::collection::vec(act(), 1..120), seed: u64) {
        let mut harness = Harness::new(seed);
        for act in acts {
            match act {
                Act::Append { event, length } => harness.append(event, length),
                Act::Fill => harness.fill(),
                Act::Flush => harness.flush(),
                Act::BeginSync => harness.begin_sync(),
                Act::EndSync => harness.end_sync(),
                Act::Prepare => harness.prepare(),
                Act::Read => harness.read_back(),
                Act::Retire => harness.retire(),
                Act::Fail(op, n) => harness.disk.fail_nth(op, n),
                Act::Kill => harness.reopen(),
                Act::Crash { seed, kept } => harness.crash(seed, kept),
            }
        }
        harness.crash(seed, 2);
        harness.read_back();
    }
}

/// A log of several segments and syncs. Returns the disk, the bodies, and the number of bodies before the last group.
fn durable_log() -> (MemoryDisk, Vec<Vec<u8>>, usize) {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    let mut bodies = Vec::new();
    let mut before_last = 0;
    for group in 0..40_u64 {
        before_last = bodies.len();
        for n in 0..3 {
            let body =
                body(group % 2 == 0, group * 3 + n, 40 + (group as usize * 61 + n as usize * 17) % 900);
            append(&mut log, &body);
            bodies.push(body);
        }
        log.flush().expect("flush succeeds");
        sync(&mut log).expect("sync succeeds");
    }
    assert!(log.segments().len() >= 3, "the log uses several segments");
    (disk, bodies, before_last)
}

fn append(log: &mut Log, body: &[u8]) -> LogAddress {
    if !log.has_room_for_steps(body.len())
        || log.next_address(body.len()) > LogAddress(log.active_base().0 + SEGMENT_BYTES)
    {
        prepare(log);
    }
    log.append(body, body[0] == 1).expect("the log has space")
}

fn prepare(log: &mut Log) {
    if let Some(job) = log.prepare_job(0) {
        let result = job.run();
        log.prepare_done(result).expect("the log works").expect("the disk has space");
    }
}

/// All frames of the log: file, offset, number of bytes covered by checksums, and the number of records before the
/// frame.
fn frames(disk: &MemoryDisk) -> Vec<(String, u64, u64, usize)> {
    let mut found = Vec::new();
    let mut records = 0;
    for name in segments(disk) {
        let base = Segment::base_of(&name).expect("a segment");
        let file = disk.open(&name).expect("open succeeds");
        let mut offset = HEADER;
        let mut head = [0; FRAME_HEADER];
        while read_exact_at(&*file, &mut head, offset).is_ok()
            && let Some(header) = FrameHeader::decode(&head, LogAddress(base.0 + offset))
        {
            found.push((name.clone(), offset, (FRAME_HEADER as u64) + u64::from(header.length), records));
            records += header.count as usize;
            offset += header.stride();
        }
    }
    found
}

fn assert_named(error: &Error, name: &str, at: u64) {
    let Error::Damaged { file, offset, .. } = error else { panic!("{error}") };
    assert_eq!((file.as_str(), *offset), (name, at), "{error}");
}

/// Opens a damaged log. Either all durable records exist, or the error gives the location of the damage. Only the
/// last group may be truncated.
fn open_damaged(disk: &MemoryDisk, bodies: &[Vec<u8>], before_last: usize) -> Option<Error> {
    match open(&disk.clone_image(), BEGINNING) {
        Err(error) => Some(error),
        Ok((log, found)) => {
            assert!(
                found.len() >= before_last,
                "records are missing without an error: {} of {before_last}",
                found.len()
            );
            assert_eq!(found, bodies[..found.len()]);
            let events = found.iter().filter(|body| body[0] == 1).count() as u64;
            assert_eq!(log.next_position(), Position(events + 1));
            None
        }
    }
}

#[test]
fn a_flipped_bit_is_named_with_file_and_offset() {
    let (disk, bodies, before_last) = durable_log();
    for (name, offset, length, records) in frames(&disk) {
        for byte in [
            offset,
            offset + 9,
            offset + 17,
            offset + 33,
            offset + 39,
            offset + length / 2,
            offset + length - 1,
        ] {
            let image = disk.clone_image();
            image.flip_bit(&name, byte * 8 + byte % 8);
            let error = open_damaged(&image, &bodies, before_last);
            let Some(error) = error else {
                assert!(records >= before_last, "damage in {name} at {byte} was not detected");
                continue;
            };
            assert_named(&error, &name, offset);
            let census = inspect::inspect(&image, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
            assert_named(&census.damage[0], &name, offset);
            assert_eq!(census.damage.len(), 1, "{:?}", census.damage);
        }
    }
}

/// Inspection continues after damage and reports all damaged headers and bodies.
#[test]
fn every_damaged_frame_is_named_not_only_the_first() {
    let (disk, ..) = durable_log();
    let first = segments(&disk)[0].clone();
    let inside: Vec<_> = frames(&disk).into_iter().filter(|frame| frame.0 == first).collect();
    assert!(inside.len() >= 6, "{} frames", inside.len());
    let hit = [&inside[1], &inside[3], &inside[inside.len() - 2]];
    for (frame, within) in hit.iter().zip([2, 39, 60]) {
        disk.flip_bit(&first, (frame.1 + within) * 8);
    }
    let census = inspect::inspect(&disk, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
    assert_eq!(census.damage.len(), 3, "{:?}", census.damage);
    for (damage, frame) in census.damage.iter().zip(hit) {
        assert_named(damage, &first, frame.1);
    }
}

#[test]
fn a_lost_page_never_shortens_the_log_in_silence() {
    let (disk, bodies, before_last) = durable_log();
    let covered = frames(&disk);
    for name in segments(&disk) {
        for page in 0..SEGMENT_BYTES / 512 {
            let range = page * 512..(page + 1) * 512;
            let image = disk.clone_image();
            image.zero(&name, range.start as usize..range.end as usize);
            let is_hit = |frame: &&(String, u64, u64, usize)| {
                frame.0 == name && frame.1 < range.end && frame.1 + frame.2 > range.start
            };
            let hit: Vec<_> = covered.iter().filter(is_hit).collect();
            match (open_damaged(&image, &bodies, before_last), hit.first()) {
                (Some(error), _) if page == 0 => assert_named(&error, &name, 0),
                (Some(error), Some((_, offset, ..))) => assert_named(&error, &name, *offset),
                (Some(error), None) => panic!("{name}, page {page}: {error}"),
                (None, Some(first)) => assert!(first.3 >= before_last, "{name}, page {page}"),
                (None, None) => {}
            }
        }
    }
}

/// The last group is written while the previous group is being synced, so its frame cannot show that the previous
/// group is durable.
#[test]
fn the_group_before_the_last_is_never_cut() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    append(&mut log, &body(true, 1, 100));
    log.flush().expect("flush succeeds");
    let first = log.sync_job().expect("a sync is due");
    append(&mut log, &body(true, 2, 100));
    log.flush().expect("flush succeeds");
    log.sync_done(first.up_to, first.run()).expect("sync succeeds");
    sync(&mut log).expect("sync succeeds");
    let name = Segment::name(LogAddress(0));

    disk.flip_bit(&name, 8 * (HEADER + 60));
    assert_named(&open(&disk.clone_image(), BEGINNING).err().expect("the log is refused"), &name, HEADER);
    let census = inspect::inspect(&disk, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
    assert_named(&census.damage[0], &name, HEADER);
    disk.flip_bit(&name, 8 * (HEADER + 60));

    let second = first.up_to.0;
    disk.flip_bit(&name, 8 * (second + 60));
    assert_eq!(open(&disk, BEGINNING).expect("the last group is truncated").1.len(), 1);
}

/// Recovery does not read the log before a checkpoint. A reader of the whole log knows that this part was durable.
#[test]
fn damage_before_the_checkpoint_is_no_torn_tail() {
    let mut harness = Harness::new(3);
    harness.append(true, 500);
    harness.flush();
    harness.begin_sync();
    harness.end_sync();
    let checkpoint = harness.checkpoints.last().expect("a sync finished").0;
    let name = Segment::name(LogAddress(0));
    harness.disk.flip_bit(&name, 8 * (HEADER + 100));
    let census = inspect::inspect(&harness.disk, checkpoint, &mut |_, _, _| Ok(())).expect("read succeeds");
    assert_eq!(census.cut, None);
    assert_named(&census.damage[0], &name, HEADER);
}

fn segments(disk: &MemoryDisk) -> Vec<String> {
    disk.list().expect("list succeeds").into_iter().filter(|name| Segment::base_of(name).is_some()).collect()
}

#[test]
fn a_file_that_is_missing_or_cut_short_is_named() {
    let (disk, _, _) = durable_log();
    let names = segments(&disk);
    for name in &names[..names.len() - 1] {
        let image = disk.clone_image();
        image.remove(name).expect("remove succeeds");
        assert_named(&open(&image, BEGINNING).err().expect("the log is refused"), name, 0);
    }
    for name in &names {
        let image = disk.clone_image();
        let mut bytes = vec![0; 5000];
        read_exact_at(&*image.open(name).expect("open succeeds"), &mut bytes, 0).expect("read succeeds");
        image.create(name).expect("create succeeds").write_at(&bytes, 0).expect("write succeeds");
        assert_named(&open(&image, BEGINNING).err().expect("the log is refused"), name, 5000);
    }
}

/// Two segments begin while one sync is running. The header of the first may be lost while the header of the second
/// survives.
#[test]
fn headers_that_never_became_durable_are_no_damage() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    let synced = body(true, 0, 100);
    append(&mut log, &synced);
    log.flush().expect("flush succeeds");
    sync(&mut log).expect("sync succeeds");
    let mut n = 1;
    while log.segments().len() < 3 {
        append(&mut log, &body(true, n, 2000));
        n += 1;
    }
    log.flush().expect("flush succeeds");
    let second = Segment::name(LogAddress(SEGMENT_BYTES));

    disk.zero(&second, 0..HEADER as usize);
    let cut = inspect::inspect(&disk, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
    assert!(cut.damage.is_empty(), "{:?}", cut.damage);
    assert_eq!(cut.cut.map(|tail| tail.bytes), Some(2 * SEGMENT_BYTES));
    let (mut log, found) = open(&disk, BEGINNING).expect("the tail is truncated");
    assert_eq!(found[0], synced);
    assert_eq!(segments(&disk).len(), 1);

    // Once the segment was durable, a lost header is damage.
    while log.segments().len() < 3 {
        append(&mut log, &body(true, n, 2000));
        log.flush().expect("flush succeeds");
        sync(&mut log).expect("sync succeeds");
        n += 1;
    }
    disk.zero(&second, 0..HEADER as usize);
    assert_named(&open(&disk, BEGINNING).err().expect("the log is refused"), &second, 0);
}

/// No other segment proves the first header. The frames after it do.
#[test]
fn damage_of_the_first_header_is_named_by_opening_and_by_inspection() {
    let (disk, _, _) = durable_log();
    let first = Segment::name(LogAddress(0));
    for byte in [0, 4, 9, 40, 63] {
        let image = disk.clone_image();
        image.flip_bit(&first, byte * 8);
        assert_named(&open(&image.clone_image(), BEGINNING).err().expect("the log is refused"), &first, 0);
        // Before a checkpoint, no frame is needed as proof.
        let later = Checkpoint { address: LogAddress(HEADER), next_position: Position(1) };
        assert_named(&open(&image.clone_image(), later).err().expect("the log is refused"), &first, 0);
        let census = inspect::inspect(&image, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
        assert_eq!(census.damage.len(), 1, "{:?}", census.damage);
        assert_named(&census.damage[0], &first, 0);
    }
}

/// Nothing in the segment was durable. Inspection reports what opening will truncate.
#[test]
fn a_first_segment_without_a_durable_frame_is_cut_as_a_whole() {
    let disk = MemoryDisk::new();
    drop(open(&disk, BEGINNING).expect("a new log"));
    disk.flip_bit(&Segment::name(LogAddress(0)), 3);
    let census = inspect::inspect(&disk, BEGINNING, &mut |_, _, _| Ok(())).expect("read succeeds");
    assert!(census.damage.is_empty(), "{:?}", census.damage);
    assert_eq!(census.cut.map(|cut| (cut.offset, cut.bytes)), Some((0, SEGMENT_BYTES)));
    let opened = recovery::open(Arc::new(disk), OPTIONS, BEGINNING, Millis(1), &mut |_, _, _| Ok(()));
    let (_, report) = opened.expect("a new log begins");
    assert_eq!((report.records, report.cut.map(|cut| cut.1)), (0, Some(SEGMENT_BYTES)));
}

#[test]
fn a_crash_while_the_first_segment_is_made_leaves_a_folder_that_opens() {
    for survivors in 0..64_u64 {
        for fault in [Op::Sync, Op::SyncNames, Op::Write, Op::Rename] {
            let disk = MemoryDisk::new();
            disk.fail_nth(fault, 1 + survivors % 3);
            let _ = open(&disk, BEGINNING);
            let mut bits = survivors;
            disk.crash(&mut |n| {
                bits = bits.rotate_right(1);
                bits % n
            });
            let (mut log, found) =
                (0..4).find_map(|_| open(&disk, BEGINNING).ok()).expect("the log opens after some attempts");
            assert_eq!(found.len(), 0);
            append(&mut log, &body(true, 1, 10));
            log.flush().expect("flush succeeds");
        }
    }
}

/// The checkpoint is exactly at the end of a full segment, where the next one begins.
#[test]
fn a_checkpoint_at_the_end_of_a_full_segment_stays_valid() {
    let mut harness = Harness::new(7);
    harness.append(true, 500);
    harness.fill();
    harness.flush();
    harness.begin_sync();
    harness.end_sync();
    let full = harness.checkpoints.last().expect("a sync finished").0;
    assert_eq!(full.address, LogAddress(SEGMENT_BYTES), "the segment is full to the last byte");
    assert_eq!(
        open(&harness.disk.clone_image(), full).expect("the log opens without the next segment").1.len(),
        0
    );

    harness.prepare();
    harness.append(true, 100);
    harness.flush();
    let second = Segment::name(LogAddress(SEGMENT_BYTES));
    let lost = harness.disk.clone_image();
    lost.zero(&second, 0..HEADER as usize);
    assert_eq!(open(&lost, full).expect("the header was never durable").1.len(), 0);

    assert_eq!(
        open(&harness.disk.clone_image(), full).expect("the log opens with the next segment").1.len(),
        1
    );
    harness.begin_sync();
    harness.end_sync();
    let image = harness.disk.clone_image();
    image.remove(&Segment::name(LogAddress(0))).expect("retention may remove the full segment");
    assert_eq!(open(&image, full).expect("the log opens from the next segment").1.len(), 1);
}

#[test]
fn after_a_failed_sync_nothing_is_acknowledged() {
    for fault in [Op::Sync, Op::SyncNames] {
        let disk = MemoryDisk::new();
        let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
        append(&mut log, &body(true, 1, 100));
        log.flush().expect("flush succeeds");
        let before = log.synced();
        disk.fail_nth(fault, 1);
        assert!(sync(&mut log).is_err());
        assert_eq!(log.synced(), before);
        assert!(log.is_poisoned());
        assert!(matches!(log.append(&body(true, 2, 10), true), Err(Error::Poisoned)));
        assert!(matches!(log.flush(), Err(Error::Poisoned)));
        assert!(log.sync_job().is_none());
        assert!(!log.has_room_for_steps(1));
    }
}

/// After a failed sync, the kernel still shows the lost bytes. Recovery must make them durable before it builds on
/// them.
#[test]
fn what_recovery_finds_after_a_failed_sync_is_made_durable() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    append(&mut log, &body(true, 1, 3000));
    log.flush().expect("flush succeeds");
    disk.fail_nth(Op::Sync, 1);
    assert!(sync(&mut log).is_err());
    drop(log);

    let (mut log, found) = open(&disk, BEGINNING).expect("a restart without a power cut succeeds");
    assert_eq!(found.len(), 1, "the record is still readable");
    append(&mut log, &body(true, 2, 100));
    log.flush().expect("flush succeeds");
    sync(&mut log).expect("sync succeeds");
    disk.crash(&mut |_| 0);
    assert_eq!(open(&disk, BEGINNING).expect("the log is intact").1.len(), 2);
}

#[test]
fn a_full_disk_shows_when_a_segment_is_prepared_and_steps_still_fit() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    disk.set_capacity(Some(disk.used_bytes() + SEGMENT_BYTES / 2));
    let mut n = 0;
    while log.has_room_for_events(1000) {
        log.append(&body(true, n, 1000), true).expect("the log has space");
        n += 1;
    }
    assert!(n > 5);
    let job = log.prepare_job(0).expect("a spare segment is needed");
    let result = job.run();
    assert!(log.prepare_done(result).expect("the log works").is_err());
    assert_eq!(disk.free_bytes(), Some(SEGMENT_BYTES / 2), "the incomplete file was removed");
    assert!(!log.has_room_for_events(1000) && !log.is_poisoned());

    let mut steps = 0;
    while log.has_room_for_steps(100) {
        log.append(&body(false, n + steps, 100), false).expect("the reserve is available for steps");
        log.flush().expect("a flush needs no new space");
        steps += 1;
    }
    sync(&mut log).expect("sync succeeds");
    assert!(steps * 100 >= OPTIONS.reserve_bytes / 2, "{steps} steps");
    assert!(matches!(log.append(&body(false, 0, 200), false), Err(Error::Full)));

    disk.set_capacity(None);
    prepare(&mut log);
    assert!(log.has_room_for_events(1000));
    log.append(&body(true, n + steps, 1000), true).expect("the log continues in the next segment");
    log.flush().expect("flush succeeds");
    sync(&mut log).expect("sync succeeds");
    disk.crash(&mut |_| 0);
    assert_eq!(open(&disk, BEGINNING).expect("the log is intact").1.len() as u64, n + steps + 1);
}

#[test]
fn a_reader_beside_the_writer_sees_only_what_is_synced() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    let reader = log.reader();
    let writer = std::thread::spawn(move || {
        for n in 0..3000 {
            append(&mut log, &body(true, n, 50 + (n as usize * 37) % 400));
            log.flush().expect("flush succeeds");
            if n % 3 == 0 {
                sync(&mut log).expect("sync succeeds");
            }
        }
        sync(&mut log).expect("sync succeeds");
        log
    });
    let mut at = LogAddress(0);
    let mut seen = 0;
    while seen < 3000 {
        let synced = reader.synced();
        match reader.frame(at).expect("the log is intact") {
            None => {
                assert!(!writer.is_finished() || at >= synced, "the reader stopped before the durable end")
            }
            Some(frame) => {
                assert!(frame.next <= reader.synced(), "the frame ends within the durable part");
                assert_eq!(frame.first_position, Position(seen + 1));
                for (_, range) in &frame.records {
                    let length = 50 + (seen as usize * 37) % 400;
                    assert_eq!(frame.bytes[range.clone()], body(true, seen, length));
                    seen += 1;
                }
                at = frame.next;
            }
        }
    }
    let log = writer.join().expect("the writer finishes");
    assert!(reader.frame(at).expect("the log is intact").is_none());
    assert!(log.segments().len() > 20);
    for position in [0, 1, 17, 1499, 2999] {
        let from = log.reader().seek(Position(position)).expect("seek succeeds");
        let frame = log.reader().frame(from).expect("the log is intact").expect("a frame");
        let wanted = Position(position + 1);
        assert!(
            frame.first_position <= wanted && wanted.0 < frame.first_position.0 + frame.records.len() as u64
        );
    }
    // The reader outlives the log that wrote. After a crash it returns errors and never invented data.
    disk.crash(&mut |_| 0);
    assert!(reader.frame(LogAddress(0)).is_err());
}

#[test]
fn a_reader_with_a_buffer_reads_the_same_records() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    let mut written = Vec::new();
    for n in 0..400_u64 {
        // A few records are longer than what is read at once.
        let length = if n % 50 == 49 { 7000 } else { 40 + (n as usize * 61) % 900 };
        let body = body(n % 2 == 0, n, length);
        written.push((append(&mut log, &body), body));
        log.flush().expect("flush succeeds");
    }
    sync(&mut log).expect("sync succeeds");
    let mut sequential = log.reader().sequential();
    let ways: [(usize, usize); 5] = [(1, 0), (3, 0), (37, 0), (1, 399), (391, 7)];
    for (step, from) in ways {
        for n in 0..written.len() {
            let (at, body) = &written[(from + n * step) % written.len()];
            assert_eq!(sequential.read(*at).expect("the log is intact"), body, "{at} in steps of {step}");
        }
    }
    for (at, body) in written.iter().rev() {
        assert_eq!(sequential.read(*at).expect("the log is intact"), body, "{at} backwards");
    }
    let segment = log.segments()[1].clone();
    let (at, _) = written.iter().find(|(at, _)| *at > segment.start()).expect("a record");
    let byte = &mut [0];
    segment.file.read_at(byte, segment.offset(*at) + 12).expect("read succeeds");
    segment.file.write_at(&[byte[0] ^ 1], segment.offset(*at) + 12).expect("write succeeds");
    assert_named(
        &log.reader().sequential().read(*at).expect_err("damage"),
        &Segment::name(segment.base),
        segment.offset(*at),
    );
    assert!(log.drop_oldest().is_some());
    assert!(matches!(log.reader().sequential().read(written[0].0), Err(Error::Gone(_))));
}

/// A large frame ends before the next record. The frame of that record must fit as well.
#[test]
fn no_frame_ends_beyond_its_segment() {
    const LARGE: u64 = 256 << 10;
    for left in 0..200 {
        let disk = MemoryDisk::new();
        let options = Options { segment_bytes: LARGE, ..OPTIONS };
        let opened =
            recovery::open(Arc::new(disk.clone()), options, BEGINNING, Millis(1), &mut |_, _, _| Ok(()));
        let (mut log, _) = opened.expect("open succeeds");
        prepare(&mut log);
        let mut bodies = vec![vec![1; 70_000], vec![1; 70_000]];
        for body in &bodies {
            log.append(body, true).expect("the log has space");
            log.flush().expect("flush succeeds");
        }
        // A large frame that ends a few bytes before the end of the segment, then small records without a flush in
        // between.
        let used = log.written().0 + FRAME_HEADER as u64 + 8;
        bodies.extend([vec![1; (LARGE - used - left) as usize], vec![1; 20], vec![1; 20], vec![1; 20]]);
        for body in &bodies[2..] {
            log.append(body, true).expect("the log has space");
        }
        log.flush().expect("flush succeeds");
        let segment = disk.open(&Segment::name(LogAddress(0))).expect("the segment exists");
        assert_eq!(segment.len().expect("len succeeds"), LARGE, "{left} bytes left");
        drop(log);
        let mut read = Vec::new();
        let opened = recovery::open(Arc::new(disk), options, BEGINNING, Millis(1), &mut |_, body, _| {
            read.push(body.to_vec());
            Ok(())
        });
        opened.expect("the log opens again");
        assert!(read == bodies, "{left} bytes left: {} of {} records", read.len(), bodies.len());
    }
}

#[test]
fn a_segment_goes_only_when_the_next_is_durable_and_says_when_it_began() {
    let disk = MemoryDisk::new();
    let (mut log, _) = open(&disk, BEGINNING).expect("a new log");
    let mut n = 0;
    log.set_now(Millis(77));
    while log.segments().len() < 2 {
        prepare(&mut log);
        append(&mut log, &body(true, n, 1000));
        n += 1;
    }
    log.flush().expect("flush succeeds");
    assert_eq!(log.segments()[1].created, Millis(77));
    assert_eq!(log.drop_oldest(), None, "the second segment is not synced");
    sync(&mut log).expect("the disk works");
    let first = Segment::name(log.segments()[0].base);
    assert_eq!(log.drop_oldest(), Some(first));
    assert_eq!((log.segments().len(), log.drop_oldest()), (1, None), "the last segment stays");
}
