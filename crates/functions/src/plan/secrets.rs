//! Functions that lack a secret continue by themselves when the secret exists.

use super::Planner;
use crate::failure::Reason;
use crate::resource::{Aspect, BuildOutcome, BuildStatus};

/// Platforms report a change of stored secrets, but not that of files.
const LOOK_AGAIN_MS: u64 = 5000;

/// Failures of a fetch that another secret may resolve.
const OF_SECRETS: [Reason; 3] = [Reason::SecretNotFound, Reason::SecretUnreadable, Reason::SourceRefused];

impl Planner<'_> {
    /// Plans again soon if a secret is missing.
    pub(super) fn look_for_secrets(&mut self) {
        let lacks_secret = |aspect: Aspect| {
            let condition = self.status.condition(aspect);
            condition.is_some_and(|condition| condition.reason == Reason::SecretNotFound.name())
        };
        if [Aspect::SourceReady, Aspect::BuildReady, Aspect::DeployReady].into_iter().any(lacks_secret) {
            self.wake(self.now + LOOK_AGAIN_MS);
        }
    }

    /// Whether a build failed because of secrets that are different now.
    pub(super) fn may_resume(&self, build: &BuildStatus) -> bool {
        let failed_by = build.reason.as_deref().and_then(Reason::parse);
        build.outcome == Some(BuildOutcome::Failed)
            && failed_by.is_some_and(|reason| OF_SECRETS.contains(&reason))
            && self.counters.source_secrets != self.observed.secrets.source_number()
    }

    /// Notes which secrets a fetch uses.
    pub(super) fn note_source_secrets(&mut self) {
        self.counters.source_secrets = self.observed.secrets.source_number();
    }
}
