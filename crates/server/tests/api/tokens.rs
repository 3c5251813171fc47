//! Tokens as resources: created, shown once, listed, used, revoked.

use crate::world::{PATIENCE, World, ask};
use serde_json::{Value, json};
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

pub const ADMIN: &str = "Bearer first";

pub fn token_file() -> PathBuf {
    static FILE: OnceLock<tempfile::NamedTempFile> = OnceLock::new();
    let file = FILE.get_or_init(|| {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), "first").unwrap();
        file
    });
    file.path().to_owned()
}

/// A server with a token file.
pub async fn bare() -> World {
    World::with(|config| config.token_file = Some(token_file())).await
}

/// The same, with some namespaces.
pub async fn guarded() -> World {
    let world = bare().await;
    for namespace in ["shop", "other", "elsewhere"] {
        let path = format!("/api/v1/namespaces/{namespace}");
        assert_eq!(world.ask("PUT", &path, &[("authorization", ADMIN)], "{}").await.status, 201);
    }
    world
}

/// Creates a token as the admin of the token file.
pub async fn issue(world: &World, body: Value) -> String {
    let answer = create(world, ADMIN, &body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer.json()["token"].as_str().unwrap().to_owned()
}

async fn create(world: &World, bearer: &str, body: &Value) -> crate::world::Answer {
    world.ask("POST", "/api/v1/tokens", &[("authorization", bearer)], &body.to_string()).await
}

/// Posts an event over a connection that stays open, and returns the status.
pub async fn post_kept_alive(address: SocketAddr, path: &str, token: &str) -> u16 {
    static IDS: AtomicU64 = AtomicU64::new(0);
    let id = IDS.fetch_add(1, Ordering::Relaxed);
    let mut stream = BufReader::new(TcpStream::connect(address).await.unwrap());
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\nce-specversion: 1.0\r\nce-id: {id}\r\n\
         ce-source: /kept\r\nce-type: order.placed\r\ncontent-length: 0\r\n\r\n",
        address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut line = String::new();
    timeout(PATIENCE, stream.read_line(&mut line)).await.expect("an answer").unwrap();
    line.split(' ').nth(1).unwrap().parse().unwrap()
}

#[tokio::test]
async fn a_token_is_shown_once_and_survives_a_restart() {
    let world = guarded().await;
    let body = json!({"name": "ci", "role": "producer", "namespaces": ["default"], "expires": "90d"});
    let answer = create(&world, ADMIN, &body).await;
    assert_eq!((answer.status, answer.headers["location"].as_str()), (201, "/api/v1/tokens/ci"));
    let token = answer.json()["token"].as_str().unwrap().to_owned();
    assert!(token.starts_with("klt_") && token.len() == 47, "{token}");
    assert_eq!(create(&world, ADMIN, &body).await.status, 409);
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &token).await, 202);

    let world = world.restart().await;
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &token).await, 202);
    let shown = world.ask("GET", "/api/v1/tokens/ci", &[("authorization", ADMIN)], "").await;
    let json = shown.json();
    assert_eq!((&json["role"], &json["namespaces"]), (&json!("producer"), &json!(["default"])));
    assert_eq!(json["createdBy"], "token-file");
    assert!(json["lastUsedAt"].is_string() && json["expiresAt"].is_string(), "{json}");
    assert!(!shown.text().contains(&token) && json["token"].is_null() && json["hash"].is_null(), "{json}");
    let list = world.ask("GET", "/api/v1/tokens", &[("authorization", ADMIN)], "").await.json();
    assert_eq!(list["items"], json!([json]));

    // Uses before the restart were stored at shutdown.
    let used = world.ask("DELETE", "/api/v1/tokens/ci", &[("authorization", ADMIN)], "").await;
    assert_eq!(used.status, 200, "{used:?}");
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &token).await, 401);
    let world = world.restart().await;
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &token).await, 401);
    assert_eq!(world.ask("GET", "/api/v1/tokens/ci", &[("authorization", ADMIN)], "").await.status, 404);
}

