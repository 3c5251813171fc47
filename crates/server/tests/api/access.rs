//! Access control: every route with every role, on the real server.
//!
//! The table below is written by hand. It states the intended rules; the table of the server implements them.

use crate::tokens::{ADMIN, guarded, issue, post_kept_alive, token_file};
use crate::world::{World, ask, start};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use klambda_server::Server;
use klambda_server::routes::routes;
use klambda_store::real_disk::{self, RealDisk};
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

const READ: &[&str] = &["viewer", "operator", "developer", "admin"];
const OPERATE: &[&str] = &["operator", "developer", "admin"];
const CHANGE: &[&str] = &["developer", "admin"];
const SEND: &[&str] = &["producer", "developer", "admin"];
const OWN: &[&str] = &["admin"];

/// Where a role is required.
#[derive(Clone, Copy, PartialEq)]
pub enum Where {
    /// Nothing is required.
    Public,
    /// In the namespace of the request.
    There,
    /// In all namespaces.
    Everywhere,
    /// In any namespace.
    Anywhere,
}
use Where::{Anywhere, Everywhere, Public, There};

pub const MATRIX: &[(&str, Where, &[&str])] = &[
    ("GET /healthz", Public, &[]),
    ("GET /health", Public, &[]),
    ("GET /readyz", Public, &[]),
    ("GET /", Public, &[]),
    ("GET /ui", Public, &[]),
    ("GET /ui/{file}", Public, &[]),
    ("GET /ui/sign-in", Public, &[]),
    ("GET /ui/callback", Public, &[]),
    ("GET /ui/session", Public, &[]),
    ("POST /ui/session", Public, &[]),
    ("DELETE /ui/session", Public, &[]),
    ("GET /api/v1/whoami", Anywhere, &ROLES),
    ("GET /api/v1/overview", There, READ),
    ("GET /metrics", Everywhere, READ),
    ("GET /api/v1/status", Everywhere, READ),
    ("GET /api/v1/cost", Everywhere, READ),
    ("POST /api/v1/backup", Everywhere, OWN),
    ("GET /api/v1/audit", There, CHANGE),
    ("GET /api/v1/tokens", Anywhere, OWN),
    ("POST /api/v1/tokens", Anywhere, OWN),
    ("GET /api/v1/tokens/{name}", Anywhere, OWN),
    ("DELETE /api/v1/tokens/{name}", Anywhere, OWN),
    ("GET /api/v1/namespaces", Anywhere, READ),
    ("GET /api/v1/namespaces/{name}", There, READ),
    ("PUT /api/v1/namespaces/{name}", Everywhere, OWN),
    ("DELETE /api/v1/namespaces/{name}", Everywhere, OWN),
    ("POST /api/v1/events", There, SEND),
    ("GET /api/v1/events", There, READ),
    ("GET /api/v1/openapi.json", Anywhere, &ROLES),
    ("GET /api/v1/docs", Anywhere, &ROLES),
    ("GET /api/v1/events/{id}", There, READ),
    ("GET /api/v1/subscriptions", There, READ),
    ("GET /api/v1/subscriptions/{name}", There, READ),
    ("PUT /api/v1/subscriptions/{name}", There, CHANGE),
    ("DELETE /api/v1/subscriptions/{name}", There, CHANGE),
    ("POST /api/v1/subscriptions/{name}/{action}", There, OPERATE),
    ("GET /api/v1/event-types", There, READ),
    ("POST /api/v1/event-types", There, CHANGE),
    ("GET /api/v1/event-types/{name}", There, READ),
    ("PUT /api/v1/event-types/{name}", There, CHANGE),
    ("DELETE /api/v1/event-types/{name}", There, CHANGE),
    ("GET /api/v1/secrets", There, READ),
    ("POST /api/v1/secrets/rekey", Everywhere, OWN),
    ("GET /api/v1/secrets/{name}", There, READ),
    ("PUT /api/v1/secrets/{name}", There, CHANGE),
    ("PATCH /api/v1/secrets/{name}", There, CHANGE),
    ("DELETE /api/v1/secrets/{name}", There, CHANGE),
    ("GET /api/v1/webhooks/endpoints", There, READ),
    ("POST /api/v1/webhooks/endpoints", There, CHANGE),
    ("GET /api/v1/webhooks/endpoints/{name}", There, READ),
    ("PUT /api/v1/webhooks/endpoints/{name}", There, CHANGE),
    ("DELETE /api/v1/webhooks/endpoints/{name}", There, CHANGE),
    // Some routes also allow tokens of the endpoint itself, which `webhooks.rs` tests.
    ("POST /api/v1/webhooks/endpoints/{name}/rotate", There, CHANGE),
    ("GET /api/v1/webhooks/endpoints/{name}/deliveries", There, READ),
    ("POST /api/v1/webhooks/endpoints/{name}/resend", There, OPERATE),
    ("POST /api/v1/webhooks/endpoints/{name}/recover", There, OPERATE),
    ("GET /api/v1/webhooks/endpoints/{name}/recover/{id}", There, READ),
    ("DELETE /api/v1/webhooks/endpoints/{name}/recover/{id}", There, OPERATE),
    ("POST /api/v1/webhooks/endpoints/{name}/link", There, CHANGE),
    ("POST /api/v1/webhooks/endpoints/{name}/test", There, OPERATE),
    ("POST /api/v1/webhooks/endpoints/{name}/{action}", There, OPERATE),
    ("GET /api/v1/webhooks/events", There, READ),
    ("POST /api/v1/webhooks/ack", There, OPERATE),
    ("GET /api/v1/lanes", There, READ),
    ("POST /api/v1/lanes/{action}", There, OPERATE),
    ("GET /api/v1/lanes/{subscription}/{key}", There, READ),
    ("POST /api/v1/lanes/{subscription}/{key}/{action}", There, OPERATE),
    ("GET /api/v1/dlq", There, READ),
    ("POST /api/v1/dlq/purge", There, OPERATE),
    ("GET /api/v1/dlq/replays", There, READ),
    ("POST /api/v1/dlq/replays", There, OPERATE),
    ("GET /api/v1/dlq/replays/{id}", There, READ),
    ("DELETE /api/v1/dlq/replays/{id}", There, OPERATE),
    ("GET /api/v1/dlq/{id}", There, READ),
    ("DELETE /api/v1/dlq/{id}", There, OPERATE),
    ("PUT /api/v1/dlq/{id}/event", There, OPERATE),
    ("GET /api/v1/lambda/functions", There, READ),
    ("POST /api/v1/lambda/functions", There, CHANGE),
    ("GET /api/v1/lambda/functions/{name}", There, READ),
    ("PUT /api/v1/lambda/functions/{name}", There, CHANGE),
    ("PATCH /api/v1/lambda/functions/{name}", There, CHANGE),
    ("DELETE /api/v1/lambda/functions/{name}", There, CHANGE),
    ("POST /api/v1/lambda/functions/{name}/rebuild", There, CHANGE),
    ("GET /api/v1/lambda/functions/{name}/revisions", There, READ),
    ("POST /api/v1/lambda/functions/{name}/rollback", There, CHANGE),
    ("GET /api/v1/lambda/functions/{name}/logs", There, READ),
    ("GET /api/v1/lambda/functions/{name}/metrics", There, READ),
    ("POST /api/v1/lambda/functions/{name}/invoke", There, SEND),
    ("GET /api/v1/lambda/agents", There, READ),
    ("POST /api/v1/lambda/agents", There, CHANGE),
    ("GET /api/v1/lambda/agents/{name}", There, READ),
    ("PUT /api/v1/lambda/agents/{name}", There, CHANGE),
    ("PATCH /api/v1/lambda/agents/{name}", There, CHANGE),
    ("DELETE /api/v1/lambda/agents/{name}", There, CHANGE),
    ("POST /api/v1/lambda/agents/{name}/rebuild", There, CHANGE),
    ("GET /api/v1/lambda/agents/{name}/revisions", There, READ),
    ("POST /api/v1/lambda/agents/{name}/rollback", There, CHANGE),
    ("GET /api/v1/lambda/agents/{name}/logs", There, READ),
    ("GET /api/v1/lambda/agents/{name}/metrics", There, READ),
    ("POST /api/v1/lambda/agents/{name}/invoke", There, SEND),
];

