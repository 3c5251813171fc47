//! Which artifacts are being tested by a first start. One function tests for all that share an artifact, and only a few
//! test at a time: a thousand functions that are applied together start only a few processes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Number of artifacts that are tested at the same time.
const PROOFS_MAX: usize = 16;

/// Limit on remembered failed artifacts. Beyond it, the functions of an artifact wait for each other.
const FAILED_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Proofs {
    /// The function that tests an artifact.
    provers: HashMap<Arc<str>, Arc<str>>,
    /// Functions that wait for the tests of others.
    waiting: HashSet<Arc<str>>,
    /// Artifacts that failed for one function. The others test for themselves, because its environment may be the cause.
    failed: HashSet<Arc<str>>,
}

impl Proofs {
    /// Whether this function should start the artifact. If not, it is checked again when a test has ended.
    pub fn begin(&mut self, artifact: &Arc<str>, function: &Arc<str>) -> bool {
        let free = match self.provers.get(artifact) {
            Some(prover) => prover == function || self.failed.contains(artifact),
            None => self.provers.len() < PROOFS_MAX,
        };
        match free {
            true => drop(self.provers.entry(artifact.clone()).or_insert_with(|| function.clone())),
            false => drop(self.waiting.insert(function.clone())),
        }
        free
    }

    /// The artifact responded. Returns the functions to check again.
    pub fn succeeded(&mut self, artifact: &str) -> HashSet<Arc<str>> {
        self.provers.remove(artifact);
        self.failed.remove(artifact);
        std::mem::take(&mut self.waiting)
    }

    /// This function stops testing the artifact. Returns the functions to check again.
    pub fn given_up(&mut self, artifact: &Arc<str>, function: &str, failed: bool) -> HashSet<Arc<str>> {
        if failed && self.failed.len() < FAILED_MAX {
            self.failed.insert(artifact.clone());
        }
        if self.provers.get(artifact).is_some_and(|prover| **prover == *function) {
            self.provers.remove(artifact);
        }
        std::mem::take(&mut self.waiting)
    }
}