#[tokio::test]
async fn the_last_use_is_stored_when_the_server_stops() {
    let world = guarded().await;
    let token = issue(&world, json!({"name": "v", "role": "viewer", "namespaces": "*"})).await;
    let bearer = format!("Bearer {token}");
    assert_eq!(world.ask("GET", "/api/v1/status", &[("authorization", &bearer)], "").await.status, 200);
    let world = world.restart().await;
    let shown = world.ask("GET", "/api/v1/tokens/v", &[("authorization", ADMIN)], "").await.json();
    assert!(shown["lastUsedAt"].is_string(), "{shown}");
}

#[tokio::test]
async fn an_admin_of_a_namespace_makes_and_sees_tokens_of_it_only() {
    let world = guarded().await;
    let shop = issue(&world, json!({"name": "shop-admin", "role": "admin", "namespaces": ["shop"]})).await;
    issue(&world, json!({"name": "both", "role": "viewer", "namespaces": ["shop", "other"]})).await;
    let shop = format!("Bearer {shop}");
    for (namespaces, status) in
        [(json!(["shop"]), 201), (json!(["other"]), 403), (json!(["shop", "other"]), 403), (json!("*"), 403)]
    {
        let answer =
            create(&world, &shop, &json!({"name": "mine", "role": "admin", "namespaces": namespaces})).await;
        assert_eq!(answer.status, status, "{answer:?}");
    }
    let list = world.ask("GET", "/api/v1/tokens", &[("authorization", &shop)], "").await.json();
    let names: Vec<&str> =
        list["items"].as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["mine", "shop-admin"]);
    for method in ["GET", "DELETE"] {
        let answer = world.ask(method, "/api/v1/tokens/both", &[("authorization", &shop)], "").await;
        assert_eq!(answer.status, 404, "{method}");
    }
}

#[tokio::test]
async fn what_cannot_be_a_token_is_refused_with_all_its_faults() {
    let world = guarded().await;
    let wrong = json!({"name": "No Name", "role": "root", "namespaces": ["Shop"], "expires": "yesterday", "colour": "red"});
    let refused = create(&world, ADMIN, &wrong).await;
    assert_eq!((refused.status, refused.problem().as_str()), (422, "invalid-body"));
    assert_eq!(refused.json()["faults"].as_array().map(Vec::len), Some(5), "{refused:?}");
    for (body, part) in [
        (json!({}), "is missing"),
        (json!({"name": "a", "role": "viewer", "namespaces": []}), "at least one"),
        (json!({"name": "a", "role": "viewer", "namespaces": "shop"}), "list of strings"),
        (
            json!({"name": "a", "role": "viewer", "namespaces": "*", "expires": "2001-01-01T00:00:00Z"}),
            "future",
        ),
        (json!({"name": "a", "role": "endpoint", "namespaces": "*"}), "for one webhook endpoint"),
    ] {
        let refused = create(&world, ADMIN, &body).await;
        assert!(refused.status == 422 && refused.text().contains(part), "{body}: {refused:?}");
    }
}

#[tokio::test]
async fn an_expired_token_is_refused_and_makes_room_for_another() {
    let world = World::with(|config| {
        config.token_file = Some(token_file());
        config.limits.tokens = 2;
    })
    .await;
    let body = |name: &str| json!({"name": name, "role": "viewer", "namespaces": "*"});
    issue(&world, body("lasting")).await;
    let token =
        issue(&world, json!({"name": "short", "role": "viewer", "namespaces": "*", "expires": "1ms"})).await;
    let bearer = format!("Bearer {token}");
    let refused = async {
        loop {
            let answer = world.ask("GET", "/api/v1/status", &[("authorization", &bearer)], "").await;
            if answer.status == 401 {
                return answer;
            }
        }
    };
    let refused = timeout(PATIENCE, refused).await.expect("it expires");
    assert!(refused.text().contains("the token has expired"), "{refused:?}");
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &token).await, 401, "on the fast path too");

    issue(&world, body("next")).await;
    let world = world.restart().await;
    let listed = world.ask("GET", "/api/v1/tokens", &[("authorization", ADMIN)], "").await.json();
    let names: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|token| &token["name"]).collect();
    assert_eq!(names, ["lasting", "next"], "the expired one was deleted");
    let unknown = world.ask("GET", "/api/v1/status", &[("authorization", &bearer)], "").await;
    assert!(unknown.status == 401 && unknown.text().contains("invalid, expired or revoked"), "{unknown:?}");
    assert_eq!(create(&world, ADMIN, &body("more")).await.problem(), "limit-reached");
}

