//! One test for each case in the specification of the planner.

use crate::platform::Platform;
use crate::{created, git, inline};
use klambda_core::kinds;
use klambda_core::time::Millis;
use klambda_functions::conditions::{self, Saying};
use klambda_functions::failure::{Failure, LINES_MAX, Reason};
use klambda_functions::observed::VersionState;
use klambda_functions::plan::Action;
use klambda_functions::platform::Task;
use klambda_functions::resource::{Aspect, BuildOutcome, Phase, Resource, STATUS_BYTES_MAX, Truth};
use klambda_functions::{request, write};
use serde_json::{Value, json};

fn ready(manifest: &Value) -> Platform {
    let mut platform = Platform::new(created(manifest));
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Ready));
    platform
}

fn update(platform: &mut Platform, body: Value) {
    platform.resource = Some(write::update(platform.resource(), &body).unwrap().resource);
}

fn code(text: &str) -> Value {
    json!({ "spec": { "source": { "inline": { "code": text } } } })
}

fn says(resource: &Resource, aspect: Aspect) -> (Truth, &str) {
    let condition = resource.status.condition(aspect).unwrap();
    (condition.status, &condition.reason)
}

fn outcome(platform: &Platform) -> Option<BuildOutcome> {
    platform.resource().status.build_status.as_ref().and_then(|build| build.outcome)
}

#[test]
fn a_function_goes_from_pending_to_ready_and_tells_each_step() {
    let resource = created(&git("https://h/shop.git"));
    assert_eq!(resource.status.phase, Phase::Pending);
    let mut platform = Platform::new(resource);
    platform.settle();
    assert_eq!(platform.phases, [Phase::Building, Phase::Deploying, Phase::Ready]);
    let status = &platform.resource().status;
    let doubtful: Vec<Aspect> = Aspect::ALL.into_iter().filter(|aspect| !status.is_true(*aspect)).collect();
    assert_eq!(doubtful, [Aspect::AiAgentReady]);
    assert_eq!(status.observed_generation, 1);
    let told: Vec<&str> =
        platform.kinds().into_iter().filter(|kind| *kind != kinds::STATUS_UPDATED).collect();
    assert_eq!(
        told,
        [
            kinds::FUNCTION_CREATED,
            kinds::BUILD_STARTED,
            kinds::BUILD_COMPLETED,
            kinds::SERVICE_CREATED,
            kinds::HEALTH_CHECK,
        ]
    );
    platform.check_events();
}

/// A status leaves room for the largest spec, whatever its messages contain.
#[test]
fn a_status_is_bounded() {
    let noise = "\u{1}".repeat(100_000);
    let failure = || Failure::new(Reason::SourceNotFound, noise.clone()).with_lines(vec![noise.clone(); 50]);
    let url = format!("http://h/{}", "\"".repeat(4080));
    let mut manifest = inline("");
    manifest["spec"]["source"] = json!({ "type": "url", "url": { "url": url } });
    let mut platform = ready(&manifest);
    let said = Some(Saying::no("Noise", noise.clone()));
    for part in
        [&mut platform.observed.broker, &mut platform.observed.dead_letters, &mut platform.observed.agent]
    {
        part.clone_from(&said);
    }
    for version in &mut platform.observed.versions {
        version.state = VersionState::Failed(failure());
    }
    platform.observed.subscription.as_mut().unwrap().fault = Some(noise.clone());
    platform.settle();
    let mut resource = platform.resource().clone();
    // A function at a URL does not use all conditions, so the test sets all of them.
    for aspect in Aspect::ALL {
        let now = Millis(1);
        conditions::set(&mut resource.status.conditions, aspect, Saying::no("Noise", noise.clone()), 1, now);
    }
    resource.status.build_status.as_mut().unwrap().error = Some(failure().message());
    assert_eq!(resource.status.log_lines.len(), LINES_MAX);
    let added = write::delete(&resource, Millis(1)).to_stored().len() - resource.asked_bytes();
    assert!(added < STATUS_BYTES_MAX - 1024, "{added}");
    assert!(failure().message().ends_with("run `klambda rebuild`."), "the advice is not truncated");
}