const ROLES: [&str; 5] = ["viewer", "operator", "producer", "developer", "admin"];

/// Whether a role in these namespaces is enough for a request to namespace `default`.
fn expected(place: Where, roles: &[&str], role: &str, namespaces: &str) -> bool {
    match place {
        Public => true,
        There => roles.contains(&role) && namespaces != "elsewhere",
        Everywhere => roles.contains(&role) && namespaces == "*",
        Anywhere => roles.contains(&role),
    }
}

#[tokio::test]
async fn every_address_has_a_row_here() {
    let served: BTreeSet<String> =
        routes().iter().map(|route| format!("{} {}", route.method, route.path)).collect();
    let listed: BTreeSet<String> = MATRIX.iter().map(|(address, ..)| (*address).to_owned()).collect();
    assert_eq!(served, listed);
}

#[tokio::test]
async fn every_role_may_do_what_it_may_and_nothing_else() {
    let world = guarded().await;
    let mut tokens = Vec::new();
    for role in ROLES {
        for (place, namespaces) in
            [("here", json!(["default"])), ("elsewhere", json!(["elsewhere", "other"])), ("*", json!("*"))]
        {
            let name = format!("{role}-{}", if place == "*" { "all" } else { place });
            let token = issue(&world, json!({"name": name, "role": role, "namespaces": namespaces})).await;
            tokens.push((role, place, format!("Bearer {token}")));
        }
    }
    for (address, place, roles) in MATRIX {
        let (method, path) = address.split_once(' ').unwrap();
        let path = path.replace("namespaces/{name}", "namespaces/default");
        let path = path.replace("{action}", "pause").replace(['{', '}'], "");
        for wrong in
            [vec![], vec![("authorization", "Bearer klt_wrong")], vec![("authorization", "Bearer wrong")]]
        {
            let status = world.ask(method, &path, &wrong, "").await.status;
            let is_good = if *place == Public { ![401, 403].contains(&status) } else { status == 401 };
            assert!(is_good, "{address} without a token: {status}");
        }
        for (role, namespaces, bearer) in &tokens {
            let answer = world.ask(method, &path, &[("authorization", bearer)], "").await;
            let is_allowed = ![401, 403].contains(&answer.status);
            let wanted = expected(*place, roles, role, namespaces);
            assert_eq!(is_allowed, wanted, "{address} for {role} of {namespaces}: {answer:?}");
            if !wanted {
                assert_eq!(answer.problem(), "forbidden", "{address}");
            }
        }
    }
}

