//! The observable state of the fleet, and notifications of changes.

use super::function::Function;
use super::replica::Stage;
use super::{Failure, Fleet, Shared};
use std::sync::Arc;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Observation {
    pub function: Arc<str>,
    /// Oldest first: the serving version and its successor.
    pub versions: Vec<VersionView>,
    pub in_flight: u32,
    pub waiting: usize,
    /// Replicas of any version that receive no new requests.
    pub draining: u32,
    pub deleting: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VersionView {
    pub id: Arc<str>,
    pub artifact: Arc<str>,
    /// It receives requests.
    pub serving: bool,
    pub phase: Phase,
    pub starting: u32,
    pub ready: u32,
    /// The last unexpected end since the last response.
    pub trouble: Option<Arc<Failure>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It has not responded yet.
    Proving,
    /// It has responded at least once, even if no replica runs.
    Good,
    /// It has responded once and ended since. It is restarted after a delay if it is needed.
    BackOff,
    /// It is given up for the reason in `trouble`.
    Failed,
}

impl Fleet {
    pub fn observe(&self, function: &str) -> Option<Observation> {
        Some(observe(self.shared.lock().functions.get(function)?))
    }

    pub fn functions(&self) -> Vec<Arc<str>> {
        self.shared.lock().functions.keys().cloned().collect()
    }

    /// The names of changed functions, each once however often it changed since the last read. For one reader.
    pub fn changes(&self) -> Changes {
        Changes { shared: self.shared.clone() }
    }
}

pub struct Changes {
    shared: Arc<Shared>,
}

impl Changes {
    pub async fn next(&mut self) -> Arc<str> {
        loop {
            if let Some(function) = self.shared.take_change() {
                return function;
            }
            self.shared.changed.notified().await;
        }
    }
}

impl Shared {
    fn take_change(&self) -> Option<Arc<str>> {
        let mut state = self.lock();
        let name = state.scheduler.changed.pop_front()?;
        if let Some(function) = state.functions.get_mut(&name) {
            function.changed = false;
        }
        Some(name)
    }
}

fn observe(function: &Function) -> Observation {
    let route = function.route();
    let versions = (0..function.versions.len()).map(|index| view(function, index, route == Some(index)));
    Observation {
        function: function.name.clone(),
        versions: versions.collect(),
        in_flight: function.replicas.iter().map(|replica| replica.in_flight).sum(),
        waiting: function.waiters.len(),
        draining: function.replicas.iter().filter(|replica| replica.stage == Stage::Draining).count() as u32,
        deleting: function.deleting(),
    }
}

fn view(function: &Function, index: usize, serving: bool) -> VersionView {
    let deployed = &function.versions[index];
    let count = |stage: Stage| {
        let counted = function.replicas.iter().filter(|replica| replica.ordinal == deployed.ordinal);
        counted.filter(|replica| replica.stage == stage).count() as u32
    };
    let (starting, ready) = (count(Stage::Starting), count(Stage::Ready));
    let phase = match (deployed.failed, deployed.good) {
        (true, _) => Phase::Failed,
        (false, false) => Phase::Proving,
        (false, true) if ready == 0 && deployed.ends > 0 => Phase::BackOff,
        (false, true) => Phase::Good,
    };
    VersionView {
        id: deployed.version.id.clone(),
        artifact: deployed.version.artifact.clone(),
        serving,
        phase,
        starting,
        ready,
        trouble: deployed.trouble.clone(),
    }
}
