//! From source to artifact: fetch, build, retry a few times, or report the reason.

use super::Planner;
use crate::conditions::Saying;
use crate::failure::{Failure, Reason};
use crate::observed::{BuildState, FetchState};
use crate::platform::Task;
use crate::resource::{Aspect, BuildOutcome, BuildStatus, Counters, Resource, Source};
use crate::scalar::Time;
use crate::{hash, request};
use klambda_core::quantity::format_duration_ms;
use klambda_core::time::Millis;

/// The state of a build.
pub(super) enum BuildProgress {
    /// The artifact exists.
    Artifact(String),
    /// Being fetched or built, or waiting for a retry.
    Underway,
    /// Builds are stopped, and this one has not started.
    Held,
    Failed,
}

/// The current step of a build.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Fetch,
    Build,
}

impl Planner<'_> {
    pub(super) fn build(&mut self) -> BuildProgress {
        let desired = self.desired;
        let Some(source) = &desired.spec.source else { return self.no_source() };
        let inputs = hash::inputs(desired);
        let mut build = self.take_build(&inputs);
        let progress = match source.kind.is_built() {
            true => self.make(&mut build),
            false => self.given(source, &mut build),
        };
        self.say_build(&build, source, &progress);
        self.status.build_status = Some(build);
        progress
    }

    fn no_source(&mut self) -> BuildProgress {
        self.abandon();
        (self.status.build_status, self.status.restored) = (None, None);
        let failure = Failure::new(Reason::SourceMissing, "The function has no source");
        self.say(Aspect::SourceReady, Saying::no(failure.reason.name(), failure.message()));
        self.say(Aspect::BuildReady, Saying::unknown("NoSource", "Nothing to build"));
        BuildProgress::Failed
    }

    /// The build with these inputs. An unfinished build with other inputs is cancelled.
    fn take_build(&mut self, inputs: &str) -> Box<BuildStatus> {
        if let Some(restored) = self.status.restored.take() {
            self.abandon();
            self.status.build_status = Some(restored);
        }
        if let Some(known) = self.status.build_status.take_if(|build| build.inputs == inputs) {
            return known;
        }
        self.abandon();
        let job_name = job_name(self.desired, inputs);
        Box::new(BuildStatus { job_name, inputs: inputs.to_owned(), ..BuildStatus::default() })
    }

    /// Cancels fetches and builds of outdated inputs.
    pub(super) fn abandon(&mut self) {
        let fetches = self.observed.source.as_ref().is_some_and(|fetch| fetch.state.is_open());
        if fetches || self.observed.build.as_ref().is_some_and(|run| run.state.is_open()) {
            self.act(Task::CancelBuild { outcome: BuildOutcome::Cancelled });
        }
        self.counters.forget_tries();
        let Some(mut old) = self.status.build_status.take() else { return };
        if old.started_at.is_some() && old.outcome.is_none() {
            let failure = Failure::new(Reason::BuildCancelled, "A newer change replaced this build");
            self.end(&mut old, BuildOutcome::Cancelled, &failure, false);
        }
    }

    /// An image or a URL: nothing is built, and its name serves as its content.
    fn given(&mut self, source: &Source, build: &mut BuildStatus) -> BuildProgress {
        let digest = hash::of(source);
        let artifact = hash::artifact(self.desired, &digest);
        let image = source.image.as_ref().map(|image| image.uri.clone());
        // Known when a replica has started. It stays known when there is none.
        if let Some(known) = image.as_ref().and_then(|uri| self.observed.image_digests.get(uri)) {
            build.image_digest = Some(known.clone());
        }
        build.image_uri = image.or(source.url.as_ref().map(|address| address.url.clone()));
        build.source_digest = Some(digest);
        build.hash = Some(artifact.clone());
        build.outcome = Some(BuildOutcome::Completed);
        BuildProgress::Artifact(artifact)
    }

    fn make(&mut self, build: &mut BuildStatus) -> BuildProgress {
        match (build.outcome, build.hash.clone()) {
            (Some(BuildOutcome::Completed), Some(artifact))
                if self.observed.artifact(&artifact).is_some() =>
            {
                build.image_uri = self.observed.artifact(&artifact).map(|known| known.uri.clone());
                return BuildProgress::Artifact(artifact);
            }
            // The artifact was built but no longer exists: its folder or its image was removed.
            (Some(BuildOutcome::Completed), _) => self.forget(build),
            (Some(_), _) if self.may_resume(build) => self.forget(build),
            (Some(_), _) => return BuildProgress::Failed,
            (None, _) => {}
        }
        let digest = match hash::known_digest(&self.desired.spec) {
            Some(digest) => digest,
            None => match self.fetched() {
                Some((digest, commit)) => {
                    build.commit = commit;
                    digest
                }
                None => return self.step(build, Step::Fetch),
            },
        };
        let artifact = hash::artifact(self.desired, &digest);
        if build.source_digest.as_ref() != Some(&digest) {
            (build.attempts, build.tried_since, build.retry_at) = (0, None, None);
            self.counters.build_try = 0;
            build.source_digest = Some(digest);
        }
        build.hash = Some(artifact.clone());
        if let Some(known) = self.observed.artifact(&artifact) {
            build.image_uri = Some(known.uri.clone());
            self.complete(build);
            return BuildProgress::Artifact(artifact);
        }
        self.step(build, Step::Build)
    }

    /// Digest and commit of the fetched source for these inputs, if the platform still has it.
    fn fetched(&self) -> Option<(String, Option<String>)> {
        let number = self.counters.fetch_try;
        let fetch = self.observed.source.as_ref().filter(|fetch| fetch.number == number)?;
        match &fetch.state {
            FetchState::Done { digest, commit } => Some((digest.clone(), commit.clone())),
            _ => None,
        }
    }

    fn step(&mut self, build: &mut BuildStatus, step: Step) -> BuildProgress {
        if step == Step::Fetch && build.source_digest.take().is_some() {
            // The source was fetched once, but the platform no longer has it.
            (build.attempts, build.tried_since, build.retry_at) = (0, None, None);
            build.commit = None;
            self.counters.fetch_try = 0;
        }
        if let Some(progress) = self.held(build) {
            return progress;
        }
        match self.failure_of(step) {
            Some(failure) => self.after_failure(build, step, &failure),
            None => self.go_on(build, step),
        }
    }

    /// Checks whether builds are stopped or this build is cancelled.
    fn held(&mut self, build: &mut BuildStatus) -> Option<BuildProgress> {
        let stopped = request::are_builds_stopped(self.desired);
        if !stopped && !request::is_build_cancelled(self.desired, &build.inputs) {
            return None;
        }
        if stopped && build.started_at.is_none() {
            return Some(BuildProgress::Held);
        }
        let (outcome, reason) = match stopped {
            true => (BuildOutcome::Stopped, Reason::BuildStopped),
            false => (BuildOutcome::Cancelled, Reason::BuildCancelled),
        };
        self.act(Task::CancelBuild { outcome });
        self.end(build, outcome, &Failure::new(reason, "The build was stopped on request"), false);
        Some(BuildProgress::Failed)
    }

    fn is_known(&self, step: Step) -> bool {
        let Counters { fetch_try, build_try, .. } = self.counters;
        match step {
            Step::Fetch => self.observed.source.as_ref().is_some_and(|fetch| fetch.number == fetch_try),
            Step::Build => self.observed.build.as_ref().is_some_and(|run| run.number == build_try),
        }
    }

    fn failure_of(&self, step: Step) -> Option<Failure> {
        if !self.is_known(step) {
            return None;
        }
        match step {
            Step::Fetch => match &self.observed.source.as_ref()?.state {
                FetchState::Failed(failure) => Some(failure.clone()),
                _ => None,
            },
            Step::Build => match &self.observed.build.as_ref()?.state {
                BuildState::Failed(failure) => Some(failure.clone()),
                _ => None,
            },
        }
    }

    /// Number of builds ahead of this one, if it waits for a slot.
    fn waits_behind(&self, step: Step) -> Option<usize> {
        if !self.is_known(step) {
            return None;
        }
        match step {
            Step::Fetch => match self.observed.source.as_ref()?.state {
                FetchState::Waiting { before } => Some(before),
                _ => None,
            },
            Step::Build => match self.observed.build.as_ref()?.state {
                BuildState::Waiting { before } => Some(before),
                _ => None,
            },
        }
    }

    /// Starts the try if the platform does not know it, and checks the timeout of a running one.
    fn go_on(&mut self, build: &mut BuildStatus, step: Step) -> BuildProgress {
        if !self.is_known(step) {
            self.begin_try(build, step);
            return BuildProgress::Underway;
        }
        if self.waits_behind(step).is_some() {
            build.running_since = None;
            return BuildProgress::Underway;
        }
        build.running_since.get_or_insert(Time(self.now));
        let deadline = self.deadline(build);
        if self.now >= deadline {
            self.act(Task::CancelBuild { outcome: BuildOutcome::Timeout });
            let timeout = format_duration_ms(self.desired.spec.build.timeout.ms);
            let failure = Failure::new(Reason::BuildTimeout, format!("The build timed out after {timeout}"));
            self.end(build, BuildOutcome::Timeout, &failure, step == Step::Fetch);
            return BuildProgress::Failed;
        }
        self.wake(deadline);
        BuildProgress::Underway
    }

    /// Requests the current try, with its number or a new one.
    fn begin_try(&mut self, build: &mut BuildStatus, step: Step) {
        let Counters { tries, fetch_try, build_try, .. } = &mut self.counters;
        let number = if step == Step::Fetch { fetch_try } else { build_try };
        if *number == 0 {
            *tries += 1;
            *number = *tries;
            build.attempts += 1;
            build.tried_since.get_or_insert(Time(self.now));
            build.retry_at = None;
        }
        let (inputs, number) = (build.inputs.clone(), *number);
        self.note_source_secrets();
        // Counts as running until the platform reports that it waits.
        build.running_since = Some(Time(self.now));
        self.wake(self.deadline(build));
        if build.started_at.is_none() {
            build.started_at = Some(Time(self.now));
            self.tell_build_started(build);
        }
        self.act(match step {
            Step::Fetch => Task::Fetch { inputs, number },
            Step::Build => Task::Build { inputs, number, hash: build.hash.clone().unwrap_or_default() },
        });
    }

    fn after_failure(&mut self, build: &mut BuildStatus, step: Step, failure: &Failure) -> BuildProgress {
        let wait = self.limits.retry_after_ms << build.attempts.saturating_sub(1).min(10);
        let at = build.retry_at.map_or(self.now + wait, |time| time.0);
        let again = failure.reason.may_pass() && build.attempts < self.limits.tries_max;
        if !again || !self.may_begin(build, at.max(self.now)) {
            self.end(build, BuildOutcome::of(failure.reason), failure, step == Step::Fetch);
            return BuildProgress::Failed;
        }
        if self.now < at {
            build.retry_at = Some(Time(at));
            build.error = Some(failure.message_for(&self.desired.metadata.name));
            self.wake(at);
            return BuildProgress::Underway;
        }
        match step {
            Step::Fetch => self.counters.fetch_try = 0,
            Step::Build => self.counters.build_try = 0,
        }
        self.begin_try(build, step);
        BuildProgress::Underway
    }

    /// Whether another try may start at this time: soon enough after the first, and before the build times out.
    fn may_begin(&self, build: &BuildStatus, at: Millis) -> bool {
        let since = |time: Option<Time>| time.map_or(self.now, |time| time.0);
        at <= since(build.tried_since) + self.limits.tries_within_ms && at < self.deadline(build)
    }

    fn deadline(&self, build: &BuildStatus) -> Millis {
        build.running_since.map_or(self.now, |time| time.0) + self.desired.spec.build.timeout.ms
    }

    fn complete(&mut self, build: &mut BuildStatus) {
        build.outcome = Some(BuildOutcome::Completed);
        (build.error, build.reason, build.retry_at) = (None, None, None);
        if build.started_at.is_some() {
            build.completed_at = Some(Time(self.now));
            self.tell_build_ended(build, BuildOutcome::Completed);
        }
        self.status.log_lines.clear();
    }

    fn end(
        &mut self,
        build: &mut BuildStatus,
        outcome: BuildOutcome,
        failure: &Failure,
        source_failed: bool,
    ) {
        build.outcome = Some(outcome);
        build.completed_at = Some(Time(self.now));
        build.retry_at = None;
        build.reason = Some(failure.reason.name().to_owned());
        build.error = Some(failure.message_for(&self.desired.metadata.name));
        build.source_failed = source_failed;
        self.status.log_lines = failure.last_lines();
        if build.started_at.is_some() {
            self.tell_build_ended(build, outcome);
        }
    }

    fn forget(&mut self, build: &mut BuildStatus) {
        let BuildStatus { job_name, inputs, .. } = std::mem::take(build);
        *build = BuildStatus { job_name, inputs, ..BuildStatus::default() };
        self.counters.forget_tries();
    }

    fn say_build(&mut self, build: &BuildStatus, source: &Source, progress: &BuildProgress) {
        let (source_saying, build_saying) = match progress {
            BuildProgress::Artifact(_) => built(source, build),
            BuildProgress::Underway => self.underway(build),
            BuildProgress::Held => {
                let failure = Failure::new(Reason::BuildStopped, "Builds are stopped");
                let saying = Saying::unknown(failure.reason.name(), failure.message());
                (saying.clone(), saying)
            }
            BuildProgress::Failed => failed(build),
        };
        self.say(Aspect::SourceReady, source_saying);
        self.say(Aspect::BuildReady, build_saying);
    }

    fn underway(&self, build: &BuildStatus) -> (Saying, Saying) {
        let has_source = build.hash.is_some() && build.source_digest.is_some();
        let step = if has_source { Step::Build } else { Step::Fetch };
        let waits = self.waits_behind(step);
        let doing = |word: &str, text: &str| match (waits, &build.error) {
            (Some(before), _) => Saying::unknown("WaitingForSlot", waits_for_slot(before)),
            (None, Some(error)) => Saying::unknown("Retrying", format!("Retrying. {error}")),
            (None, None) => Saying::unknown(word, text),
        };
        match step {
            Step::Build => {
                (Saying::yes("Available", "Source fetched"), doing("Building", "Build in progress"))
            }
            Step::Fetch => (
                doing("Fetching", "Fetching the source"),
                Saying::unknown("WaitingForSource", "Waiting for the source"),
            ),
        }
    }
}