#[tokio::test]
async fn a_namespace_that_nobody_may_see_looks_like_one_that_is_not_there() {
    let world = guarded().await;
    let token = issue(&world, json!({"name": "v", "role": "viewer", "namespaces": ["shop"]})).await;
    let bearer = format!("Bearer {token}");
    let headers = [("authorization", bearer.as_str())];
    let ask = |path: &'static str| world.ask("GET", path, &headers, "");
    let (there, not_there) =
        (ask("/api/v1/namespaces/default/lanes").await, ask("/api/v1/namespaces/nowhere/lanes").await);
    assert_eq!((there.status, not_there.status), (403, 403));
    assert_eq!(there.text().replace("default", "nowhere"), not_there.text());
    assert!(there.text().contains("role viewer in namespace default; token/v is viewer in namespace shop"));
    assert_eq!(
        ask("/api/v1/namespaces/*/lanes").await.status,
        200,
        "a list contains what the token may read"
    );
    let status = world.ask("GET", "/api/v1/status?namespace=shop", &[("authorization", ADMIN)], "").await;
    assert_eq!(status.status, 400, "{status:?}");
}

/// On a connection that stays open, POST requests bypass the HTTP library.
#[tokio::test]
async fn the_short_way_asks_for_the_same() {
    let world: World = guarded().await;
    let issue = |role: &'static str, namespace: &'static str| {
        issue(&world, json!({"name": format!("{role}-{namespace}"), "role": role, "namespaces": [namespace]}))
    };
    let (producer, viewer, other) = (
        issue("producer", "default").await,
        issue("viewer", "default").await,
        issue("producer", "other").await,
    );
    for (token, path, expected) in [
        (&producer, "/api/v1/events", 202),
        (&producer, "/api/v1/namespaces/default/events", 202),
        (&producer, "/api/v1/namespaces/other/events", 403),
        (&viewer, "/api/v1/events", 403),
        (&other, "/api/v1/events", 202),
        (&other, "/api/v1/events?namespace=default", 403),
        (&producer, "/api/v1/lambda/functions/f/invoke", 404),
        (&viewer, "/api/v1/lambda/functions/f/invoke", 403),
        (&other, "/api/v1/lambda/functions/f/invoke", 404),
        (&other, "/api/v1/lambda/functions/f/invoke?namespace=default", 403),
        (&other, "/api/v1/namespaces/other/lambda/functions/f/invoke", 404),
    ] {
        assert_eq!(post_kept_alive(world.address, path, token).await, expected, "{path}");
    }
}

