//! Replies that wait until the log is durable, and the time of the next sync.

use crate::accept::EventResult;
use klambda_core::ids::Position;
use klambda_core::time::Millis;
use klambda_store::address::LogAddress;
use std::collections::VecDeque;

/// How long acknowledgements wait for further records before they are synced.
pub const SYNC_DELAY_MS: u64 = 50;

/// Identifies a request of the caller. It is answered when its changes are durable.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Token(pub u64);

#[derive(Debug)]
pub enum Completion {
    Events(Token, Vec<EventResult>),
    /// Everything done before the request is durable.
    Durable(Token),
}

#[derive(Default)]
pub(crate) struct Commits {
    /// The records are appended but not written.
    unwritten: Vec<Completion>,
    /// Durable once the log is synced up to this address.
    unsynced: VecDeque<(LogAddress, Completion)>,
    ready: Vec<Completion>,
    /// When the first record was appended that no sync covers.
    dirty_since: Option<Millis>,
    /// Events before this position are covered by a finished or running sync.
    covered: Position,
}

impl Commits {
    /// Sends the reply when everything appended so far is durable.
    pub fn answer(&mut self, answer: Completion) {
        self.unwritten.push(answer);
    }

    /// Sends the reply at once, because it does not depend on the log.
    pub fn answer_now(&mut self, answer: Completion) {
        self.ready.push(answer);
    }

    pub fn appended(&mut self, now: Millis) {
        self.dirty_since.get_or_insert(now);
    }

    /// Everything appended is written, up to this address.
    pub fn written(&mut self, up_to: LogAddress) {
        self.unsynced.extend(self.unwritten.drain(..).map(|answer| (up_to, answer)));
    }

    /// The log is durable up to this address.
    pub fn synced(&mut self, up_to: LogAddress) {
        while let Some((_, answer)) = self.unsynced.pop_front_if(|waiting| waiting.0 <= up_to) {
            self.ready.push(answer);
        }
    }

    /// A sync begins that covers all events before `next`. Returns how many events it is the first to cover.
    pub fn sync_begins(&mut self, next: Position) -> u64 {
        self.dirty_since = None;
        let events = next.0 - self.covered.0;
        self.covered = next;
        events
    }

    /// A sync ended that covers everything appended.
    pub fn all_synced(&mut self) {
        self.dirty_since = None;
    }

    /// The engine starts; all events before `next` are durable.
    pub fn begin(&mut self, next: Position) {
        self.covered = next;
    }

    pub fn take_ready(&mut self) -> Vec<Completion> {
        std::mem::take(&mut self.ready)
    }

    pub fn has_unwritten(&self) -> bool {
        !self.unwritten.is_empty()
    }

    pub fn has_unsynced(&self) -> bool {
        !self.unsynced.is_empty()
    }

    /// When the appended records have waited long enough and should be synced.
    pub fn sync_due(&self) -> Option<Millis> {
        self.dirty_since.map(|since| since + SYNC_DELAY_MS)
    }
}
