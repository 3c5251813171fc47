//! Many functions at once share equal sources and artifacts.

use crate::support::eventually;
use crate::world::{NODE_HELLO, World, node};
use serde_json::json;

#[test]
fn a_hundred_of_one_source_are_built_once() {
    let world = World::new();
    for n in 0..100 {
        let document = json!({ "metadata": { "name": format!("f{n}") }, "spec": node(NODE_HELLO) });
        assert_eq!(world.post("/api/v1/lambda/functions", &document).0, 202);
    }
    eventually("all are ready", || {
        let (_, page) = world.get("/api/v1/lambda/functions?limit=1000");
        let items = page["items"].as_array().cloned().unwrap_or_default();
        let ready = items.iter().filter(|one| one["status"]["phase"] == "Ready").count();
        if ready == 100 { Ok(()) } else { Err(format!("{ready} are ready")) }
    });
    let artifacts =
        std::fs::read_dir(world.folder.path().join("data/functions/artifacts")).expect("a folder");
    assert_eq!(artifacts.count(), 1);
    assert_eq!(world.invoke("f73", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
}