/// A token of a trusted issuer has the role in its claims, on both paths.
#[tokio::test]
async fn a_jwt_is_as_good_as_a_token() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    let pair = Ed25519KeyPair::generate_pkcs8(&SystemRandom::new()).unwrap();
    let pair = Ed25519KeyPair::from_pkcs8(pair.as_ref()).unwrap();
    let public = BASE64.encode(pair.public_key().as_ref());
    let jwk = json!({"kty": "OKP", "crv": "Ed25519", "kid": "k", "x": public});
    std::fs::write(&keys, json!({"keys": [jwk]}).to_string()).unwrap();
    let sign = |role: &str, namespaces: &str| {
        let exp = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs() + 300;
        let claims = json!({"iss": "https://issuer.example", "aud": "klambda", "sub": "ada", "exp": exp,
                            "klambda/role": role, "klambda/namespaces": namespaces});
        let parts = [json!({"alg": "EdDSA", "kid": "k"}), claims].map(|part| BASE64.encode(part.to_string()));
        let message = parts.join(".");
        format!("{message}.{}", BASE64.encode(pair.sign(message.as_bytes()).as_ref()))
    };
    let server = start(&folder.path().join("data"), |config| {
        config.auth.jwt.issuer = Some("https://issuer.example".to_owned());
        config.auth.jwt.audience = Some("klambda".to_owned());
        config.auth.jwt.jwks_file = Some(keys.clone());
    })
    .await;
    let address = server.address();
    let status = async |method: &str, path: &str, token: &str| {
        let bearer = format!("Bearer {token}");
        ask(address, method, path, &[("authorization", &bearer)], b"{}").await.status
    };
    let (viewer, producer, admin) =
        (sign("viewer", "default"), sign("producer", "default"), sign("admin", "*"));
    assert_eq!(ask(address, "GET", "/api/v1/lanes", &[], b"").await.status, 401);
    assert_eq!(status("GET", "/api/v1/lanes", &viewer).await, 200);
    assert_eq!(status("GET", "/api/v1/lanes", &producer).await, 403);
    assert_eq!(status("GET", "/api/v1/status", &viewer).await, 403);
    assert_eq!(status("GET", "/api/v1/status", &admin).await, 200);
    assert_eq!(status("GET", "/api/v1/lanes", &sign("root", "*")).await, 403);
    assert_eq!(status("GET", "/api/v1/lanes", &format!("{}x", &viewer[..viewer.len() - 1])).await, 401);
    assert_eq!(post_kept_alive(address, "/api/v1/events", &producer).await, 202);
    assert_eq!(post_kept_alive(address, "/api/v1/events", &viewer).await, 403);

    // Its admin can create tokens, which then work without the issuer.
    let bearer = format!("Bearer {admin}");
    let body = json!({"name": "ci", "role": "producer", "namespaces": ["default"]}).to_string();
    let created =
        ask(address, "POST", "/api/v1/tokens", &[("authorization", &bearer)], body.as_bytes()).await.json();
    assert_eq!(created["createdBy"], "jwt/ada");
    assert_eq!(post_kept_alive(address, "/api/v1/events", created["token"].as_str().unwrap()).await, 202);
    server.stop();
    server.ended().await.unwrap();
}

