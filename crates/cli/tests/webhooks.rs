//! Webhook endpoints from the command line, against a real server that is killed in the middle.

mod support;

use rustix::process::Signal;
use serde_json::{Value, json};
use std::collections::HashMap;
use support::eventually;
use support::process::{Receiver, Server};
use support::shell::{Shell, text};

/// The bodies of the calls so far.
fn bodies(receiver: &Receiver) -> Vec<Value> {
    let parse = |line: &Value| serde_json::from_str(line["body"].as_str().expect("a body")).expect("JSON");
    receiver.received().iter().map(parse).collect()
}

/// What a receiver does: finds gaps and disorder from the bodies alone. Returns the number of different events.
fn complete(bodies: &[Value]) -> usize {
    let mut last: HashMap<&str, (u64, &Value)> = HashMap::new();
    for body in bodies {
        let workflow = body["workflowId"].as_str().expect("a workflow");
        let number = body["sequenceNumber"].as_u64().expect("a number");
        let (before, previous) = last.get(workflow).copied().unwrap_or((0, &Value::Null));
        // A call is repeated if the server was killed before it noted the answer.
        if number == before {
            assert_eq!(body["eventId"], *previous, "{body}");
            continue;
        }
        assert_eq!((number, &body["previousEventId"]), (before + 1, previous), "{body}");
        last.insert(workflow, (number, &body["eventId"]));
    }
    last.values().map(|(number, _)| *number as usize).sum()
}

fn send(shell: &Shell, numbers: std::ops::Range<u32>) {
    let event = |number: u32| {
        json!({"specversion": "1.0", "id": number.to_string(), "source": "/shop", "type": "order.placed",
               "subject": format!("order-{}", number % 4), "data": {"number": number}})
    };
    let batch: Vec<Value> = numbers.map(event).collect();
    let file = shell.write("batch.json", &Value::from(batch).to_string());
    shell.ok(&["event", "send", "-f", &file]);
}

#[test]
fn a_killed_server_leaves_no_gap() {
    let mut shell = Shell::new();
    let receiver = Receiver::start(shell.path(), &[]);
    let created = shell.ok(&[
        "webhook",
        "create",
        "partner",
        "--url",
        &receiver.url,
        "--types",
        "order.*",
        "--workflow-key",
        "subject",
    ]);
    assert!(created.starts_with("webhook/partner created\nsigning secret: whsec_"), "{created}");
    let mut sent = 0;
    for round in 0..3 {
        send(&shell, sent..sent + 200);
        sent += 200;
        eventually("some calls", || match bodies(&receiver).len() {
            calls if calls > round * 200 + 20 => Ok(()),
            calls => Err(format!("{calls} calls")),
        });
        shell.server.process.signal(Signal::KILL);
        eventually("the server ends", || match shell.server.process.has_ended() {
            true => Ok(()),
            false => Err("it runs".to_owned()),
        });
        shell.server = Server::start(shell.path());
    }
    send(&shell, sent..sent + 10);
    eventually("every event", || match complete(&bodies(&receiver)) {
        610 => Ok(()),
        seen => Err(format!("{seen} events")),
    });
    let printed = shell.ok(&["webhook", "events", "partner", "-o", "json"]);
    let feed: Vec<Value> = printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((feed.len(), complete(&feed)), (610, 610));
    let pushed = bodies(&receiver);
    assert!(feed.iter().all(|event| pushed.contains(event)), "the feed and the calls have the same form");
}

