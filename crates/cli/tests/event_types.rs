//! Event types from the command line, against a real server that is killed in the middle.

mod support;

use rustix::process::Signal;
use support::eventually;
use support::process::{Receiver, Server};
use support::shell::Shell;

const MANIFEST: &str = "apiVersion: lambda.knative.io/v1alpha1\nkind: EventType\nmetadata: {name: order.placed}\n\
    spec:\n  description: An order.\n  schema: {type: object, required: [total]}\n  example: {total: 7}\n";

#[test]
fn an_event_type_is_a_resource_like_others() {
    let shell = Shell::new();
    let file = shell.write("order.yaml", MANIFEST);
    assert_eq!(shell.ok(&["apply", "-f", &file, "--dry-run"]), "eventtype/order.placed created (dry run)\n");
    assert_eq!(shell.ok(&["apply", "-f", &file]), "eventtype/order.placed created\n");
    assert_eq!(shell.ok(&["apply", "-f", &file]), "eventtype/order.placed unchanged\n");
    assert_eq!(shell.ok(&["diff", "-f", &file]), "");
    for words in [&["get", "eventtypes"][..], &["get", "et"], &["get", "event-type", "order.placed"]] {
        assert_eq!(shell.ok(&[words, &["-o", "name"]].concat()), "eventtype/order.placed\n", "{words:?}");
    }
    let listed = shell.ok(&["get", "et", "-o", "wide"]);
    assert!(listed.contains("An order.") && listed.contains("{\"total\":7}"), "{listed}");
    let described = shell.ok(&["describe", "et/order.placed"]);
    assert!(described.contains("Type:") && described.contains("required:"), "{described}");
    assert!(shell.ok(&["explain", "eventtype.spec.schema"]).contains("JSON Schema"));
    assert!(shell.ok(&["crd"]).contains("eventtypes.lambda.knative.io"));
    assert!(shell.ok(&["__complete", "--", "describe", "et", ""]).contains("order.placed"));

    let printed = shell.ok(&["get", "et", "order.placed", "-o", "yaml"]);
    let again = shell.write("again.yaml", &printed);
    assert_eq!(shell.ok(&["apply", "-f", &again]), "eventtype/order.placed unchanged\n");
    let wrong = shell.write("wrong.yaml", &MANIFEST.replace("total: 7", "sum: 7"));
    let (code, error) = shell.fails(&["apply", "-f", &wrong]);
    assert!(code != 0 && error.contains("spec.example") && error.contains("required"), "{error}");
    let (code, differences) = shell.fails(&[
        "diff",
        "-f",
        &shell.write("new.yaml", &MANIFEST.replace("An order", "A large order")),
    ]);
    assert_eq!(code, 1, "{differences}");
    assert_eq!(shell.ok(&["delete", "-f", &file]), "eventtype/order.placed deleted\n");
    assert_eq!(shell.fails(&["describe", "et", "order.placed"]).0, 4);
}

#[test]
fn a_killed_server_keeps_event_types_and_their_check() {
    let mut shell = Shell::new();
    let receiver = Receiver::start(shell.path(), &[]);
    let file = shell.write("order.yaml", MANIFEST);
    shell.ok(&["apply", "-f", &file]);
    shell.ok(&["namespace", "create", "default", "--replace", "--schema-check", "flag"]);
    shell.ok(&["webhook", "create", "partner", "--url", &receiver.url, "--types", "order.*"]);
    shell.server.process.signal(Signal::KILL);
    eventually("the server ends", || match shell.server.process.has_ended() {
        true => Ok(()),
        false => Err("it runs".to_owned()),
    });
    shell.server = Server::start(shell.path());
    assert_eq!(shell.ok(&["apply", "-f", &file]), "eventtype/order.placed unchanged\n");
    for (id, data) in [("1", "{\"total\": 7}"), ("2", "{}")] {
        shell.ok(&["event", "send", "--type", "order.placed", "--id", id, "--key", "k", "--data", data]);
    }
    let calls = eventually("two calls", || match receiver.received() {
        calls if calls.len() == 2 => Ok(calls),
        calls => Err(format!("{} calls", calls.len())),
    });
    let body = |n: usize| calls[n]["body"].as_str().expect("a body").to_owned();
    assert!(
        !body(0).contains("schemastatus") && body(1).contains("\"schemastatus\":\"invalid\""),
        "{calls:?}"
    );
    shell.server.process.signal(Signal::KILL);
    eventually("the server ends", || match shell.server.process.has_ended() {
        true => Ok(()),
        false => Err("it runs".to_owned()),
    });
    let checked = shell.json(&["check", "data"]);
    assert_eq!((&checked["eventTypes"], &checked["problems"]["count"]), (&1.into(), &0.into()), "{checked}");
}
