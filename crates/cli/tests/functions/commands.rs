//! Received events act as the calls over REST do.

use crate::support::eventually;
use crate::world::{NODE_HELLO, World, node};
use serde_json::json;

#[test]
fn events_create_change_and_delete_and_bad_ones_are_dead_letters() {
    let world = World::new();
    world.send("lambda.function.created", "1", "f", &json!({ "name": "f", "spec": node(NODE_HELLO) }));
    world.ready("f");
    assert_eq!(world.invoke("f", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    let change = json!({ "name": "f", "spec": { "scaling": { "maxReplicas": 3 } } });
    world.send("lambda.function.updated", "2", "f", &change);
    world.until("f", "is changed", |seen| seen["spec"]["scaling"]["maxReplicas"] == 3);
    world.send("network.notifi.lambda.build.start", "3", "f", &json!({ "function_name": "f" }));
    eventually("it is built again", || match world.events("lambda.build.completed").len() {
        2 => Ok(()),
        count => Err(count.to_string()),
    });
    let artifacts = world.folder.path().join("data/functions/artifacts");
    assert_eq!(std::fs::read_dir(artifacts).expect("a folder").count(), 2, "though its content is the same");
    world.send("lambda.function.deleted", "4", "f", &json!({ "nam": "f" }));
    let letters = eventually("a dead letter", || {
        let (_, page) = world.get("/api/v1/dlq");
        let items = page["items"].as_array().cloned().unwrap_or_default();
        if items.is_empty() { Err(page.to_string()) } else { Ok(items) }
    });
    assert_eq!(letters[0]["reason"], "validation", "{letters:?}");
    world.send("lambda.function.deleted", "5", "f", &json!({ "name": "f" }));
    eventually("it is gone", || match world.get("/api/v1/lambda/functions/f").0 {
        404 => Ok(()),
        status => Err(status.to_string()),
    });
}
