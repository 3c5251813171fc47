//! Random changes, failures, crashes and lost actions: a function always reaches a final state, and the rules hold.

use crate::platform::Platform;
use crate::{created, git, inline};
use klambda_core::kinds;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::Phase;
use klambda_functions::{request, write};
use proptest::prelude::*;
use serde_json::{Value, json};

#[derive(Clone, Debug)]
enum Op {
    Update(Value),
    Rebuild(u8),
    Rollback(u64),
    /// The secrets that the function runs with change.
    Rotate(u8),
    Stop,
    Cancel,
    Fetched(Option<Reason>, u8),
    Built(Option<Reason>),
    Queued(bool),
    Started(Option<Reason>),
    Crash(Reason),
    Recover,
    Gone,
    Restart,
    Wait(u64),
    Wake,
    /// The actions of this plan are lost.
    Lost,
    Delete,
}

fn update() -> impl Strategy<Value = Value> {
    prop_oneof![
        (0..3u8).prop_map(|n| inline(&format!("code {n}"))["spec"]["source"].clone()).prop_map(source),
        (0..3u8).prop_map(|n| git(&format!("https://h/{n}"))["spec"]["source"].clone()).prop_map(source),
        Just(source(json!({ "type": "url", "url": { "url": "http://h/" } }))),
        (0..3u8).prop_map(|n| json!({ "spec": { "env": [{ "name": "A", "value": n.to_string() }] } })),
        (1..4u32).prop_map(|n| json!({ "spec": { "scaling": { "maxReplicas": n } } })),
        (1..4u32).prop_map(|n| json!({ "spec": { "build": { "timeout": format!("{n}s") } } })),
        Just(json!({ "spec": { "build": { "forceRebuild": true } } })),
        Just(json!({ "spec": { "triggers": null } })),
        Just(json!({ "spec": { "triggers": [{ "filters": [{ "prefix": { "type": "a" } }] }] } })),
    ]
}

fn source(source: Value) -> Value {
    json!({ "spec": { "source": source } })
}

fn reason() -> impl Strategy<Value = Reason> {
    prop::sample::select(Reason::ALL)
}

fn op() -> impl Strategy<Value = Op> {
    prop_oneof![
        3 => update().prop_map(Op::Update),
        1 => any::<u8>().prop_map(Op::Rebuild),
        1 => (1..6u64).prop_map(Op::Rollback),
        1 => (0..3u8).prop_map(Op::Rotate),
        1 => Just(Op::Stop),
        1 => Just(Op::Cancel),
        4 => (prop::option::weighted(0.4, reason()), 0..2u8).prop_map(|(reason, n)| Op::Fetched(reason, n)),
        4 => prop::option::weighted(0.4, reason()).prop_map(Op::Built),
        2 => any::<bool>().prop_map(Op::Queued),
        4 => prop::option::weighted(0.4, reason()).prop_map(Op::Started),
        1 => reason().prop_map(Op::Crash),
        1 => Just(Op::Recover),
        2 => Just(Op::Gone),
        1 => Just(Op::Restart),
        2 => (0..5000u64).prop_map(Op::Wait),
        2 => Just(Op::Wake),
        1 => Just(Op::Lost),
        1 => Just(Op::Delete),
    ]
}

fn failure(reason: Reason) -> Failure {
    Failure::new(reason, "It broke").with_lines(vec!["line".into(); 30])
}

fn run(platform: &mut Platform, op: Op) {
    let Some(resource) = &mut platform.resource else { return };
    let outcome = |reason: Option<Reason>| reason.map_or(Ok(()), |reason| Err(failure(reason)));
    match op {
        Op::Update(body) => {
            if let Ok(written) = write::update(resource, &body) {
                *resource = written.resource;
            }
        }
        Op::Rebuild(id) => request::rebuild(resource, &id.to_string()),
        Op::Rollback(number) => drop(platform.rollback(number)),
        Op::Rotate(number) => platform.observed.secrets.run = format!("db={number}@1;"),
        Op::Stop => request::stop_builds(resource),
        Op::Cancel => request::cancel_build(resource),
        Op::Fetched(None, n) => platform.fetched(Ok(&n.to_string())),
        Op::Fetched(Some(reason), _) => platform.fetched(Err(failure(reason))),
        Op::Built(reason) => platform.built(outcome(reason)),
        Op::Queued(waits) => platform.queued(waits),
        Op::Started(reason) => platform.started(outcome(reason)),
        Op::Crash(reason) => platform.crashed(failure(reason)),
        Op::Recover => platform.recovered(),
        Op::Gone => platform.retired_are_gone(),
        Op::Restart => platform.restarted(),
        Op::Wait(ms) => platform.now = platform.now + ms,
        Op::Wake => platform.now = platform.wake_at.unwrap_or(platform.now).max(platform.now),
        Op::Lost => drop(platform.step(true)),
        Op::Delete => *resource = write::delete(resource, platform.now),
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn whatever_happens_it_ends_and_the_rules_hold(
        from_git in any::<bool>(),
        ops in prop::collection::vec(op(), 0..40),
    ) {
        let manifest = if from_git { git("https://h/0") } else { inline("code 0") };
        let mut platform = Platform::new(created(&manifest));
        platform.step(false);
        for op in ops {
            run(&mut platform, op);
            platform.step(false);
        }
        platform.settle();
        platform.check_events();
        match platform.phase() {
            None => prop_assert_eq!(platform.kinds().last().copied(), Some(kinds::FUNCTION_DELETED)),
            // Builds are stopped on request.
            Some(Phase::Pending) => prop_assert!(request::are_builds_stopped(platform.resource())),
            Some(phase) => prop_assert!(matches!(phase, Phase::Ready | Phase::Failed), "{:?}", phase),
        }
        if platform.phase() == Some(Phase::Failed) {
            let conditions = &platform.resource().status.conditions;
            let said = conditions.iter().any(|c| c.status == klambda_functions::resource::Truth::False);
            prop_assert!(said, "a condition must explain the failure: {conditions:?}");
        }
        if platform.resource.is_some() {
            platform.resource = Some(write::delete(platform.resource(), platform.now));
            platform.settle();
            platform.check_events();
            prop_assert_eq!(platform.kinds().last().copied(), Some(kinds::FUNCTION_DELETED));
        }
    }
}
