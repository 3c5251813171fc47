//! Who may do what: every address with every role, over the real server.
//!
//! The table below is written by hand. It says what is meant; the server's own table says what is done.

use crate::tokens::{ADMIN, guarded, issue, post_kept_alive};
use crate::world::{World, ask, start};
use base64::Engine as _;
use base64::prelude::BASE64_URL_SAFE_NO_PAD as BASE64;
use klambda_server::routes::routes;
use ring::rand::SystemRandom;
use ring::signature::{Ed25519KeyPair, KeyPair};
use serde_json::json;
use std::collections::BTreeSet;
use std::time::{SystemTime, UNIX_EPOCH};

const READ: &[&str] = &["viewer", "operator", "developer", "admin"];
const OPERATE: &[&str] = &["operator", "developer", "admin"];
const CHANGE: &[&str] = &["developer", "admin"];
const SEND: &[&str] = &["producer", "developer", "admin"];
const OWN: &[&str] = &["admin"];

/// Where the roles are needed.
#[derive(Clone, Copy, PartialEq)]
enum Where {
    /// Nothing is needed.
    Public,
    /// In the namespace of the request.
    There,
    /// In all namespaces.
    Everywhere,
    /// In any namespace.
    Anywhere,
}
use Where::{Anywhere, Everywhere, Public, There};

const MATRIX: &[(&str, Where, &[&str])] = &[
    ("GET /healthz", Public, &[]),
    ("GET /health", Public, &[]),
    ("GET /readyz", Public, &[]),
    ("GET /metrics", Everywhere, READ),
    ("GET /api/v1/status", Everywhere, READ),
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
    ("GET /api/v1/events/{id}", There, READ),
    ("GET /api/v1/subscriptions", There, READ),
    ("GET /api/v1/subscriptions/{name}", There, READ),
    ("PUT /api/v1/subscriptions/{name}", There, CHANGE),
    ("DELETE /api/v1/subscriptions/{name}", There, CHANGE),
    ("POST /api/v1/subscriptions/{name}/{action}", There, OPERATE),
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
    ("GET /api/v1/lambda/functions", There, READ),
    ("POST /api/v1/lambda/functions", There, CHANGE),
    ("GET /api/v1/lambda/functions/{name}", There, READ),
    ("PUT /api/v1/lambda/functions/{name}", There, CHANGE),
    ("PATCH /api/v1/lambda/functions/{name}", There, CHANGE),
    ("DELETE /api/v1/lambda/functions/{name}", There, CHANGE),
    ("POST /api/v1/lambda/functions/{name}/rebuild", There, CHANGE),
    ("GET /api/v1/lambda/functions/{name}/logs", There, READ),
    ("POST /api/v1/lambda/functions/{name}/invoke", There, SEND),
    ("GET /api/v1/lambda/agents", There, READ),
    ("POST /api/v1/lambda/agents", There, CHANGE),
    ("GET /api/v1/lambda/agents/{name}", There, READ),
    ("PUT /api/v1/lambda/agents/{name}", There, CHANGE),
    ("PATCH /api/v1/lambda/agents/{name}", There, CHANGE),
    ("DELETE /api/v1/lambda/agents/{name}", There, CHANGE),
    ("POST /api/v1/lambda/agents/{name}/rebuild", There, CHANGE),
    ("GET /api/v1/lambda/agents/{name}/logs", There, READ),
    ("POST /api/v1/lambda/agents/{name}/invoke", There, SEND),
];

const ROLES: [&str; 5] = ["viewer", "operator", "producer", "developer", "admin"];

/// Whether a role that somebody has in these namespaces is enough, for a request to namespace `default`.
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
            [("here", json!(["default"])), ("elsewhere", json!(["elsewhere"])), ("*", json!("*"))]
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
            let is_good = if *place == Public { status == 200 } else { status == 401 };
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
    assert_eq!(ask("/api/v1/namespaces/*/lanes").await.status, 403);
    let status = world.ask("GET", "/api/v1/status?namespace=shop", &[("authorization", ADMIN)], "").await;
    assert_eq!(status.status, 400, "{status:?}");
}

/// Over a connection that stays open, posts go past the HTTP library.
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
        (&other, "/api/v1/events", 403),
        (&other, "/api/v1/events?namespace=default", 403),
        (&producer, "/api/v1/lambda/functions/f/invoke", 404),
        (&viewer, "/api/v1/lambda/functions/f/invoke", 403),
        (&other, "/api/v1/lambda/functions/f/invoke", 403),
        (&other, "/api/v1/namespaces/other/lambda/functions/f/invoke", 404),
    ] {
        assert_eq!(post_kept_alive(world.address, path, token).await, expected, "{path}");
    }
}

/// A token of a trusted issuer has the role that its claims say, on both ways.
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

/// An event asks for no more than its sender could do over REST (semantics: commands).
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
    assert_eq!(send(&producer, "1", "mine", "shop").await, 202, "it is an event like any other");
    assert_eq!(send(&developer, "2", "theirs", "default").await, 202);
    assert_eq!(send(&developer, "3", "ours", "shop").await, 202);
    let bearer = format!("Bearer {developer}");
    let read = async |path: &str| world.ask("GET", path, &[("authorization", &bearer)], "").await;
    let deadline = tokio::time::Instant::now() + crate::world::PATIENCE;
    while read("/api/v1/namespaces/shop/lambda/functions/ours").await.status != 200 {
        assert!(tokio::time::Instant::now() < deadline, "the command is obeyed");
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    assert_eq!(read("/api/v1/namespaces/shop/lambda/functions/mine").await.status, 404);
    let letters = read("/api/v1/namespaces/shop/dlq?subscription=lambda.controller").await.json();
    let letter = &letters["items"][0];
    assert_eq!((&letter["eventId"], letters["items"].as_array().map(Vec::len)), (&json!("2"), Some(1)));
    assert!(letter["lastError"].as_str().is_some_and(|error| error.contains("403")), "{letter}");

    // To have it carried out once more is to command.
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