/// A command in an event needs the same role as the REST request.
#[tokio::test]
async fn a_command_is_obeyed_if_its_sender_may_do_the_same() {
    let world = guarded().await;
    let token = |name: &'static str, role: &'static str| {
        issue(&world, json!({"name": name, "role": role, "namespaces": ["shop"]}))
    };
    let (producer, operator, developer) =
        (token("p", "producer").await, token("o", "operator").await, token("d", "developer").await);
    let source = json!({"type": "url", "url": {"url": world.target.url()}});
    let send = async |token: &str, id: &str, name: &str, namespace: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [
            ("authorization", bearer.as_str()),
            ("content-type", "application/json"),
            ("ce-specversion", "1.0"),
            ("ce-type", "lambda.function.created"),
            ("ce-source", "/ci"),
            ("ce-id", id),
        ];
        let data = json!({"name": name, "namespace": namespace, "spec": {"source": source}}).to_string();
        world.ask("POST", "/api/v1/namespaces/shop/events", &headers, &data).await.status
    };
    assert_eq!(send(&producer, "1", "mine", "shop").await, 202, "it is accepted as an ordinary event");
    assert_eq!(send(&developer, "2", "theirs", "default").await, 202);
    assert_eq!(send(&developer, "3", "ours", "shop").await, 202);
    let bearer = format!("Bearer {developer}");
    let read = async |path: &str| world.ask("GET", path, &[("authorization", &bearer)], "").await;
    let deadline = tokio::time::Instant::now() + crate::world::PATIENCE;
    while read("/api/v1/namespaces/shop/lambda/functions/ours").await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the command was not run in time");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(read("/api/v1/namespaces/shop/lambda/functions/mine").await.status, 404);
    let letters = read("/api/v1/namespaces/shop/dlq?subscription=lambda.controller").await.json();
    let letter = &letters["items"][0];
    assert_eq!((&letter["eventId"], letters["items"].as_array().map(Vec::len)), (&json!("2"), Some(1)));
    assert!(letter["lastError"].as_str().is_some_and(|error| error.contains("403")), "{letter}");

    // Running a command again needs the same right as sending it.
    for (token, status) in [(&operator, 403), (&developer, 202)] {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
        let named = json!({"selector": {"subscription": "lambda.controller"}}).to_string();
        let replay = world.ask("POST", "/api/v1/namespaces/shop/dlq/replays", &headers, &named).await;
        assert_eq!(replay.status, status, "{replay:?}");
        let all = json!({"selector": {"all": true}, "dryRun": true}).to_string();
        let dry = world.ask("POST", "/api/v1/namespaces/shop/dlq/replays", &headers, &all).await.json();
        if status == 403 {
            assert_eq!(dry["selected"], 0, "{dry}");
        }
    }
}

/// Once a folder has had tokens, removing the token file from the configuration does not open the server.
#[tokio::test]
async fn authentication_stays_on_in_a_folder_that_has_had_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let data = folder.path().join("data");
    let stopped = async |server: Server| {
        server.stop();
        server.ended().await.unwrap();
    };
    let lanes = async |server: &Server, token: &str| {
        let bearer = format!("Bearer {token}");
        let headers = [("authorization", bearer.as_str())];
        let headers = if token.is_empty() { &[] } else { &headers[..] };
        ask(server.address(), "GET", "/api/v1/lanes", headers, b"").await
    };

    for _ in 0..2 {
        let fresh = start(&data, |_| {}).await;
        assert_eq!(lanes(&fresh, "").await.status, 200, "a folder without tokens stays open");
        stopped(fresh).await;
    }
    assert_eq!(mark(&data), None);

    let guarded = start(&data, |config| config.token_file = Some(token_file())).await;
    assert_eq!(lanes(&guarded, "").await.status, 401);
    let body = json!({"name": "v", "role": "viewer", "namespaces": ["default"]}).to_string();
    let admin = [("authorization", ADMIN)];
    let created = ask(guarded.address(), "POST", "/api/v1/tokens", &admin, body.as_bytes()).await.json();
    let token = created["token"].as_str().unwrap().to_owned();
    stopped(guarded).await;
    let written = mark(&data);
    assert!(written.is_some());

    let bare = start(&data, |_| {}).await;
    let refused = lanes(&bare, "").await;
    assert_eq!(refused.status, 401, "{refused:?}");
    assert!(refused.text().contains("tokenFile"), "it says what to do: {refused:?}");
    assert_eq!(lanes(&bare, "first").await.status, 401, "the token file is not configured");
    assert_eq!(lanes(&bare, &token).await.status, 200);
    assert_eq!(post_kept_alive(bare.address(), "/api/v1/events", "first").await, 401);
    for open in ["/healthz", "/readyz"] {
        assert_eq!(ask(bare.address(), "GET", open, &[], b"").await.status, 200, "{open}");
    }
    stopped(bare).await;

    let back = start(&data, |config| config.token_file = Some(token_file())).await;
    assert_eq!(lanes(&back, "first").await.status, 200);
    let deleted = ask(back.address(), "DELETE", "/api/v1/tokens/v", &admin, b"").await;
    assert_eq!(deleted.status, 200, "{deleted:?}");
    stopped(back).await;

    let bare = start(&data, |_| {}).await;
    assert_eq!(lanes(&bare, "").await.status, 401, "also when no token is left");
    assert_eq!(lanes(&bare, &token).await.status, 401);
    stopped(bare).await;
    assert_eq!(mark(&data), written, "the mark is written once");
}

