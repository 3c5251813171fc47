//! A target that records every call before it answers, and sometimes fails.
//!
//! It is a process of its own (this test binary, started again), so that it can be stopped and killed. Its
//! record is a file that outlives it: it writes a line before it answers a call.
//!
//! It knows exactly which calls are open: a call whose caller has closed its connection, or died, is not, and the
//! kernel says so at once, however late the process looks.

mod book;
mod serve;

use crate::random::Random;
use crate::support::eventually;
use crate::support::process::Process;
use crate::victim::quiet_port;
pub use book::{Call, Verdict, now_micros};
use rustix::process::Signal;
use std::collections::HashSet;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::Command;
use std::sync::{Mutex, MutexGuard};
use tempfile::TempDir;

/// How often, in a thousand calls, something goes wrong.
#[derive(Clone, Copy, Default)]
pub struct Trouble {
    pub refused: u64,
    pub hung: u64,
}

pub struct Target {
    pub url: String,
    port: u16,
    trouble: Trouble,
    folder: TempDir,
    process: Option<Process>,
    /// How often it was killed.
    pub lives: u64,
    random: Random,
    seen: Mutex<Seen>,
}

/// The part of the record that was read so far.
#[derive(Default)]
struct Seen {
    bytes: u64,
    rest: Vec<u8>,
    calls: Vec<Call>,
    acknowledged: HashSet<(String, String)>,
}

impl Target {
    pub fn start(trouble: Trouble, mut random: Random) -> Target {
        let port = quiet_port(&mut random);
        let folder = tempfile::tempdir().expect("a folder");
        let url = format!("http://127.0.0.1:{port}");
        let seen = Mutex::default();
        let mut target = Target { url, port, trouble, folder, process: None, lives: 0, random, seen };
        target.restart();
        target
    }

    fn record(&self) -> PathBuf {
        self.folder.path().join("calls")
    }

    pub fn restart(&mut self) {
        assert!(self.process.is_none());
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["--ignored", "--exact", "target::serve::a_process_of_its_own", "--nocapture"]);
        let Trouble { refused, hung } = self.trouble;
        let seed = self.random.next();
        command.env("KLAMBDA_TARGET", format!("{} {refused} {hung} {seed}", self.port));
        command.env("KLAMBDA_TARGET_RECORD", self.record());
        self.process = Some(Process::start(&mut command, &self.folder.path().join("printed")));
        eventually("the target listens", || {
            TcpStream::connect(("127.0.0.1", self.port)).map(drop).map_err(|error| error.to_string())
        });
    }

    /// With -9, and waits until it is gone.
    pub fn kill(&mut self) {
        drop(self.process.take().expect("it runs"));
        self.lives += 1;
    }

    pub fn signal(&self, signal: Signal) {
        self.process.as_ref().expect("it runs").signal(signal);
    }

    /// Subscriptions and ids that were acknowledged, each counted once.
    pub fn acknowledged(&self) -> usize {
        self.look().acknowledged.len()
    }

    pub fn calls_so_far(&self) -> usize {
        self.look().calls.len()
    }

    /// All calls in the order of their epochs and, within one, of their arrival. Calls of a dead
    /// process may be read after the first calls of the next one.
    pub fn calls(&self) -> Vec<Call> {
        let mut calls = self.look().calls.clone();
        calls.sort_by_key(|call| call.epoch);
        calls
    }

    fn look(&self) -> MutexGuard<'_, Seen> {
        let mut seen = self.seen.lock().expect("no one panics with it in hand");
        seen.read_on(&self.record());
        seen
    }
}

impl Seen {
    fn read_on(&mut self, record: &PathBuf) {
        let mut file = File::open(record).expect("the record");
        file.seek(SeekFrom::Start(self.bytes)).expect("seeks");
        self.bytes += file.read_to_end(&mut self.rest).expect("reads") as u64;
        let whole = self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |last| last + 1);
        let lines: Vec<u8> = self.rest.drain(..whole).collect();
        for line in std::str::from_utf8(&lines).expect("text").lines() {
            let call = Call::parse(line);
            if call.verdict == Verdict::Acknowledged {
                self.acknowledged.insert((call.subscription.clone(), call.id.clone()));
            }
            self.calls.push(call);
        }
    }
}
