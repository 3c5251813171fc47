//! Revisions are stored with the status that names them, and go with it.

use crate::world::{FUNCTION, World, inline, named};
use klambda_control::Error;
use klambda_dispatch::Engine;
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::platform::Task;
use klambda_functions::resource::Phase;

/// Keys of the documents.
async fn stored(world: &World) -> Vec<String> {
    let look = |engine: &mut Engine| engine.documents("lambda.revision", None, 100);
    let found = world.handle.query(look).await.expect("it runs").expect("read");
    found.into_iter().map(|document| document.key).collect()
}

async fn serves(world: &World, generation: u64) {
    let is_so = |seen: Option<&klambda_functions::resource::Resource>| {
        let service = seen.and_then(|seen| seen.status.service_status.as_ref());
        service.is_some_and(|service| service.ready && service.generation == generation)
    };
    world.until("f", is_so).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn they_outlive_a_power_cut_and_go_with_the_function() {
    let world = World::new().await;
    world.apply("f", &inline("one")).await;
    serves(&world, 1).await;
    world.apply("f", &inline("two")).await;
    serves(&world, 2).await;
    world.memory.fail_builds([Failure::new(Reason::SyntaxError, "no")]);
    world.apply("f", &inline("three")).await;
    world.until("f", |seen| seen.is_some_and(|seen| seen.status.observed_generation == 3)).await;
    assert_eq!(stored(&world).await.len(), 2);

    let memory = world.memory.clone();
    let world = world.restart(memory).await;
    let page = world.control.revisions(FUNCTION, &named("f"), 0, 100).await.expect("read");
    let numbers: Vec<(u64, u64)> =
        page.items.iter().map(|(revision, _)| (revision.number, revision.generation)).collect();
    assert_eq!((numbers, page.next), (vec![(1, 1), (2, 2)], None));
    let page = world.control.revisions(FUNCTION, &named("f"), 0, 1).await.expect("read");
    assert_eq!((page.items.len(), page.next), (1, Some(1)));

    let before = world.memory.tasks().len();
    let applied = world.control.rollback(FUNCTION, &named("f"), 1).await.expect("it is kept");
    assert_eq!(applied.resource.metadata.generation, 4);
    serves(&world, 4).await;
    let tasks = world.memory.tasks().split_off(before);
    let builds = tasks.iter().filter(|task| matches!(task, Task::Fetch { .. } | Task::Build { .. })).count();
    assert_eq!(builds, 0, "{tasks:?}");
    let unknown = world.control.rollback(FUNCTION, &named("f"), 9).await.expect_err("there is none");
    assert!(matches!(unknown, Error::NoRevision { number: 9, .. }), "{unknown}");
    assert_eq!(unknown.to_string(), "function f has no revision 9; there are 1, 2, 3");

    world.control.delete(FUNCTION, &named("f"), None).await.expect("deleted");
    world.until("f", |seen| seen.is_none()).await;
    assert_eq!(stored(&world).await, Vec::<String>::new());
    world.apply("f", &inline("one")).await;
    world.phase("f", Phase::Ready).await;
    assert_eq!(stored(&world).await, ["default/f/00000000000000000001"]);
}

/// A backup sees no change of a function while it takes its snapshot, and changes go on behind it.
#[tokio::test(flavor = "multi_thread")]
async fn changes_wait_while_a_backup_looks() {
    let world = World::new().await;
    let spec = inline("one");
    let still = world.control.still().await;
    let apply = world.apply("f", &spec);
    tokio::pin!(apply);
    let early = tokio::time::timeout(std::time::Duration::from_millis(50), &mut apply).await;
    assert!(early.is_err() && world.control.get(&named("f")).is_none());
    drop(still);
    apply.await;
    world.phase("f", Phase::Ready).await;
}
