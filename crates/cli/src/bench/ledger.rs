//! The sink's record of every key: whether its events arrived in order and once, and the time between them.

use serde::{Deserialize, Serialize};

use super::histogram::{Histogram, Summary};
use super::wire::template::Mark;

/// An event sent this long before an acknowledgement was accepted by then, so that the wait for its delivery is the
/// lane's alone. Far above any accept latency seen at the rates where this is measured.
const ACCEPTED_AFTER_NS: u64 = 50_000_000;

pub struct Ledger {
    keys: Vec<Key>,
    totals: Totals,
    hot_keys: u32,
    end_to_end: Histogram,
    ack_to_next: Histogram,
    work: Histogram,
    last_ns: u64,
    gap_max_ns: u64,
}

#[derive(Clone, Copy, Default)]
struct Key {
    last: u32,
    holes: u32,
    answered_ns: u64,
}

/// Counted since the sink started.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Totals {
    /// Different events received.
    pub delivered: u64,
    pub violations: u64,
    pub duplicates: u64,
    /// Deliveries of the poison key, all refused.
    pub refused: u64,
}

/// Counts since the previous mark.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SinkMark {
    pub at_ns: u64,
    pub totals: Totals,
    pub end_to_end: Summary,
    pub ack_to_next: Summary,
    pub work: Summary,
    /// The longest time without any delivery, between two deliveries.
    pub gap_max_us: f64,
}

impl Ledger {
    /// Events of the first `hot_keys` keys queue by design: they are left out of the end-to-end latency.
    pub fn new(keys: u32, hot_keys: u32) -> Self {
        Self {
            keys: vec![Key::default(); keys as usize],
            totals: Totals::default(),
            hot_keys,
            end_to_end: Histogram::new(),
            ack_to_next: Histogram::new(),
            work: Histogram::new(),
            last_ns: 0,
            gap_max_ns: 0,
        }
    }

    pub fn knows(&self, key: u32) -> bool {
        (key as usize) < self.keys.len()
    }

    pub fn refused(&mut self) {
        self.totals.refused += 1;
    }

    pub fn received(&mut self, mark: Mark, now_ns: u64) {
        let key = &mut self.keys[mark.key as usize];
        judge(key, mark.number, &mut self.totals);
        if key.answered_ns > mark.sent_ns + ACCEPTED_AFTER_NS {
            self.ack_to_next.record(now_ns.saturating_sub(key.answered_ns));
        }
        if mark.key >= self.hot_keys {
            self.end_to_end.record(now_ns.saturating_sub(mark.sent_ns));
        }
        if self.last_ns != 0 {
            self.gap_max_ns = self.gap_max_ns.max(now_ns - self.last_ns);
        }
        self.last_ns = now_ns;
    }

    pub fn answered(&mut self, key: u32, received_ns: u64, now_ns: u64) {
        self.keys[key as usize].answered_ns = now_ns;
        self.work.record(now_ns - received_ns);
    }

    pub fn mark(&mut self, now_ns: u64) -> SinkMark {
        SinkMark {
            at_ns: now_ns,
            totals: self.totals,
            end_to_end: self.end_to_end.take(),
            ack_to_next: self.ack_to_next.take(),
            work: self.work.take(),
            gap_max_us: std::mem::take(&mut self.gap_max_ns) as f64 / 1e3,
        }
    }
}

/// Numbers of a key count up from 1; anything else is out of order, or came twice.
fn judge(key: &mut Key, number: u32, totals: &mut Totals) {
    if number == key.last + 1 {
        key.last = number;
        totals.delivered += 1;
    } else if number > key.last {
        key.holes += number - key.last - 1;
        key.last = number;
        totals.delivered += 1;
        totals.violations += 1;
    } else if key.holes > 0 {
        key.holes -= 1;
        totals.delivered += 1;
        totals.violations += 1;
    } else {
        totals.duplicates += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_repeats_and_holes_are_told_apart() {
        let mut ledger = Ledger::new(2, 0);
        for (key, number) in [(0, 1), (1, 1), (0, 2), (0, 2), (1, 3), (1, 2)] {
            ledger.received(Mark { key, number, sent_ns: 1 }, 10);
        }
        let totals = ledger.mark(20).totals;
        assert_eq!((totals.delivered, totals.duplicates, totals.violations), (5, 1, 2));
    }

    #[test]
    fn only_an_event_that_was_waiting_measures_the_lane() {
        let mut ledger = Ledger::new(1, 0);
        ledger.received(Mark { key: 0, number: 1, sent_ns: 1 }, 10);
        ledger.answered(0, 10, 100_000_000);
        ledger.received(Mark { key: 0, number: 2, sent_ns: 2 }, 100_500_000);
        ledger.answered(0, 100_500_000, 100_600_000);
        ledger.received(Mark { key: 0, number: 3, sent_ns: 100_550_000 }, 100_700_000);
        let waited = ledger.mark(0).ack_to_next;
        assert_eq!((waited.count, waited.max_us), (1, 500.0));
    }
}
