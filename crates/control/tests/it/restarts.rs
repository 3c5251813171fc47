//! Power cuts at any moment: the control plane resumes where it stopped and continues its numbers.

use crate::memory::Memory;
use crate::world::{FUNCTION, World, git, named};
use klambda_functions::platform::Task;
use klambda_functions::resource::Phase;
use std::collections::HashSet;
use std::time::Duration;

fn tries(tasks: &[Task]) -> Vec<(&'static str, u64)> {
    let number = |task: &Task| match task {
        Task::Fetch { number, .. } => Some(("fetch", *number)),
        Task::Build { number, .. } => Some(("build", *number)),
        _ => None,
    };
    tasks.iter().filter_map(number).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_build_that_a_restart_cuts_off_is_asked_for_again_by_its_number() {
    let memory = Memory::default();
    memory.hold();
    let world = World::on(Default::default(), memory).await;
    world.apply("f", &git()).await;
    world.until_told("lambda.build.started", 1).await;
    assert_eq!(tries(&world.until_tasks(1).await), [("fetch", 1)]);

    let world = world.restart(Memory::default()).await;
    assert_eq!(world.memory.known(), [named("f")], "the platform is opened with the existing functions");
    world.phase("f", Phase::Ready).await;
    assert_eq!(tries(&world.memory.tasks()), [("fetch", 1), ("build", 2)]);
    world.check_numbers();

    // Numbers continue after another restart: no number is used twice.
    let world = world.restart(Memory::default()).await;
    world.control.rebuild(FUNCTION, &named("f")).await.expect("asked for");
    world.until_told("lambda.build.completed", 2).await;
    let numbers: HashSet<u64> = tries(&world.memory.tasks()).into_iter().map(|(_, number)| number).collect();
    assert!(!numbers.is_empty() && numbers.iter().all(|number| *number > 2), "{numbers:?}");
    world.check_numbers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_at_any_moment_loses_and_repeats_nothing() {
    for after_ms in [0, 1, 2, 4, 8, 16] {
        let world = World::new().await;
        world.apply("f", &git()).await;
        tokio::time::sleep(Duration::from_millis(after_ms)).await;
        // A platform keeps its builds across a restart, but not its processes.
        let world = world.restart(Memory::default()).await;
        world.phase("f", Phase::Ready).await;
        world.until_told("lambda.service.created", 1).await;
        world.check_numbers();
        let created = world.told().iter().filter(|(kind, ..)| kind == "lambda.function.created").count();
        assert_eq!(created, 1, "after {after_ms} ms");
    }
}