#[test]
fn a_failed_build_leaves_the_old_version_serving() {
    let mut platform = ready(&inline("one"));
    let before = platform.observed.versions.clone();
    update(&mut platform, code("two"));
    platform.step(false);
    let lines = (0..50).map(|n| format!("line {n}")).collect();
    platform.built(Err(Failure::new(Reason::SyntaxError, "index.js:1").with_lines(lines)));
    platform.settle();
    let resource = platform.resource();
    assert_eq!(platform.phase(), Some(Phase::Ready));
    assert_eq!(platform.observed.versions, before);
    assert_eq!(says(resource, Aspect::BuildReady), (Truth::False, "SyntaxError"));
    assert_eq!(says(resource, Aspect::ServiceReady), (Truth::True, "ServingPreviousVersion"));
    assert_eq!(resource.status.log_lines.len(), LINES_MAX);
    assert_eq!(resource.status.log_lines.last().unwrap(), "line 49");
    let message = &resource.status.condition(Aspect::BuildReady).unwrap().message;
    assert_eq!(message, "index.js:1. Fix the error shown in the build log: `klambda logs --build hello`.");
    assert_eq!(platform.count(kinds::BUILD_FAILED), 1);
    assert_eq!(platform.phases, [Phase::Building, Phase::Deploying, Phase::Ready], "the phase stays Ready");
}

#[test]
fn a_version_that_will_not_start_leaves_the_old_one_serving() {
    let mut platform = ready(&inline("one"));
    let old = platform.observed.serving().unwrap().version.clone();
    update(&mut platform, code("two"));
    platform.step(false);
    platform.built(Ok(()));
    platform.step(false);
    assert_eq!(platform.observed.versions.len(), 2, "the new version starts beside the old one");
    platform.started(Err(Failure::new(Reason::HandlerNotFound, "index.handler is not exported")));
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Ready));
    assert_eq!(platform.observed.serving().unwrap().version, old);
    assert_eq!(says(platform.resource(), Aspect::DeployReady), (Truth::False, "HandlerNotFound"));
    update(&mut platform, code("three"));
    platform.settle();
    assert_eq!(says(platform.resource(), Aspect::DeployReady), (Truth::True, "Deployed"));
    assert_eq!(platform.observed.versions.len(), 1, "the failed and the old version are removed");
    assert_ne!(platform.observed.serving().unwrap().version, old);
    assert_eq!(platform.count(kinds::SERVICE_UPDATED), 1);
}

/// Values may be secrets, and every subscriber sees these events.
#[test]
fn values_of_the_environment_are_not_told() {
    let mut manifest = inline("one");
    let from = json!({ "secretKeyRef": { "name": "s", "key": "k" } });
    manifest["spec"]["env"] =
        json!([{ "name": "PLAIN", "value": "hush-hush" }, { "name": "KEPT", "valueFrom": from }]);
    let mut platform = ready(&manifest);
    update(&mut platform, json!({ "spec": { "env": [{ "name": "PLAIN", "value": "hush-again" }] } }));
    platform.settle();
    let told: Vec<String> = platform.events.iter().map(|event| format!("{event:?}")).collect();
    assert!(told.iter().any(|event| event.contains("PLAIN")), "events contain the names");
    assert!(!told.iter().any(|event| event.contains("hush")), "{told:#?}");
}

#[test]
fn only_what_must_be_done_again_is() {
    let mut platform = ready(&inline("one"));
    let version = platform.observed.serving().unwrap().version.clone();
    update(&mut platform, json!({ "spec": { "scaling": { "maxReplicas": 3 } } }));
    platform.settle();
    let serving = platform.observed.serving().unwrap();
    assert_eq!((&serving.version, serving.scaling.max_replicas), (&version, 3));
    assert_eq!((platform.builds(), platform.count(kinds::SERVICE_UPDATED)), (1, 1));

    update(&mut platform, json!({ "spec": { "env": [{ "name": "A", "value": "1" }] } }));
    platform.settle();
    assert_eq!(platform.builds(), 1, "a changed environment needs no new build");
    assert_ne!(platform.observed.serving().unwrap().version, version);

    update(&mut platform, code("two"));
    platform.settle();
    assert_eq!(platform.builds(), 2);
    update(&mut platform, code("one"));
    platform.settle();
    assert_eq!(platform.builds(), 2, "known content is not built again");
    assert_eq!(says(platform.resource(), Aspect::BuildReady), (Truth::True, "AlreadyBuilt"));

    update(&mut platform, json!({ "spec": { "runtime": { "handler": "main.run" } } }));
    platform.settle();
    assert_eq!(platform.builds(), 3);
    let mut resource = platform.resource().clone();
    request::rebuild(&mut resource, "again");
    platform.resource = Some(resource);
    platform.settle();
    assert_eq!(platform.builds(), 4, "a requested rebuild builds again");
    assert_eq!(platform.phase(), Some(Phase::Ready));
}

