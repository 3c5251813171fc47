//! A log together with a model of its guarantees.

use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::log::{Error, Log, Options, SyncJob};
use klambda_store::recovery::{self, Checkpoint};
use std::collections::VecDeque;
use std::sync::Arc;

pub const SEGMENT_BYTES: u64 = 16 << 10;
pub const OPTIONS: Options =
    Options { segment_bytes: SEGMENT_BYTES, reserve_bytes: 2 << 10, tail_bytes: 4 << 10 };
pub const BEGINNING: Checkpoint = Checkpoint { address: LogAddress(0), next_position: Position(1) };

/// A record that contains its own number. The first byte distinguishes events from steps, as in every record.
pub fn body(event: bool, n: u64, length: usize) -> Vec<u8> {
    let mut body = vec![if event { 1 } else { 3 }];
    body.extend_from_slice(&n.to_le_bytes());
    body.extend((0..length.saturating_sub(9)).map(|i| (i as u64 * 31 + n * 7) as u8));
    body
}

/// Opens the log. Returns it with all bodies since the checkpoint.
pub fn open(disk: &MemoryDisk, from: Checkpoint) -> Result<(Log, Vec<Vec<u8>>), Error> {
    let mut found = Vec::new();
    let opened = recovery::open(Arc::new(disk.clone()), OPTIONS, from, Millis(1), &mut |_, body, _| {
        found.push(body.to_vec());
        Ok(())
    });
    opened.map(|(log, _)| (log, found))
}

pub fn sync(log: &mut Log) -> Result<(), Error> {
    let Some(job) = log.sync_job() else { return Ok(()) };
    let result = job.run();
    log.sync_done(job.up_to, result)
}

pub struct Harness {
    pub disk: MemoryDisk,
    /// `None` after a failure, until the log is opened again.
    log: Option<Log>,
    written: Vec<(LogAddress, Vec<u8>)>,
    flushed: usize,
    synced: usize,
    /// The index of the first record that retention has not removed.
    oldest: usize,
    next_n: u64,
    retired: VecDeque<String>,
    sync: Option<(SyncJob, usize)>,
    /// Checkpoints at durable addresses, with the number of records before each.
    pub checkpoints: Vec<(Checkpoint, usize)>,
    random: u64,
}

impl Harness {
    pub fn new(seed: u64) -> Harness {
        let disk = MemoryDisk::new();
        let (log, _) = open(&disk, BEGINNING).expect("a new log");
        Harness {
            disk,
            log: Some(log),
            written: Vec::new(),
            flushed: 0,
            synced: 0,
            oldest: 0,
            next_n: 0,
            retired: VecDeque::new(),
            sync: None,
            checkpoints: vec![(BEGINNING, 0)],
            random: seed,
        }
    }

