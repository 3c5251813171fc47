//! What all functions share: deadlines, the list of changes, how many replicas run.

use super::good::Good;
use super::proofs::Proofs;
use super::{Options, Shared};
use std::cmp::Reverse;
use std::collections::{BinaryHeap, VecDeque};
use std::io;
use std::sync::Arc;
use std::time::Instant;

pub struct Desk {
    pub good: Good,
    pub proofs: Proofs,
    /// When a function is to be looked at. One that was looked at sooner leaves a stale entry behind, which is skipped.
    deadlines: BinaryHeap<Reverse<(Instant, Arc<str>)>>,
    /// Functions that changed; each is in here once at most.
    pub changed: VecDeque<Arc<str>>,
    running: usize,
    running_max: usize,
    /// Functions that wanted a replica when there were too many.
    starved: VecDeque<Arc<str>>,
    next_replica: u64,
    pub next_ticket: u64,
}

impl Desk {
    pub fn open(options: &Options) -> io::Result<Desk> {
        Ok(Desk {
            good: Good::open(&options.folder)?,
            proofs: Proofs::default(),
            deadlines: BinaryHeap::new(),
            changed: VecDeque::new(),
            running: 0,
            running_max: options.replicas_max,
            starved: VecDeque::new(),
            next_replica: 0,
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

    /// An artifact has answered, whoever has started it.
    pub fn proved(&mut self, artifact: &str, now: Instant, shared: &Shared) {
        self.good.remember(artifact);
        for function in self.proofs.succeeded(artifact) {
            self.look_at(now, &function, shared);
        }
    }

    /// A function no longer tries whether an artifact answers.
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

    /// A number for a new replica, if there may be one more. Else its function is looked at when there may.
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

    /// A number for what does not run here.
    pub fn number(&mut self) -> u64 {
        self.next_replica += 1;
        self.next_replica
    }

    /// A replica that was claimed is gone.
    pub fn give_back(&mut self, now: Instant, shared: &Shared) {
        self.running -= 1;
        // All of them: the first may not want it any more. Those that still get none come here again.
        for function in std::mem::take(&mut self.starved) {
            self.look_at(now, &function, shared);
        }
    }
}
