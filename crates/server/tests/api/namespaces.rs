//! How a request says which namespace it is for.

use crate::world::World;

const HEADERS: [(&str, &str); 4] =
    [("ce-specversion", "1.0"), ("ce-source", "/shop"), ("ce-type", "order.placed"), ("ce-id", "1")];

#[tokio::test]
async fn path_and_query_say_it_and_default_goes_without_saying() {
    let world = World::new().await;
    for (way, path) in [
        "/api/v1/events",
        "/api/v1/events?namespace=default",
        "/api/v1/namespaces/default/events",
        "/api/v1/namespaces/default/events?namespace=default",
        "/api/v1/namespaces/default/events?namespace=def%61ult",
    ]
    .into_iter()
    .enumerate()
    {
        let id = way.to_string();
        let headers: Vec<_> = HEADERS
            .iter()
            .map(|(name, value)| (*name, if *name == "ce-id" { &id } else { *value }))
            .collect();
        assert_eq!(world.ask("POST", path, &headers, "").await.status, 202, "{path}");
    }
    let events = world.get("/api/v1/namespaces/default/events?limit=10").await.json();
    assert_eq!(events["items"].as_array().map(Vec::len), Some(5), "{events}");
    let functions = world.get("/api/v1/namespaces/*/lambda/functions").await;
    assert_eq!(functions.status, 200, "{functions:?}");
}

#[tokio::test]
async fn what_names_no_namespace_is_refused() {
    let world = World::new().await;
    for path in [
        "/api/v1/events?namespace=*",
        "/api/v1/events?namespace=Shop",
        "/api/v1/namespaces/a.b/events",
        "/api/v1/namespaces/a/events?namespace=b",
    ] {
        let refused = world.ask("POST", path, &HEADERS, "").await;
        assert_eq!((refused.status, refused.problem()), (400, "bad-request".to_owned()), "{path}");
    }
    let one = world.get("/api/v1/namespaces/*/lambda/functions/f").await;
    assert_eq!((one.status, one.problem()), (400, "bad-request".to_owned()));
    assert!(one.text().contains("for lists only"), "{one:?}");
    assert_eq!(world.get("/api/v1/namespaces/a/namespaces/b/lanes").await.status, 404);
    assert_eq!(world.ask("POST", "/api/v1/namespaces/nowhere/events", &HEADERS, "").await.status, 404);
}