/// The version of the mark in a data folder that requires tokens.
fn mark(data: &Path) -> Option<u64> {
    let disk = loop {
        match RealDisk::open(data) {
            // The threads of a stopped server release the folder a moment later.
            Err(real_disk::Error::Held { .. }) => std::thread::yield_now(),
            opened => break opened.unwrap(),
        }
    };
    let options = klambda_dispatch::Config::default();
    let (engine, _) = Engine::open(Arc::new(disk), options, Millis(0), [0; 16]).unwrap();
    engine.document("authentication", "required").unwrap().map(|stored| stored.version)
}

#[tokio::test]
async fn who_has_the_server_read_its_own_files_is_an_admin_of_all_of_it() {
    let world = guarded().await;
    let bearer = async |name: &str, role: &str| {
        format!("Bearer {}", issue(&world, json!({"name": name, "role": role, "namespaces": ["shop"]})).await)
    };
    let (developer, local) = (bearer("d", "developer").await, bearer("a", "admin").await);
    let put = async |token: &str, kind: &str, name: &str, spec: serde_json::Value| {
        let headers = [("authorization", token), ("content-type", "application/json")];
        let (version, word) = ("lambda.knative.io/v1alpha1", kind.split('/').next_back().unwrap_or_default());
        let kind_name = if word.starts_with("subscriptions") { "Subscription" } else { "LambdaFunction" };
        let body =
            json!({"apiVersion": version, "kind": kind_name, "metadata": {}, "spec": spec}).to_string();
        let path = format!(
            "/api/v1/namespaces/shop/{kind}/{name}?{}",
            if word == "functions" { "apply=true" } else { "" }
        );
        world.ask("PUT", path.trim_end_matches('?'), &headers, &body).await
    };
    let target = |more: serde_json::Value| {
        let mut target = json!({"url": world.target.url()});
        target.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        json!({"target": target})
    };
    let source = json!({"type": "folder", "folder": {"path": "/etc"}});
    let folder = json!({"source": source, "runtime": {"language": "python"}});
    for (kind, spec) in [
        ("subscriptions", target(json!({"headers": {"x-a": {"file": "/etc/hostname"}}}))),
        ("subscriptions", target(json!({"headers": {"x-a": {"env": "PATH"}}}))),
        (
            "subscriptions",
            json!({"target": {"url": "https://t.example/", "tls": {"caFile": "/etc/hostname"}}}),
        ),
        ("lambda/functions", folder.clone()),
    ] {
        for token in [&developer, &local] {
            let refused = put(token, kind, "s", spec.clone()).await;
            assert_eq!(refused.status, 403, "{kind} {spec}: {refused:?}");
            assert!(
                refused.json()["detail"].as_str().is_some_and(|d| d.contains("admin in all namespaces")),
                "{refused:?}"
            );
        }
        let made = put(ADMIN, kind, "s", spec.clone()).await;
        assert!(made.status < 300, "{kind} {spec}: {made:?}");
        if kind == "subscriptions" {
            let mut paused = spec.clone();
            paused["paused"] = true.into();
            assert_eq!(put(&developer, kind, "s", paused).await.status, 200, "the server reads nothing new");
            let mut elsewhere = spec;
            elsewhere["target"]["url"] = "https://elsewhere.example/".into();
            assert_eq!(
                put(&developer, kind, "s", elsewhere).await.status,
                403,
                "the values would go to another target"
            );
            world
                .ask("DELETE", "/api/v1/namespaces/shop/subscriptions/s", &[("authorization", ADMIN)], "")
                .await;
        }
    }
}

