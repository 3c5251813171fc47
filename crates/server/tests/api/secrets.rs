//! Secrets over REST: written, listed without values, deleted, limited.

use crate::tokens::{ADMIN, guarded};
use crate::world::{Answer, World};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

const DB: &str = "/api/v1/secrets/db";

async fn patch(world: &World, path: &str, body: &Value) -> Answer {
    world.ask("PATCH", path, &[("content-type", "application/json")], &body.to_string()).await
}

#[tokio::test]
async fn values_are_written_and_never_shown() {
    let world = World::new().await;
    let body = json!({"data": {"user": "ada", "password": "hush-hush"}, "binaryData": {"raw": BASE64_STANDARD.encode([0, 255])}});
    let created = world.put(DB, &body).await;
    assert_eq!((created.status, created.headers["location"].as_str()), (201, DB), "{created:?}");
    let seen = created.json();
    let keys =
        json!([{"name": "password", "bytes": 9}, {"name": "raw", "bytes": 2}, {"name": "user", "bytes": 3}]);
    assert_eq!((&seen["keys"], &seen["version"], &seen["change"]), (&keys, &json!(1), &json!("created")));
    assert_eq!((&seen["usedBy"], &seen["unreadable"]), (&json!([]), &Value::Null));
    assert!(seen["updatedAt"].as_str().unwrap().ends_with('Z'), "{seen}");

    let again = world.put(DB, &body).await.json();
    assert_eq!((&again["version"], &again["change"]), (&json!(1), &json!("unchanged")));
    let merged = patch(&world, DB, &json!({"data": {"user": "bob", "raw": null}})).await.json();
    let keys = json!([{"name": "password", "bytes": 9}, {"name": "user", "bytes": 3}]);
    assert_eq!((&merged["keys"], &merged["version"]), (&keys, &json!(2)), "{merged}");
    let replaced = world.put(DB, &json!({"data": {"one": "1"}})).await.json();
    assert_eq!((&replaced["keys"], &replaced["version"]), (&json!([{"name": "one", "bytes": 1}]), &json!(3)));

    // A merge creates a secret, too, but not out of nothing.
    assert_eq!(patch(&world, "/api/v1/secrets/new", &json!({"data": {"k": "hush-hush"}})).await.status, 201);
    assert_eq!(patch(&world, "/api/v1/secrets/none", &json!({"data": {"k": null}})).await.status, 404);
    let list = world.get("/api/v1/secrets?limit=1").await.json();
    assert_eq!((&list["items"][0]["name"], &list["next"]), (&json!("db"), &json!("default/db")));
    let list = world.get("/api/v1/secrets?cursor=default/db").await;
    assert_eq!((&list.json()["items"][0]["name"], &list.json()["next"]), (&json!("new"), &Value::Null));

    let world = world.restart().await;
    let shown = world.get(DB).await;
    assert_eq!(shown.json()["version"], 3);
    assert_eq!(world.put(DB, &json!({"data": {"one": "1"}})).await.json()["change"], "unchanged");
    for path in ["/api/v1/audit", "/api/v1/secrets", DB, "/metrics", "/api/v1/status", "/api/v1/events"] {
        assert!(!world.get(path).await.text().contains("hush"), "{path}");
    }
    let audit = world.get("/api/v1/audit").await.json();
    let verbs: Vec<&str> =
        audit["items"].as_array().unwrap().iter().map(|entry| entry["verb"].as_str().unwrap()).collect();
    assert_eq!(verbs, ["patch", "put", "patch", "put"], "what changes nothing is not noted: {audit}");
    assert_eq!((&audit["items"][1]["kind"], &audit["items"][1]["name"]), (&json!("secret"), &json!("db")));
    // On the disk they are encrypted.
    for file in std::fs::read_dir(world.folder.path()).unwrap().flatten().filter(|file| file.path().is_file())
    {
        let bytes = std::fs::read(file.path()).unwrap();
        assert!(!bytes.windows(4).any(|window| window == b"hush"), "{:?}", file.path());
    }
    assert_eq!(world.delete(DB).await.status, 200);
    assert_eq!((world.get(DB).await.status, world.delete(DB).await.status), (404, 404));
}

#[tokio::test]
async fn every_fault_is_a_problem_that_names_no_value() {
    let world = World::with(|config| config.limits.secrets = 2).await;
    let good = json!({"data": {"k": "hush"}});
    let large = json!({"binaryData": {"k": BASE64_STANDARD.encode(vec![0; 1 << 20])}});
    let many: serde_json::Map<String, Value> = (0..65).map(|n| (format!("k{n}"), "hush".into())).collect();
    for (path, body, status, kind) in [
        (DB, json!({"data": {"../k": "hush"}}), 422, "invalid-body"),
        (DB, json!({"data": {"k": 5}}), 422, "invalid-body"),
        (DB, json!({"data": {"k": null}}), 422, "invalid-body"),
        (DB, json!({"binaryData": {"k": "hush!"}}), 422, "invalid-body"),
        (DB, json!({"values": {"k": "hush"}}), 422, "invalid-body"),
        (DB, json!({}), 422, "invalid-body"),
        (DB, json!({"data": many}), 422, "invalid-body"),
        (DB, large, 413, "too-large"),
        ("/api/v1/secrets/Not_a_name", good.clone(), 422, "invalid-body"),
        ("/api/v1/secrets/..%2Fdb", good.clone(), 422, "invalid-body"),
        ("/api/v1/secrets/db?force=true", good.clone(), 400, "bad-request"),
        ("/api/v1/namespaces/nowhere/secrets/db", good.clone(), 404, "not-found"),
        ("/api/v1/namespaces/*/secrets/db", good.clone(), 400, "bad-request"),
    ] {
        let answer = world.put(path, &body).await;
        assert_eq!((answer.status, answer.problem().as_str()), (status, kind), "{path}: {}", answer.text());
        assert!(!answer.text().contains("hush"), "{}", answer.text());
    }
    for name in ["a", "b"] {
        assert_eq!(world.put(&format!("/api/v1/secrets/{name}"), &good).await.status, 201);
    }
    let one_more = world.put("/api/v1/secrets/c", &good).await;
    assert_eq!((one_more.status, one_more.problem().as_str()), (429, "limit-reached"));
    assert_eq!(world.put("/api/v1/secrets/a", &json!({"data": {"k": "other"}})).await.status, 200);
}

