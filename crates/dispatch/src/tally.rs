//! What a subscription has: counts of its events and lanes, and where its events are in the log.

use crate::range_counts::RangeCounts;
use klambda_core::lane::{Entry, State};
use klambda_core::time::Millis;
use klambda_store::address::{Kept, LogAddress};
use serde::{Deserialize, Serialize};

/// Counters of a subscription, which survive a restart.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Tally {
    pub waiting: u64,
    pub waiting_bytes: u64,
    /// Accepted and unread events. They are in no lane, but count as owed.
    pub later: u64,
    pub later_bytes: u64,
    /// Unread events accepted before new ordering rules that wait for them.
    pub later_old: u64,
    /// None of them was accepted before this time.
    pub later_since: Millis,
    /// Dead letters outside lanes.
    pub dead: u64,
    /// Dead letters that park their lanes.
    pub held: u64,
    pub delivered: u64,
    /// Lanes with pending events, by state.
    pub lanes: [u64; 6],
    /// Pending events by the second in which they were accepted.
    ages: RangeCounts<512>,
    /// Pending events and dead letters by the stretch of the log that contains them. Retention must keep these.
    pins: RangeCounts<4096>,
    /// The length of a stretch is two to the power of this number, in bytes.
    pin_shift: PinShift,
    /// Lanes on disk that wait and continue without help.
    pub waiting_lanes: u64,
}

/// One MiB by default.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(transparent)]
struct PinShift(u32);

impl Default for PinShift {
    fn default() -> PinShift {
        PinShift(20)
    }
}

impl Tally {
    /// A segment consists of several stretches, so that a pending event does not pin neighbouring segments.
    pub fn new(segment_bytes: u64) -> Tally {
        const STRETCHES_LOG2: u32 = 6;
        let shift = segment_bytes.max(1).ilog2().saturating_sub(STRETCHES_LOG2);
        Tally { pin_shift: PinShift(shift.min(PinShift::default().0)), ..Tally::default() }
    }

    pub fn arrived(&mut self, entry: &Entry) {
        self.waiting += 1;
        self.waiting_bytes += u64::from(entry.bytes);
        self.ages.add(entry.accepted.0 / 1000);
        self.pin(entry.address());
    }

    /// Events accepted for the subscription that have not reached it.
    pub fn owed(&self) -> u64 {
        self.waiting + self.later
    }

    pub fn owed_bytes(&self) -> u64 {
        self.waiting_bytes + self.later_bytes
    }

    /// When the oldest owed event was accepted, to the second.
    pub fn oldest_owed(&self) -> Option<Millis> {
        let unread = (self.later > 0).then_some(self.later_since);
        self.oldest().into_iter().chain(unread).min()
    }

    /// The event is no longer pending. A dead letter still pins its place in the log.
    pub fn left(&mut self, entry: &Entry) {
        self.waiting -= 1;
        self.waiting_bytes -= u64::from(entry.bytes);
        self.ages.remove(entry.accepted.0 / 1000);
    }

    pub fn pin(&mut self, at: LogAddress) {
        self.pins.add(self.stretch(at));
    }

    pub fn unpin(&mut self, at: LogAddress) {
        self.pins.remove(self.stretch(at));
    }

    fn stretch(&self, at: LogAddress) -> u64 {
        at.0 >> self.pin_shift.0
    }

    pub fn has_pins(&self) -> bool {
        self.pins.first().is_some()
    }

    /// The stretches between these addresses that contain pinned events: first and last address.
    pub fn pinned_between(
        &self,
        from: LogAddress,
        to: LogAddress,
    ) -> impl Iterator<Item = (LogAddress, LogAddress)> {
        let shift = self.pin_shift.0;
        let ranges = self.pins.between(self.stretch(from), self.stretch(to));
        ranges.map(move |(first, last)| {
            (LogAddress(first << shift), LogAddress((last << shift) | ((1 << shift) - 1)))
        })
    }

    /// True if a pinned event is near this address.
    pub fn pins(&self, at: LogAddress) -> bool {
        self.pins_between(at, at)
    }

    pub fn pins_between(&self, from: LogAddress, to: LogAddress) -> bool {
        self.pins.any_between(self.stretch(from), self.stretch(to))
    }

    /// No pinned event is before this address.
    pub fn first_pin(&self) -> Option<LogAddress> {
        self.pins.first().map(|stretch| LogAddress(stretch << self.pin_shift.0))
    }

    /// When the oldest pending event was accepted, to the second. If events are spread over many seconds, the result
    /// is exact to a small part of that span. It is never earlier than the real time.
    pub fn oldest(&self) -> Option<Millis> {
        self.ages.first_at_most().map(|second| Millis(second * 1000))
    }

    pub fn memory_bytes(&self) -> usize {
        self.ages.memory_bytes() + self.pins.memory_bytes()
    }

    pub fn recount(&mut self, before: Option<State>, after: Option<State>) {
        if let Some(before) = before {
            self.lanes[before as usize] -= 1;
        }
        if let Some(after) = after {
            self.lanes[after as usize] += 1;
        }
    }

    pub fn parked(&self) -> u64 {
        self.lanes[State::Parked as usize]
    }
}
