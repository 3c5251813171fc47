//! Which versions are kept, and the result of a rollback.

use crate::platform::Platform;
use crate::{birth, created, git, inline};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::request;
use klambda_functions::resource::{Form, Phase, Resource};
use klambda_functions::write::{self, Change, Written};
use serde_json::{Value, json};

fn ready(manifest: &Value) -> Platform {
    let mut platform = Platform::new(created(manifest));
    platform.settle();
    platform
}

fn update(platform: &mut Platform, body: &Value) {
    platform.resource = Some(write::update(platform.resource(), body).unwrap().resource);
}

fn code(text: &str) -> Value {
    json!({ "spec": { "source": { "inline": { "code": text } } } })
}

/// Number and generation of each.
fn kept(platform: &Platform) -> Vec<(u64, u64)> {
    platform.resource().status.revisions.iter().map(|kept| (kept.number, kept.generation)).collect()
}

fn serves(platform: &Platform) -> (u64, Option<u64>) {
    let service = platform.resource().status.service_status.as_ref().unwrap();
    (service.generation, service.revision)
}

#[test]
fn what_serves_is_a_revision_and_scaling_makes_no_new_one() {
    let mut platform = ready(&inline("one"));
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1)], (1, Some(1))));
    update(&mut platform, &json!({ "spec": { "scaling": { "maxReplicas": 3 } } }));
    platform.settle();
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1)], (2, Some(1))));
    update(&mut platform, &json!({ "spec": { "triggers": null } }));
    platform.settle();
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1), (2, 3)], (3, Some(2))));
    platform.restarted();
    platform.settle();
    assert_eq!(kept(&platform), [(1, 1), (2, 3)], "a restart makes none");
}

#[test]
fn what_never_served_is_none() {
    let mut platform = ready(&inline("one"));
    update(&mut platform, &code("two"));
    platform.step(false);
    platform.built(Err(Failure::new(Reason::SyntaxError, "index.js:1")));
    platform.settle();
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1)], (1, Some(1))));
    update(&mut platform, &code("three"));
    platform.settle();
    assert_eq!(kept(&platform), [(1, 1), (2, 3)]);
}

/// The spec of a version that comes up late is kept, even if another one is asked for by then.
#[test]
fn a_version_that_serves_when_the_next_is_being_built_is_kept_as_it_was() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.step(false);
    platform.built(Ok(()));
    platform.step(false);
    update(&mut platform, &code("two"));
    platform.step(false);
    platform.started(Ok(()));
    platform.step(false);
    platform.built(Err(Failure::new(Reason::SyntaxError, "index.js:1")));
    platform.settle();
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1)], (1, Some(1))));
    let source = platform.revisions[&1].spec.source.as_ref().and_then(|source| source.inline.clone());
    assert_eq!(source.unwrap().code, "one");
}

#[test]
fn only_the_newest_are_kept_and_numbers_go_on() {
    let mut platform = ready(&inline("one"));
    platform.limits.revisions_max = 2;
    for n in 0..3 {
        update(&mut platform, &code(&format!("{n}")));
        platform.settle();
    }
    assert_eq!(kept(&platform), [(3, 3), (4, 4)]);
    assert_eq!(platform.revisions.keys().copied().collect::<Vec<u64>>(), [3, 4]);
    assert!(!platform.rollback(1));
    assert!(platform.rollback(3));
    platform.settle();
    assert_eq!(kept(&platform), [(4, 4), (5, 5)]);
}

/// The branch moved on, and a rebuild took it: the way back fetches nothing.
#[test]
fn a_rollback_serves_the_old_artifact_without_a_fetch_or_build() {
    let mut platform = ready(&git("https://h/shop.git"));
    let first = platform.resource().status.revisions[0].clone();
    assert_eq!(platform.revisions[&1].commit.as_deref(), Some("d"));
    request::rebuild(platform.resource.as_mut().unwrap(), "again");
    platform.step(false);
    platform.fetched(Ok("moved"));
    platform.settle();
    assert_eq!(kept(&platform), [(1, 1), (2, 1)]);
    assert_eq!(platform.revisions[&2].commit.as_deref(), Some("moved"));
    let tries = platform.resource().counters.tries;
    assert!(platform.rollback(1));
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Ready));
    assert_eq!(kept(&platform), [(1, 1), (2, 1), (3, 2)]);
    assert_eq!(platform.observed.serving().unwrap().version, first.version);
    assert_eq!(platform.resource().counters.tries, tries, "nothing is fetched or built");
    let build = platform.resource().status.build_status.clone().unwrap();
    assert_eq!((build.commit.as_deref(), build.hash.as_ref()), (Some("d"), Some(&first.artifact)));
    platform.check_events();
}

#[test]
fn a_rollback_neither_resumes_nor_rescales() {
    let mut platform = ready(&inline("one"));
    update(&mut platform, &code("two"));
    platform.settle();
    update(&mut platform, &json!({ "spec": { "paused": true, "scaling": { "maxReplicas": 3 } } }));
    platform.settle();
    assert!(platform.rollback(1));
    let spec = &platform.resource().spec;
    assert!(spec.paused && spec.scaling.max_replicas == 3, "{spec:?}");
}

#[test]
fn a_rollback_ends_the_build_that_runs() {
    let mut platform = ready(&inline("one"));
    update(&mut platform, &code("two"));
    platform.step(false);
    assert!(platform.rollback(1));
    platform.settle();
    assert_eq!((kept(&platform), serves(&platform)), (vec![(1, 1)], (3, Some(1))));
    platform.check_events();
}

#[test]
fn after_a_rollback_the_next_apply_merges_with_what_came_back() {
    let apply = |live: Option<&Resource>, manifest: &Value| {
        write::apply(live, manifest, Form::Manifest, birth(1)).unwrap().resource
    };
    let (mut one, two) = (inline("one"), inline("two"));
    one["spec"]["env"] = json!([{ "name": "ONLY_IN_ONE", "value": "1" }]);
    let mut platform = Platform::new(apply(None, &one));
    platform.settle();
    platform.resource = Some(apply(platform.resource.as_ref(), &two));
    platform.settle();
    assert!(platform.rollback(1));
    platform.settle();
    assert_eq!(platform.resource().spec.env.len(), 1);
    let again = apply(platform.resource.as_ref(), &two);
    assert!(again.spec.env.is_empty(), "{:?}", again.spec.env);
}

#[test]
fn a_folder_with_other_content_is_a_new_generation() {
    let mut manifest = inline("");
    manifest["spec"]["source"] = json!({ "type": "folder", "folder": { "path": "/srv/f" } });
    let platform = ready(&manifest);
    let fetched = platform.resource().status.build_status.as_ref().unwrap().source_digest.clone().unwrap();
    let look = |resource: &Resource, digest: Option<&str>| {
        let written = Written { resource: resource.clone(), change: Change::Nothing };
        request::note_folder(written, digest)
    };
    let same = look(platform.resource(), Some(&fetched));
    assert_eq!((same.change, &same.resource), (Change::Nothing, platform.resource()));
    let changed = look(platform.resource(), Some("other"));
    assert_eq!((changed.change, changed.resource.metadata.generation), (Change::Spec, 2));
    let mut platform = platform;
    let twice = look(&changed.resource, Some("other"));
    assert_eq!(twice.change, Change::Nothing, "it is asked for already");
    platform.resource = Some(changed.resource);
    platform.settle();
    assert_eq!(kept(&platform), [(1, 1), (2, 2)]);
    assert_eq!(
        look(platform.resource(), None).change,
        Change::Spec,
        "the status says that it cannot be read"
    );
}
