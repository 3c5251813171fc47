//! Builds: Jobs and their pods.

use crate::names::{self, BUILD_CONTAINER, FETCH_CONTAINER};
use crate::snapshot::{Snapshot, annotation, condition, is_condition, is_deleting, name};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::hash;
use klambda_functions::observed::{Artifact, BuildRun, BuildState};
use klambda_functions::resource::{BuildOutcome, BuildStatus, Resource};
use serde_json::Value;

const LINES_MAX: usize = 20;

/// The Job of the current inputs.
pub(super) fn run(resource: &Resource, snapshot: &Snapshot) -> Option<BuildRun> {
    let inputs = hash::inputs(resource);
    let job = snapshot.jobs.iter().find(|job| annotation(job, names::INPUTS) == Some(&inputs))?;
    // A Job that is being deleted is gone for the planner. The next one is created when it is really gone.
    if is_deleting(job) {
        return None;
    }
    Some(BuildRun {
        inputs,
        hash: annotation(job, names::ARTIFACT).unwrap_or_default().to_owned(),
        number: annotation(job, names::TRY).and_then(|number| number.parse().ok()).unwrap_or(0),
        state: state(job, snapshot),
    })
}

fn state(job: &Value, snapshot: &Snapshot) -> BuildState {
    if is_condition(job, "Complete", "True") {
        return match digest(job, snapshot) {
            Some(_) => BuildState::Done,
            None => BuildState::Failed(Failure::new(
                Reason::PlatformError,
                "The build finished, but its pod was removed before the digest of the image was read",
            )),
        };
    }
    match condition(job, "Failed").filter(|failed| failed["status"] == "True") {
        Some(failed) => BuildState::Failed(failure(job, failed, snapshot)),
        None => BuildState::Running,
    }
}

/// Artifacts that exist: those of finished Jobs, and the one of the status, whose Job may be gone.
pub(super) fn artifacts(resource: &Resource, snapshot: &Snapshot) -> Vec<Artifact> {
    let of_jobs = snapshot.jobs.iter().filter_map(|job| {
        let hash = annotation(job, names::ARTIFACT)?.to_owned();
        let digest = digest(job, snapshot)?;
        Some(Artifact { hash, uri: format!("{}@{digest}", annotation(job, names::IMAGE)?) })
    });
    let status = &resource.status;
    let known = [&status.build_status, &status.restored].into_iter().flatten();
    of_jobs.chain(known.filter_map(|build| known_artifact(build))).collect()
}

fn known_artifact(build: &BuildStatus) -> Option<Artifact> {
    let is_built = build.outcome == Some(BuildOutcome::Completed);
    let uri = build.image_uri.clone().filter(|uri| is_built && uri.contains("@sha256:"))?;
    Some(Artifact { hash: build.hash.clone()?, uri })
}

/// The digest that the build reported when it ended.
fn digest(job: &Value, snapshot: &Snapshot) -> Option<String> {
    if !is_condition(job, "Complete", "True") {
        return None;
    }
    let ended = pods(job, snapshot).filter_map(|pod| ended(pod, "containerStatuses", BUILD_CONTAINER));
    let mut done = ended.filter(|ended| ended["exitCode"] == 0);
    let digest = done.find_map(|ended| Some(ended["message"].as_str()?.trim().to_owned()))?;
    let is_digest = digest
        .strip_prefix("sha256:")
        .is_some_and(|hex| hex.len() == 64 && hex.bytes().all(|byte| byte.is_ascii_hexdigit()));
    is_digest.then_some(digest)
}

/// The commit that the fetch reported, if the source is a repository.
pub(super) fn commit(resource: &Resource, snapshot: &Snapshot) -> Option<String> {
    let inputs = hash::inputs(resource);
    let job = snapshot.jobs.iter().find(|job| annotation(job, names::INPUTS) == Some(&inputs));
    let told = job.into_iter().flat_map(|job| pods(job, snapshot)).find_map(|pod| {
        let ended = ended(pod, "initContainerStatuses", FETCH_CONTAINER)?;
        let told: Value = serde_json::from_str(ended["message"].as_str()?).ok()?;
        told["commit"].as_str().map(str::to_owned)
    });
    let known = resource.status.build_status.as_ref().filter(|build| build.inputs == inputs);
    told.or_else(|| known.and_then(|build| build.commit.clone()))
}

fn pods<'s>(job: &'s Value, snapshot: &'s Snapshot) -> impl Iterator<Item = &'s Value> {
    let is_of = |pod: &&Value| pod["metadata"]["labels"][names::BUILD] == name(job);
    snapshot.pods.iter().map(AsRef::as_ref).filter(is_of)
}

fn ended<'v>(pod: &'v Value, list: &str, container: &str) -> Option<&'v Value> {
    let statuses = pod["status"][list].as_array()?;
    let status = statuses.iter().find(|status| status["name"] == container)?;
    status["state"].get("terminated")
}

fn failure(job: &Value, failed: &Value, snapshot: &Snapshot) -> Failure {
    if failed["reason"] == "DeadlineExceeded" {
        let seconds = job["spec"]["activeDeadlineSeconds"].as_u64().unwrap_or(0);
        return Failure::new(Reason::BuildTimeout, format!("The build did not end within {seconds}s"));
    }
    let mut pods: Vec<&Value> = pods(job, snapshot).collect();
    pods.sort_by_key(|pod| super::time(pod));
    let fetch =
        pods.iter().rev().find_map(|pod| failed_container(pod, "initContainerStatuses", FETCH_CONTAINER));
    if let Some(message) = fetch {
        return fetch_failure(&message);
    }
    let built = pods.iter().rev().find_map(|pod| failed_container(pod, "containerStatuses", BUILD_CONTAINER));
    let message = failed["message"].as_str().unwrap_or("The build failed");
    let lines = built.unwrap_or_default();
    Failure::new(Reason::BuildFailed, message).with_lines(last_lines(&lines))
}

fn failed_container(pod: &Value, list: &str, container: &str) -> Option<String> {
    let ended = ended(pod, list, container).filter(|ended| ended["exitCode"] != 0)?;
    Some(ended["message"].as_str().unwrap_or_default().to_owned())
}

/// `klambda fetch` ends with a reason and a sentence as JSON. Anything else is its last output.
fn fetch_failure(message: &str) -> Failure {
    let told: Value = serde_json::from_str(message).unwrap_or_default();
    match told["reason"].as_str().and_then(Reason::parse) {
        Some(reason) => Failure::new(reason, told["detail"].as_str().unwrap_or_default()),
        None => Failure::new(Reason::PlatformError, "The source could not be fetched")
            .with_lines(last_lines(message)),
    }
}

fn last_lines(text: &str) -> Vec<String> {
    let lines: Vec<&str> = text.lines().filter(|line| !line.trim().is_empty()).collect();
    let skipped = lines.len().saturating_sub(LINES_MAX);
    lines.into_iter().skip(skipped).map(str::to_owned).collect()
}
