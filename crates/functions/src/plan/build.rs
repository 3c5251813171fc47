//! From the source to an artifact: fetch, build, try again a few times, or say why not.

use super::Planner;
use crate::conditions::Saying;
use crate::failure::{Failure, Reason};
use crate::observed::{BuildState, FetchState};
use crate::platform::Task;
use crate::resource::{Aspect, BuildStatus, Counters, Outcome, Resource, Source};
use crate::scalar::Time;
use crate::{hash, request};
use klambda_core::quantity::format_duration_ms;
use klambda_core::time::Millis;

/// What the build has come to.
pub(super) enum Made {
    /// This artifact is there.
    Artifact(String),
    /// Being fetched or built, or about to be tried again.
    Underway,
    /// Builds are stopped, and this one did not begin.
    Held,
    Failed,
}

/// The step at which a build is.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Step {
    Fetch,
    Build,
}

impl Planner<'_> {
    pub(super) fn build(&mut self) -> Made {
        let desired = self.desired;
        let Some(source) = &desired.spec.source else { return self.no_source() };
        let inputs = hash::inputs(desired);
        let mut build = self.take_build(&inputs);
        let made = match source.kind.is_built() {
            true => self.make(&mut build),
            false => self.given(source, &mut build),
        };
        self.say_build(&build, source, &made);
        self.status.build_status = Some(build);
        made
    }

    fn no_source(&mut self) -> Made {
        self.abandon();
        self.status.build_status = None;
        let failure = Failure::new(Reason::SourceMissing, "There is nothing to run yet");
        self.say(Aspect::SourceReady, Saying::no(failure.reason.name(), failure.message()));
        self.say(Aspect::BuildReady, Saying::unknown("NoSource", "There is nothing to build."));
        Made::Failed
    }

    /// The build of these inputs; one of other inputs that had not ended is over.
    fn take_build(&mut self, inputs: &str) -> Box<BuildStatus> {
        if let Some(known) = self.status.build_status.take_if(|build| build.inputs == inputs) {
            return known;
        }
        self.abandon();
        let job_name = job_name(self.desired, inputs);
        Box::new(BuildStatus { job_name, inputs: inputs.to_owned(), ..BuildStatus::default() })
    }

    /// Ends what was begun for inputs that nobody asks for any more.
    pub(super) fn abandon(&mut self) {
        let fetches = self.observed.source.as_ref().is_some_and(|fetch| fetch.state.is_open());
        if fetches || self.observed.build.as_ref().is_some_and(|run| run.state.is_open()) {
            self.act(Task::CancelBuild { outcome: Outcome::Cancelled });
        }
        self.counters.forget_tries();
        let Some(mut old) = self.status.build_status.take() else { return };
        if old.started_at.is_some() && old.outcome.is_none() {
            let failure = Failure::new(Reason::BuildCancelled, "Something else was asked for meanwhile");
            self.end(&mut old, Outcome::Cancelled, &failure, false);
        }
    }

    /// An image or a URL: nothing is built, and its name is its content.
    fn given(&mut self, source: &Source, build: &mut BuildStatus) -> Made {
        let digest = hash::of(source);
        let artifact = hash::artifact(self.desired, &digest);
        let image = source.image.as_ref().map(|image| image.uri.clone());
        build.image_uri = image.or(source.url.as_ref().map(|address| address.url.clone()));
        build.source_digest = Some(digest);
        build.hash = Some(artifact.clone());
        build.outcome = Some(Outcome::Completed);
        Made::Artifact(artifact)
    }

    fn make(&mut self, build: &mut BuildStatus) -> Made {
        match (build.outcome, build.hash.clone()) {
            (Some(Outcome::Completed), Some(artifact)) if self.observed.artifact(&artifact).is_some() => {
                return Made::Artifact(artifact);
            }
            // It was built and is gone: its folder was emptied, its image removed.
            (Some(Outcome::Completed), _) => self.forget(build),
            (Some(_), _) => return Made::Failed,
            (None, _) => {}
        }
        let digest = match hash::known_digest(&self.desired.spec) {
            Some(digest) => digest,
            None => match self.fetched() {
                Some(digest) => digest,
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
            return Made::Artifact(artifact);
        }
        self.step(build, Step::Build)
    }

    /// What was fetched for these inputs, if the platform still has it.
    fn fetched(&self) -> Option<String> {
        let number = self.counters.fetch_try;
        let fetch = self.observed.source.as_ref().filter(|fetch| fetch.number == number)?;
        match &fetch.state {
            FetchState::Done { digest } => Some(digest.clone()),
            _ => None,
        }
    }

    fn step(&mut self, build: &mut BuildStatus, step: Step) -> Made {
        if step == Step::Fetch && build.source_digest.take().is_some() {
            // Fetched once, but the platform has it no more.
            (build.attempts, build.tried_since, build.retry_at) = (0, None, None);
            self.counters.fetch_try = 0;
        }
        if let Some(made) = self.held(build) {
            return made;
        }
        match self.failure_of(step) {
            Some(failure) => self.after_failure(build, step, &failure),
            None => self.go_on(build, step),
        }
    }

    /// Whether somebody asked for this build not to go on.
    fn held(&mut self, build: &mut BuildStatus) -> Option<Made> {
        let stopped = request::are_builds_stopped(self.desired);
        if !stopped && !request::is_build_cancelled(self.desired, &build.inputs) {
            return None;
        }
        if stopped && build.started_at.is_none() {
            return Some(Made::Held);
        }
        let (outcome, reason) = match stopped {
            true => (Outcome::Stopped, Reason::BuildStopped),
            false => (Outcome::Cancelled, Reason::BuildCancelled),
        };
        self.act(Task::CancelBuild { outcome });
        self.end(build, outcome, &Failure::new(reason, "Somebody asked for it"), false);
        Some(Made::Failed)
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

    /// How many are before it, if it only waits.
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

    /// Begins the try if it is not known, and watches the time of one that runs.
    fn go_on(&mut self, build: &mut BuildStatus, step: Step) -> Made {
        if !self.is_known(step) {
            self.begin_try(build, step);
            return Made::Underway;
        }
        if self.waits_behind(step).is_some() {
            build.running_since = None;
            return Made::Underway;
        }
        build.running_since.get_or_insert(Time(self.now));
        let deadline = self.deadline(build);
        if self.now >= deadline {
            self.act(Task::CancelBuild { outcome: Outcome::Timeout });
            let timeout = format_duration_ms(self.desired.spec.build.timeout.ms);
            let failure = Failure::new(Reason::BuildTimeout, format!("It took longer than {timeout}"));
            self.end(build, Outcome::Timeout, &failure, step == Step::Fetch);
            return Made::Failed;
        }
        self.wake(deadline);
        Made::Underway
    }

    /// Asks for the try that is due, by the number it has or a new one.
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
        // Until it is seen to wait it runs.
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

    fn after_failure(&mut self, build: &mut BuildStatus, step: Step, failure: &Failure) -> Made {
        let wait = self.limits.retry_after_ms << build.attempts.saturating_sub(1).min(10);
        let at = build.retry_at.map_or(self.now + wait, |time| time.0);
        let again = failure.reason.may_pass() && build.attempts < self.limits.tries_max;
        if !again || !self.may_begin(build, at.max(self.now)) {
            self.end(build, Outcome::of(failure.reason), failure, step == Step::Fetch);
            return Made::Failed;
        }
        if self.now < at {
            build.retry_at = Some(Time(at));
            build.error = Some(failure.message());
            self.wake(at);
            return Made::Underway;
        }
        match step {
            Step::Fetch => self.counters.fetch_try = 0,
            Step::Build => self.counters.build_try = 0,
        }
        self.begin_try(build, step);
        Made::Underway
    }

    /// Whether another try may begin then: soon after the first, and before the build's time is over.
    fn may_begin(&self, build: &BuildStatus, at: Millis) -> bool {
        let since = |time: Option<Time>| time.map_or(self.now, |time| time.0);
        at <= since(build.tried_since) + self.limits.tries_within_ms && at < self.deadline(build)
    }

    fn deadline(&self, build: &BuildStatus) -> Millis {
        build.running_since.map_or(self.now, |time| time.0) + self.desired.spec.build.timeout.ms
    }

    fn complete(&mut self, build: &mut BuildStatus) {
        build.outcome = Some(Outcome::Completed);
        (build.error, build.reason, build.retry_at) = (None, None, None);
        if build.started_at.is_some() {
            build.completed_at = Some(Time(self.now));
            self.tell_build_ended(build, Outcome::Completed);
        }
        self.status.log_lines.clear();
    }

    fn end(&mut self, build: &mut BuildStatus, outcome: Outcome, failure: &Failure, source_failed: bool) {
        build.outcome = Some(outcome);
        build.completed_at = Some(Time(self.now));
        build.retry_at = None;
        build.reason = Some(failure.reason.name().to_owned());
        build.error = Some(failure.message());
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

    fn say_build(&mut self, build: &BuildStatus, source: &Source, made: &Made) {
        let (source_saying, build_saying) = match made {
            Made::Artifact(_) => built(source, build),
            Made::Underway => self.underway(build),
            Made::Held => {
                let failure = Failure::new(Reason::BuildStopped, "Builds are stopped");
                let saying = Saying::unknown(failure.reason.name(), failure.message());
                (saying.clone(), saying)
            }
            Made::Failed => failed(build),
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
            (None, Some(error)) => Saying::unknown("Retrying", format!("It is tried again. {error}")),
            (None, None) => Saying::unknown(word, text),
        };
        match step {
            Step::Build => {
                (Saying::yes("Available", "The source is there."), doing("Building", "It is being built."))
            }
            Step::Fetch => (
                doing("Fetching", "The source is being fetched."),
                Saying::unknown("WaitingForSource", "It is built when the source is there."),
            ),
        }
    }
}

fn waits_for_slot(before: usize) -> String {
    match before {
        0 => "It waits for a build slot, and is the next to get one.".to_owned(),
        1 => "It waits for a build slot; one was before it when it came.".to_owned(),
        _ => format!("It waits for a build slot; {before} were before it when it came."),
    }
}

fn built(source: &Source, build: &BuildStatus) -> (Saying, Saying) {
    let here = Saying::yes("Available", "The source is there.");
    match (source.kind.is_built(), build.started_at) {
        (false, _) => (
            Saying::yes("Given", "It is built already."),
            Saying::yes("NothingToBuild", "It is built already."),
        ),
        (true, None) => (here, Saying::yes("AlreadyBuilt", "This content was built before.")),
        (true, Some(_)) => (here, Saying::yes("Built", "The artifact is built.")),
    }
}

fn failed(build: &BuildStatus) -> (Saying, Saying) {
    let reason = build.reason.as_deref().unwrap_or(Reason::BuildFailed.name());
    let failure = Saying::no(reason, build.error.clone().unwrap_or_default());
    match (build.source_failed, build.source_digest.is_some()) {
        (true, _) => (failure, Saying::no("SourceNotReady", "Without its source it cannot be built.")),
        (false, true) => (Saying::yes("Available", "The source is there."), failure),
        (false, false) => (Saying::unknown("NotFetched", "The source was not fetched."), failure),
    }
}

/// As a Kubernetes Job would be named: a label, and the same for the same inputs.
fn job_name(resource: &Resource, inputs: &str) -> String {
    let name = resource.metadata.name.get(..40).unwrap_or(&resource.metadata.name);
    format!("{name}-build-{}", inputs.get(..10).unwrap_or(inputs))
}
