//! Status of the whole engine.

use crate::engine::Engine;
use klambda_core::ids::Position;
use klambda_core::namespace;
use klambda_core::subscription::CONTROLLER;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EngineStatus")]
pub struct Status {
    pub subscriptions: usize,
    pub waiting: u64,
    pub in_flight: u64,
    pub parked: u64,
    pub dead_letters: u64,
    pub log_bytes: u64,
    pub positions: Positions,
    pub disk: Disk,
    pub memory: Memory,
    /// Why nothing is acknowledged any more.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

/// Positions of the events in the log; `None` if it is empty.
#[derive(Debug, Serialize, JsonSchema)]
pub struct Positions {
    pub first: Option<u64>,
    pub last: Option<u64>,
}

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Disk {
    pub free_bytes: Option<u64>,
    pub full: bool,
}

#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Memory {
    pub limit_bytes: usize,
    pub used_bytes: usize,
}

impl Engine {
    pub fn view_status(&self) -> Status {
        let sum = |count: fn(&crate::subscription::Subscription) -> u64| {
            self.subscriptions.values().map(count).sum()
        };
        Status {
            subscriptions: self
                .subscriptions
                .names()
                .filter(|name| namespace::split(name).1 != CONTROLLER)
                .count(),
            waiting: sum(|s| s.tally.waiting),
            in_flight: sum(|s| u64::from(s.flow.in_flight)),
            parked: sum(|s| s.tally.parked()),
            dead_letters: sum(|s| s.tally.dead + s.tally.held),
            log_bytes: self.store.log.bytes(),
            positions: self.positions(),
            disk: Disk { free_bytes: self.store.disk.free_bytes(), full: self.condition.disk_full },
            memory: self.memory(),
            failure: self.condition.failed.clone(),
        }
    }

    fn positions(&self) -> Positions {
        let next = self.store.log.next_position();
        let first = self.store.log.segments().first().map_or(Position(1), |segment| segment.first_position);
        let any = first < next;
        Positions { first: any.then_some(first.0), last: any.then_some(next.0 - 1) }
    }

    pub(super) fn memory(&self) -> Memory {
        Memory { limit_bytes: self.config.memory_bytes, used_bytes: self.memory_bytes() }
    }
}
