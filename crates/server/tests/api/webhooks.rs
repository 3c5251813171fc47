//! Webhook endpoints: signed calls in order, their health, and the feed.

use crate::access::{MATRIX, Where};
use crate::tokens::{ADMIN, guarded, issue};
use crate::world::{Answer, NEVER, PATIENCE, Received, World, open};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD as BASE64;
use ring::{hmac, signature};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::time::{sleep, timeout};

pub const ENDPOINTS: &str = "/api/v1/webhooks/endpoints";
pub const FEED: &str = "/api/v1/webhooks/events";
const ACK: &str = "/api/v1/webhooks/ack";

pub async fn create(world: &World, name: &str, more: Value) -> Answer {
    let mut body =
        json!({"name": name, "url": world.target.url(), "retry": {"schedule": ["0s", "20ms", "20ms"]}});
    body.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    let answer = world.post(ENDPOINTS, body).await;
    assert_eq!(answer.status, 201, "{answer:?}");
    answer
}

pub async fn send(world: &World, numbers: std::ops::RangeInclusive<u32>, workflows: u32) {
    for number in numbers {
        world.send(&format!("e{number}"), &format!("order-{}", number % workflows), &[]).await;
    }
}

pub fn body(call: &Received) -> Value {
    serde_json::from_str(&call.body).unwrap()
}

/// What a receiver does: checks the signature over `id.timestamp.body`.
pub fn is_signed_with(call: &Received, secret: &str) -> bool {
    let key = BASE64.decode(secret.strip_prefix("whsec_").unwrap()).unwrap();
    let key = hmac::Key::new(hmac::HMAC_SHA256, &key);
    let header = |name: &str| call.headers[name].as_str();
    let signed = format!("{}.{}.{}", header("webhook-id"), header("webhook-timestamp"), call.body);
    let mut versions = header("webhook-signature").split(' ').filter_map(|one| one.strip_prefix("v1,"));
    versions.any(|one| hmac::verify(&key, signed.as_bytes(), &BASE64.decode(one).unwrap()).is_ok())
}

/// What a receiver does: finds gaps and disorder by itself, from the bodies alone.
fn must_be_complete(bodies: &[Value], events: usize) {
    let mut last: HashMap<&str, &Value> = HashMap::new();
    for body in bodies {
        let workflow = body["workflowId"].as_str().unwrap();
        let before = last.insert(workflow, body);
        let number = before.map_or(0, |before| before["sequenceNumber"].as_u64().unwrap());
        // A call can be repeated if its answer was lost.
        if body["sequenceNumber"] == number && number > 0 {
            continue;
        }
        assert_eq!(body["sequenceNumber"], number + 1, "{body}");
        let previous = before.map_or(Value::Null, |before| before["eventId"].clone());
        assert_eq!(body["previousEventId"], previous, "{body}");
    }
    let total: u64 = last.values().map(|body| body["sequenceNumber"].as_u64().unwrap()).sum();
    assert_eq!(total, events as u64);
}

pub async fn feed(world: &World, query: &str) -> Value {
    let answer = world.get(&format!("{FEED}{query}")).await;
    assert_eq!(answer.status, 200, "{answer:?}");
    answer.json()
}

pub fn items(page: &Value) -> &[Value] {
    page["items"].as_array().unwrap()
}

#[tokio::test]
async fn events_arrive_signed_and_in_order_and_the_feed_has_the_same() {
    let world = World::new().await;
    let created =
        create(&world, "partner", json!({"types": ["order.*"], "workflowKey": "partitionkey"})).await;
    assert_eq!(created.headers["cache-control"], "no-store");
    assert_eq!(created.headers["location"], "/api/v1/webhooks/endpoints/partner");
    let endpoint = created.json();
    let secret = endpoint["secret"].as_str().unwrap().to_owned();
    assert_eq!((endpoint.get("token"), &endpoint["status"]["phase"]), (None, &json!("Ready")));
    let again = world.post(ENDPOINTS, json!({"name": "partner", "url": world.target.url()})).await;
    assert_eq!(again.problem(), "conflict");

    send(&world, 1..=9, 3).await;
    world.send("x", "order-0", &[("ce-type", "other")]).await;
    world.target.until(|calls| calls.len() == 9).await;
    let calls = world.target.received();
    for call in &calls {
        assert!(is_signed_with(call, &secret) && !is_signed_with(call, "whsec_AAAA"), "{call:?}");
        assert_eq!(body(call)["eventId"], call.headers["webhook-id"].as_str());
    }
    let bodies: Vec<Value> = calls.iter().map(body).collect();
    must_be_complete(&bodies, 9);
    let first = bodies.iter().find(|body| body["id"] == "e1").unwrap();
    assert_eq!((&first["type"], &first["source"]), (&json!("order.placed"), &json!("/shop")));
    assert_eq!((&first["workflowId"], &first["data"]), (&json!("order-1"), &json!({"total": 7})));

    let page = feed(&world, "").await;
    must_be_complete(items(&page), 9);
    for item in items(&page) {
        assert!(bodies.contains(item), "{item} was not pushed like this");
    }
    let shown = world.until(&format!("{ENDPOINTS}/partner"), |one| one["status"]["delivered"] == 9).await;
    assert!(shown["status"]["lastSuccessAt"].is_string() && shown.get("secret").is_none(), "{shown}");
    assert_eq!(world.get(ENDPOINTS).await.json()["items"].as_array().unwrap().len(), 1);
}