fn waits_for_slot(before: usize) -> String {
    match before {
        0 => "Waiting for a build slot; next in line".to_owned(),
        1 => "Waiting for a build slot; queued behind 1 other build".to_owned(),
        _ => format!("Waiting for a build slot; queued behind {before} other builds"),
    }
}

fn built(source: &Source, build: &BuildStatus) -> (Saying, Saying) {
    let here = Saying::yes("Available", "Source fetched");
    match (source.kind.is_built(), build.started_at) {
        (false, _) => {
            (Saying::yes("Given", "No source to fetch"), Saying::yes("NothingToBuild", "No build needed"))
        }
        (true, None) => (here, Saying::yes("AlreadyBuilt", "This content was built before")),
        (true, Some(_)) => (here, Saying::yes("Built", "Build completed")),
    }
}

fn failed(build: &BuildStatus) -> (Saying, Saying) {
    let reason = build.reason.as_deref().unwrap_or(Reason::BuildFailed.name());
    let failure = Saying::no(reason, build.error.clone().unwrap_or_default());
    match (build.source_failed, build.source_digest.is_some()) {
        (true, _) => (failure, Saying::no("SourceNotReady", "The build needs the source")),
        (false, true) => (Saying::yes("Available", "Source fetched"), failure),
        (false, false) => (Saying::unknown("NotFetched", "Source not fetched"), failure),
    }
}

/// A name for the build in the style of a Kubernetes Job: a label, and the same for equal inputs.
pub fn job_name(resource: &Resource, inputs: &str) -> String {
    let name = resource.metadata.name.get(..40).unwrap_or(&resource.metadata.name);
    format!("{name}-build-{}", inputs.get(..10).unwrap_or(inputs))
}
