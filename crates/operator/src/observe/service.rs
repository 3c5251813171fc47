//! Versions: the Knative Service of a function and its revisions.

use crate::names;
use crate::snapshot::{Snapshot, annotation, condition, is_condition, is_deleting, name};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::observed::{Version, VersionState};
use klambda_functions::resource::Scaling;
use serde_json::Value;

const GENERATION: &str = "serving.knative.dev/configurationGeneration";

/// The version of the template, and the version that gets the traffic if it is another one. Knative removes old revisions.
pub(super) fn versions(snapshot: &Snapshot) -> Vec<Version> {
    let Some(service) = snapshot.service.as_deref() else { return Vec::new() };
    let Some(newest) = service["spec"]["template"]["metadata"]["annotations"][names::VERSION].as_str() else {
        return Vec::new();
    };
    let served = served(service, snapshot);
    let mut versions = vec![version(newest, state(newest, &served, service, snapshot), service, snapshot)];
    for other in served.iter().filter(|served| served.as_str() != newest) {
        let is_known = versions.iter().any(|known| known.version == *other);
        if !is_known && !is_deleting(service) {
            versions.push(version(other, VersionState::Serving, service, snapshot));
        }
    }
    versions
}

/// Versions whose revisions get traffic.
fn served(service: &Value, snapshot: &Snapshot) -> Vec<String> {
    if !is_condition(service, "RoutesReady", "True") {
        return Vec::new();
    }
    let traffic = service["status"]["traffic"].as_array().into_iter().flatten();
    let served = traffic.filter(|target| target["percent"].as_u64().unwrap_or(0) > 0);
    let names = served.filter_map(|target| target["revisionName"].as_str());
    names.filter_map(|name| Some(annotation(revision(name, snapshot)?, names::VERSION)?.to_owned())).collect()
}

fn revision<'s>(wanted: &str, snapshot: &'s Snapshot) -> Option<&'s Value> {
    snapshot.revisions.iter().map(AsRef::as_ref).find(|revision: &&Value| name(revision) == wanted)
}

fn state(newest: &str, served: &[String], service: &Value, snapshot: &Snapshot) -> VersionState {
    if is_deleting(service) {
        return VersionState::Retiring;
    }
    let is_current = service["status"]["observedGeneration"] == service["metadata"]["generation"];
    let is_ready = is_current && is_condition(service, "Ready", "True");
    if is_ready || served.iter().any(|served| served == newest) {
        return VersionState::Serving;
    }
    let created = service["status"]["latestCreatedRevisionName"].as_str();
    let revision = created.filter(|_| is_current).and_then(|created| revision(created, snapshot));
    let failed =
        revision.and_then(|revision| condition(revision, "Ready")).filter(|ready| ready["status"] == "False");
    if let Some(ready) = failed {
        return VersionState::Failed(failure(ready));
    }
    VersionState::Starting { since: super::time(revision.unwrap_or(service)) }
}

/// Why a revision is not ready. Knative has the reasons of Kubernetes in it.
fn failure(ready: &Value) -> Failure {
    let text = |name: &str| ready[name].as_str().unwrap_or_default();
    let reason = match text("reason") {
        reason if reason.starts_with("ExitCode") => Reason::CrashLoop,
        "OOMKilled" => Reason::OutOfMemory,
        "ContainerMissing" | "ImagePullBackOff" | "ErrImagePull" | "InvalidImageName" => {
            Reason::ImageNotFound
        }
        "ProgressDeadlineExceeded" => Reason::NeverAnswered,
        "CreateContainerConfigError" => Reason::SecretNotFound,
        _ => Reason::PlatformError,
    };
    let (message, lines) = match text("message").split_once("Container failed with: ") {
        Some((_, output)) => ("The container exits soon after each start", output),
        None => (text("message"), ""),
    };
    Failure::new(reason, message).with_lines(output_lines(lines))
}

fn output_lines(text: &str) -> Vec<String> {
    text.lines().filter(|line| !line.trim().is_empty()).map(str::to_owned).collect()
}

fn version(id: &str, state: VersionState, service: &Value, snapshot: &Snapshot) -> Version {
    let own = snapshot.revisions.iter().filter(|revision| annotation(revision, names::VERSION) == Some(id));
    let number = |revision: &Value| -> u64 {
        revision["metadata"]["labels"][GENERATION].as_str().and_then(|text| text.parse().ok()).unwrap_or(0)
    };
    let generation = own.clone().map(|revision| number(revision)).max();
    let replicas =
        own.map(|revision| revision["status"]["actualReplicas"].as_u64().unwrap_or(0)).sum::<u64>();
    let applied =
        annotation(service, names::SCALING).and_then(|text| serde_json::from_str::<Scaling>(text).ok());
    Version {
        version: id.to_owned(),
        // A version without a revision yet is newer than all that have one.
        generation: generation.unwrap_or(u64::MAX),
        state,
        replicas: u32::try_from(replicas).unwrap_or(u32::MAX),
        url: service["status"]["url"].as_str().map(str::to_owned),
        elsewhere: None,
        scaling: applied.unwrap_or_default(),
    }
}