    fn below(&mut self, n: u64) -> u64 {
        self.random =
            self.random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.random >> 33) % n
    }

    pub fn append(&mut self, event: bool, length: usize) {
        let body = body(event, self.next_n, length);
        self.next_n += 1;
        let Some(log) = &mut self.log else { return self.reopen() };
        let (active, promised) = (log.active_base(), log.next_address(body.len()));
        match log.append(&body, event) {
            Ok(at) => {
                assert_eq!(at, promised, "next_address must predict the address");
                if log.active_base() != active {
                    self.flushed = self.written.len();
                }
                self.written.push((at, body));
            }
            Err(Error::Full) => self.prepare(),
            Err(error) => self.died(&error),
        }
    }

    pub fn fill(&mut self) {
        let Some(log) = &self.log else { return self.reopen() };
        let left = (log.active_base().0 + SEGMENT_BYTES).saturating_sub(log.next_address(0).0);
        if (17..SEGMENT_BYTES).contains(&left) {
            self.append(true, left as usize - 8);
        }
    }

    pub fn flush(&mut self) {
        let Some(log) = &mut self.log else { return self.reopen() };
        match log.flush() {
            Ok(()) => self.flushed = self.written.len(),
            Err(error) => self.died(&error),
        }
    }

    pub fn begin_sync(&mut self) {
        let Some(log) = &mut self.log else { return self.reopen() };
        if let Some(job) = log.sync_job() {
            self.sync = Some((job, self.flushed));
        }
    }

    pub fn end_sync(&mut self) {
        let Some(log) = &mut self.log else { return self.reopen() };
        let Some((job, covered)) = self.sync.take() else { return };
        let result = job.run();
        match log.sync_done(job.up_to, result) {
            Ok(()) => {
                self.synced = covered;
                let checkpoint =
                    Checkpoint { address: job.up_to, next_position: self.position_after(covered) };
                self.checkpoints.push((checkpoint, covered));
            }
            Err(error) => self.died(&error),
        }
    }

    fn position_after(&self, records: usize) -> Position {
        Position(1 + self.written[..records].iter().filter(|(_, body)| body[0] == 1).count() as u64)
    }

    pub fn prepare(&mut self) {
        let Some(log) = &mut self.log else { return self.reopen() };
        let Some(job) = log.prepare_job(0) else { return };
        let result = job.run();
        let names_lost = matches!(&result, Err(error) if error.to_string().contains("names"));
        let done = log.prepare_done(result);
        assert_eq!(names_lost, log.is_poisoned(), "{done:?}");
        if names_lost {
            self.log = None;
            self.crash(3, 2);
        }
    }

    /// Removes the oldest segment like retention, once a checkpoint is past it.
    pub fn retire(&mut self) {
        let Some(log) = &mut self.log else { return self.reopen() };
        let Some(oldest) = log.segments().first().cloned() else { return };
        if !self.checkpoints.iter().any(|(checkpoint, _)| checkpoint.address >= oldest.end()) {
            return;
        }
        let Some(name) = log.drop_oldest() else { return };
        self.oldest = self.written.partition_point(|(at, _)| *at < oldest.end());
        self.checkpoints.retain(|(checkpoint, _)| checkpoint.address >= oldest.end());
        self.retired.push_back(name);
        // Removes files in order, so that there is never a hole. If a crash undoes a removal, an old segment remains,
        // which is harmless.
        while let Some(name) = self.retired.front()
            && self.disk.remove(name).is_ok()
        {
            self.retired.pop_front();
        }
    }

    /// Reads all records by address, and the durable ones sequentially.
    pub fn read_back(&mut self) {
        if self.log.is_none() {
            self.reopen();
        }
        let Some(log) = &self.log else { return };
        for (at, body) in &self.written[self.oldest..] {
            match log.read(*at) {
                Ok(read) => assert_eq!(read, *body),
                Err(Error::Io { .. }) => {}
                Err(error) => panic!("record at {at}: {error}"),
            }
        }
        let reader = log.reader();
        let (mut at, mut n) = (log.oldest(), None);
        loop {
            let frame = match reader.frame(at) {
                Ok(Some(frame)) => frame,
                Ok(None) => break,
                Err(Error::Io { .. }) => return,
                Err(error) => panic!("frame at {at}: {error}"),
            };
            for (at, range) in &frame.records {
                let n = n.get_or_insert_with(|| self.written.partition_point(|(written, _)| written < at));
                assert_eq!(*at, self.written[*n].0);
                assert_eq!(frame.bytes[range.clone()], self.written[*n].1);
                *n += 1;
            }
            at = frame.next;
        }
        if let Some(n) = n {
            assert_eq!(n, self.synced, "a reader sees exactly the synced records");
        }
    }

    /// An operation failed: this log must not accept anything else.
    fn died(&mut self, error: &Error) {
        let Error::Io { source, .. } = error else { panic!("{error}") };
        let log = self.log.as_mut().expect("a log is open");
        assert!(matches!(log.append(&[3], false), Err(Error::Poisoned)));
        assert!(log.sync_job().is_none());
        // After a failed sync of names, the state of the folder is unknown to the kernel, so the machine must
        // restart.
        let names_lost = source.to_string().contains("SyncNames");
        self.log = None;
        match names_lost || self.below(2) == 0 {
            true => self.crash(5, 3),
            false => self.reopen(),
        }
    }

    /// The machine stops. `kept` of 4 is the probability that an unsynced sector survives.
    pub fn crash(&mut self, seed: u64, kept: u64) {
        self.log = None;
        self.sync = None;
        let mut random = seed | 1;
        self.disk.crash(&mut |n| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            match (kept, n) {
                (0, _) => 0,
                (4, _) => n - 1,
                (_, 2) => u64::from(random >> 8 & 3 < kept),
                _ => random % n,
            }
        });
        self.open_again(None);
    }

    /// The process stops. Everything that it wrote survives.
    pub fn reopen(&mut self) {
        let expected = self.log.take().map(|_| self.flushed);
        self.sync = None;
        self.open_again(expected);
    }

    /// Opens the log from any checkpoint. Repeats until it succeeds, sometimes with another crash in between.
    fn open_again(&mut self, mut expected: Option<usize>) {
        let pick = self.below(self.checkpoints.len() as u64) as usize;
        let (checkpoint, before) = self.checkpoints[pick];
        let (log, found) = loop {
            match open(&self.disk, checkpoint) {
                Ok(opened) => break opened,
                Err(Error::Io { source, .. }) => {
                    if source.to_string().contains("SyncNames") || self.below(2) == 0 {
                        expected = None;
                        let mut random = self.below(u64::from(u32::MAX));
                        self.disk.crash(&mut |n| {
                            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                            (random >> 33) % n
                        });
                    }
                }
                Err(error) => panic!("{error}"),
            }
        };
        let end = before + found.len();
        assert!(end >= self.synced, "recovered {end} records, but {} were synced", self.synced);
        assert!(
            expected.is_none_or(|expected| end == expected),
            "a stopped process must not lose what it wrote"
        );
        assert!(end <= self.written.len(), "recovered more records than were written");
        for (found, (_, written)) in found.iter().zip(&self.written[before..]) {
            assert_eq!(found, written, "recovered a prefix of what was written");
        }
        self.written.truncate(end);
        assert_eq!(log.next_position(), self.position_after(end));
        self.checkpoints.retain(|(_, records)| *records <= end);
        (self.flushed, self.synced) = (end, end);
        self.retired.clear();
        let oldest = log.oldest();
        self.oldest = self.written.partition_point(|(at, _)| *at < oldest);
        self.log = Some(log);
    }
}
