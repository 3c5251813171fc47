//! The k-th fsync, write or rename of the server fails. The server either reports it and ends immediately, or continues
//! without it. Acknowledged events exist after a restart, even if the failed fsync lost all unsynced data.

use crate::history::{End, Receiver, Verdicts};
use crate::is_long;
use crate::producer::{Producer, Sent};
use crate::random::Random;
use crate::support::PATIENCE;
use crate::target::{Target, Trouble};
use crate::victim::Victim;
use klambda_crash::EXIT_STORE;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const K_MAX: u64 = 200;
/// Of each operation, unless all are tried.
const SAMPLE: usize = 12;
/// Side by side: they mostly wait for the disk.
const WORKERS: usize = 3;
const BATCH: usize = 8;
/// Sent after the failure, if it was one that the server can do without.
const BATCHES_AFTER: usize = 20;

/// Small segments: many are begun.
const CONFIG: &str = "
memory: 16Mi
limits: {bodyBytes: 512Ki, eventBytes: 256Ki}
store: {segmentBytes: 2Mi, reserveBytes: 1Mi}
log: {level: warn}
";
const RECEIVERS: [Receiver; 1] = [Receiver { subscription: "lanes", kind: None, is_ordered: true }];

#[test]
fn a_failed_fsync_loses_nothing() {
    fail_each("fsync");
}

#[test]
fn a_failed_write_loses_nothing() {
    fail_each("write");
}

#[test]
fn a_failed_rename_loses_nothing() {
    fail_each("rename");
}

fn fail_each(operation: &'static str) {
    let mut random = Random::from_environment();
    let began = Instant::now();
    let library = Library::compile();
    let cases = cases(operation, &mut random);
    let next = AtomicUsize::new(0);
    let total = Mutex::new(Total::default());
    std::thread::scope(|scope| {
        for _ in 0..WORKERS {
            scope.spawn(|| {
                while let Some(case) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    println!("{case:?}");
                    let outcome = case.run(&library.path);
                    total.lock().expect("no worker has failed").add(&outcome);
                }
            });
        }
    });
    let Total { refused_to_start, stopped, went_on, events } =
        total.into_inner().expect("no worker has failed");
    crate::summarize(&format!(
        "io errors: {} times a {operation} failed ({refused_to_start} ended a start, {stopped} stopped the server, {went_on} it did without), {events} events: 0 lost, 0 doubled, 0 disordered ({} s)",
        cases.len(),
        began.elapsed().as_secs()
    ));
    assert!(refused_to_start > 0 && stopped + went_on > 0);
}

fn cases(operation: &'static str, random: &mut Random) -> Vec<Case> {
    let mut numbers: Vec<u64> = (1..=K_MAX).collect();
    if !is_long() {
        random.shuffle(&mut numbers);
        numbers.truncate(SAMPLE);
        // The first failures hit operations of the start.
        numbers.extend(1..=2);
    }
    numbers.into_iter().map(|k| Case { operation, k, seed: random.next() }).collect()
}

#[derive(Debug)]
struct Case {
    operation: &'static str,
    k: u64,
    seed: u64,
}

#[derive(Debug)]
enum Outcome {
    RefusedToStart,
    Stopped,
    WentOn,
}

#[derive(Default)]
struct Total {
    refused_to_start: usize,
    stopped: usize,
    went_on: usize,
    events: usize,
}

impl Total {
    fn add(&mut self, (outcome, events): &(Outcome, usize)) {
        match outcome {
            Outcome::RefusedToStart => self.refused_to_start += 1,
            Outcome::Stopped => self.stopped += 1,
            Outcome::WentOn => self.went_on += 1,
        }
        self.events += events;
    }
}

