//! The commands for functions, against a real server.

mod support;

use serde_json::Value;
use std::process::Stdio;
use support::eventually;
use support::process::{Process, Server};
use support::shell::Shell;

const ECHO: &str = r#"
apiVersion: lambda.knative.io/v1alpha1
kind: LambdaFunction
metadata: {name: NAME}
spec:
  source:
    type: inline
    inline:
      code: |
        exports.handler = (event) => {
          if (event.data && event.data.fail) throw new RangeError('told to');
          console.log('saw ' + event.type);
          return { type: event.type, data: event.data };
        };
  runtime: {language: nodejs}
"#;

fn echo(name: &str) -> String {
    ECHO.replace("NAME", name)
}

#[test]
fn namespaces_folders_and_forms() {
    let shell = Shell::new();
    shell.ok(&["namespace", "create", "shop"]);
    std::fs::create_dir(shell.path().join("all")).expect("a folder");
    shell.write("all/1.yaml", &(echo("a") + "---" + &echo("b")));
    let agent = echo("c").replace("LambdaFunction", "LambdaAgent");
    shell.write("all/2.yaml", &agent.replace("{name: c}", "{name: c, namespace: shop}"));
    let applied = shell.ok(&["apply", "-f", "all"]);
    assert_eq!(applied, "function/a created\nfunction/b created\nagent/c created\n");
    shell.write(
        "d.json",
        &serde_json::to_string(&serde_saphyr::from_str::<Value>(&echo("d")).expect("YAML")).expect("JSON"),
    );
    assert_eq!(shell.ok(&["apply", "-f", "d.json", "-n", "shop"]), "function/d created\n");
    shell.ok(&["wait", "function", "a", "b"]);
    shell.ok(&["wait", "function", "d", "-n", "shop"]);
    shell.ok(&["wait", "agent", "c", "-n", "shop", "--for", "condition=ServiceReady"]);

    assert_eq!(shell.ok(&["get", "functions", "-o", "name"]), "function/a\nfunction/b\n");
    assert_eq!(shell.ok(&["get", "fn", "-n", "shop", "-o", "name"]), "function/d\n");
    let all = shell.ok(&["get", "functions", "-A"]);
    let named = |line: &str| line.split_whitespace().take(2).map(str::to_owned).collect::<Vec<_>>().join("/");
    let all: Vec<String> = all.lines().map(named).collect();
    assert_eq!(all, ["NAMESPACE/NAME", "default/a", "default/b", "shop/d"]);
    assert_eq!(shell.ok(&["get", "agents", "-A", "-o", "name"]), "agent/c\n");
    assert_eq!(shell.fails(&["get", "agent", "c"]).0, 4, "it is in another namespace");
    assert_eq!(shell.fails(&["get", "function", "c", "-n", "shop"]).0, 4, "it is an agent");

    // The printed document can be applied again and changes nothing.
    let printed = shell.ok(&["get", "function", "d", "-n", "shop", "-o", "yaml"]);
    shell.write("again.yaml", &printed);
    shell.ok(&["apply", "-f", "again.yaml"]);
    let answer = shell.ok(&["invoke", "d", "-n", "shop", "--data", "[1]", "--type", "my.type"]);
    assert_eq!(answer, "{\"type\":\"my.type\",\"data\":[1]}\n");
    let answer =
        shell.json(&["invoke", "agent/c", "-n", "shop", "--data", "hi", "--content-type", "text/plain"]);
    assert_eq!(answer["data"], "hi");
    let answer = shell.json(&["invoke", "c", "-n", "shop", "--data", "2"]);
    assert_eq!(answer["data"], 2, "a plain name is an agent's, too");
    assert!(shell.ok(&["logs", "c", "-n", "shop"]).contains("saw lambda.function.invoked"));
    assert!(shell.ok(&["rebuild", "c", "-n", "shop"]).starts_with("agent/c: rebuild started"));
    let (code, told) = shell.fails(&["invoke", "function/c", "-n", "shop"]);
    assert_eq!(code, 4, "{told}");
    shell.ok(&["delete", "agent", "c", "-n", "shop", "--wait"]);
    assert_eq!(shell.ok(&["get", "agents", "-A", "-o", "name"]), "");
}

