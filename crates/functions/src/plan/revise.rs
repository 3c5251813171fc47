//! Records revisions: the versions that served, oldest first, up to a limit.

use super::Planner;
use super::roll_out::Wanted;
use crate::hash;
use crate::resource::RevisionRef;
use crate::secrets::base;

impl Planner<'_> {
    /// Records the version that is being deployed. The spec may change before this version serves.
    pub(super) fn note_candidate(&mut self, wanted: &Wanted) {
        let next = self.next_revision(wanted);
        let is_known = self.status.revisions.last().is_some_and(|newest| newest.content == next.content);
        self.status.candidate = (!is_known).then(|| Box::new(next));
    }

    /// Records a revision when a new version or spec serves.
    pub(super) fn note_revision(&mut self, wanted: Option<&Wanted>) {
        let Some(serving) = self.observed.serving() else { return };
        let next = match wanted.filter(|wanted| wanted.version == serving.version) {
            Some(wanted) => {
                self.status.candidate = None;
                self.next_revision(wanted)
            }
            None => {
                let is_it = |candidate: &mut Box<RevisionRef>| candidate.version == base(&serving.version);
                match self.status.candidate.take_if(is_it) {
                    Some(candidate) => *candidate,
                    None => return,
                }
            }
        };
        let revisions = &mut self.status.revisions;
        if revisions.last().is_some_and(|newest| newest.content == next.content) {
            return;
        }
        revisions.push(next);
        let too_many = revisions.len().saturating_sub(self.limits.revisions_max.max(1));
        revisions.drain(..too_many);
    }

    fn next_revision(&self, wanted: &Wanted) -> RevisionRef {
        // A changed secret rolls out, but it is the same revision.
        let version = base(&wanted.version).to_owned();
        RevisionRef {
            number: self.status.next_revision(),
            generation: self.desired.metadata.generation,
            artifact: wanted.artifact.clone(),
            content: hash::revision(self.desired, &version),
            version,
        }
    }
}