#[tokio::test]
async fn a_rotated_secret_and_the_previous_one_both_sign() {
    let world = World::new().await;
    let old = create(&world, "partner", json!({})).await.json()["secret"].as_str().unwrap().to_owned();
    let rotated = world.post(&format!("{ENDPOINTS}/partner/rotate"), json!({})).await;
    assert_eq!((rotated.status, rotated.headers["cache-control"].as_str()), (200, "no-store"));
    let new = rotated.json()["secret"].as_str().unwrap().to_owned();
    assert!(new != old && rotated.json()["previousUntil"].is_string());
    world.send("1", "k", &[]).await;
    world.target.until(|calls| calls.len() == 1).await;
    let call = &world.target.received()[0];
    assert!(is_signed_with(call, &old) && is_signed_with(call, &new), "{call:?}");

    let rotated = world.post(&format!("{ENDPOINTS}/partner/rotate?overlap=0s"), json!({})).await.json();
    let newest = rotated["secret"].as_str().unwrap().to_owned();
    let tried = world.post(&format!("{ENDPOINTS}/partner/test"), json!({})).await.json();
    assert_eq!((&tried["succeeded"], &tried["status"]), (&json!(true), &json!(204)), "{tried}");
    let test = world.target.received()[1].clone();
    assert!(is_signed_with(&test, &newest) && !is_signed_with(&test, &new), "{test:?}");
    assert_eq!(
        (&body(&test)["type"], &body(&test)["sequenceNumber"]),
        (&json!("webhook.test"), &Value::Null)
    );
    assert_eq!(items(&feed(&world, "").await).len(), 1, "a test takes no place");
}

#[tokio::test]
async fn an_ed25519_endpoint_shows_its_public_key() {
    let world = World::new().await;
    let created = create(&world, "partner", json!({"signature": "ed25519"})).await.json();
    assert!(created.get("secret").is_none(), "{created}");
    let public =
        BASE64.decode(created["publicKey"].as_str().unwrap().strip_prefix("whpk_").unwrap()).unwrap();
    world.send("1", "k", &[]).await;
    world.target.until(|calls| calls.len() == 1).await;
    let call = &world.target.received()[0];
    let header = |name: &str| call.headers[name].as_str();
    let signed = format!("{}.{}.{}", header("webhook-id"), header("webhook-timestamp"), call.body);
    let given = BASE64.decode(header("webhook-signature").strip_prefix("v1a,").unwrap()).unwrap();
    let key = signature::UnparsedPublicKey::new(&signature::ED25519, public);
    key.verify(signed.as_bytes(), &given).expect("signed with this key");

    // Another kind of signature needs another key.
    let spec = json!({"url": world.target.url()});
    let manifest =
        json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "spec": spec});
    let path = format!("{ENDPOINTS}/partner");
    let changed = world.put(&path, &manifest).await;
    assert!(changed.status == 200 && changed.json()["secret"].is_string(), "{changed:?}");
    let same = world.put(&path, &manifest).await;
    assert!(same.status == 200 && same.json().get("secret").is_none(), "{same:?}");
    let dry = world.put(&format!("{path}?dryRun=true"), &manifest).await.json();
    assert_eq!((&dry["change"], &dry["document"]["kind"]), (&json!("unchanged"), &json!("WebhookEndpoint")));
    let only_new = [("content-type", "application/json"), ("if-none-match", "*")];
    assert_eq!(world.ask("PUT", &path, &only_new, &manifest.to_string()).await.problem(), "exists");
}

