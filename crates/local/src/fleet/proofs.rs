//! Which artifacts are being started for the first time, to see whether they answer. One function does it for all that
//! share an artifact, and only a few do at a time: a thousand functions that are applied at once start few processes.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

/// Artifacts that are proven at the same time.
const PROOFS_MAX: usize = 16;

/// More are not remembered as doubtful; their functions then wait for each other.
const DOUBTFUL_MAX: usize = 10_000;

#[derive(Debug, Default)]
pub struct Proofs {
    /// The function that proves an artifact.
    provers: HashMap<Arc<str>, Arc<str>>,
    /// Functions that wait for the outcome of others.
    hoping: HashSet<Arc<str>>,
    /// Artifacts that failed for one function. The others see for themselves: it may be its environment.
    doubtful: HashSet<Arc<str>>,
}

impl Proofs {
    /// Whether this function is to start the artifact; else it is looked at when a proof has ended.
    pub fn begin(&mut self, artifact: &Arc<str>, function: &Arc<str>) -> bool {
        let free = match self.provers.get(artifact) {
            Some(prover) => prover == function || self.doubtful.contains(artifact),
            None => self.provers.len() < PROOFS_MAX,
        };
        match free {
            true => drop(self.provers.entry(artifact.clone()).or_insert_with(|| function.clone())),
            false => drop(self.hoping.insert(function.clone())),
        }
        free
    }

    /// It has answered. Those who hoped are to be looked at.
    pub fn succeeded(&mut self, artifact: &str) -> HashSet<Arc<str>> {
        self.provers.remove(artifact);
        self.doubtful.remove(artifact);
        std::mem::take(&mut self.hoping)
    }

    /// This function proves it no longer. Those who hoped are to be looked at.
    pub fn given_up(&mut self, artifact: &Arc<str>, function: &str, failed: bool) -> HashSet<Arc<str>> {
        if failed && self.doubtful.len() < DOUBTFUL_MAX {
            self.doubtful.insert(artifact.clone());
        }
        if self.provers.get(artifact).is_some_and(|prover| **prover == *function) {
            self.provers.remove(artifact);
        }
        std::mem::take(&mut self.hoping)
    }
}