#[test]
fn what_may_pass_is_tried_three_times() {
    let mut platform = Platform::new(created(&git("https://h/shop.git")));
    platform.step(false);
    for _ in 0..3 {
        platform.fetched(Err(Failure::new(Reason::SourceUnreachable, "no route to host")));
        platform.step(false);
        platform.now = platform.wake_at.unwrap_or(platform.now);
        platform.step(false);
    }
    assert_eq!(platform.phase(), Some(Phase::Failed));
    assert_eq!(says(platform.resource(), Aspect::SourceReady), (Truth::False, "SourceUnreachable"));
    assert_eq!(platform.now, Millis(1000 + 1000 + 2000));
    assert_eq!((platform.count(kinds::BUILD_STARTED), platform.count(kinds::BUILD_FAILED)), (1, 1));
    platform.restarted();
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Failed), "a restart does not retry forever");
}

#[test]
fn no_try_begins_after_twenty_seconds() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.step(false);
    platform.now = Millis(1000 + 19_500);
    platform.built(Err(Failure::new(Reason::DependencyFailed, "registry unreachable")));
    platform.step(false);
    assert_eq!(outcome(&platform), Some(BuildOutcome::Failed));
    assert_eq!(platform.phase(), Some(Phase::Failed));
}

#[test]
fn timeout_cancel_and_stop_are_outcomes_of_their_own() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.step(false);
    assert_eq!(platform.wake_at, Some(Millis(1000 + 30 * 60_000)));
    platform.now = platform.wake_at.unwrap();
    platform.step(false);
    assert_eq!((outcome(&platform), platform.phase()), (Some(BuildOutcome::Timeout), Some(Phase::Failed)));
    assert_eq!(platform.count(kinds::BUILD_TIMEOUT), 1);
    assert_eq!(platform.observed.build, None, "the build is cancelled");

    for (ask, ended, kind) in [
        (request::cancel_build as fn(&mut Resource), BuildOutcome::Cancelled, kinds::BUILD_CANCELLED),
        (request::stop_builds, BuildOutcome::Stopped, kinds::BUILD_STOPPED),
    ] {
        let mut platform = Platform::new(created(&inline("one")));
        platform.step(false);
        ask(platform.resource.as_mut().unwrap());
        platform.settle();
        assert_eq!((outcome(&platform), platform.phase()), (Some(ended), Some(Phase::Failed)));
        assert_eq!(platform.count(kind), 1);
        update(&mut platform, code("two"));
        platform.settle();
        let held = ended == BuildOutcome::Stopped;
        let expected = if held { Phase::Pending } else { Phase::Ready };
        assert_eq!(platform.phase(), Some(expected), "stop holds later builds, cancel does not");
        request::rebuild(platform.resource.as_mut().unwrap(), "go");
        platform.settle();
        assert_eq!(platform.phase(), Some(Phase::Ready));
        platform.check_events();
    }
}

#[test]
fn what_only_waits_for_others_does_not_run_out_of_time() {
    for manifest in [inline("one"), git("https://h/shop.git")] {
        let mut platform = Platform::new(created(&manifest));
        platform.step(false);
        let aspect = match platform.observed.source {
            Some(_) => Aspect::SourceReady,
            None => Aspect::BuildReady,
        };
        platform.queued(true);
        platform.step(false);
        platform.now = platform.now + 3 * 3_600_000;
        platform.step(false);
        assert_eq!((platform.phase(), platform.wake_at), (Some(Phase::Building), None));
        assert_eq!(says(platform.resource(), aspect), (Truth::Unknown, "WaitingForSlot"));
        let message = &platform.resource().status.condition(aspect).unwrap().message;
        assert_eq!(message, "Waiting for a build slot; queued behind 2 other builds");
        platform.queued(false);
        platform.step(false);
        assert_eq!(
            platform.wake_at,
            Some(platform.now + 30 * 60_000),
            "the timeout counts from the start of the build"
        );
        platform.now = platform.wake_at.unwrap();
        platform.step(false);
        assert_eq!(outcome(&platform), Some(BuildOutcome::Timeout));
        platform.check_events();
    }
}