#[tokio::test]
async fn an_endpoint_that_is_gone_is_disabled_and_misses_nothing() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    world.target.answers(|call| if body(call)["id"] == "e4" { 410 } else { 204 });
    send(&world, 1..=6, 1).await;
    let path = format!("{ENDPOINTS}/partner");
    let shown = world.until(&path, |one| one["status"]["phase"] == "Disabled").await;
    assert_eq!(shown["status"]["disabled"]["reason"], "gone");
    send(&world, 7..=9, 1).await;
    assert_eq!(world.target.received().len(), 3);
    let page = feed(&world, "").await;
    must_be_complete(items(&page), 9);

    let told = world.get("/api/v1/events?type=lambda.webhook.*").await.json();
    let told = &items(&told)[0]["event"];
    assert_eq!((&told["type"], &told["data"]["reason"]), (&json!("lambda.webhook.disabled"), &json!("gone")));

    let disabled = "klambda_webhook_disabled{subscription=\"webhook.partner\",namespace=\"default\"}";
    assert_eq!(world.metric(disabled).await, 1.0);
    world.target.answers(|_| 204);
    let enabled = world.post(&format!("{path}/enable"), json!({})).await;
    assert_eq!(enabled.status, 200, "{enabled:?}");
    world.target.until(|calls| calls.len() == 9).await;
    let bodies: Vec<Value> = world.target.received().iter().map(body).collect();
    must_be_complete(&bodies, 9);
    assert_eq!(bodies, items(&page));
    world.until(&path, |one| one["status"]["phase"] == "Ready").await;

    assert_eq!(world.metric(disabled).await, 0.0);
    for (action, phase) in
        [("disable", "Disabled"), ("enable", "Ready"), ("pause", "Paused"), ("resume", "Ready")]
    {
        let acted = world.post(&format!("{path}/{action}"), json!({})).await.json();
        assert_eq!(acted["status"]["phase"], phase, "{acted}");
    }
    assert_eq!(world.post(&format!("{path}/restart"), json!({})).await.problem(), "not-found");
    let audit = world.get("/api/v1/audit").await.json();
    let seen: Vec<(&str, &str)> = items(&audit)
        .iter()
        .filter(|entry| entry["kind"] == "webhook")
        .map(|entry| (entry["verb"].as_str().unwrap(), entry["name"].as_str().unwrap()))
        .collect();
    let verbs = ["resume", "pause", "enable", "disable", "enable", "create"];
    assert_eq!(seen, verbs.map(|verb| (verb, "partner")), "{audit}");
    assert!(!audit.to_string().contains("whsec_"));
}

#[tokio::test]
async fn a_restart_leaves_no_gap() {
    // The open call must not delay the shutdown.
    let world = World::with(|config| config.delivery.shutdown_timeout = Duration::from_millis(200)).await;
    create(&world, "partner", json!({})).await;
    world.target.answers(|call| if body(call)["id"] == "e5" { NEVER } else { 204 });
    send(&world, 1..=12, 3).await;
    world.target.until(|calls| calls.len() >= 6).await;
    let before = feed(&world, "?limit=4").await;
    world.target.answers(|_| 204);
    let world = world.restart().await;
    world.target.until(|calls| calls.len() >= 12).await;
    send(&world, 13..=15, 3).await;
    world.target.until(|calls| calls.len() >= 15).await;
    let bodies: Vec<Value> = world.target.received().iter().map(body).collect();
    must_be_complete(&bodies, 15);
    let rest = feed(&world, &format!("?since={}", before["next"].as_str().unwrap())).await;
    let all: Vec<Value> = items(&before).iter().chain(items(&rest)).cloned().collect();
    must_be_complete(&all, 15);
}

