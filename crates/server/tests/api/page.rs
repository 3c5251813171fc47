//! The page: its files, its sessions, and the overview that it shows.

use crate::tokens::{ADMIN, guarded, issue};
use crate::world::{Answer, PATIENCE, World, ask, start};
use serde_json::json;
use std::time::Duration;
use tokio::time::timeout;

const PAGE: (&str, &str) = ("klambda-page", "1");

#[tokio::test]
async fn its_files_are_public_and_cached() {
    let world = guarded().await;
    let root = world.get("/").await;
    assert_eq!((root.status, root.headers["location"].as_str()), (303, "/ui"), "{root:?}");
    let page = world.get("/ui").await;
    assert_eq!(page.status, 200, "{page:?}");
    let policy = &page.headers["content-security-policy"];
    assert!(
        policy.starts_with("default-src 'none'") && policy.contains("frame-ancestors 'none'"),
        "{policy}"
    );
    assert!(page.text().contains("/ui/app.js"));
    let tag = page.headers["etag"].as_str();
    let again = world.ask("GET", "/ui", &[("if-none-match", tag)], "").await;
    assert_eq!((again.status, again.text()), (304, String::new()));
    let packed = world.ask("GET", "/ui/app.js", &[("accept-encoding", "gzip, br")], "").await;
    assert_eq!(packed.headers["content-encoding"], "gzip");
    assert_eq!(world.get("/ui/none.js").await.status, 404);
    assert_eq!(world.get("/ui/..%2fui.rs").await.status, 404);
}

async fn sign_in(world: &World, token: &str) -> Answer {
    let body = json!({"token": token}).to_string();
    world.ask("POST", "/ui/session", &[PAGE, ("content-type", "application/json")], &body).await
}

/// The cookie as the browser sends it back.
fn cookie(answer: &Answer) -> String {
    let set = &answer.headers["set-cookie"];
    assert!(set.contains("HttpOnly") && set.contains("SameSite=Strict") && set.contains("Path=/"), "{set}");
    set.split(';').next().unwrap().to_owned()
}

#[tokio::test]
async fn a_session_stands_for_its_token_and_ends_with_it() {
    let world = guarded().await;
    let admin = [("authorization", ADMIN)];
    let token = issue(&world, json!({"name": "guest", "role": "viewer", "namespaces": ["default"]})).await;
    let token = token.as_str();

    let foreign = world.ask("POST", "/ui/session", &[], &json!({"token": token}).to_string()).await;
    assert_eq!(foreign.status, 400, "a form of another site cannot sign in: {foreign:?}");
    assert_eq!(sign_in(&world, "klt_wrong").await.status, 401);
    let session = cookie(&sign_in(&world, token).await);
    assert!(!session.contains(token));

    let asked = async |path: &str, headers: &[(&str, &str)]| {
        let headers = [&[("cookie", session.as_str())], headers].concat();
        world.ask("GET", path, &headers, "").await
    };
    let me = asked("/api/v1/whoami", &[PAGE]).await.json();
    assert_eq!((&me["name"], &me["role"]), (&json!("token/guest"), &json!("viewer")), "{me}");
    assert_eq!(me["namespaces"], json!(["default"]));
    assert_eq!(asked("/api/v1/lanes", &[PAGE]).await.status, 200);
    assert_eq!(asked("/api/v1/lanes?namespace=shop", &[PAGE]).await.status, 403);
    assert_eq!(asked("/api/v1/lanes", &[]).await.status, 401, "the header is required");
    assert_eq!(asked("/api/v1/lanes", &[PAGE, ("sec-fetch-site", "cross-site")]).await.status, 401);
    let events = r#"{"specversion": "1.0", "id": "e", "source": "/s", "type": "t"}"#;
    let headers = [("cookie", session.as_str()), PAGE, ("content-type", "application/cloudevents+json")];
    assert_eq!(
        world.ask("POST", "/api/v1/events", &headers, events).await.status,
        403,
        "a viewer sends nothing"
    );

    let headers = [("cookie", session.as_str()), PAGE, ("accept", "text/event-stream")];
    let following = world.ask("GET", "/api/v1/overview", &headers, "");
    let deleting = async {
        tokio::time::sleep(Duration::from_millis(100)).await;
        world.ask("DELETE", "/api/v1/tokens/guest", &admin, "").await
    };
    let (stream, deleted) =
        timeout(PATIENCE, async { tokio::join!(following, deleting) }).await.expect("an end");
    assert_eq!((stream.status, deleted.status), (200, 200), "the stream ends with the token");
    assert!(stream.text().starts_with("data: {"), "{stream:?}");
    let ended = asked("/api/v1/lanes", &[PAGE]).await;
    assert_eq!(ended.status, 401, "{ended:?}");
    assert!(ended.text().contains("sign in again"), "{ended:?}");
}

