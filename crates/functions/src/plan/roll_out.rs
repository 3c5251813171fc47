//! From an artifact to a version that serves: the new one is started beside the old, and the old goes when the new answers.

use super::build::Made;
use super::{Action, Planner};
use crate::conditions::Saying;
use crate::failure::{Failure, Reason};
use crate::hash;
use crate::observed::{Observed, Version, VersionState};
use crate::platform::Task;
use crate::resource::{Aspect, Phase, ServiceStatus};
use klambda_core::kinds::Kind;
use klambda_core::quantity::format_duration_ms;

/// What the version that is asked for has come to.
enum Rolled {
    Serving,
    Starting,
    Failed(Failure),
}

impl Planner<'_> {
    pub(super) fn roll_out(&mut self, made: Made) -> Phase {
        let observed = self.observed;
        let phase = match &made {
            Made::Artifact(artifact) => self.roll_to(artifact),
            Made::Underway => self.wait_for_build(Phase::Building),
            Made::Held => self.wait_for_build(Phase::Pending),
            Made::Failed => self.wait_for_build(Phase::Failed),
        };
        self.scale();
        self.note_service();
        if observed.serving().is_some() { Phase::Ready } else { phase }
    }

    fn roll_to(&mut self, artifact: &str) -> Phase {
        let wanted = hash::version(self.desired, artifact);
        let rolled = self.version(&wanted, artifact);
        self.retire_others(&wanted);
        match rolled {
            Rolled::Serving => {
                self.say(Aspect::DeployReady, Saying::yes("Deployed", "This version is deployed."));
                self.say(Aspect::ServiceReady, Saying::yes("Serving", "It answers."));
                self.status.log_lines.clear();
                Phase::Ready
            }
            Rolled::Starting => {
                self.say(Aspect::DeployReady, Saying::unknown("Starting", "This version is being started."));
                self.say_service(Saying::unknown("Starting", "No version has answered yet."));
                Phase::Deploying
            }
            Rolled::Failed(failure) => {
                let saying = Saying::no(failure.reason.name(), failure.message());
                self.say_service(saying.clone());
                self.say(Aspect::DeployReady, saying);
                self.status.log_lines = failure.last_lines();
                Phase::Failed
            }
        }
    }

    /// How the wanted version is doing; it is deployed if it is not there.
    fn version(&mut self, wanted: &str, artifact: &str) -> Rolled {
        let Some(known) = self.observed.version(wanted) else {
            let generation = self.desired.metadata.generation;
            self.act(Task::Deploy { version: wanted.to_owned(), artifact: artifact.to_owned(), generation });
            return Rolled::Starting;
        };
        match &known.state {
            VersionState::Serving => Rolled::Serving,
            VersionState::Failed(failure) => Rolled::Failed(failure.clone()),
            // Asked for again while it goes: it is started anew when it is gone.
            VersionState::Retiring => Rolled::Starting,
            VersionState::Starting { since } => {
                let deadline = *since + self.limits.start_ms_max;
                if self.now < deadline {
                    self.wake(deadline);
                    return Rolled::Starting;
                }
                let waited = format_duration_ms(self.limits.start_ms_max);
                Rolled::Failed(Failure::new(
                    Reason::NeverAnswered,
                    format!("It did not answer within {waited}"),
                ))
            }
        }
    }

    /// Until the wanted version answers, what serves stays, and so does what served last: it may recover.
    fn retire_others(&mut self, wanted: &str) {
        let observed = self.observed;
        let answers = observed.version(wanted).is_some_and(Version::is_serving);
        let last = self.status.service_status.as_ref().and_then(|service| service.version.clone());
        let kept = observed.serving().map(|version| version.version.clone()).or(last);
        for version in &observed.versions {
            let is_kept = !answers && Some(&version.version) == kept.as_ref();
            if version.version != wanted && !is_kept && !version.is_retiring() {
                self.act(Task::Retire { version: version.version.clone() });
            }
        }
    }

    fn wait_for_build(&mut self, phase: Phase) -> Phase {
        let saying = match phase {
            Phase::Failed => Saying::unknown("BuildNotReady", "There is no artifact to deploy."),
            _ => Saying::unknown("WaitingForBuild", "It is deployed when it is built."),
        };
        self.say(Aspect::DeployReady, saying);
        let starting = starting(self.observed, self.now.0, self.limits.start_ms_max);
        if let Some(deadline) = starting {
            self.wake(deadline);
        }
        match phase {
            Phase::Failed => self.say_service(Saying::no("NotDeployed", "There is no version to serve.")),
            _ => self.say_service(Saying::unknown("NotDeployed", "No version is deployed yet.")),
        }
        // An earlier version may still come up.
        if phase == Phase::Failed && starting.is_some() { Phase::Deploying } else { phase }
    }

    /// What to say of the service when the wanted version does not serve: another may.
    fn say_service(&mut self, otherwise: Saying) {
        let saying = match self.observed.serving() {
            Some(_) => Saying::yes("ServingPreviousVersion", "The previous version answers."),
            None => otherwise,
        };
        self.say(Aspect::ServiceReady, saying);
    }

    /// Scaling needs no new version: whatever serves, or will, is told.
    fn scale(&mut self) {
        let (observed, scaling) = (self.observed, self.desired.spec.scaling);
        for version in &observed.versions {
            if !version.is_retiring() && version.scaling != scaling {
                self.act(Task::Scale { version: version.version.clone(), scaling });
            }
        }
        // What is retired in the same breath need not be told.
        let retired: Vec<String> = self.actions.iter().filter_map(retired).collect();
        self.actions.retain(|action| {
            !matches!(action, Action::Platform(Task::Scale { version, .. }) if retired.contains(version))
        });
    }

    fn note_service(&mut self) {
        let observed = self.observed;
        let before = self.status.service_status.take();
        let Some(serving) = observed.serving() else {
            self.status.service_status = before.map(|service| Box::new(self.not_ready(&service)));
            return self.check_health();
        };
        let now = ServiceStatus {
            service_name: self.desired.metadata.name.clone(),
            url: serving.url.clone(),
            ready: true,
            replicas: serving.replicas,
            version: Some(serving.version.clone()),
            scaling: Some(serving.scaling),
        };
        let told = match &before {
            None => Some(Kind::ServiceCreated),
            Some(old) if (&old.version, old.scaling, &old.url) != (&now.version, now.scaling, &now.url) => {
                Some(Kind::ServiceUpdated)
            }
            Some(_) => None,
        };
        self.status.service_status = Some(Box::new(now));
        if let Some(kind) = told {
            self.tell_service(kind);
        }
        self.check_health();
    }

    fn not_ready(&self, service: &ServiceStatus) -> ServiceStatus {
        let last = service.version.as_ref().and_then(|version| self.observed.version(version));
        let replicas = last.map_or(0, |version| version.replicas);
        ServiceStatus { ready: false, replicas, ..service.clone() }
    }

    /// Told when the answer to "does it answer" is another than before.
    fn check_health(&mut self) {
        let before = self.desired.status.condition(Aspect::ServiceReady).map(|condition| condition.status);
        let after = self.status.condition(Aspect::ServiceReady).map(|condition| condition.status);
        if before != after && self.status.service_status.is_some() {
            self.tell_status(Kind::HealthCheck);
        }
    }
}

fn retired(action: &Action) -> Option<String> {
    match action {
        Action::Platform(Task::Retire { version }) => Some(version.clone()),
        _ => None,
    }
}

/// Until when a version may still come up.
fn starting(observed: &Observed, now_ms: u64, start_ms_max: u64) -> Option<klambda_core::time::Millis> {
    let deadlines = observed.versions.iter().filter_map(|version| match version.state {
        VersionState::Starting { since } => Some(since + start_ms_max),
        _ => None,
    });
    deadlines.filter(|deadline| deadline.0 > now_ms).max()
}
