//! State that all functions share: deadlines, the list of changes, the number of running replicas.

use super::good::Good;
use super::numbers::Numbers;
use super::proofs::Proofs;
use super::{Options, Shared};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

pub struct Scheduler {
    pub good: Good,
    pub proofs: Proofs,
    /// When to check a function. A function that was checked earlier leaves a stale entry, which is skipped.
    deadlines: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    /// Functions that changed. Each appears at most once.
    pub changed: VecDeque<Arc<str>>,
    running: usize,
    running_max: usize,
    /// Functions that needed a replica while the limit was reached.
    starved: VecDeque<Arc<str>>,
    numbers: Numbers,
    pub next_ticket: u64,
}

impl Scheduler {
    pub fn open(options: &Options) -> io::Result<Scheduler> {
        Ok(Scheduler {
            good: Good::open(&options.folder)?,
            proofs: Proofs::default(),
            deadlines: BinaryHeap::new(),
            changed: VecDeque::new(),
            running: 0,
            running_max: options.replicas_max,
            starved: VecDeque::new(),
            numbers: Numbers::open(&options.folder),
            next_ticket: 0,
        })
    }

    pub fn look_at(&mut self, at: Instant, function: &Arc<str>, shared: &Shared) {
        let earliest = self.next_deadline().is_none_or(|next| at < next);
        self.deadlines.push(Reverse((at, function.clone())));
        if earliest {
            shared.wake.notify_one();
        }
    }

    pub fn next_deadline(&self) -> Option<Instant> {
        self.deadlines.peek().map(|Reverse((at, _))| *at)
    }

    pub fn due(&mut self, now: Instant) -> Option<(Instant, Arc<str>)> {
        match self.next_deadline() {
            Some(at) if at <= now => self.deadlines.pop().map(|Reverse(entry)| entry),
            _ => None,
        }
    }

    /// An artifact has responded for any function.
    pub fn proved(&mut self, artifact: &str, now: Instant, shared: &Shared) {
        self.good.remember(artifact);
        for function in self.proofs.succeeded(artifact) {
            self.look_at(now, &function, shared);
        }
    }

    /// A function stops testing whether an artifact responds.
    pub fn given_up(
        &mut self,
        artifact: &Arc<str>,
        function: &str,
        failed: bool,
        now: Instant,
        shared: &Shared,
    ) {
        for function in self.proofs.given_up(artifact, function, failed) {
            self.look_at(now, &function, shared);
        }
    }

    /// The number of a new replica, if the limit allows one. Otherwise the function is checked again when a replica stops.
    pub fn claim(&mut self, function: &Arc<str>) -> Option<u64> {
        if self.running >= self.running_max {
            if !self.starved.contains(function) {
                self.starved.push_back(function.clone());
            }
            return None;
        }
        self.running += 1;
        Some(self.number())
    }

    /// The number of a replica that does not run here.
    pub fn number(&mut self) -> u64 {
        self.numbers.next()
    }

    /// A claimed replica has stopped.
    pub fn give_back(&mut self, now: Instant, shared: &Shared) {
        self.running -= 1;
        // Check all of them: the first may not need a replica any more. Functions that still get none are added again.
        for function in std::mem::take(&mut self.starved) {
            self.look_at(now, &function, shared);
        }
    }
}
