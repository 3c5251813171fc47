//! What waits until the log is durable: answers, and the next sync itself.

use crate::accept::Judged;
use klambda_core::ids::{Address, Position};
use klambda_core::time::Millis;
use std::collections::VecDeque;

/// Acknowledgements alone wait this long for company before they are synced.
pub const SYNC_DELAY_MS: u64 = 50;

/// Names a request of the caller's; answered when what it did is durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

#[derive(Debug)]
pub enum Answer {
    Events(Token, Vec<Judged>),
    /// All that was done before it was asked is durable.
    Durable(Token),
}

#[derive(Default)]
pub(crate) struct Commits {
    /// What they tell of is appended, and not written.
    unwritten: Vec<Answer>,
    /// It is durable once the log is up to here.
    unsynced: VecDeque<(Address, Answer)>,
    ready: Vec<Answer>,
    /// Since when something is appended that no sync covers.
    dirty_since: Option<Millis>,
    /// Events before this position are covered by a sync that has ended or is under way.
    covered: Position,
}

impl Commits {
    /// Given when all that is appended by now is durable.
    pub fn answer(&mut self, answer: Answer) {
        self.unwritten.push(answer);
    }

    /// Given at once: it tells of nothing that is in the log.
    pub fn answer_now(&mut self, answer: Answer) {
        self.ready.push(answer);
    }

    pub fn appended(&mut self, now: Millis) {
        self.dirty_since.get_or_insert(now);
    }

    /// All that was appended is written, up to here.
    pub fn written(&mut self, up_to: Address) {
        self.unsynced.extend(self.unwritten.drain(..).map(|answer| (up_to, answer)));
    }

    /// The log is durable up to here.
    pub fn synced(&mut self, up_to: Address) {
        while let Some((_, answer)) = self.unsynced.pop_front_if(|waiting| waiting.0 <= up_to) {
            self.ready.push(answer);
        }
    }

    /// A sync begins that covers all events before `next`. Answers how many it is the first to cover.
    pub fn sync_begins(&mut self, next: Position) -> u64 {
        self.dirty_since = None;
        let events = next.0 - self.covered.0;
        self.covered = next;
        events
    }

    /// A sync ended, and it covered all that is appended.
    pub fn all_synced(&mut self) {
        self.dirty_since = None;
    }

    /// The engine starts: all events before `next` are durable.
    pub fn begin(&mut self, next: Position) {
        self.covered = next;
    }

    pub fn take_ready(&mut self) -> Vec<Answer> {
        std::mem::take(&mut self.ready)
    }

    pub fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// When what is appended has waited long enough for company.
    pub fn sync_due(&self) -> Option<Millis> {
        self.dirty_since.map(|since| since + SYNC_DELAY_MS)
    }
}
