//! Failed steps are retried with growing delays. After the last try the function reports the reason, and the version that
//! served before keeps serving.

use crate::memory::Memory;
use crate::world::{RETRY_MS, World, git, inline, named};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::platform::Task;
use klambda_functions::resource::{Aspect, Phase};
use klambda_store::faulty_disk::MemoryDisk;
use std::collections::BTreeSet;
use std::time::Duration;

fn unreachable() -> Failure {
    Failure::new(Reason::SourceUnreachable, "The host does not respond")
}

fn is_fetch(task: &Task) -> bool {
    matches!(task, Task::Fetch { .. })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_that_fails_is_tried_again_later_each_time() {
    let world = World::new().await;
    world.memory.fail_fetches([unreachable(), unreachable()]);
    world.apply("f", &git()).await;
    let ready = world.phase("f", Phase::Ready).await;
    let times = world.memory.times(is_fetch);
    assert_eq!(times.len(), 3);
    for (pair, wait_ms) in times.windows(2).zip([RETRY_MS, 2 * RETRY_MS]) {
        // The clock has a resolution of 1 ms.
        assert!(pair[1] - pair[0] >= Duration::from_millis(wait_ms - 1), "{:?}", pair[1] - pair[0]);
    }
    let number = |task: &Task| match task {
        Task::Fetch { number, .. } | Task::Build { number, .. } => Some(*number),
        _ => None,
    };
    let numbers: Vec<u64> = world.memory.tasks().iter().filter_map(number).collect();
    assert_eq!(numbers, [1, 2, 3, 4], "each try has its own number");
    assert_eq!(ready.counters.tries, 4);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_the_last_try_it_fails_with_the_reason() {
    let world = World::new().await;
    world.memory.fail_fetches([unreachable(), unreachable(), unreachable()]);
    world.apply("f", &git()).await;
    let failed = world.phase("f", Phase::Failed).await;
    assert_eq!(world.memory.times(is_fetch).len(), 3);
    let said = failed.status.condition(Aspect::SourceReady).expect("said");
    assert_eq!(said.reason, Reason::SourceUnreachable.name());
    world.until_told("lambda.build.failed", 1).await;
    world.check_numbers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_or_a_version_that_fails_leaves_the_old_one_serving() {
    let world = World::new().await;
    world.apply("f", &inline("good")).await;
    let before = world.phase("f", Phase::Ready).await.status.service_status.clone();
    world.memory.fail_builds([Failure::new(Reason::SyntaxError, "Line 1")]);
    world.apply("f", &inline("bad")).await;
    let says = |aspect: Aspect, reason: Reason| {
        move |seen: Option<&klambda_functions::resource::Resource>| {
            let said = seen.and_then(|seen| seen.status.condition(aspect));
            said.is_some_and(|said| said.reason == reason.name())
        }
    };
    let seen =
        world.until("f", says(Aspect::BuildReady, Reason::SyntaxError)).await.expect("the function exists");
    assert_eq!((seen.status.phase, &seen.status.service_status), (Phase::Ready, &before));
    world.memory.fail_starts([Failure::new(Reason::HandlerNotFound, "No handler")]);
    world.apply("f", &inline("worse")).await;
    let seen = world
        .until("f", says(Aspect::DeployReady, Reason::HandlerNotFound))
        .await
        .expect("the function exists");
    assert_eq!((seen.status.phase, &seen.status.service_status), (Phase::Ready, &before));

    // The serving version may crash as well; the status reports it.
    world.apply("f", &inline("good")).await;
    world.until("f", |seen| seen.is_some_and(|seen| seen.status.is_true(Aspect::DeployReady))).await;
    world.memory.crash(&named("f"), &Failure::new(Reason::CrashLoop, "The process exited"));
    world.until("f", says(Aspect::DeployReady, Reason::CrashLoop)).await;
    world.phase("f", Phase::Failed).await;
    world.check_numbers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_platform_that_cannot_be_opened_is_tried_again() {
    let memory = Memory::default();
    memory.fail_openings(["the disk is full".to_owned()]);
    let world = World::on(MemoryDisk::new(), memory).await;
    world.apply("f", &inline("one")).await;
    world.phase("f", Phase::Ready).await;
    let versions: BTreeSet<String> = world
        .memory
        .tasks()
        .into_iter()
        .filter_map(|task| match task {
            Task::Deploy { version, .. } => Some(version),
            _ => None,
        })
        .collect();
    assert_eq!(versions.len(), 1);
}

/// Plans that are too large together for one step of the engine are stored one by one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_too_much_for_one_step_is_stored_one_by_one() {
    let memory = Memory::default();
    // Makes all functions wait for the platform, so that they are planned together.
    memory.fail_openings(["not yet".to_owned()]);
    let world = World::with_segments(MemoryDisk::new(), memory, 1 << 20).await;
    let names = ["a", "b", "c", "d"];
    for name in names {
        world.apply(name, &inline(&"x".repeat(120 << 10))).await;
    }
    for name in names {
        world.phase(name, Phase::Ready).await;
    }
}