#[tokio::test]
async fn a_viewer_reads_no_value_of_a_header_or_a_variable() {
    let world = guarded().await;
    let viewer = issue(&world, json!({"name": "v", "role": "viewer", "namespaces": ["shop"]})).await;
    let developer = issue(&world, json!({"name": "d", "role": "developer", "namespaces": ["shop"]})).await;
    let bearer = format!("Bearer {developer}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let version = "lambda.knative.io/v1alpha1";
    let target = json!({"url": world.target.url(), "headers": {"x-team": "value-of-header"}});
    let body = json!({"apiVersion": version, "kind": "Subscription", "spec": {"target": target}}).to_string();
    let put = world.ask("PUT", "/api/v1/namespaces/shop/subscriptions/s", &headers, &body).await;
    assert_eq!(put.status, 201, "{put:?}");
    let spec = json!({
        "source": {"type": "url", "url": {"url": world.target.url()}},
        "env": [{"name": "TEAM", "value": "value-of-variable"}],
    });
    let body = json!({"apiVersion": version, "kind": "LambdaAgent", "metadata": {"name": "f"}, "spec": spec});
    // Applied, so that the manifest is an annotation as well.
    let path = "/api/v1/namespaces/shop/lambda/agents/f?apply=true";
    let made = world.ask("PUT", path, &headers, &body.to_string()).await;
    assert_eq!(made.status, 202, "{made:?}");
    for path in ["subscriptions", "subscriptions/s", "lambda/agents", "lambda/agents/f"] {
        let path = format!("/api/v1/namespaces/shop/{path}");
        for (token, sees) in [(&viewer, false), (&developer, true)] {
            let bearer = format!("Bearer {token}");
            let shown = world.ask("GET", &path, &[("authorization", bearer.as_str())], "").await;
            assert_eq!(shown.status, 200, "{shown:?}");
            let text = shown.json().to_string();
            assert_eq!(text.contains("value-of-"), sees, "{path}: {text}");
            assert!(sees || text.contains("***"), "{path}: {text}");
        }
    }
}

#[tokio::test]
async fn a_document_that_says_null_for_its_namespace_stays_where_it_was_sent() {
    let world = guarded().await;
    let developer = issue(&world, json!({"name": "d", "role": "developer", "namespaces": ["shop"]})).await;
    let bearer = format!("Bearer {developer}");
    let headers = [("authorization", bearer.as_str()), ("content-type", "application/json")];
    let spec = json!({"target": {"url": world.target.url()}});
    let metadata = json!({"namespace": null, "name": null});
    let body = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": metadata, "spec": spec});
    let put = world.ask("PUT", "/api/v1/namespaces/shop/subscriptions/s", &headers, &body.to_string()).await;
    assert_eq!((put.status, &put.json()["metadata"]["namespace"]), (201, &json!("shop")), "{put:?}");
    let source = json!({"type": "url", "url": {"url": world.target.url()}});
    let body = json!({"metadata": {"name": "f", "namespace": null}, "spec": {"source": source}});
    let made = world.ask("POST", "/api/v1/namespaces/shop/lambda/agents", &headers, &body.to_string()).await;
    assert_eq!(made.status, 202, "{made:?}");
    for path in ["subscriptions/s", "lambda/agents/f"] {
        for (namespace, status) in [("shop", 200), ("default", 404)] {
            let path = format!("/api/v1/namespaces/{namespace}/{path}");
            let shown = world.ask("GET", &path, &[("authorization", ADMIN)], "").await;
            assert_eq!(shown.status, status, "{path}");
        }
    }
}

#[tokio::test]
async fn a_request_that_names_no_namespace_is_for_the_only_one_of_its_token() {
    let world = guarded().await;
    let bearer = async |name: &str, namespaces: serde_json::Value| {
        let token = json!({"name": name, "role": "developer", "namespaces": namespaces});
        format!("Bearer {}", issue(&world, token).await)
    };
    let (one, two) = (bearer("one", json!(["shop"])).await, bearer("two", json!(["shop", "other"])).await);
    let send = async |bearer: &str, id: &str| {
        let headers = [
            ("authorization", bearer),
            ("ce-specversion", "1.0"),
            ("ce-type", "order"),
            ("ce-source", "/s"),
            ("ce-id", id),
        ];
        world.ask("POST", "/api/v1/events", &headers, "").await.status
    };
    assert_eq!(send(&one, "1").await, 202);
    assert_eq!(send(&two, "2").await, 403, "the token has no role in default");
    let list = async |bearer: &str, path: &str| {
        let page = world.ask("GET", path, &[("authorization", bearer)], "").await.json();
        page["items"].as_array().map(Vec::len)
    };
    assert_eq!(list(&one, "/api/v1/events?after=0").await, Some(1));
    assert_eq!(list(ADMIN, "/api/v1/namespaces/shop/events?after=0").await, Some(1));
    assert_eq!(list(ADMIN, "/api/v1/events?after=0").await, Some(0));
}

#[tokio::test]
async fn a_list_of_all_namespaces_has_those_that_the_token_may_read() {
    let world = guarded().await;
    let admin = [("authorization", ADMIN), ("content-type", "application/json")];
    let event = [
        ("authorization", ADMIN),
        ("ce-specversion", "1.0"),
        ("ce-type", "t"),
        ("ce-source", "/s"),
        ("ce-id", "1"),
    ];
    for namespace in ["default", "shop", "other", "elsewhere"] {
        let spec = json!({"target": {"url": world.target.url()}});
        let body = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "spec": spec})
            .to_string();
        let path = format!("/api/v1/namespaces/{namespace}");
        assert_eq!(world.ask("PUT", &format!("{path}/subscriptions/s"), &admin, &body).await.status, 201);
        let source = json!({"type": "url", "url": {"url": world.target.url()}});
        let body = json!({"metadata": {"name": "a"}, "spec": {"source": source}}).to_string();
        assert_eq!(world.ask("POST", &format!("{path}/lambda/agents"), &admin, &body).await.status, 202);
        assert_eq!(world.ask("POST", &format!("{path}/events"), &event, "").await.status, 202);
    }
    let token = json!({"name": "d", "role": "developer", "namespaces": ["shop", "other"]});
    let bearer = format!("Bearer {}", issue(&world, token).await);
    for path in
        ["subscriptions", "lambda/agents", "events?after=0&type=t", "audit", "lanes", "dlq", "dlq/replays"]
    {
        let sign = if path.contains('?') { '&' } else { '?' };
        let path = format!("/api/v1/{path}{sign}namespace=*");
        let page = world.ask("GET", &path, &[("authorization", &bearer)], "").await;
        assert_eq!(page.status, 200, "{path}: {page:?}");
        let page = page.json();
        let items = page["items"].as_array().expect("items");
        let of = |item: &serde_json::Value| {
            let name = item["namespace"].as_str().or(item["metadata"]["namespace"].as_str());
            name.unwrap_or_default().to_owned()
        };
        let seen: BTreeSet<String> = items.iter().map(of).collect();
        let expected: &[&str] =
            if path.contains("lanes") || path.contains("dlq") { &[] } else { &["other", "shop"] };
        assert_eq!(seen, expected.iter().map(|name| (*name).to_owned()).collect(), "{path}");
        let all = world.ask("GET", &path, &[("authorization", ADMIN)], "").await.json();
        assert!(
            expected.is_empty() || all["items"].as_array().is_some_and(|all| all.len() > items.len()),
            "{path}"
        );
    }
}
