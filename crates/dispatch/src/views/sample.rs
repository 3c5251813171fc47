//! Everything that is counted, at one instant.

use super::status::Memory;
use super::subscriptions::Lanes;
use crate::engine::Engine;
use crate::metrics::Metrics;
use klambda_core::breaker;
use klambda_core::subscription::CONTROLLER;

pub struct Sample {
    pub metrics: Metrics,
    /// By name.
    pub subscriptions: Vec<SubscriptionSample>,
    pub log_bytes: u64,
    pub table_bytes: u64,
    pub marks: u64,
    pub memory: Memory,
    pub lanes_in_memory: usize,
    pub disk_full: bool,
    pub disk_free_bytes: Option<u64>,
}

pub struct SubscriptionSample {
    pub name: String,
    pub waiting: u64,
    pub waiting_bytes: u64,
    pub in_flight: u32,
    pub dead_letters: u64,
    pub oldest_age_ms: u64,
    pub lanes: Lanes,
    /// 0 closed, 1 open, 2 half-open.
    pub breaker: u8,
}

impl Engine {
    pub fn sample(&self) -> Sample {
        let shown = self.subscriptions.values().filter(|subscription| subscription.name() != CONTROLLER);
        let mut subscriptions: Vec<SubscriptionSample> =
            shown.rev().map(|subscription| self.sample_of(subscription)).collect();
        // One of each name: the newest has it, and those before it have dead letters alone.
        subscriptions.sort_by(|a, b| a.name.cmp(&b.name));
        subscriptions.dedup_by(|older, newer| {
            let is_same = older.name == newer.name;
            newer.dead_letters += if is_same { older.dead_letters } else { 0 };
            is_same
        });
        Sample {
            metrics: self.metrics.clone(),
            subscriptions,
            log_bytes: self.log.bytes(),
            table_bytes: self.rows.tables().bytes() + self.marks.tables().bytes(),
            marks: self.known_ids(),
            memory: self.memory(),
            lanes_in_memory: self.lanes.len(),
            disk_full: self.disk_full,
            disk_free_bytes: self.disk.free_bytes(),
        }
    }

    /// Ids that are known: of delivered events, and of those that wait or are dead letters.
    fn known_ids(&self) -> u64 {
        let open = self.subscriptions.values().map(|s| s.tally.owed() + s.tally.dead);
        self.known.len() + open.sum::<u64>()
    }

    fn sample_of(&self, subscription: &crate::subscription::Subscription) -> SubscriptionSample {
        let tally = &subscription.tally;
        SubscriptionSample {
            name: subscription.name().to_owned(),
            waiting: tally.owed(),
            waiting_bytes: tally.owed_bytes(),
            in_flight: subscription.in_flight,
            dead_letters: tally.dead + tally.held,
            oldest_age_ms: tally.oldest().map_or(0, |oldest| self.now.since(oldest)),
            lanes: Lanes::of(subscription),
            breaker: match self.endpoints.state(subscription.endpoint) {
                breaker::State::Closed => 0,
                breaker::State::Open { .. } => 1,
                breaker::State::HalfOpen => 2,
            },
        }
    }
}
