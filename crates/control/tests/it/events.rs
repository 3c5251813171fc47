//! Commands that arrive as events act like the same calls of the REST API.

use crate::world::{World, inline, named};
use klambda_core::event::{Attribute, Data, Event, Form, Value as Text};
use klambda_functions::platform::Task;
use klambda_functions::resource::Phase;
use serde_json::{Value, json};

fn event(id: &str, kind: &str, data: &Value) -> Event {
    let subject = Attribute { name: "subject".into(), value: Text::String("f".into()) };
    Event {
        id: id.into(),
        source: "/test".into(),
        kind: kind.into(),
        attributes: vec![subject],
        data: Some(Data { bytes: data.to_string().into(), form: Form::Json }),
    }
}

fn builds(world: &World) -> usize {
    world.memory.tasks().iter().filter(|task| matches!(task, Task::Build { .. })).count()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_function_is_created_rebuilt_and_deleted_by_events() {
    let world = World::new().await;
    world.control.listen("default").await.expect("it listens");
    let created = json!({ "name": "f", "namespace": "default", "spec": inline("one") });
    world.send(event("1", "lambda.function.created", &created)).await;
    world.phase("f", Phase::Ready).await;
    assert_eq!(builds(&world), 1);

    let asked = json!({ "function_name": "f", "namespace": "default" });
    world.send(event("2", "lambda.build.started", &asked)).await;
    world.until_told("lambda.build.completed", 2).await;
    assert_eq!(builds(&world), 2);

    // Events that the control plane emits itself are not commands.
    let before = world.control.get(&named("f")).map(|resource| resource.metadata.generation);
    assert_eq!(before, Some(1));

    // An invalid command becomes a dead letter, and later commands still run.
    world.send(event("3", "lambda.function.updated", &json!({ "name": "f", "spec": { "no": 1 } }))).await;
    world.send(event("4", "lambda.function.deleted", &json!({ "name": "f", "namespace": "default" }))).await;
    world.until("f", |seen| seen.is_none()).await;
    world.until_told("lambda.function.deleted", 1).await;
    world.check_numbers();
}