#[test]
fn a_newer_spec_ends_the_build_of_the_older() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.step(false);
    update(&mut platform, code("two"));
    platform.settle();
    assert_eq!(platform.count(kinds::BUILD_CANCELLED), 1);
    assert_eq!(platform.phase(), Some(Phase::Ready));
    platform.check_events();
}

#[test]
fn every_failure_ends_with_a_reason_and_what_to_do() {
    for reason in Reason::ALL {
        let stages: [fn(&mut Platform, Failure); 3] = [
            |platform, failure| platform.fetched(Err(failure)),
            |platform, failure| platform.built(Err(failure)),
            |platform, failure| platform.started(Err(failure)),
        ];
        for (stage, fail) in stages.iter().enumerate() {
            let mut platform = Platform::new(created(&git("https://h/shop.git")));
            for _ in 0..40 {
                platform.step(false);
                fail(&mut platform, Failure::new(*reason, "It broke"));
                let good = [stage > 0, stage > 1];
                if good[0] {
                    platform.fetched(Ok("d"));
                }
                if good[1] {
                    platform.built(Ok(()));
                }
                if platform.phase() == Some(Phase::Failed) {
                    break;
                }
                platform.now = platform.wake_at.unwrap_or(platform.now).min(platform.now + 5000);
            }
            assert_eq!(platform.phase(), Some(Phase::Failed), "{reason:?} at {stage}");
            let aspect = [Aspect::SourceReady, Aspect::BuildReady, Aspect::DeployReady][stage];
            let condition = platform.resource().status.condition(aspect).unwrap();
            assert_eq!((condition.status, condition.reason.as_str()), (Truth::False, reason.name()));
            let advice = reason.advice().replace("NAME", &platform.resource().metadata.name);
            assert_eq!(condition.message, format!("It broke. {advice}."));
        }
    }
}

#[test]
fn a_crash_is_told_and_healed() {
    let mut platform = ready(&inline("one"));
    platform.crashed(Failure::new(Reason::CrashLoop, "exit code 1").with_lines(vec!["boom".into()]));
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Failed));
    assert_eq!(says(platform.resource(), Aspect::ServiceReady), (Truth::False, "CrashLoop"));
    assert_eq!(platform.resource().status.log_lines, ["boom"]);
    platform.recovered();
    platform.settle();
    assert_eq!(platform.phase(), Some(Phase::Ready));
    assert!(platform.resource().status.log_lines.is_empty());
    assert_eq!(platform.count(kinds::HEALTH_CHECK), 3);
}

#[test]
fn a_version_that_never_answers_fails() {
    let mut platform = Platform::new(created(&inline("one")));
    platform.step(false);
    platform.built(Ok(()));
    platform.step(false);
    platform.step(false);
    platform.now = platform.wake_at.unwrap();
    platform.step(false);
    assert_eq!(says(platform.resource(), Aspect::DeployReady), (Truth::False, "NeverAnswered"));
    assert_eq!(platform.phase(), Some(Phase::Failed));
}

#[test]
fn deletion_drains_then_ends_then_forgets() {
    let mut platform = ready(&inline("one"));
    platform.observed.subscription.as_mut().unwrap().waiting = 5;
    platform.resource = Some(write::delete(platform.resource(), platform.now));
    let until = platform.now + 30_000;
    platform.step(false);
    assert_eq!(platform.phase(), Some(Phase::Deleting));
    assert_eq!(platform.wake_at, Some(until));
    assert!(platform.observed.subscription.as_ref().unwrap().draining);
    assert!(platform.observed.serving().is_some(), "pending events are still delivered");
    platform.now = until;
    platform.step(false);
    assert_eq!(platform.observed.subscription, None, "the remaining events become dead letters");
    platform.settle();
    assert_eq!(platform.resource, None);
    let told = platform.kinds();
    let last: Vec<&str> = told.iter().rev().take(3).rev().copied().collect();
    assert_eq!(last, [kinds::SERVICE_DELETED, kinds::STATUS_UPDATED, kinds::FUNCTION_DELETED]);

    let mut platform = ready(&inline("one"));
    platform.resource = Some(write::delete(platform.resource(), platform.now));
    platform.settle();
    assert_eq!(
        (platform.resource, platform.now < until),
        (None, true),
        "without pending events the deletion does not wait"
    );
}