impl Case {
    fn run(&self, library: &Path) -> (Outcome, usize) {
        let mut random = Random::new(self.seed);
        let target = Target::start(Trouble::default(), random.split());
        let mut victim = Victim::new(CONFIG, &mut random);
        let told = victim.data.with_file_name("told");
        self.arm(&mut victim, library, &told);
        victim.begin();
        if !victim.wait_until_ready() {
            assert!(
                told.exists() && victim.printed().contains("Input/output error"),
                "{self:?}: {}",
                victim.printed()
            );
            victim.process = None;
            victim.start();
            return (Outcome::RefusedToStart, self.finish(victim, &target, random, Vec::new()));
        }
        let answered = AtomicU64::new(0);
        let mut producer = self.producer(&victim, random.split(), &answered);
        let (sent, outcome) = match self.subscribe(&victim, &target) {
            true => self.send_until_it_fails(&mut producer, &told),
            false => (Vec::new(), Outcome::Stopped),
        };
        assert!(told.exists(), "{self:?}: nothing failed: {}", victim.printed());
        if matches!(outcome, Outcome::Stopped) {
            let status = victim.process.take().expect("it ran").wait();
            let printed = victim.printed();
            assert!(printed.contains("error: the store failed: "), "{self:?}: {printed}");
            assert_eq!(status.code(), Some(i32::from(EXIT_STORE)), "{self:?}: {printed}");
            victim.start();
        }
        (outcome, self.finish(victim, &target, random, sent))
    }

    fn arm(&self, victim: &mut Victim, library: &Path, told: &Path) {
        victim.environment = vec![
            ("LD_PRELOAD", library.into()),
            ("KLAMBDA_FAULT", format!("{} {}", self.operation, self.k).into()),
            ("KLAMBDA_FAULT_FOLDER", victim.data.clone().into()),
            ("KLAMBDA_FAULT_TOLD", told.into()),
        ];
    }

    /// A rename happens when a segment is full, so many renames need much data.
    fn producer<'a>(&self, victim: &Victim, random: Random, answered: &'a AtomicU64) -> Producer<'a> {
        let mut producer = Producer::new("p".into(), "event", &victim.url(), 5, random, answered);
        producer.payload_bytes = if self.operation == "rename" { 48 << 10 } else { 100 };
        producer
    }

    /// False if the server failed meanwhile.
    fn subscribe(&self, victim: &Victim, target: &Target) -> bool {
        victim.try_put("lanes", json!({"ordering": "ordered"}), &target.url)
    }

    /// Every batch is sent until it is answered, or nothing is any more.
    fn send_until_it_fails(&self, producer: &mut Producer<'_>, told: &Path) -> (Vec<Sent>, Outcome) {
        let (mut sent, mut after) = (Vec::new(), 0);
        let deadline = Instant::now() + PATIENCE;
        while after < BATCHES_AFTER {
            let mut batch: Vec<Sent> = (0..BATCH).map(|_| producer.event()).collect();
            // A segment that could not be prepared is tried again, and until then the disk counts as full.
            let answer = loop {
                match producer.try_send(&mut batch) {
                    Err(excuse) if excuse.contains("disk-full") && Instant::now() < deadline => {
                        std::thread::sleep(Duration::from_millis(50));
                    }
                    answer => break answer,
                }
            };
            sent.extend(batch);
            if let Err(excuse) = answer {
                assert!(told.exists() && !excuse.contains("timeout"), "{self:?}: {excuse}");
                return (sent, Outcome::Stopped);
            }
            after += usize::from(told.exists());
            assert!(Instant::now() < deadline, "{self:?}: nothing fails");
        }
        (sent, Outcome::WentOn)
    }

    /// Sends unanswered events again. Then all events must exist.
    fn finish(&self, mut victim: Victim, target: &Target, mut random: Random, mut sent: Vec<Sent>) -> usize {
        assert!(self.subscribe(&victim, target), "{self:?}");
        let answered = AtomicU64::new(0);
        let mut producer = self.producer(&victim, random.split(), &answered);
        let unanswered = sent.len().saturating_sub(BATCH);
        sent[unanswered..].chunks_mut(BATCH).for_each(|batch| producer.send(batch));
        victim.drain();
        victim.stop();
        victim.check();
        let verdicts = Verdicts::of(&sent, &target.calls(), &RECEIVERS, End::PowerLost, &[]);
        verdicts.assert_clean();
        sent.len()
    }
}

struct Library {
    path: PathBuf,
    _folder: TempDir,
}

impl Library {
    /// With the compiler that also links Rust.
    fn compile() -> Library {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("fault.so");
        let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/chaos/fault.c");
        let mut cc = Command::new("cc");
        cc.args(["-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-o"]).arg(&path).arg(source);
        let output = cc.arg("-ldl").output().expect("a C compiler");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Library { path, _folder: folder }
    }
}
