//! Edited dead letters, as far as the operators who edit them know.

use super::{Outside, State};
use crate::event::EventNo;
use crate::history::{Content, Ending, SubNo};

/// The edits of one event in one subscription.
pub struct Edited {
    /// Each edit with its operation.
    versions: Vec<(u32, u64)>,
    /// The oldest version that the next delivery may have. Zero is the original.
    pub floor: u32,
    /// The event was delivered since, which ends the edit.
    is_over: bool,
    /// The generation of the event when it was edited.
    generation: u32,
}

impl Edited {
    pub fn may_be(&self, version: u32) -> bool {
        version >= self.floor && self.versions.iter().any(|(known, _)| *known == version)
    }

    fn crashed(&mut self, kept: u64) {
        let durable = self.versions.iter().filter(|(_, op)| *op <= kept).map(|(version, _)| *version).max();
        self.floor = durable.unwrap_or(0);
        // Each later one may be lost for good.
        self.versions.iter_mut().filter(|(_, op)| *op > kept).for_each(|(_, op)| *op = u64::MAX);
    }
}

impl Outside {
    /// True if the event may have left the subscription since it was edited.
    pub fn may_have_left(&self, sub: SubNo, event: EventNo) -> bool {
        let (sub_no, sub) = (sub, self.sub(sub));
        let Some(edited) = self.edits.get(&(sub_no, event)) else { return true };
        let pair = sub.pair(event);
        let is_same = pair.generation == edited.generation && pair.state != State::GoneMaybe;
        edited.is_over || !is_same || sub.limits.drops || sub.limits.may_lag
    }

    pub(super) fn edited(&mut self, sub: SubNo, event: EventNo, version: u32, sure: bool) {
        self.op += 1;
        let generation = self.sub(sub).pair(event).generation;
        let none = Edited { versions: Vec::new(), floor: 0, is_over: false, generation };
        let edited = self.edits.entry((sub, event)).or_insert(none);
        // An edit of a refused request may be in the log only if the engine failed, and then a crash follows.
        edited.versions.push((version, if sure { self.op } else { u64::MAX }));
        if sure {
            (edited.floor, edited.is_over, edited.generation) = (version, false, generation);
        }
    }

    /// A delivery shows which version is in the log.
    pub(super) fn edit_delivered(&mut self, sub: SubNo, event: EventNo, content: Content) {
        match content {
            Content::Edit(version) => {
                if let Some(edited) = self.edits.get_mut(&(sub, event)) {
                    edited.versions.retain(|(known, _)| *known <= version);
                    edited.versions.iter_mut().for_each(|(_, op)| *op = 0);
                    (edited.floor, edited.is_over) = (version, false);
                }
            }
            Content::Original => drop(self.edits.remove(&(sub, event))),
            Content::Other => {}
        }
    }

    pub(super) fn edit_ended(&mut self, sub: SubNo, event: EventNo, ending: Ending) {
        if ending == Ending::Delivered
            && let Some(edited) = self.edits.get_mut(&(sub, event))
        {
            edited.is_over = true;
        }
    }

    pub(super) fn edits_crashed(&mut self, kept: u64) {
        self.edits.values_mut().for_each(|edited| edited.crashed(kept));
    }
}