#[tokio::test]
async fn signing_out_ends_the_session() {
    let world = guarded().await;
    let session = cookie(&sign_in(&world, ADMIN.trim_start_matches("Bearer ")).await);
    let headers = [("cookie", session.as_str()), PAGE];
    assert_eq!(world.ask("GET", "/api/v1/status", &headers, "").await.status, 200);
    assert_eq!(world.ask("DELETE", "/ui/session", &headers, "").await.status, 204);
    assert_eq!(world.ask("GET", "/api/v1/status", &headers, "").await.status, 401);
}

#[tokio::test]
async fn a_sign_in_without_a_provider_is_a_problem() {
    let world = guarded().await;
    assert_eq!(world.get("/ui/session").await.json(), json!({"provider": null}));
    for path in ["/ui/sign-in", "/ui/callback?code=c&state=s"] {
        let answer = world.get(path).await;
        assert_eq!((answer.status, answer.problem().as_str()), (404, "not-found"), "{answer:?}");
    }
}

#[tokio::test]
async fn a_provider_that_does_not_answer_is_a_problem() {
    let folder = tempfile::tempdir().unwrap();
    let keys = folder.path().join("jwks.json");
    // The example of RFC 8037, A.2.
    let key = json!({"kty": "OKP", "crv": "Ed25519", "x": "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo"});
    std::fs::write(&keys, json!({"keys": [key]}).to_string()).unwrap();
    let server = start(folder.path(), |config| {
        config.auth.jwt.issuer = Some("http://127.0.0.1:9".to_owned());
        config.auth.jwt.audience = Some("klambda".to_owned());
        config.auth.jwt.jwks_file = Some(keys);
        config.auth.oidc.client_id = Some("page".to_owned());
        config.auth.oidc.public_url = Some("https://klambda.example".to_owned());
    })
    .await;
    let get =
        async |path: &str, headers: &[(&str, &str)]| ask(server.address(), "GET", path, headers, b"").await;
    assert_eq!(get("/ui/session", &[]).await.json(), json!({"provider": "127.0.0.1"}));
    let refused = get("/ui/sign-in", &[]).await;
    assert_eq!((refused.status, refused.problem().as_str()), (502, "identity-provider"), "{refused:?}");
    assert_eq!(refused.headers["cache-control"], "no-store");
    let shown = get("/ui/sign-in", &[("accept", "text/html,*/*")]).await;
    assert!(shown.status == 502 && shown.text().contains("<h1>Could not sign in</h1>"), "{shown:?}");
    assert!(shown.headers["content-security-policy"].starts_with("default-src 'none'"));
    let strange = get("/ui/callback?code=%3Cb%3E&state=x&error=%3Cb%3E", &[("accept", "text/html")]).await;
    assert!(strange.status == 400 && !strange.text().contains("<b>"), "{strange:?}");
    server.stop();
}

#[tokio::test]
async fn an_open_server_needs_no_session() {
    let world = World::new().await;
    let me = world.get("/api/v1/whoami").await.json();
    assert_eq!((&me["role"], &me["requiresToken"]), (&json!("admin"), &json!(false)), "{me}");
    assert_eq!(sign_in(&world, "x").await.status, 409);
    let stale = [("cookie", "klambda-session=old")];
    assert_eq!(
        world.ask("GET", "/api/v1/lanes", &stale, "").await.status,
        200,
        "an old cookie does not matter"
    );
}

#[tokio::test]
async fn the_overview_counts_and_says_what_needs_a_person() {
    let world = World::new().await;
    world.subscribe("orders", json!({})).await;
    let calm = world.get("/api/v1/overview").await.json();
    assert_eq!((&calm["accepted"], &calm["attention"]), (&json!(0), &json!([])), "{calm}");
    world.target.answers(|event| if event.headers["ce-partitionkey"] == "bad" { 500 } else { 204 });
    for (id, key) in [("a", "good"), ("b", "bad"), ("c", "bad")] {
        world.send(id, key, &[]).await;
    }
    let overview =
        world.until("/api/v1/overview", |seen| seen["lanes"]["parked"] == 1 && seen["delivered"] == 1).await;
    assert_eq!((&overview["accepted"], &overview["delivered"]), (&json!(3), &json!(1)), "{overview}");
    assert_eq!((&overview["waiting"], &overview["deadLetters"]), (&json!(2), &json!(1)), "{overview}");
    assert_eq!(overview["latency"]["count"], 1, "{overview}");
    let kinds: Vec<_> = overview["attention"].as_array().unwrap().iter().map(|item| &item["kind"]).collect();
    assert_eq!(kinds, ["lanesParked", "deadLetters"], "{overview}");
    assert_eq!(overview["attention"][0]["name"], "orders");
    assert!(overview["server"]["memory"]["limitBytes"].as_u64() > Some(0), "{overview}");
    let other = world.put("/api/v1/namespaces/shop", &json!({})).await;
    assert_eq!(other.status, 201, "{other:?}");
    let other = world.get("/api/v1/overview?namespace=shop").await.json();
    assert_eq!((&other["accepted"], &other["attention"]), (&json!(0), &json!([])), "{other}");
}