#[tokio::test]
async fn a_namespace_with_secrets_is_not_deleted() {
    let world = guarded().await;
    let ask = |method: &'static str, path: &'static str, body: &'static str| {
        world.ask(method, path, &[("authorization", ADMIN)], body)
    };
    let secret = "/api/v1/namespaces/shop/secrets/db";
    let created = ask("PUT", secret, r#"{"data": {"k": "v"}}"#).await;
    assert_eq!((created.status, created.headers["location"].as_str()), (201, secret));
    assert_eq!(ask("GET", "/api/v1/secrets/db", "").await.status, 404, "it is in another namespace");
    let refused = ask("DELETE", "/api/v1/namespaces/shop", "").await;
    assert_eq!(refused.status, 409);
    assert!(refused.text().contains("has secrets, such as db"), "{}", refused.text());
    let everywhere = ask("GET", "/api/v1/secrets?namespace=*", "").await.json();
    assert_eq!(everywhere["items"][0]["namespace"], "shop");
    assert_eq!(ask("DELETE", secret, "").await.status, 200);
    assert_eq!(ask("DELETE", "/api/v1/namespaces/shop", "").await.status, 200);
}

#[tokio::test]
async fn a_new_key_opens_what_the_old_one_sealed() {
    let world = World::new().await;
    let file = world.folder.path().join("secrets.key");
    assert!(!file.exists(), "the first secret makes it");
    let body = |n: usize| json!({"data": {"k": format!("value {n}")}});
    for n in 0..40 {
        assert_eq!(world.put(&format!("/api/v1/secrets/s{n}"), &body(n)).await.status, 201);
    }
    let before = std::fs::read_to_string(&file).unwrap();
    let report = world.post("/api/v1/secrets/rekey", json!({})).await;
    assert_eq!((report.status, &report.json()["resealed"]), (200, &json!(40)), "{report:?}");
    let after = std::fs::read_to_string(&file).unwrap();
    let keys = |text: &str| {
        text.lines().filter(|line| !line.starts_with('#')).map(str::to_owned).collect::<Vec<_>>()
    };
    assert_eq!(keys(&after)[1..], keys(&before), "a backup may need the old key");
    assert_eq!(report.json()["unusedKeys"].as_array().map(Vec::len), Some(1), "{report:?}");
    let world = world.restart().await;
    for n in 0..40 {
        let again = world.put(&format!("/api/v1/secrets/s{n}"), &body(n)).await.json();
        assert_eq!((&again["change"], &again["version"]), (&json!("unchanged"), &json!(1)), "{again}");
    }
    let audit = world.get("/api/v1/audit?namespace=*&limit=1").await.json();
    assert_eq!((&audit["items"][0]["verb"], &audit["items"][0]["kind"]), (&json!("rekey"), &json!("secret")));
}

#[tokio::test]
async fn no_secret_is_stored_while_its_key_is_not_on_disk() {
    let world = World::new().await;
    let (file, aside) = (world.folder.path().join("secrets.key"), world.folder.path().join("aside"));
    let body = |value: &str| json!({"data": {"k": value}});
    assert_eq!(world.put(DB, &body("one")).await.status, 201);
    std::fs::rename(&file, &aside).unwrap();
    for refused in [world.put(DB, &body("two")).await, world.post("/api/v1/secrets/rekey", json!({})).await] {
        assert_eq!((refused.status, refused.problem().as_str()), (409, "conflict"), "{}", refused.text());
        assert!(refused.text().contains("put the file back"), "{}", refused.text());
    }
    assert!(!file.exists(), "no other key takes its place");
    std::fs::rename(&aside, &file).unwrap();
    assert_eq!(world.put(DB, &body("two")).await.status, 200);
}

#[tokio::test]
async fn a_secret_that_must_be_new_replaces_nothing() {
    let world = World::new().await;
    let put = |value: &'static str| world.ask("PUT", DB, &[("if-none-match", "*")], value);
    assert_eq!(put(r#"{"data": {"k": "one"}}"#).await.status, 201);
    let again = put(r#"{"data": {"k": "one"}}"#).await;
    assert_eq!(again.status, 412, "{}", again.text());
    let large = json!({"data": {"k": "x".repeat(3 << 20)}}).to_string();
    let refused = world.ask("PUT", DB, &[], &large).await;
    assert_eq!((refused.status, refused.problem().as_str()), (413, "too-large"), "{}", refused.text());
}
