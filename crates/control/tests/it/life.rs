//! The life of a function: from applied to ready, and from deleted to removed.

use crate::memory::Memory;
use crate::world::{FUNCTION, World, inline, named};
use klambda_control::Error;
use klambda_functions::platform::Task;
use klambda_functions::resource::{Aspect, Phase, Truth};
use klambda_store::faulty_disk::MemoryDisk;
use serde_json::json;

fn names(tasks: &[Task]) -> Vec<&'static str> {
    let name = |task: &Task| match task {
        Task::Fetch { .. } => "fetch",
        Task::Build { .. } => "build",
        Task::CancelBuild { .. } => "cancel",
        Task::Deploy { .. } => "deploy",
        Task::Scale { .. } => "scale",
        Task::Retire { .. } => "retire",
        Task::Forget => "forget",
    };
    tasks.iter().map(name).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_applied_function_becomes_ready() {
    let world = World::new().await;
    world.apply("f", &inline("one")).await;
    world.phase("f", Phase::Ready).await;
    let is_subscribed = |seen: Option<&klambda_functions::resource::Resource>| {
        seen.is_some_and(|seen| seen.status.is_true(Aspect::TriggersReady))
    };
    let ready = world.until("f", is_subscribed).await.expect("the function exists");
    assert!(world.is_subscribed("f").await);
    assert_eq!(names(&world.memory.tasks()), ["build", "deploy"]);
    let service = ready.status.service_status.as_ref().expect("it serves");
    let url = "/api/v1/lambda/functions/f/invoke?namespace=default";
    assert_eq!(service.url.as_deref(), Some(url), "a function without a URL is called through the server");
    let told = world.until_told("lambda.service.created", 1).await;
    assert_eq!(told[..2], ["lambda.function.created", "lambda.build.started"]);
    world.check_numbers();

    // The new version takes over, then the old one is removed.
    world.apply("f", &inline("two")).await;
    world.until_told("lambda.service.updated", 1).await;
    world.phase("f", Phase::Ready).await;
    let tasks = world.until_tasks(5).await;
    assert_eq!(names(&tasks), ["build", "deploy", "build", "deploy", "retire"]);
    world
        .apply("f", &{
            let mut spec = inline("two");
            spec["scaling"] = json!({ "maxReplicas": 3 });
            spec
        })
        .await;
    let is_scaled = |seen: Option<&klambda_functions::resource::Resource>| {
        let service = seen.and_then(|seen| seen.status.service_status.as_ref());
        service.and_then(|service| service.scaling).is_some_and(|scaling| scaling.max_replicas == 3)
    };
    world.until("f", is_scaled).await;
    assert_eq!(names(&world.memory.tasks()).last(), Some(&"scale"), "changed limits need no new version");
    world.check_numbers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_deleted_function_goes_with_all_it_has_and_its_name_counts_on() {
    let world = World::new().await;
    world.apply("f", &inline("one")).await;
    world.phase("f", Phase::Ready).await;
    world.control.delete(FUNCTION, &named("f"), None).await.expect("deleted");
    let again = world.control.update(FUNCTION, &named("f"), &json!({ "spec": {} })).await;
    assert!(matches!(again, Err(Error::Deleting | Error::NotFound { .. })), "{again:?}");
    world.until("f", |seen| seen.is_none()).await;
    let told = world.until_told("lambda.function.deleted", 1).await;
    assert_eq!(told.last().map(String::as_str), Some("lambda.function.deleted"));
    assert!(!world.is_subscribed("f").await);
    let before = told.len() as u64;
    let world = world.restart(Default::default()).await;
    world.apply("f", &inline("one")).await;
    let ready = world.phase("f", Phase::Ready).await;
    assert!(ready.counters.transitions > before);
    world.until_told("lambda.function.created", 2).await;
    world.check_numbers();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn writers_that_race_all_get_their_way_and_the_limit_holds() {
    let world = World::new().await;
    world.apply("f", &inline("one")).await;
    let label = |n: usize| json!({ "metadata": { "labels": { format!("l{n}"): "x" } } });
    let writes = (0..20).map(|n| {
        let control = world.control.clone();
        tokio::spawn(async move { control.update(FUNCTION, &named("f"), &label(n)).await })
    });
    for write in writes.collect::<Vec<_>>() {
        write.await.expect("no panic").expect("written");
    }
    let seen = world.phase("f", Phase::Ready).await;
    assert_eq!(seen.metadata.labels.len(), 20, "no write was lost");
    let twice = world.control.create(&crate::world::document("f", &inline("one")), FUNCTION).await;
    assert!(matches!(twice, Err(Error::Exists { .. })), "{twice:?}");
    let ready = seen.status.condition(Aspect::ServiceReady).map(|said| said.status);
    assert_eq!(ready, Some(Truth::True));
}

/// Functions are planned together. If one changes meanwhile, it is planned again and the others are stored.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_plan_that_a_write_outruns_is_made_again() {
    let memory = Memory::default();
    // Makes all functions wait for the platform, so that they are planned together.
    memory.fail_openings(["not yet".to_owned()]);
    let world = World::on(MemoryDisk::new(), memory).await;
    let names = ["a", "b", "c"];
    for name in names {
        world.apply(name, &inline(name)).await;
    }
    let (control, runtime) = (world.control.clone(), tokio::runtime::Handle::current());
    world.memory.meanwhile(named("b"), move || {
        let body = json!({ "metadata": { "labels": { "by": "somebody" } } });
        let written = runtime.block_on(control.update(FUNCTION, &named("b"), &body));
        written.expect("a write succeeds while the platform observes");
    });
    for name in names {
        world.phase(name, Phase::Ready).await;
    }
    let b = world.control.get(&named("b")).expect("the function exists");
    assert_eq!(b.metadata.labels.get("by").map(String::as_str), Some("somebody"));
    world.until_told("lambda.service.created", names.len()).await;
    for name in names {
        let of_it = |data: &serde_json::Value| {
            [&data["name"], &data["function_name"], &data["service_name"]].iter().any(|said| **said == name)
        };
        let told = world.told().into_iter().filter(|(_, _, data)| of_it(data));
        let numbers: Vec<u64> = told.map(|(_, number, _)| number).collect();
        assert_eq!(numbers, (1..=numbers.len() as u64).collect::<Vec<u64>>(), "{name}");
    }
}