#[test]
fn triggers_that_match_nothing_are_told() {
    let mut manifest = inline("one");
    manifest["spec"]["triggers"] =
        json!([{ "filters": [{ "exact": { "type": "a" } }, { "prefix": { "type": "b" } }] }]);
    let platform = ready(&manifest);
    assert_eq!(says(platform.resource(), Aspect::TriggersReady), (Truth::False, "MatchesNothing"));
    let mut platform = ready(&inline("one"));
    platform.observed.subscription.as_mut().unwrap().fault = Some("too many filters".into());
    platform.settle();
    assert_eq!(says(platform.resource(), Aspect::TriggersReady), (Truth::False, "Refused"));
}

#[test]
fn what_is_built_elsewhere_is_only_deployed() {
    for source in [
        json!({ "type": "image", "image": { "uri": "ghcr.io/team/agent:1" } }),
        json!({ "type": "url", "url": { "url": "http://127.0.0.1:9000/" } }),
    ] {
        let mut manifest = inline("");
        manifest["spec"]["source"] = source;
        manifest["spec"].as_object_mut().unwrap().remove("runtime");
        let platform = ready(&manifest);
        assert_eq!(platform.builds(), 0);
        assert_eq!(platform.count(kinds::BUILD_STARTED), 0);
        assert_eq!(says(platform.resource(), Aspect::BuildReady), (Truth::True, "NothingToBuild"));
    }
}

#[test]
fn events_go_to_what_serves_until_the_new_version_does() {
    let target = |platform: &mut Platform| {
        // Forgets the subscription, so that the plan requests it again.
        platform.observed.subscription = None;
        let plan = klambda_functions::plan::plan(
            platform.resource(),
            &platform.observed,
            &platform.limits,
            platform.now,
        );
        let document = plan.actions.into_iter().find_map(|action| match action {
            Action::Subscribe { document } => Some(document),
            _ => None,
        });
        document.unwrap()["spec"]["target"].clone()
    };
    let url = json!({ "url": "http://127.0.0.1:9000/" });
    let function = json!({ "function": { "namespace": "default", "name": "hello" } });
    let mut platform = ready(&inline("one"));
    assert_eq!(target(&mut platform), function);

    let elsewhere = json!({ "type": "url", "url": url, "inline": null });
    update(&mut platform, json!({ "spec": { "source": elsewhere, "runtime": null } }));
    assert_eq!(target(&mut platform), function, "the URL does not respond yet");
    platform.settle();
    assert_eq!(target(&mut platform), url);

    let mut here = inline("two")["spec"].clone();
    here["source"]["url"] = Value::Null;
    update(&mut platform, json!({ "spec": here }));
    platform.step(false);
    platform.built(Err(Failure::new(Reason::SyntaxError, "no")));
    platform.step(false);
    assert_eq!(target(&mut platform), url, "the local code is not built yet");
    update(&mut platform, code("three"));
    platform.settle();
    assert_eq!(target(&mut platform), function);
}

#[test]
fn actions_carry_what_a_platform_needs() {
    let resource = created(&inline("one"));
    let mut platform = Platform::new(resource.clone());
    let made = klambda_functions::plan::plan(&resource, &platform.observed, &platform.limits, platform.now);
    let build = made.actions.iter().find_map(|action| match action {
        Action::Platform(Task::Build { inputs, number, hash }) => {
            Some((inputs.clone(), *number, hash.clone()))
        }
        _ => None,
    });
    let (inputs, number, hash) = build.unwrap();
    assert_eq!((inputs.len(), number, hash.len()), (32, 1, 32));
    let document = made.actions.iter().find_map(|action| match action {
        Action::Subscribe { document } => Some(document.clone()),
        _ => None,
    });
    assert_eq!(document.unwrap()["metadata"]["name"], "lambda.default.hello");
    platform.settle();
    let bytes = platform.resource().to_json().to_string().len();
    assert!(bytes + size_of::<Resource>() < 8 << 10, "{bytes} bytes and {} inline", size_of::<Resource>());
}