#[test]
fn an_endpoint_is_a_resource_like_others() {
    let shell = Shell::new();
    let receiver = Receiver::start(shell.path(), &[]);
    let manifest = format!(
        "apiVersion: lambda.knative.io/v1alpha1\nkind: WebhookEndpoint\nmetadata: {{name: partner}}\n\
         spec: {{url: '{}', types: [order.*]}}\n",
        receiver.url
    );
    let file = shell.write("partner.yaml", &manifest);
    assert_eq!(shell.ok(&["apply", "-f", &file, "--dry-run"]), "webhook/partner created (dry run)\n");
    let applied = shell.ok(&["apply", "-f", &file]);
    assert!(applied.starts_with("webhook/partner created\nsigning secret: whsec_"), "{applied}");
    assert_eq!(shell.ok(&["apply", "-f", &file]), "webhook/partner unchanged\n");
    assert_eq!(shell.ok(&["diff", "-f", &file]), "");
    for words in [
        &["get", "webhooks"][..],
        &["get", "wh"],
        &["get", "webhookendpoint", "partner"],
        &["webhook", "list"],
    ] {
        let listed = shell.ok(&[words, &["-o", "name"]].concat());
        assert_eq!(listed, "webhook/partner\n", "{words:?}");
    }
    let described = shell.ok(&["describe", "webhook", "partner"]);
    assert!(described.contains("Phase:") && described.contains("disableAfter"), "{described}");
    assert_eq!(described, shell.ok(&["webhook", "describe", "partner"]));
    assert!(shell.ok(&["explain", "webhook.spec.signature"]).contains("one of hmac, ed25519"));
    assert!(shell.ok(&["crd"]).contains("webhookendpoints.lambda.knative.io"));
    assert!(shell.ok(&["__complete", "--", "webhook", "rotate", ""]).contains("partner"));

    let tested = shell.ok(&["webhook", "test", "partner"]);
    assert!(tested.starts_with("webhook/partner answered 200 after "), "{tested}");
    let rotated = shell.ok(&["webhook", "rotate", "partner", "--overlap", "1h"]);
    assert!(rotated.contains("signs too until") && rotated.contains("whsec_"), "{rotated}");
    assert_eq!(shell.ok(&["webhook", "disable", "partner"]), "webhook/partner disabled\n");
    assert_eq!(shell.json(&["get", "webhook", "partner"])["status"]["disabled"]["reason"], "request");
    assert_eq!(shell.ok(&["webhook", "enable", "partner"]), "webhook/partner enabled\n");

    let (code, error) = shell.fails(&["webhook", "create", "partner", "--url", &receiver.url]);
    assert!(code == 5 && error.contains("already exists; use `klambda apply` to change it"), "{error}");
    let (_, error) = shell.fails(&["webhook", "create", "P x", "--url", &receiver.url]);
    assert!(error.starts_with("error: webhook/P x: "), "{error}");
    let (code, error) = shell.fails(&["webhook", "resend", "partner", "nope"]);
    assert!(code == 2 && error.contains("\"nope\" is not an event id"), "{error}");
    let (code, error) = shell.fails(&["delete", "subscription", "webhook.partner"]);
    assert!(code == 5 && error.contains("klambda webhook"), "{error}");
    let (code, _) = shell.fails(&["webhook", "create", "x", "--url", "http://h/", "--header", "a=b"]);
    assert_eq!(code, 2);
    let (code, error) =
        shell.fails(&["webhook", "events", "partner", "--since", "00000000-0000-5000-8000-000000000000"]);
    assert!(code == 4 && error.contains("without"), "{error}");
    drop(receiver);
    let tried = shell.run(&["webhook", "test", "partner"]);
    let printed = text(&tried.stdout);
    assert_eq!(tried.status.code(), Some(1));
    assert!(
        printed.starts_with("webhook/partner failed after ")
            && printed.contains(" ms: cannot connect to 127.0.0.1:")
            && printed.ends_with(": connection refused\n"),
        "{printed}"
    );
    for words in [&["delete", "-f", &file][..], &["delete", "webhook", "partner"]] {
        let (code, error) = shell.fails(words);
        assert!(code == 2 && error.contains("refusing to delete webhook/partner"), "{error}");
    }
    assert_eq!(shell.ok(&["delete", "-f", &file, "--yes"]), "webhook/partner deleted\n");
    assert_eq!(shell.fails(&["webhook", "describe", "partner"]).0, 4);
}

