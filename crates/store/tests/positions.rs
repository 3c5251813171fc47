//! Tests of the mapping from record addresses to event positions.

use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log::{Log, Options};
use klambda_store::recovery::{self, Checkpoint};
use std::sync::Arc;

const BEGINNING: Checkpoint = Checkpoint { address: LogAddress(0), next_position: Position(1) };

/// A log with the address of every record and, for events, the position.
struct Written {
    log: Log,
    records: Vec<(LogAddress, Option<Position>)>,
}

impl Written {
    fn new(segment_bytes: u64) -> Written {
        let options = Options { segment_bytes, reserve_bytes: 1 << 10, tail_bytes: 0 };
        let disk = Arc::new(MemoryDisk::new());
        let opened = recovery::open(disk, options, BEGINNING, Millis(1), &mut |_, _, _| Ok(()));
        Written { log: opened.expect("a new log").0, records: Vec::new() }
    }

    fn append(&mut self, is_event: bool, length: usize) {
        if let Some(job) = self.log.prepare_job(0) {
            self.log.prepare_done(job.run()).expect("the log works").expect("the disk has space");
        }
        let position = is_event.then(|| self.log.next_position());
        let mut body = vec![7; length];
        body[0] = if is_event { 1 } else { 3 };
        let at = self.log.append(&body, is_event).expect("the log has space");
        self.records.push((at, position));
    }

    fn flush(&mut self) {
        self.log.flush().expect("flush succeeds");
    }

    fn sync(&mut self) {
        self.flush();
        let job = self.log.sync_job().expect("a sync is due");
        let result = job.run();
        self.log.sync_done(job.up_to, result).expect("sync succeeds");
    }

    fn check(&self) {
        let (at, positions): (Vec<LogAddress>, Vec<Option<Position>>) = self.records.iter().copied().unzip();
        let reader = self.log.reader();
        assert_eq!(reader.positions(&at).expect("read succeeds"), positions);
        // Also in another order, and one at a time.
        let (mut at, mut positions) = (at, positions);
        at.reverse();
        positions.reverse();
        assert_eq!(reader.positions(&at).expect("read succeeds"), positions);
        for (at, position) in at.iter().zip(positions) {
            assert_eq!(reader.positions(&[*at]).expect("read succeeds"), [position]);
        }
    }
}

#[test]
fn events_among_steps_in_many_frames_and_segments() {
    let mut written = Written::new(8 << 10);
    for n in 0..120 {
        written.append(n % 3 != 1, 100 + n * 3);
        if n % 4 == 3 {
            written.flush();
        }
    }
    written.sync();
    assert!(written.log.segments().len() > 3);
    written.check();
}

#[test]
fn what_is_no_record_or_not_durable_has_none() {
    let mut written = Written::new(8 << 10);
    written.append(true, 100);
    written.append(true, 100);
    written.sync();
    written.check();
    let durable = written.records.clone();
    written.append(true, 100);
    written.flush();
    let reader = written.log.reader();
    let of = |at: u64| reader.positions(&[LogAddress(at)]).expect("read succeeds")[0];
    for (at, _) in &durable {
        assert_eq!([of(at.0 - 1), of(at.0 + 1)], [None, None], "not the start of a record");
    }
    assert_eq!(of(durable[0].0.0 - 32), None, "the header of a frame");
    assert_eq!([of(0), of(63), of(written.records[2].0.0), of(u64::MAX)], [None; 4]);
    assert_eq!(reader.positions(&[]).expect("read succeeds"), []);
    let last = written.records[2].0;
    written.sync();
    assert_eq!(written.log.reader().positions(&[last]).expect("read succeeds"), [Some(Position(3))]);
}

/// Headers are read one megabyte at a time.
#[test]
fn a_segment_longer_than_what_is_read_at_once() {
    let mut written = Written::new(4 << 20);
    for n in 0..36 {
        written.append(n % 2 == 0, 90_000 + n);
        written.flush();
    }
    written.sync();
    assert_eq!(written.log.segments().len(), 1);
    written.check();
}
