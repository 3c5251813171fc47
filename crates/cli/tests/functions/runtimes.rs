//! The same story for each language.

use crate::support::eventually;
use crate::world::{NODE_HELLO, World, inline};
use serde_json::{Value, json};

fn the_story(mut spec: Value) {
    let world = World::new();
    spec["triggers"] = json!([{ "filter": { "type": "order.placed" } }]);
    spec["ordering"] = json!("ordered");
    assert_eq!(world.apply("hello", &spec)["change"], "created");
    world.ready("hello");
    assert_eq!(world.apply("hello", &spec)["change"], "unchanged");
    assert_eq!(world.invoke("hello", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
    for (id, name) in ["a", "b", "c"].into_iter().enumerate() {
        world.send("order.placed", &id.to_string(), "order-42", &json!({ "name": name }));
    }
    eventually("the events reach it", || {
        let (_, seen) = world.get("/api/v1/subscriptions/lambda.default.hello");
        if seen["status"]["delivered"] == 3 { Ok(()) } else { Err(seen.to_string()) }
    });
    let builds = world.events("lambda.build.completed").len();
    assert_eq!(builds, 1, "the same content is built once");
    assert_eq!(world.delete("/api/v1/lambda/functions/hello").0, 202);
    eventually("it is gone", || match world.get("/api/v1/lambda/functions/hello") {
        (404, _) => Ok(()),
        (_, seen) => Err(seen.to_string()),
    });
    assert_eq!(world.children(), Vec::<String>::new());
    assert_eq!(world.get("/api/v1/subscriptions").1["items"], json!([]));
    eventually("its end is reported last", || {
        let kinds: Vec<Value> =
            world.events("lambda.*").iter().map(|item| item["event"]["type"].clone()).collect();
        assert_eq!(kinds.first(), Some(&json!("lambda.function.created")));
        match kinds.last() {
            Some(last) if last == "lambda.function.deleted" => Ok(()),
            _ => Err(format!("{kinds:?}")),
        }
    });
}

#[test]
fn nodejs() {
    the_story(inline("nodejs", "index.handler", NODE_HELLO));
}

#[test]
fn python() {
    let code = "def handler(event, context):\n    return {'hello': event['data']['name']}\n";
    the_story(inline("python", "index.handler", code));
}

#[test]
fn go() {
    let code = r#"package function

import (
	"context"
	"encoding/json"
	klambda "klambda"
)

func Handler(ctx context.Context, event klambda.Event) (any, error) {
	var data struct{ Name string `json:"name"` }
	if err := json.Unmarshal(event.Data, &data); err != nil {
		return nil, err
	}
	return map[string]string{"hello": data.Name}, nil
}
"#;
    the_story(inline("go", "index.Handler", code));
}
