//! From artifact to serving version: the new version starts beside the old one, which is retired when the new one responds.

use super::build::BuildProgress;
use super::{Action, Planner};
use crate::conditions::Saying;
use crate::failure::{Failure, Reason};
use crate::hash;
use crate::observed::{Observed, Version, VersionState};
use crate::platform::Task;
use crate::resource::{Aspect, Phase, Resource, ServiceStatus, Status};
use crate::secrets::base;
use klambda_core::kinds::EventKind;
use klambda_core::quantity::format_duration_ms;

/// The desired version and its artifact.
#[derive(Clone)]
pub(super) struct Wanted {
    pub version: String,
    pub artifact: String,
}

impl Wanted {
    /// The versions of secrets are part of the version, so that a changed secret is a rollout.
    fn new(desired: &Resource, observed: &Observed, artifact: &str) -> Wanted {
        let version = observed.secrets.version(hash::version(desired, artifact));
        Wanted { version, artifact: artifact.to_owned() }
    }
}

/// The state of the desired version.
enum Rolled {
    Serving,
    Starting,
    Failed(Failure),
}

impl Planner<'_> {
    pub(super) fn roll_out(&mut self, progress: BuildProgress) -> Phase {
        let observed = self.observed;
        let wanted = match &progress {
            BuildProgress::Artifact(artifact) => Some(Wanted::new(self.desired, observed, artifact)),
            _ => None,
        };
        // Before a deployment replaces the candidate.
        self.note_revision(wanted.as_ref());
        let phase = match (&progress, &wanted) {
            (BuildProgress::Artifact(_), Some(wanted)) => self.roll_to(wanted),
            (BuildProgress::Underway, _) => self.wait_for_build(Phase::Building),
            (BuildProgress::Held, _) => self.wait_for_build(Phase::Pending),
            (BuildProgress::Failed | BuildProgress::Artifact(_), _) => self.wait_for_build(Phase::Failed),
        };
        self.scale();
        self.note_service(wanted.as_ref());
        if observed.serving().is_some() { Phase::Ready } else { phase }
    }

    fn roll_to(&mut self, wanted: &Wanted) -> Phase {
        let rolled = self.version(wanted);
        self.retire_others(&wanted.version);
        match rolled {
            Rolled::Serving => {
                self.say(Aspect::DeployReady, Saying::yes("Deployed", "Version deployed"));
                self.say(Aspect::ServiceReady, Saying::yes("Serving", "The function responds"));
                self.status.log_lines.clear();
                Phase::Ready
            }
            Rolled::Starting => {
                self.say(Aspect::DeployReady, Saying::unknown("Starting", "Version is starting"));
                self.say_service(Saying::unknown("Starting", "Waiting for the first response"));
                Phase::Deploying
            }
            Rolled::Failed(failure) => {
                let saying =
                    Saying::no(failure.reason.name(), failure.message_for(&self.desired.metadata.name));
                self.say_service(saying.clone());
                self.say(Aspect::DeployReady, saying);
                self.status.log_lines = failure.last_lines();
                Phase::Failed
            }
        }
    }

    /// The state of the desired version. Deploys it if it does not exist.
    fn version(&mut self, wanted: &Wanted) -> Rolled {
        let Some(known) = self.observed.version(&wanted.version) else {
            let generation = self.desired.metadata.generation;
            let Wanted { version, artifact } = wanted.clone();
            self.act(Task::Deploy { version, artifact, generation });
            self.note_candidate(wanted);
            return Rolled::Starting;
        };
        match &known.state {
            VersionState::Serving => Rolled::Serving,
            VersionState::Failed(failure) => Rolled::Failed(failure.clone()),
            // The desired version is still being retired. It starts again after that.
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
                    format!("The function did not respond within {waited}"),
                ))
            }
        }
    }

    /// Retires other versions when the desired version responds. Until then, the version that served last stays: it may recover.
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
            Phase::Failed => Saying::unknown("BuildNotReady", "No artifact to deploy"),
            _ => Saying::unknown("WaitingForBuild", "Waiting for the build"),
        };
        self.say(Aspect::DeployReady, saying);
        let starting = starting(self.observed, self.now.0, self.limits.start_ms_max);
        if let Some(deadline) = starting {
            self.wake(deadline);
        }
        match phase {
            Phase::Failed => self.say_service(Saying::no("NotDeployed", "No version can serve")),
            _ => self.say_service(Saying::unknown("NotDeployed", "No version is deployed yet")),
        }
        // An earlier version may still start.
        if phase == Phase::Failed && starting.is_some() { Phase::Deploying } else { phase }
    }

    /// Sets the service condition when the desired version does not serve. Another version may serve.
    fn say_service(&mut self, otherwise: Saying) {
        let saying = match self.observed.serving() {
            Some(_) => Saying::yes("ServingPreviousVersion", "The previous version is serving"),
            None => otherwise,
        };
        self.say(Aspect::ServiceReady, saying);
    }

    /// Scaling needs no new version: every version receives the new settings.
    fn scale(&mut self) {
        let (observed, scaling) = (self.observed, self.desired.spec.scaling);
        for version in &observed.versions {
            if !version.is_retiring() && version.scaling != scaling {
                self.act(Task::Scale { version: version.version.clone(), scaling });
            }
        }
        // Versions that the same plan retires need no new settings.
        let retired: Vec<String> = self.actions.iter().filter_map(retired).collect();
        self.actions.retain(|action| {
            !matches!(action, Action::Platform(Task::Scale { version, .. }) if retired.contains(version))
        });
    }

    fn note_service(&mut self, wanted: Option<&Wanted>) {
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
            generation: self.served_generation(serving, wanted, before.as_deref()),
            revision: revision_of(&self.status, &serving.version),
            scaling: Some(serving.scaling),
        };
        let told = match &before {
            None => Some(EventKind::ServiceCreated),
            Some(old) if (&old.version, old.scaling, &old.url) != (&now.version, now.scaling, &now.url) => {
                Some(EventKind::ServiceUpdated)
            }
            Some(_) => None,
        };
        self.status.service_status = Some(Box::new(now));
        if let Some(kind) = told {
            self.tell_service(kind);
        }
        self.check_health();
    }

    /// The generation of the spec that the serving version belongs to.
    fn served_generation(
        &self,
        serving: &Version,
        wanted: Option<&Wanted>,
        before: Option<&ServiceStatus>,
    ) -> u64 {
        if wanted.is_some_and(|wanted| wanted.version == serving.version) {
            return self.desired.metadata.generation;
        }
        let known = before.filter(|before| before.version.as_ref() == Some(&serving.version));
        let known = known.map(|before| before.generation).filter(|generation| *generation > 0);
        let recorded = self.status.revisions.iter().rev().find(|kept| kept.version == base(&serving.version));
        known.or(recorded.map(|kept| kept.generation)).unwrap_or(serving.generation)
    }

    fn not_ready(&self, service: &ServiceStatus) -> ServiceStatus {
        let last = service.version.as_ref().and_then(|version| self.observed.version(version));
        let replicas = last.map_or(0, |version| version.replicas);
        ServiceStatus { ready: false, replicas, ..service.clone() }
    }

    /// Emits an event when the function starts or stops responding.
    fn check_health(&mut self) {
        let before = self.desired.status.condition(Aspect::ServiceReady).map(|condition| condition.status);
        let after = self.status.condition(Aspect::ServiceReady).map(|condition| condition.status);
        if before != after && self.status.service_status.is_some() {
            self.tell_status(EventKind::HealthCheck);
        }
    }
}

/// The newest revision of this version.
fn revision_of(status: &Status, version: &str) -> Option<u64> {
    status.revisions.iter().rev().find(|kept| kept.version == base(version)).map(|kept| kept.number)
}

fn retired(action: &Action) -> Option<String> {
    match action {
        Action::Platform(Task::Retire { version }) => Some(version.clone()),
        _ => None,
    }
}

/// Until when a version may still start.
fn starting(observed: &Observed, now_ms: u64, start_ms_max: u64) -> Option<klambda_core::time::Millis> {
    let deadlines = observed.versions.iter().filter_map(|version| match version.state {
        VersionState::Starting { since } => Some(since + start_ms_max),
        _ => None,
    });
    deadlines.filter(|deadline| deadline.0 > now_ms).max()
}