/// If no token is required, a token would have no effect but look like protection.
#[tokio::test]
async fn a_server_that_needs_no_tokens_makes_none() {
    let world = World::new().await;
    let refused =
        world.post("/api/v1/tokens", json!({"name": "a", "role": "viewer", "namespaces": "*"})).await;
    assert_eq!((refused.status, refused.problem().as_str()), (409, "conflict"));
    assert!(refused.text().contains("--token-file"), "{refused:?}");
    assert_eq!(world.get("/api/v1/tokens").await.json()["items"], json!([]));
}

#[tokio::test]
async fn tokens_are_bounded() {
    let world = World::with(|config| {
        config.token_file = Some(token_file());
        config.limits.tokens = 2;
    })
    .await;
    let body = |name: &str| json!({"name": name, "role": "viewer", "namespaces": "*"});
    issue(&world, body("a")).await;
    issue(&world, body("b")).await;
    let refused = create(&world, ADMIN, &body("c")).await;
    assert_eq!((refused.status, refused.problem().as_str()), (429, "limit-reached"));
    world.ask("DELETE", "/api/v1/tokens/a", &[("authorization", ADMIN)], "").await;
    issue(&world, body("c")).await;
}

#[tokio::test]
async fn a_stream_ends_when_its_token_is_revoked() {
    let world = guarded().await;
    let token = issue(&world, json!({"name": "v", "role": "viewer", "namespaces": ["default"]})).await;
    let mut stream = TcpStream::connect(world.address).await.unwrap();
    let head = format!(
        "GET /api/v1/events HTTP/1.1\r\nhost: {}\r\nauthorization: Bearer {token}\r\naccept: text/event-stream\r\n\r\n",
        world.address
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut first = [0; 12];
    timeout(PATIENCE, stream.read_exact(&mut first)).await.expect("an answer").unwrap();
    assert_eq!(&first, b"HTTP/1.1 200");
    world.ask("DELETE", "/api/v1/tokens/v", &[("authorization", ADMIN)], "").await;
    let mut rest = Vec::new();
    let ended = async {
        loop {
            let read = stream.read_buf(&mut rest).await.unwrap_or(0);
            // The last chunk marks the end of the stream.
            if read == 0 || rest.ends_with(b"\r\n0\r\n\r\n") {
                return;
            }
        }
    };
    timeout(PATIENCE, ended).await.expect("the stream ends");
}

/// Each token works until it is revoked, and none works after, while others send events.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_thousand_tokens_under_load() {
    const TOKENS: usize = 1000;
    const AT_ONCE: usize = 8;
    let world = guarded().await;
    let is_done = AtomicBool::new(false);
    let sent = AtomicU64::new(0);
    let steady =
        issue(&world, json!({"name": "steady", "role": "producer", "namespaces": ["default"]})).await;
    let load = async {
        while !is_done.load(Ordering::Relaxed) {
            assert_eq!(post_kept_alive(world.address, "/api/v1/events", &steady).await, 202);
            sent.fetch_add(1, Ordering::Relaxed);
        }
    };
    let worker = |worker: usize| {
        let world = &world;
        async move {
            let mut live = Vec::new();
            for n in (worker..TOKENS).step_by(AT_ONCE) {
                let name = format!("t{n}");
                let body = json!({"name": name, "role": "producer", "namespaces": ["default"]});
                let token = issue(world, body).await;
                assert_eq!(
                    post_kept_alive(world.address, "/api/v1/events", &token).await,
                    202,
                    "{name} is new"
                );
                live.push((name, token));
            }
            for (name, token) in live {
                assert_eq!(
                    post_kept_alive(world.address, "/api/v1/events", &token).await,
                    202,
                    "{name} is valid"
                );
                let path = format!("/api/v1/tokens/{name}");
                let deleted = ask(world.address, "DELETE", &path, &[("authorization", ADMIN)], b"").await;
                assert_eq!(deleted.status, 200, "{name}: {deleted:?}");
                assert_eq!(
                    post_kept_alive(world.address, "/api/v1/events", &token).await,
                    401,
                    "{name} is revoked"
                );
            }
        }
    };
    let workers = async {
        tokio::join!(worker(0), worker(1), worker(2), worker(3), worker(4), worker(5), worker(6), worker(7));
        is_done.store(true, Ordering::Relaxed);
    };
    tokio::join!(workers, load);
    assert!(sent.load(Ordering::Relaxed) > 0);
    let world = world.restart().await;
    let list = world.ask("GET", "/api/v1/tokens", &[("authorization", ADMIN)], "").await.json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(1), "{list}");
    assert_eq!(post_kept_alive(world.address, "/api/v1/events", &steady).await, 202);
}

