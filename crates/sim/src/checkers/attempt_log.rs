//! Attempts as they are shown: for each event, the statuses that its receiver answered, in this order. A crash may lose
//! the last answers of a process, but nothing is added and nothing of the running process is missing.

use super::{Verdict, Violation};
use crate::event::{EventNo, SOURCES};
use crate::history::SubNo;
use crate::world::World;
use klambda_core::ids::Position;
use klambda_core::namespace;
use klambda_core::outcome::CallOutcome;
use klambda_dispatch::history::History;
use klambda_dispatch::views::Fate;
use klambda_store::address::LogAddress;
use std::collections::BTreeMap;

const NAME: &str = "attempt log";

/// What receivers answered, in order.
pub type Answered = BTreeMap<(SubNo, EventNo), Vec<Answer>>;

pub struct Answer {
    /// 0 without a response.
    pub status: u16,
    pub life: u64,
    /// The engine accepted the outcome at once.
    pub taken: bool,
}

/// `None` if the receiver was not called.
pub fn status_of(outcome: &CallOutcome) -> Option<u16> {
    match outcome {
        CallOutcome::Status { code, .. } => Some(*code),
        CallOutcome::Replied { status, .. } | CallOutcome::BadReplies { status, .. } => Some(*status),
        CallOutcome::NotReady { .. } => None,
        _ => Some(0),
    }
}

impl World {
    /// Compares some events. All would take long. Events with several attempts are rare and show the most, so they have
    /// a share of their own.
    pub fn attempts_are_shown(&self) -> Verdict {
        self.compare_some(|answers| answers.len() > 1)?;
        self.compare_some(|answers| answers.len() == 1)
    }

    fn compare_some(&self, wanted: impl Fn(&[Answer]) -> bool) -> Verdict {
        const COMPARED: usize = 40;
        let answered: Vec<_> = self.network.answered.iter().filter(|(_, answers)| wanted(answers)).collect();
        let every = (answered.len() / COMPARED).max(1);
        for ((sub, event), answers) in answered.into_iter().step_by(every) {
            if let Some(fate) = self.fate(*sub, *event) {
                self.compare(*sub, *event, &fate, answers)?;
            }
        }
        Ok(())
    }

    /// The fate that the program shows. `None` if the subscription or the event is gone, or the disk cannot be read.
    fn fate(&self, sub: SubNo, event: EventNo) -> Option<Fate> {
        let (name, _) = self.known.names.iter().find(|(_, other)| **other == sub)?;
        let (home, own) = namespace::split(name);
        let engine = &self.host.engine;
        let home = engine.namespace_id(home).ok()?;
        let made = self.outside.made(event);
        let source = SOURCES[made.source];
        let history = History::new(engine.reader());
        let found = engine.sightings(home, source, &made.id).ok()?.into_iter();
        let found = found.filter_map(|sighting| history.at(sighting.at, sighting.located).ok().flatten());
        let written: Vec<(LogAddress, Position)> = found.map(|found| (found.at, found.position)).collect();
        let fates = engine.fates(home, source, &made.id, &written).ok()?;
        let mut fate = fates.into_iter().find(|fate| fate.subscription == own)?;
        fate.resolve(history.reader());
        Some(fate)
    }

    fn compare(&self, sub: SubNo, event: EventNo, fate: &Fate, answers: &[Answer]) -> Verdict {
        // Without a mark the program may show an older event with the same id.
        let is_known = !matches!(fate.fate, "unknown" | "purged");
        let must_be_shown = |answer: &Answer| is_known && answer.taken && answer.life == self.host.life;
        let mut left = answers.iter().rev();
        for (n, shown) in fate.attempt_log.iter().enumerate() {
            let status = shown.attempt.status.unwrap_or(0);
            // Answers before the first that must be shown may be lost.
            let found = left.find(|answer| answer.status == status || must_be_shown(answer));
            let number = fate.attempt_log[0].attempt.number - n as u32;
            if found.is_none_or(|answer| answer.status != status) || shown.attempt.number != number {
                return Err(self.wrong(sub, event, fate, answers));
            }
        }
        let seen = self.outside.sub(sub);
        // An event that is sent again after it left is a new event, and other rules may give it another lane.
        let is_one = seen.pair(event).generation == 0 && seen.changes == 0 && !seen.limits.drops;
        let successes = answers.iter().filter(|answer| (200..300).contains(&answer.status)).count();
        if is_one && successes <= 1 && !self.may_be_cut(fate) && left.any(must_be_shown) {
            return Err(self.wrong(sub, event, fate, answers));
        }
        Ok(())
    }

    /// Whether older attempts may be left out: retention removed them, they are too far back in the lane, or nothing
    /// points to the record of the delivery. The attempts of an unordered event name each other.
    fn may_be_cut(&self, fate: &Fate) -> bool {
        let is_linked = fate.key.is_none() && !fate.attempt_log.is_empty();
        fate.more && (!is_linked || self.host.config.retention_bytes > 0)
    }

    fn wrong(&self, sub: SubNo, event: EventNo, fate: &Fate, answers: &[Answer]) -> Violation {
        let answered: Vec<u16> = answers.iter().rev().map(|answer| answer.status).collect();
        let shown: Vec<_> =
            fate.attempt_log.iter().map(|tried| (tried.attempt.number, tried.attempt.status)).collect();
        let (name, id) = (&self.outside.sub(sub).rules.name, &self.outside.made(event).id);
        let text = format!(
            "subscription {name}: event {id} ({}) shows the attempts {shown:?} (more: {}), but its receiver answered, \
             newest first, {answered:?}",
            fate.fate, fate.more
        );
        Violation::of_event(NAME, event, text)
    }
}