#[test]
fn what_is_wrong_is_told_with_its_exit_code() {
    let shell = Shell::new();
    let file = shell.write("f.yaml", &echo("f"));
    shell.ok(&["apply", "-f", &file]);
    shell.ok(&["wait", "function", "f"]);

    let wrong = echo("g").replace("language: nodejs", "language: cobol, version: [1]")
        + "  scaling: {maxReplicas: 0}\n  colour: red\n";
    let (code, told) = shell.fails(&["apply", "-f", &shell.write("g.yaml", &wrong)]);
    assert_eq!(code, 1);
    for place in [
        "function/g",
        "spec.runtime.language",
        "spec.runtime.version",
        "spec.scaling.maxReplicas",
        "spec.colour",
    ] {
        assert!(told.contains(place), "{place} is not in {told}");
    }
    let (code, told) = shell.fails(&["apply", "-f", &file, "-f", &shell.write("pod.yaml", "kind: Pod\n")]);
    assert_eq!(code, 2);
    assert!(told.contains("unknown kind Pod"), "{told}");
    let (code, told) = shell.fails(&["apply", "-f", &shell.write("secret.yaml", "kind: Secret\n")]);
    assert!(code == 2 && told.contains("klambda secret set"), "{told}");

    // Somebody was faster.
    let seen = shell.ok(&["get", "function", "f", "-o", "yaml"]);
    shell.ok(&["apply", "-f", &shell.write("f2.yaml", &(echo("f") + "  scaling: {maxReplicas: 3}\n"))]);
    let (code, told) = shell.fails(&["apply", "-f", &shell.write("stale.yaml", &seen)]);
    assert_eq!(code, 5, "{told}");
    assert!(told.contains("resourceVersion"), "{told}");

    let (code, told) = shell.fails(&["invoke", "f", "--data", r#"{"fail": true}"#]);
    assert_eq!((code, told.as_str()), (1, "error: function/f: RangeError: told to\n"));
    let unknown: [&[&str]; 5] = [
        &["invoke", "nobody"],
        &["logs", "nobody"],
        &["rebuild", "nobody"],
        &["delete", "function", "nobody"],
        &["wait", "function", "nobody"],
    ];
    for words in unknown {
        let (code, told) = shell.fails(words);
        assert_eq!(code, 4, "{words:?}: {told}");
        assert_eq!(told, "error: function/nobody not found in namespace default\n");
    }
    let missing = "  triggers: [{filters: [{exact: {type: a}}, {exact: {type: b}}]}]\n";
    shell.ok(&["apply", "-f", &shell.write("h.yaml", &(echo("h") + missing))]);
    let (code, told) = shell.fails(&["wait", "function", "h"]);
    assert_eq!(code, 1);
    assert!(told.contains("no event matches") && told.contains("MatchesNothing"), "{told}");
    // None of this was in the way of the first one.
    assert!(shell.ok(&["invoke", "f"]).contains("lambda.function.invoked"));
}

#[test]
fn logs_are_followed() {
    let shell = Shell::new();
    shell.ok(&["apply", "-f", &shell.write("f.yaml", &echo("f"))]);
    // From before it was ever started.
    let mut command = shell.command(&["logs", "f", "-f"]);
    let follower = Process::start(command.stdin(Stdio::null()), &shell.path().join("followed"));
    shell.ok(&["wait", "function", "f"]);
    for kind in ["one", "two"] {
        shell.ok(&["invoke", "f", "--type", kind]);
    }
    eventually("both lines", || match follower.printed() {
        printed if printed.contains("saw one") && printed.contains("saw two") => Ok(()),
        printed => Err(printed),
    });
    let last = shell.json(&["logs", "f", "--tail", "1"]);
    assert!(last["text"].as_str().is_some_and(|text| text.contains("saw two")), "{last}");
    shell.ok(&["delete", "function", "f", "--wait"]);
    let mut follower = follower;
    eventually("the follower ends", || follower.has_ended().then_some(()).ok_or_else(|| follower.printed()));
}

#[test]
fn dead_letters_of_a_function_that_is_gone_wait_for_it() {
    let shell = Shell::new();
    let triggers = "  triggers: [{filter: {type: order.paid}}]\n  retry: {attempts: 1}\n";
    let file = shell.write("slow.yaml", &(echo("slow") + triggers));
    shell.ok(&["apply", "-f", &file]);
    shell.ok(&["wait", "function", "slow"]);
    shell.ok(&["event", "send", "--type", "order.paid", "--data", r#"{"fail": true}"#]);
    let all = ["get", "deadletters", "--subscription", "lambda.default.slow", "-o", "name"];
    let letter = eventually("a dead letter", || match shell.ok(&all) {
        none if none.is_empty() => Err(none),
        letter => Ok(letter.trim().to_owned()),
    });
    let letter = letter.trim_start_matches("deadletter/");
    assert!(shell.ok(&["describe", "deadletter", letter]).contains("klambda dlq replay --id"));
    shell.ok(&["delete", "function", "slow", "--wait"]);
    for more in [&[][..], &["--dry-run"]] {
        let replay = ["dlq", "replay", "--subscription", "lambda.default.slow"];
        let (code, told) = shell.fails(&[&replay[..], more].concat());
        assert_eq!(code, 5, "{told}");
        assert!(told.contains("apply function slow (namespace default) again"), "{told}");
    }
    let told = shell.ok(&["describe", "deadletter", letter]);
    assert!(told.contains("Apply function slow (namespace default) again"), "{told}");
    assert!(!told.contains("dlq replay"), "{told}");
}

/// The definitions read back as what they were made from, also by readers of YAML 1.1, for which `no` and `on` are
/// booleans.
#[test]
fn custom_resource_definitions_are_printed() {
    let shell = Shell::new();
    let yaml = shell.ok(&["crd"]);
    let documents: Vec<Value> = serde_saphyr::from_multiple(&yaml).expect("YAML");
    assert_eq!(documents, klambda_functions::crd::definitions());
    let list: Value = serde_json::from_str(&shell.ok(&["crd", "-o", "json"])).expect("JSON");
    assert_eq!((&list["kind"], &list["items"]), (&"List".into(), &Value::Array(documents)));
    let booleans = ["y", "n", "yes", "no", "on", "off"];
    for line in yaml.lines() {
        let mut words =
            line.trim_start_matches([' ', '-']).splitn(2, ": ").map(|word| word.trim_end_matches(':'));
        let is_boolean = |word: &str| booleans.contains(&word.to_lowercase().as_str());
        assert!(!words.any(is_boolean), "{line}");
    }
    assert_eq!(shell.fails(&["crd", "-o", "name"]).0, 2);
}

#[test]
fn tokens_say_who_may_do_what() {
    let folder = tempfile::tempdir().expect("a folder");
    let admin = folder.path().join("admin");
    std::fs::write(&admin, "first\n").expect("written");
    let admin = admin.to_string_lossy().into_owned();
    let server = support::process::Server::with(folder.path(), &[("KLAMBDA_TOKEN_FILE", &admin)]);
    let shell = Shell { server, folder };
    let (code, told) = shell.fails(&["token", "get"]);
    assert!(code == 1 && told.contains("--token-file"), "{told}");

    let create = ["token", "create", "ci", "--role", "producer", "--expires", "90d", "--token-file", &admin];
    let token = shell.ok(&create);
    assert!(token.starts_with("klt_") && token.lines().count() == 1, "{token}");
    let ci = shell.write("ci", &token);
    assert_eq!(shell.fails(&create).0, 5, "there is one already");
    assert_eq!(shell.fails(&[&create[..], &["-o", "name"]].concat()).0, 2, "the token would be lost");
    let send = ["event", "send", "--type", "order.placed", "--token-file", &ci];
    assert!(shell.ok(&send).contains("accepted"));
    let (code, told) = shell.fails(&["get", "events", "--token-file", &ci]);
    assert_eq!(code, 1);
    assert!(told.contains("requires the role viewer in namespace default; token/ci is producer"), "{told}");

    for namespace in ["shop", "other"] {
        shell.ok(&["namespace", "create", namespace, "--token-file", &admin]);
    }
    let viewer =
        ["token", "create", "v", "--role", "viewer", "-n", "shop", "--also", "other", "--token-file", &admin];
    let created = shell.json(&viewer);
    assert_eq!(created["namespaces"], serde_json::json!(["other", "shop"]));
    let table = shell.ok(&["token", "get", "--token-file", &admin]);
    let lines: Vec<Vec<&str>> = table.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["NAME", "ROLE", "NAMESPACES", "EXPIRES", "LAST-USED", "AGE"]);
    assert_eq!(lines[1][..3], ["ci", "producer", "default"]);
    assert_eq!(lines[2][..5], ["v", "viewer", "other,shop", "-", "-"]);
    assert_eq!(shell.ok(&["token", "get", "v", "-o", "name", "--token-file", &admin]), "token/v\n");
    assert_eq!(shell.ok(&["token", "delete", "ci", "--token-file", &admin]), "token/ci deleted\n");
    let (_, told) = shell.fails(&send);
    assert!(told.contains("invalid, expired or revoked"), "{told}");
    assert_eq!(shell.fails(&["token", "delete", "ci", "--token-file", &admin]).0, 4);

    let audit = shell.ok(&["get", "audit", "-A", "--token-file", &admin]);
    let lines: Vec<Vec<&str>> = audit.lines().map(|line| line.split_whitespace().skip(2).collect()).collect();
    assert_eq!(lines[0], ["WHO", "VERB", "KIND", "NAME"]);
    assert_eq!(lines[1], ["token-file", "delete", "token", "ci"]);
    assert_eq!(lines[5], ["token-file", "create", "token", "ci"]);
    assert_eq!(
        shell.ok(&["get", "audit", "--token-file", &admin]),
        "",
        "nothing of the namespace has changed"
    );
}

#[test]
fn json_logs_are_the_only_output_of_a_server() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::with(folder.path(), &[("KLAMBDA_LOG_FORMAT", "json")]);
    let (url, log) = (server.url.clone(), server.process.printed.clone());
    assert!(server.process.stop().success());
    let printed = std::fs::read_to_string(log).expect("the output");
    let parse = |line: &str| {
        serde_json::from_str::<Value>(line).unwrap_or_else(|error| panic!("not JSON: {line}: {error}"))
    };
    let lines: Vec<Value> = printed.lines().map(parse).collect();
    let started = lines.iter().find(|line| line["message"] == "Server started").expect("a line at the start");
    assert_eq!(started["url"], url.as_str());
    assert!(lines.iter().any(|line| line["message"] == "Server stopped"), "{printed}");
}