#[test]
fn an_endpoint_with_batches_and_certificates_is_created_without_a_manifest() {
    let shell = Shell::new();
    let create = ["webhook", "create", "partner", "--url", "https://127.0.0.1:9/"];
    let tls = ["--client-certificate", "partner-tls", "--ca", "partner-ca/root.pem"];
    shell.ok(&[&create[..], &["--batch", "100", "--batch-bytes", "64Ki"], &tls].concat());
    let spec = shell.json(&["get", "webhook", "partner"])["spec"].take();
    assert_eq!(spec["batch"], json!({"maxEvents": 100, "maxBytes": "64Ki"}));
    let certificate = json!({"secret": "partner-tls", "certificate": "tls.crt", "privateKey": "tls.key"});
    let ca = json!({"secret": "partner-ca", "key": "root.pem"});
    assert_eq!(spec["tls"], json!({"clientCertificate": certificate, "ca": ca}));

    let create = ["webhook", "create", "other", "--url", "https://127.0.0.1:9/"];
    for wrong in [&["--batch-bytes", "64Ki"][..], &["--batch", "10", "--unordered"], &["--batch", "many"]] {
        assert_eq!(shell.fails(&[&create[..], wrong].concat()).0, 2, "{wrong:?}");
    }
    let (code, error) = shell.fails(&[&create[..], &["--batch", "100000"]].concat());
    assert!(code != 0 && error.contains("maxEvents"), "{error}");
}

#[test]
fn attempts_are_listed_and_events_are_sent_again() {
    let mut shell = Shell::new();
    let receiver = Receiver::start(shell.path(), &[]);
    shell.ok(&["webhook", "create", "partner", "--url", &receiver.url, "--workflow-key", "subject"]);
    send(&shell, 0..4);
    let list = |shell: &Shell, more: &[&str]| -> Vec<Value> {
        let printed = shell.ok(&[&["webhook", "deliveries", "partner", "-o", "json"], more].concat());
        printed.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect()
    };
    eventually("four attempts", || match list(&shell, &[]).len() {
        4 => Ok(()),
        listed => Err(format!("{listed} attempts")),
    });
    let all = list(&shell, &[]);
    assert!(all.iter().all(|item| item["outcome"] == "delivered" && item["status"] == 200), "{all:?}");
    assert_eq!(list(&shell, &["--workflow", "order-1", "--since", "1h"]).len(), 1);
    assert!(list(&shell, &["--failed"]).is_empty());
    let table = shell.ok(&["webhook", "deliveries", "webhook/partner", "--limit", "2"]);
    assert!(table.starts_with("TIME") && table.lines().count() == 3, "{table}");

    let event = all[0]["eventId"].as_str().expect("an id").to_owned();
    let resent = shell.ok(&["webhook", "resend", "partner", &event]);
    assert!(resent.starts_with(&format!("webhook/partner event {event} answered 200 after ")), "{resent}");
    let calls = bodies(&receiver);
    assert_eq!(calls.iter().filter(|call| call["eventId"] == event.as_str()).count(), 2);
    shell.server.process.signal(Signal::KILL);
    eventually("the server ends", || match shell.server.process.has_ended() {
        true => Ok(()),
        false => Err("it runs".to_owned()),
    });
    shell.server = Server::start(shell.path());
    let again = list(&shell, &[]);
    assert!(again[0]["resend"] == true && again[1..] == all[..], "newest first: {again:?}");
    assert!(shell.ok(&["webhook", "deliveries", "partner", "--event", &event]).contains("resend"));
    let described = shell.ok(&["describe", "webhook", "partner"]);
    assert!(described.contains("5, 0 failed (100.0 % succeeded)"), "{described}");

    let dry = shell.ok(&["webhook", "recover", "partner", "--since", "2h", "--dry-run"]);
    assert!(dry.starts_with("dry run: 0 dead letters"), "{dry}");
    let recovered = shell.ok(&["webhook", "recover", "partner", "--since", "2h", "--wait", "-o", "json"]);
    assert!(recovered.contains("succeeded"), "{recovered}");
    let (code, error) =
        shell.fails(&["webhook", "resend", "partner", "00000000-0000-5000-8000-000000000000"]);
    assert!(code == 4 && error.contains("has no event"), "{error}");
    let (code, error) = shell.fails(&["webhook", "link", "partner"]);
    assert!(code == 5 && error.contains("--token-file"), "{error}");
    assert_eq!(shell.fails(&["webhook", "deliveries", "nobody"]).0, 4);
    drop(receiver);
    let (code, _) = shell.fails(&["webhook", "resend", "partner", &event]);
    assert_eq!(code, 1);
}