#[tokio::test]
async fn the_feed_is_read_in_pages_from_any_place() {
    let world = World::new().await;
    assert_eq!(world.get(FEED).await.problem(), "not-found", "there is no endpoint");
    create(&world, "partner", json!({})).await;
    let empty = feed(&world, "").await;
    assert!(items(&empty).is_empty() && empty["next"].is_string(), "{empty}");
    send(&world, 1..=7, 2).await;
    world.target.until(|calls| calls.len() == 7).await;
    let whole = feed(&world, &format!("?since={}", empty["next"].as_str().unwrap())).await;
    assert_eq!(items(&whole).len(), 7);
    let (mut seen, mut next) = (Vec::new(), String::new());
    loop {
        let page = feed(&world, &format!("?endpoint=partner&limit=2{next}")).await;
        if items(&page).is_empty() {
            break;
        }
        assert!(items(&page).len() <= 2);
        seen.extend(items(&page).to_vec());
        next = format!("&since={}", page["next"].as_str().unwrap());
    }
    assert_eq!(seen, items(&whole));
    let third = seen[2]["eventId"].as_str().unwrap();
    assert_eq!(items(&feed(&world, &format!("?since={third}")).await), &seen[3..]);
    let one = feed(&world, "?workflowId=order-1").await;
    assert_eq!(items(&one).len(), 4);
    assert!(items(&one).iter().all(|item| item["workflowId"] == "order-1"));

    let unknown = world.get(&format!("{FEED}?since=00000000-0000-5000-8000-000000000000")).await;
    assert_eq!((unknown.problem().as_str(), &unknown.json()["oldest"]), ("not-found", &seen[0]["eventId"]));
    for wrong in ["since=yesterday", "timeout=2m", "limit=0", "sinc=1"] {
        assert_eq!(world.get(&format!("{FEED}?{wrong}")).await.problem(), "bad-request", "{wrong}");
    }
    create(&world, "second", json!({})).await;
    let which = world.get(FEED).await;
    assert_eq!(
        (which.problem().as_str(), &which.json()["endpoints"]),
        ("bad-request", &json!(["partner", "second"]))
    );
    let cursor = whole["next"].as_str().unwrap();
    let foreign = world.get(&format!("{FEED}?endpoint=second&since={cursor}")).await;
    assert_eq!(foreign.problem(), "not-found", "a cursor belongs to its feed");
}

#[tokio::test]
async fn the_feed_is_followed_by_long_poll_stream_and_batch() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    let none = feed(&world, "?timeout=50ms").await;
    assert!(items(&none).is_empty());
    let polling = format!("{FEED}?timeout=20s");
    let (page, ()) = tokio::join!(world.get(&polling), async {
        sleep(Duration::from_millis(100)).await;
        send(&world, 1..=1, 1).await;
    });
    assert_eq!(items(&page.json()).len(), 1, "it answers as soon as there is an event");

    let accept = [("accept", "application/cloudevents-batch+json")];
    send(&world, 2..=3, 1).await;
    let batch = world.ask("GET", FEED, &accept, "").await;
    assert_eq!(batch.headers["content-type"], "application/cloudevents-batch+json");
    let events = batch.json();
    assert_eq!(
        (events.as_array().unwrap().len(), &events[1]["sequencenumber"]),
        (3, &json!("2")),
        "{events}"
    );
    assert_eq!(events[2]["specversion"], "1.0");
    let link = &batch.headers["link"];
    let next = link.strip_prefix('<').and_then(|link| link.split_once('>')).unwrap().0;
    assert_eq!(world.ask("GET", next, &accept, "").await.json(), json!([]), "{link}");

    let stream = async |last: Option<&str>, count: usize| {
        let mut headers = vec![("accept", "text/event-stream")];
        headers.extend(last.map(|last| ("last-event-id", last)));
        let mut lines = BufReader::new(open(world.address, "GET", FEED, &headers, b"").await).lines();
        let (mut id, mut seen) = (String::new(), Vec::new());
        while seen.len() < count {
            let line = timeout(PATIENCE, lines.next_line()).await.expect("an event").unwrap().unwrap();
            if let Some(found) = line.strip_prefix("id: ") {
                found.clone_into(&mut id);
            }
            if let Some(data) = line.strip_prefix("data: ") {
                seen.push((id.clone(), serde_json::from_str::<Value>(data).unwrap()));
            }
        }
        seen
    };
    let all = stream(None, 3).await;
    let bodies: Vec<Value> = all.iter().map(|(_, body)| body.clone()).collect();
    must_be_complete(&bodies, 3);
    let rest = stream(Some(&all[1].0), 1).await;
    assert_eq!(rest[0], all[2]);
}