#[tokio::test]
async fn a_namespace_with_a_token_stays() {
    let world = guarded().await;
    let nowhere =
        create(&world, ADMIN, &json!({"name": "n", "role": "viewer", "namespaces": ["nowhere"]})).await;
    assert_eq!((nowhere.status, nowhere.problem()), (404, "not-found".to_owned()), "{nowhere:?}");
    issue(&world, json!({"name": "v", "role": "viewer", "namespaces": ["shop"]})).await;
    let admin = [("authorization", ADMIN)];
    let refused = world.ask("DELETE", "/api/v1/namespaces/shop", &admin, "").await;
    assert_eq!(refused.status, 409, "{refused:?}");
    assert!(refused.text().contains("token v refers to namespace"), "{refused:?}");
    assert_eq!(world.ask("DELETE", "/api/v1/tokens/v", &admin, "").await.status, 200);
    assert_eq!(world.ask("DELETE", "/api/v1/namespaces/shop", &admin, "").await.status, 200);
}

/// A request that has started cannot outlive its token, on both paths.
#[tokio::test]
async fn a_token_that_is_revoked_while_a_body_arrives_is_not_valid() {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let world = guarded().await;
    for (n, (method, path, more)) in [
        ("PUT", "/api/v1/namespaces/late", "content-type: application/json\r\n"),
        ("POST", "/api/v1/events", "content-type: application/cloudevents+json\r\n"),
        ("POST", "/api/v1/tokens", "content-type: application/json\r\n"),
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("slow-{n}");
        let token = issue(&world, json!({"name": name, "role": "admin", "namespaces": "*"})).await;
        let mut stream = tokio::net::TcpStream::connect(world.address).await.unwrap();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: localhost\r\nauthorization: Bearer {token}\r\n{more}content-length: 2\r\n\r\n{{"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        // The server has checked the request once its token was used.
        world.ask("GET", "/api/v1/tokens", &[("authorization", ADMIN)], "").await;
        let path = format!("/api/v1/tokens/{name}");
        world.ask("DELETE", &path, &[("authorization", ADMIN)], "").await;
        stream.write_all(b"}").await.unwrap();
        let mut answer = [0; 12];
        stream.read_exact(&mut answer).await.unwrap();
        assert_eq!(String::from_utf8_lossy(&answer), "HTTP/1.1 401", "{method} {path}");
    }
}
