//! All counters at one instant.

use super::status::Memory;
use super::subscriptions::Lanes;
use crate::engine::Engine;
use crate::metrics::Metrics;
use crate::subscription::Subscription;
use crate::{dead_letters, rows};
use klambda_core::breaker;
use klambda_core::ids::Position;
use klambda_core::time::Millis;

pub struct Sample {
    pub metrics: Metrics,
    /// By name.
    pub subscriptions: Vec<SubscriptionSample>,
    /// By name, for every subscription with dead letters, including deleted ones and those of the platform.
    pub dead_letters: Vec<LettersSample>,
    pub log_bytes: u64,
    pub table_bytes: u64,
    pub marks: u64,
    pub memory: Memory,
    pub lanes_in_memory: usize,
    pub unsent_bytes: usize,
    pub disk_full: bool,
    pub disk_free_bytes: Option<u64>,
}

pub struct LettersSample {
    pub name: String,
    pub depth: u64,
    /// The age of the event that was accepted first.
    pub oldest_age_ms: u64,
}

pub struct SubscriptionSample {
    pub name: String,
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Part of `waiting`: accepted but unread.
    pub unread: u64,
    pub unread_bytes: u64,
    pub in_flight: u32,
    pub dead_letters: u64,
    pub oldest_age_ms: u64,
    pub lanes: Lanes,
    /// 0 closed, 1 open, 2 half-open.
    pub breaker: u8,
    /// For a webhook endpoint: whether it is disabled.
    pub disabled: Option<bool>,
}

impl Engine {
    pub fn sample(&self) -> Sample {
        let shown = self.subscriptions.values().filter(|subscription| !subscription.document.is_controller());
        let mut subscriptions: Vec<SubscriptionSample> =
            shown.rev().map(|subscription| self.sample_of(subscription)).collect();
        // One sample per name: the newest subscription has the name, and older ones only have dead letters.
        subscriptions.sort_by(|a, b| a.name.cmp(&b.name));
        subscriptions.dedup_by(|older, newer| {
            let is_same = older.name == newer.name;
            newer.dead_letters += if is_same { older.dead_letters } else { 0 };
            is_same
        });
        Sample {
            metrics: self.metrics.clone(),
            subscriptions,
            dead_letters: self.sample_letters(),
            log_bytes: self.store.log.bytes(),
            table_bytes: self.table_bytes(),
            marks: self.known_ids(),
            memory: self.memory(),
            lanes_in_memory: self.lanes.len(),
            unsent_bytes: self.calls.unsent_bytes(),
            disk_full: self.condition.disk_full,
            disk_free_bytes: self.store.disk.free_bytes(),
        }
    }

    /// The number of known ids: of delivered events, pending events and dead letters.
    fn known_ids(&self) -> u64 {
        let open = self.subscriptions.values().map(|s| s.tally.owed() + s.tally.dead);
        self.known_ids.len() + open.sum::<u64>()
    }

    /// Bytes of the log and the tables.
    pub fn storage_bytes(&self) -> u64 {
        self.store.log.bytes() + self.table_bytes()
    }

    fn table_bytes(&self) -> u64 {
        self.store.rows.tables().bytes() + self.store.marks.tables().bytes()
    }

    fn sample_letters(&self) -> Vec<LettersSample> {
        let depth = |s: &Subscription| s.tally.dead + s.tally.held;
        let mut samples: Vec<LettersSample> = Vec::new();
        let mut all: Vec<&Subscription> = self.subscriptions.values().filter(|s| depth(s) > 0).collect();
        all.sort_by(|a, b| a.name().cmp(b.name()));
        for subscription in all {
            let oldest_age_ms = self.oldest_letter(subscription).map_or(0, |oldest| self.now.since(oldest));
            match samples.last_mut().filter(|last| last.name == subscription.name()) {
                Some(last) => {
                    last.depth += depth(subscription);
                    last.oldest_age_ms = last.oldest_age_ms.max(oldest_age_ms);
                }
                None => samples.push(LettersSample {
                    name: subscription.name().to_owned(),
                    depth: depth(subscription),
                    oldest_age_ms,
                }),
            }
        }
        samples
    }

    /// When the oldest dead letter's event was accepted. Rows of both kinds are in the order of their events.
    fn oldest_letter(&self, subscription: &Subscription) -> Option<Millis> {
        let first = |letter: u8| {
            let prefix = rows::of_subscription(letter, subscription.id);
            let after = self.first_after(letter, subscription.id, Position(0));
            let from = rows::at_position(letter, subscription.id, after);
            let (key, row) = self.store.rows.scan(&prefix, &from, 1).ok()?.pop()?;
            let position = Position(rows::number_of(&key));
            let letter = dead_letters::decode(letter, subscription.id, position, &row).ok()?;
            Some(letter.entry.accepted)
        };
        [rows::DEAD, rows::HELD].into_iter().filter_map(first).min()
    }

    fn sample_of(&self, subscription: &Subscription) -> SubscriptionSample {
        let tally = &subscription.tally;
        SubscriptionSample {
            name: subscription.name().to_owned(),
            waiting: tally.owed(),
            waiting_bytes: tally.owed_bytes(),
            unread: tally.later,
            unread_bytes: tally.later_bytes,
            in_flight: subscription.flow.in_flight,
            dead_letters: tally.dead + tally.held,
            oldest_age_ms: tally.oldest_owed().map_or(0, |oldest| self.now.since(oldest)),
            lanes: Lanes::of(subscription),
            disabled: subscription.on_disk.feed.as_ref().map(|_| subscription.life.health.disabled.is_some()),
            breaker: match self.calls.endpoints.state(subscription.flow.endpoint) {
                breaker::State::Closed => 0,
                breaker::State::Open { .. } => 1,
                breaker::State::HalfOpen => 2,
            },
        }
    }
}
