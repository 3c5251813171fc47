//! Functions whose secrets are missing or change.

use crate::platform::Platform;
use crate::{created, git, inline};
use klambda_core::kinds;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{Aspect, Phase};
use klambda_functions::secrets::Revisions;
use klambda_functions::write;
use serde_json::json;

fn run(revision: &str) -> Revisions {
    Revisions { run: revision.to_owned(), source: String::new() }
}

fn source(revision: &str) -> Revisions {
    Revisions { run: String::new(), source: revision.to_owned() }
}

fn reason(platform: &Platform, aspect: Aspect) -> &str {
    &platform.resource().status.condition(aspect).unwrap().reason
}

#[test]
fn a_changed_secret_rolls_out_and_builds_nothing() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.observed.secrets = run("db=1@1;");
    platform.settle();
    let before = platform.observed.serving().unwrap().version.clone();
    platform.observed.secrets = run("db=2@9;");
    platform.step(false);
    assert_eq!(platform.observed.versions.len(), 2, "the old version serves until the new one answers");
    platform.settle();
    let after = platform.observed.serving().unwrap();
    assert!(after.version != before && platform.observed.versions.len() == 1);
    assert_eq!((platform.builds(), platform.count(kinds::SERVICE_UPDATED)), (1, 1));
    let asked = platform.step(false);
    assert!(!asked, "the same secrets change nothing");
    let status = &platform.resource().status;
    assert_eq!(status.revisions.len(), 1, "the spec and the code are the same");
    assert_eq!(status.service_status.as_ref().unwrap().revision, Some(1));
}

/// The old spec serves with new secrets while the next spec is being built.
#[test]
fn what_serves_with_changed_secrets_is_still_a_revision() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.observed.secrets = run("db=1@1;");
    platform.settle();
    let created_at = platform.revisions[&1].created_at;
    platform.observed.secrets = run("db=2@9;");
    platform.step(false);
    let two = json!({ "spec": { "source": { "inline": { "code": "two" } } } });
    platform.resource = Some(write::update(platform.resource(), &two).unwrap().resource);
    platform.step(false);
    platform.started(Ok(()));
    platform.step(false);
    let status = &platform.resource().status;
    assert_eq!(status.service_status.as_ref().unwrap().revision, Some(1));
    assert_eq!(status.revisions.len(), 1);
    platform.settle();
    assert_eq!(platform.resource().status.service_status.as_ref().unwrap().revision, Some(2));
    assert_eq!(platform.revisions[&1].created_at, created_at, "a rotation does not write the revision again");
}

#[test]
fn a_version_without_its_secret_waits_for_it() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.observed.secrets = run("db?;");
    platform.step(false);
    platform.built(Ok(()));
    platform.step(false);
    platform.started(Err(Failure::new(Reason::SecretNotFound, "no secret db")));
    platform.step(false);
    assert_eq!(platform.phase(), Some(Phase::Failed));
    assert_eq!(reason(&platform, Aspect::DeployReady), "SecretNotFound");
    assert_eq!(platform.wake_at, Some(platform.now + 5000), "files may come without notice");
    platform.observed.secrets = run("db=1@1;");
    platform.settle();
    assert_eq!((platform.phase(), platform.builds()), (Some(Phase::Ready), 1));
}

#[test]
fn a_source_without_its_secret_is_fetched_when_the_secret_is_another() {
    for failed_by in [Reason::SecretNotFound, Reason::SecretUnreadable, Reason::SourceRefused] {
        let mut platform = Platform::new(created(&git("https://h/shop.git")));
        platform.observed.secrets = source("keys?;");
        platform.step(false);
        platform.fetched(Err(Failure::new(failed_by, "no way in")));
        platform.step(false);
        assert_eq!(reason(&platform, Aspect::SourceReady), failed_by.name());
        let asked = platform.step(false);
        assert!(!asked, "the same secret is not tried again");
        platform.observed.secrets = source("keys=1@1;");
        platform.settle();
        assert_eq!(platform.phase(), Some(Phase::Ready), "{failed_by:?}");
        assert_eq!((platform.count(kinds::BUILD_STARTED), platform.count(kinds::BUILD_FAILED)), (2, 1));
        platform.check_events();
    }
}

#[test]
fn other_failures_are_not_tried_again_when_a_secret_changes() {
    let mut platform = Platform::new(created(&git("https://h/shop.git")));
    platform.step(false);
    platform.fetched(Err(Failure::new(Reason::SourceNotFound, "no such branch")));
    platform.step(false);
    platform.observed.secrets = source("keys=1@1;");
    let asked = platform.step(false);
    assert!(!asked && platform.phase() == Some(Phase::Failed));
}