#[tokio::test]
async fn what_belongs_to_an_endpoint_is_changed_only_with_it() {
    let world = World::new().await;
    create(&world, "partner", json!({})).await;
    for method in ["GET", "PUT", "PATCH", "DELETE"] {
        let refused =
            world.ask(method, "/api/v1/secrets/webhook.partner", &[], r#"{"data": {"a": "b"}}"#).await;
        assert_eq!(refused.problem(), "conflict", "{method}");
    }
    assert_eq!(world.get("/api/v1/secrets").await.json()["items"], json!([]));
    let subscription = "/api/v1/subscriptions/webhook.partner";
    assert_eq!(
        world.put(subscription, &world.document("webhook.partner", json!({}))).await.problem(),
        "conflict"
    );
    assert_eq!(world.delete(subscription).await.problem(), "conflict");
    let target = json!({"target": {"endpoint": {"url": world.target.url()}}});
    let refused = world.put("/api/v1/subscriptions/mine", &world.document("mine", target)).await;
    assert_eq!((refused.status, refused.problem().as_str()), (422, "invalid-subscription"));
    let headers = json!({"x-key": {"secret": "webhook.partner", "key": "current"}});
    let thief =
        world.post(ENDPOINTS, json!({"name": "t", "url": world.target.url(), "headers": headers})).await;
    assert_eq!((thief.status, thief.problem().as_str()), (422, "invalid-endpoint"));
    let wrong = world.post(ENDPOINTS, json!({"name": "Wrong", "url": "ftp://x", "type": "a"})).await;
    assert_eq!(wrong.json()["faults"].as_array().unwrap().len(), 3, "{wrong:?}");

    // Calls wait for a secret that a header needs.
    let headers = json!({"x-key": {"secret": "partner", "key": "api-key"}});
    let waiting = create(&world, "keyed", json!({"headers": headers})).await.json();
    assert!(waiting["status"]["messages"].to_string().contains("no key api-key"), "{waiting}");

    world.target.answers(|_| NEVER);
    world.send("1", "k", &[]).await;
    let path = format!("{ENDPOINTS}/partner");
    assert_eq!(world.delete(&path).await.problem(), "events-waiting");
    assert_eq!(world.delete(&format!("{path}?discard=true")).await.status, 200);
    assert_eq!(world.get(&path).await.problem(), "not-found");
    create(&world, "partner", json!({})).await;
}

// ---- roles ----------------------------------------------------------------------------------------------------

#[tokio::test]
async fn the_token_of_an_endpoint_reaches_this_endpoint_and_nothing_else() {
    let world = guarded().await;
    let admin = [("authorization", ADMIN), ("content-type", "application/json")];
    let make = async |name: &str| {
        let body = json!({"name": name, "url": world.target.url()}).to_string();
        let made =
            world.ask("POST", &format!("/api/v1/namespaces/shop{}", &ENDPOINTS[7..]), &admin, &body).await;
        assert_eq!(made.status, 201, "{made:?}");
        made.json()["token"].as_str().unwrap().to_owned()
    };
    let (own, _other) = (make("partner").await, make("other").await);
    let token = json!({"name": "a", "role": "endpoint-admin", "namespaces": ["shop"], "endpoint": "partner"});
    let manager = issue(&world, token).await;
    for (wrong, path) in [
        (json!({"name": "b", "role": "endpoint", "namespaces": ["shop"]}), "endpoint"),
        (json!({"name": "b", "role": "endpoint", "namespaces": "*", "endpoint": "partner"}), "namespaces"),
        (json!({"name": "b", "role": "viewer", "namespaces": ["shop"], "endpoint": "partner"}), "endpoint"),
    ] {
        let refused = world.ask("POST", "/api/v1/tokens", &admin, &wrong.to_string()).await;
        assert_eq!(
            (refused.status, &refused.json()["faults"][0]["path"]),
            (422, &json!(path)),
            "{refused:?}"
        );
    }
    let missing = json!({"name": "b", "role": "endpoint", "namespaces": ["shop"], "endpoint": "nobody"});
    assert_eq!(world.ask("POST", "/api/v1/tokens", &admin, &missing.to_string()).await.status, 404);

    // Every route of the server, for the own endpoint.
    for (address, ..) in MATRIX.iter().filter(|(_, place, _)| *place != Where::Public) {
        let (method, path) = address.split_once(' ').unwrap();
        let path = path.replace("namespaces/{name}", "namespaces/shop").replace("{action}", "pause");
        let path = path.replace("{name}", "partner").replace(['{', '}'], "");
        for (token, is_manager) in [(&own, false), (&manager, true)] {
            let bearer = format!("Bearer {token}");
            let answer = world.ask(method, &path, &[("authorization", &bearer)], "").await;
            let is_own =
                path == FEED || path.ends_with("/deliveries") || (is_manager && path.ends_with("/rotate"));
            let needs_body = ["/resend", "/recover"].iter().any(|end| path.ends_with(end));
            // For tokens of any role.
            let is_known =
                ["/api/v1/openapi.json", "/api/v1/docs", "/api/v1/whoami"].contains(&path.as_str());
            let expected = match () {
                () if is_own || is_known => 200,
                // Allowed, but without a body.
                () if path == ACK || (is_manager && needs_body) => 422,
                // There is no such job.
                () if is_manager && path.ends_with("/recover/id") => 404,
                () => 403,
            };
            assert_eq!(answer.status, expected, "{address}: {answer:?}");
        }
    }
    // The same routes, for another endpoint or namespace.
    for token in [&own, &manager] {
        let bearer = format!("Bearer {token}");
        for (method, path) in [
            ("GET", format!("{FEED}?endpoint=other")),
            ("GET", format!("{FEED}?%65ndpoint=other")),
            ("GET", format!("{FEED}?endpoint=")),
            ("GET", format!("{FEED}?namespace=default")),
            ("POST", format!("{ACK}?endpoint=other")),
            ("POST", format!("{ACK}?namespace=default")),
            ("GET", format!("{FEED}?namespace=other&endpoint=partner")),
            ("POST", format!("{ENDPOINTS}/other/rotate")),
            ("GET", format!("{ENDPOINTS}/other/deliveries")),
            ("POST", format!("{ENDPOINTS}/other/resend")),
            ("POST", format!("{ENDPOINTS}/other/recover")),
            ("GET", format!("{ENDPOINTS}/other/recover/r1")),
            ("POST", format!("{ENDPOINTS}/%6fther/rotate")),
            ("POST", format!("/api/v1/namespaces/other{}/partner/rotate", &ENDPOINTS[7..])),
        ] {
            let refused = world.ask(method, &path, &[("authorization", &bearer)], "").await;
            assert_eq!(refused.status, 403, "{path}: {refused:?}");
        }
        let path = format!("{FEED}?endpoint=partner&endpoint=other");
        let twice = world.ask("GET", &path, &[("authorization", &bearer)], "").await;
        assert_eq!(twice.status, 400);
    }
    // Deleting the endpoint revokes its tokens.
    let path = format!("/api/v1/namespaces/shop{}/partner", &ENDPOINTS[7..]);
    assert_eq!(world.ask("DELETE", &path, &admin, "").await.status, 200);
    for token in [&own, &manager] {
        let bearer = format!("Bearer {token}");
        assert_eq!(world.ask("GET", FEED, &[("authorization", &bearer)], "").await.status, 401);
    }
}

#[tokio::test]
async fn a_receiver_acknowledges_what_it_has_from_the_feed() {
    let world = World::new().await;
    create(&world, "partner", json!({"workflowKey": "partitionkey"})).await;
    assert_eq!(world.post(&format!("{ENDPOINTS}/partner/disable"), json!({})).await.status, 200);
    send(&world, 1..=6, 2).await;
    let page = feed(&world, "").await;
    let id = |place: usize| items(&page)[place]["eventId"].clone();
    let ack = |body: Value| world.post(ACK, body);
    let one = ack(json!({"through": id(2), "workflowId": items(&page)[0]["workflowId"]})).await;
    assert_eq!((one.status, &one.json()["events"]), (200, &json!(2)), "{one:?}");
    let all = ack(json!({"through": id(4)})).await;
    assert_eq!((all.status, &all.json()["events"]), (200, &json!(3)), "{all:?}");
    let again = ack(json!({"through": id(4)})).await;
    assert_eq!((again.status, &again.json()["events"]), (200, &json!(0)), "{again:?}");
    assert_eq!(ack(json!({"through": "x"})).await.status, 422);
    assert_eq!(ack(json!({})).await.status, 422);
    let unknown = "00000000-0000-5000-8000-000000000000";
    assert_eq!(ack(json!({"through": unknown})).await.status, 404);
    // Only the last event is left.
    assert_eq!(world.post(&format!("{ENDPOINTS}/partner/enable"), json!({})).await.status, 200);
    world.target.until(|calls| !calls.is_empty()).await;
    assert_eq!(body(&world.target.received()[0])["eventId"], id(5));
}
