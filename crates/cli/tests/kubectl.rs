//! The commands that kubectl has too, through the real binary against one server.

mod support;

use rustix::process::Signal;
use serde_json::Value;
use std::process::{Command, Stdio};
use support::eventually;
use support::process::Process;
use support::shell::{Shell, text};

const FUNCTION: &str = r#"
apiVersion: lambda.knative.io/v1alpha1
kind: LambdaFunction
metadata: {name: NAME, labels: {app: shop, tier: TIER}}
spec:
  source: {type: inline, inline: {code: "exports.handler = () => 1;"}}
  runtime: {language: nodejs}
"#;

const SUBSCRIPTION: &str = r#"
apiVersion: lambda.knative.io/v1alpha1
kind: Subscription
metadata: {name: NAME}
spec: {ordering: ordered, target: {url: "http://127.0.0.1:1/"}, retry: {attempts: 1}, filters: [{exact: {type: order.paid}}]}
"#;

fn function(name: &str, tier: &str) -> String {
    FUNCTION.replace("NAME", name).replace("TIER", tier)
}

fn subscription(name: &str) -> String {
    SUBSCRIPTION.replace("NAME", name)
}

/// Runs a line of shell in which `klambda` is the binary under test.
fn sh(shell: &Shell, line: &str) -> (i32, String, String) {
    let function = format!(
        "klambda() {{ {:?} \"$@\"; }}; export KLAMBDA={:?}; {line}",
        support::KLAMBDA,
        support::KLAMBDA
    );
    let mut command = Command::new("bash");
    let command =
        command.args(["-c", &function]).env("KLAMBDA_SERVER", &shell.server.url).current_dir(shell.path());
    let output = command.stdin(Stdio::null()).output().expect("bash");
    (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
}

/// Functions `a` and `b`, subscriptions `orders` and `mail`, and a parked lane with an odd key.
fn shop() -> Shell {
    let shell = Shell::new();
    let all = [function("a", "web"), function("b", "test"), subscription("orders"), subscription("mail")];
    let applied = shell.ok(&["apply", "-f", &shell.write("shop.yaml", &all.join("---"))]);
    assert_eq!(
        applied,
        "function/a created\nfunction/b created\nsubscription/orders created\nsubscription/mail created\n"
    );
    shell.ok(&["event", "send", "--type", "order.paid", "--id", "e1", "--key", "a b/c%d'"]);
    eventually("a parked lane", || match shell.ok(&["get", "lanes", "--state", "parked", "-o", "name"]) {
        lanes if lanes.lines().count() == 2 => Ok(()),
        lanes => Err(lanes),
    });
    shell
}

#[test]
fn resources_are_named_and_listed_as_with_kubectl() {
    let shell = shop();
    names(&shell);
    mistakes(&shell);
    formats(&shell);
    watching(&shell);
    destruction(&shell);
    versions(&shell);
    completion(&shell);
}

fn names(shell: &Shell) {
    let all = shell.ok(&["get", "all", "-o", "name"]);
    assert_eq!(all, "function/a\nfunction/b\nsubscription/mail\nsubscription/orders\n");
    assert_eq!(shell.ok(&["get", "-o", "name"]), all, "all is the default");
    assert!(shell.ok(&["get", "all", "-A"]).starts_with("NAMESPACE   NAME         RUNTIME"));
    let (code, out, err) = sh(shell, "klambda get -o name | xargs \"$KLAMBDA\" describe");
    assert_eq!(code, 0, "{err}");
    assert_eq!(out.lines().filter(|line| line.starts_with("Name:")).count(), 4, "{out}");

    let lane = "lane/orders/a%20b/c%25d%27";
    assert!(shell.ok(&["get", "lanes", "-o", "name"]).lines().any(|line| line == lane));
    let (code, out, err) = sh(shell, "klambda get lane orders -o name | xargs \"$KLAMBDA\" describe");
    assert_eq!(code, 0, "{err}");
    assert!(out.contains("Key:            a b/c%d'\n"), "{out}");
    assert_eq!(shell.ok(&["describe", "lane", "orders", "a b/c%d'"]).lines().next(), out.lines().next());
    let mixed = shell.ok(&["get", "fn/a", "sub/orders", lane]);
    let first: Vec<&str> = mixed.lines().filter_map(|line| line.split_whitespace().next()).collect();
    assert_eq!(first, ["NAME", "function/a", "NAME", "subscription/orders", "NAME", lane], "{mixed}");
    assert!(shell.ok(&["describe", "namespace/default"]).starts_with("Name:"));
    assert_eq!(shell.ok(&["subscription", "pause", "subscription/mail"]), "subscription/mail paused\n");
    assert!(shell.ok(&["lane", "pause", lane]).starts_with(&format!("{lane} paused")));
}

fn mistakes(shell: &Shell) {
    for (words, said) in [
        (
            &["get", "subscrptions"][..],
            "unknown resource type \"subscrptions\"; did you mean \"subscriptions\"?",
        ),
        (&["get", "pods"], "types: functions, agents, subscriptions"),
        (&["describe", "function"], "the name is missing"),
        (&["get", "subs", "-l", "app=shop"], "subscriptions have no labels"),
        (&["get", "functions", "--reason", "late"], "--reason: functions have no such filter"),
        (&["get", "subs", "--sort-by", "colour"], "subscriptions have no column \"colour\""),
        (&["get", "subs", "--sort-by", ".spec.colour"], "no subscription has .spec.colour"),
        (&["get", "fn", "-l", "app=("], "is not a requirement like key=value"),
        (&["describe", "orders"], "name resources as TYPE/NAME or TYPE NAME"),
        (&["lane", "resume", "orders"], "orders: the key is missing; use SUBSCRIPTION KEY"),
        (&["lane", "resume", "sub/orders"], "this is not a lane"),
        (&["delete", "lane/orders/x"], "klambda lane purge"),
        (&["wait", "sub/orders"], "functions and agents"),
        (&["explain", "subscription.spec.retri"], "did you mean \"retry\"?"),
        (&["explain", "subscription.spec.zzzzzz"], "subscription.spec has no field \"zzzzzz\"; fields: "),
        (
            &["explain", "subscription.spec.retry.attempts.more"],
            "subscription.spec.retry.attempts has no fields",
        ),
        (&["explain", "subscription..spec"], "subscription has no field \"\"; fields: "),
        (&["explain", "tokens"], "explain works with function, agent, subscription, webhook and eventtype"),
    ] {
        let (code, told) = shell.fails(words);
        assert_eq!(code, 2, "{words:?}: {told}");
        assert!(told.contains(said), "{words:?}: {told}");
    }
    let (code, _, err) = sh(shell, "env -u EDITOR -u KLAMBDA_EDITOR \"$KLAMBDA\" edit sub/orders");
    assert!(code == 2 && err.contains("editing needs a terminal"), "{err}");
    let (code, _, err) = sh(shell, "klambda event send -f shop.yaml");
    assert!(code == 2 && err.contains("shop.yaml: expected CloudEvents in JSON ("), "{err}");
    let (code, _, err) = sh(shell, "klambda");
    assert!(code == 2 && err.contains("Resource commands:") && !err.contains("__complete"), "{err}");
    let (code, out, err) = sh(shell, "klambda backup - | tar -t");
    assert!(code == 0 && out.lines().any(|file| file.ends_with("manifest")), "{out} {err}");
    assert_eq!(shell.fails(&["get", "function/nobody"]).0, 4);
    let some = shell.run(&["get", "function", "nobody", "a", "-o", "name"]);
    assert_eq!((some.status.code(), text(&some.stdout).as_str()), (Some(4), "function/a\n"));
}

fn formats(shell: &Shell) {
    assert_eq!(shell.ok(&["get", "fn", "-o", "jsonpath={.items[*].metadata.name}"]), "a b\n");
    assert_eq!(shell.ok(&["get", "fn/a", "-o", "jsonpath={.metadata.labels.tier}"]), "web\n");
    let columns = shell.ok(&["get", "fn", "-o", "custom-columns=N:.metadata.name,T:.metadata.labels.tier"]);
    assert_eq!(columns, "N   T\na   web\nb   test\n");
    assert_eq!(shell.ok(&["get", "fn", "-l", "app=shop,tier!=test", "-o", "name"]), "function/a\n");
    assert_eq!(shell.ok(&["get", "fn", "-l", "tier in (test,x)", "-o", "name"]), "function/b\n");
    let sorted = |by: &str| shell.ok(&["get", "fn", "--sort-by", by, "-o", "name"]);
    assert_eq!(sorted(".metadata.labels.tier"), "function/b\nfunction/a\n");
    assert_eq!(sorted("NAME"), "function/a\nfunction/b\n");
    let list = shell.json(&["get", "subs"]);
    assert_eq!((&list["kind"], list["items"].as_array().map(Vec::len)), (&"List".into(), Some(2)));
    shell.write("again.json", &list.to_string());
    assert_eq!(shell.ok(&["apply", "-f", "again.json"]).matches("unchanged").count(), 2);
    assert!(shell.ok(&["get", "subs", "-o", "wide"]).contains("BREAKER"));
    let explained = shell.ok(&["explain", "subscription.spec.retry"]);
    assert!(
        explained.contains("FIELD:    spec.retry <object>")
            && explained.contains("  attempts <integer or string>  default 5"),
        "{explained}"
    );
}

fn watching(shell: &Shell) {
    let mut command = shell.command(&["get", "subs", "-w"]);
    let watch = Process::start(command.stdin(Stdio::null()), &shell.path().join("watched"));
    let rows = |name: &str, printed: &str| printed.lines().filter(|line| line.starts_with(name)).count();
    let until = |watch: &Process, name: &str, count: usize| {
        eventually("rows of the watch", || match watch.printed() {
            printed if rows(name, &printed) >= count => Ok(()),
            printed => Err(printed),
        });
    };
    until(&watch, "orders", 1);
    shell.ok(&["subscription", "resume", "mail"]);
    until(&watch, "mail", 2);
    assert_eq!(rows("orders", &watch.printed()), 1, "only changed rows: {}", watch.printed());
    assert_eq!(rows("NAME", &watch.printed()), 1);
    watch.signal(Signal::INT);
    assert_eq!(watch.wait().code(), Some(0), "Ctrl-C is the usual end");
}

fn destruction(shell: &Shell) {
    shell.ok(&["namespace", "create", "empty"]);
    for line in [
        "klambda lane purge orders \"a b/c%d'\"",
        "klambda delete sub/mail --discard",
        "klambda namespace delete empty",
        "klambda delete ns/empty",
        "klambda dlq purge --all",
    ] {
        let (code, out, err) = sh(shell, line);
        assert!(code == 2 && err.contains("--yes"), "{line}: {code} {out}{err}");
    }
    assert!(shell.ok(&["lane", "purge", "orders", "a b/c%d'", "--yes"]).contains("purged"));
    assert_eq!(shell.ok(&["delete", "ns/empty", "--yes"]), "namespace/empty deleted\n");
}

fn versions(shell: &Shell) {
    let version = env!("CARGO_PKG_VERSION");
    let both = shell.ok(&["version"]);
    assert_eq!(both, format!("Client:  {version}\nServer:  {version} ({})\n", shell.server.url));
    let alone = shell.ok(&["version", "--server", "http://127.0.0.1:1"]);
    assert!(alone.starts_with(&format!("Client:  {version}\nServer:  unknown (cannot reach")), "{alone}");
    let help = shell.ok(&["--help"]);
    assert!(help.lines().count() <= 45 && help.lines().all(|line| line.chars().count() <= 80), "{help}");
    assert!(shell.ok(&["options"]).contains("Exit codes:"));
}

fn completion(shell: &Shell) {
    let complete = |words: &[&str]| shell.ok(&[&["__complete", "--"][..], words].concat());
    assert_eq!(complete(&["desc"]), "describe\n");
    assert_eq!(complete(&["get", "sub"]), "subscriptions\nsubscription/\n");
    assert_eq!(complete(&["get", "subscription/o"]), "subscription/orders\n");
    assert_eq!(complete(&["delete", "subscription", ""]), "mail\norders\n");
    assert_eq!(complete(&["logs", ""]), "a\nb\n");
    assert_eq!(complete(&["lane", "skip", "or"]), "orders\n");
    assert_eq!(complete(&["get", "lanes", "-n", "def"]), "default\n");
    assert_eq!(complete(&["get", "lanes", "--state", "par"]), "parked\n");
    assert_eq!(complete(&["get", "--all"]), "--all-namespaces\n");
    assert_eq!(
        complete(&["get", "subscription", "--server", "http://127.0.0.1:1", ""]),
        "",
        "no server, no names"
    );
    let bash = "source <(klambda completion bash); COMP_WORDS=(\"$KLAMBDA\" describe sub/or); COMP_CWORD=2; \
                _klambda \"$KLAMBDA\" 2>/dev/null; echo \"${COMPREPLY[@]}\"";
    assert_eq!(sh(shell, bash).1, "sub/orders\n");
    for name in ["zsh", "fish"] {
        assert!(shell.ok(&["completion", name]).contains("# Install"), "{name}");
    }
}

#[test]
fn files_are_compared_tried_out_applied_and_pruned() {
    let shell = Shell::new();
    trying(&shell);
    pruning(&shell);
    editing(&shell);
    let deleted = shell.ok(&["delete", "-f", "s.yaml", "-f", "f.yaml", "--wait"]);
    assert_eq!(deleted, "subscription/orders deleted\nfunction/a deleted\n");
}

fn with<'a>(words: &[&'a str]) -> Vec<&'a str> {
    [words, &["-f", "f.yaml", "-f", "s.yaml"]].concat()
}

fn trying(shell: &Shell) {
    shell.write("f.yaml", &function("a", "web"));
    shell.write("s.yaml", &subscription("orders"));
    let tried = shell.ok(&with(&["apply", "--dry-run"]));
    assert_eq!(tried, "function/a created (dry run)\nsubscription/orders created (dry run)\n");
    assert_eq!(shell.ok(&["get", "-o", "name"]), "", "nothing was created");
    assert_eq!(shell.ok(&["get", "audit", "-o", "name"]), "", "nothing was changed");
    let diff = shell.run(&with(&["diff"]));
    assert_eq!(diff.status.code(), Some(1));
    assert!(text(&diff.stdout).contains("+++ merged/function/a\n@@ -0,0 +1,"), "{}", text(&diff.stdout));
    assert_eq!(text(&diff.stderr), "");
    let applied = shell.ok(&with(&["apply", "--wait"]));
    assert_eq!(applied, "function/a created\nsubscription/orders created\nfunction/a ready\n");
    assert_eq!(shell.ok(&with(&["diff"])), "");
    assert_eq!(shell.ok(&with(&["apply", "--dry-run"])).matches(" unchanged (dry run)").count(), 2);

    shell.write("s.yaml", &subscription("orders").replace("attempts: 1", "attempts: 3"));
    let diff = shell.run(&with(&["diff"]));
    let shown = text(&diff.stdout);
    assert!(shown.contains("-    attempts: 1\n+    attempts: 3\n"), "{shown}");
    assert!(
        shell.ok(&with(&["apply", "--dry-run=server"])).contains("subscription/orders configured (dry run)")
    );
    let live = shell.json(&["get", "sub/orders"]);
    assert_eq!(live["spec"]["retry"]["attempts"], 1, "nothing was changed");
    let wrong = shell.write("wrong.yaml", &subscription("x").replace("attempts: 1", "tries: 1"));
    let (code, told) = shell.fails(&["apply", "--dry-run", "-f", &wrong]);
    assert!(code == 1 && told.contains("spec.retry"), "{told}");
    shell.ok(&with(&["apply"]));
}

fn pruning(shell: &Shell) {
    shell.write("more.yaml", &(function("b", "test") + "---" + &function("c", "web")));
    shell.ok(&["apply", "-f", "more.yaml"]);
    // Never applied, so never pruned.
    let created = serde_saphyr::from_str::<Value>(&function("d", "test")).expect("YAML");
    let url = format!("{}/api/v1/lambda/functions", shell.server.url);
    let sent = support::process::agent()
        .post(&url)
        .header("content-type", "application/json")
        .send(created.to_string());
    assert_eq!(sent.expect("created").status(), 202);
    let prune = ["apply", "-f", "f.yaml", "--prune", "-l", "tier=test"];
    let tried = shell.ok(&[&prune[..], &["--dry-run"]].concat());
    assert_eq!(tried, "function/a unchanged (dry run)\nfunction/b pruned (dry run)\n");
    let (code, _, told) = sh(shell, "klambda apply -f f.yaml --prune -l tier=test");
    assert!(code == 2 && told.contains("prune function/b") && told.contains("--yes"), "{told}");
    shell.write("new.yaml", &function("new", "web"));
    let (code, out, _) = sh(shell, "klambda apply -f new.yaml --prune -l tier=test");
    assert_eq!((code, out.as_str()), (2, ""), "nothing is applied before the refusal");
    assert_eq!(shell.fails(&["get", "fn/new"]).0, 4);
    assert_eq!(shell.ok(&[&prune[..], &["--yes"]].concat()), "function/a unchanged\nfunction/b pruned\n");
    let all = shell.ok(&["apply", "-f", "f.yaml", "--prune", "--all", "--yes"]);
    assert_eq!(all, "function/a unchanged\nfunction/c pruned\n");
    shell.ok(&["wait", "function/b", "function/c", "--for=deleted"]);
    assert_eq!(shell.ok(&["get", "fn", "-o", "name"]), "function/a\nfunction/d\n");
    shell.ok(&["delete", "function/d", "--wait"]);
}

fn editing(shell: &Shell) {
    let edit = |script: &str, what: &str| {
        shell.write("editor", script);
        let mut command = shell.command(&["edit", what]);
        let output =
            command.env("KLAMBDA_EDITOR", "sh editor").env("EDITOR", "false").output().expect("klambda");
        (output.status.code().unwrap_or(-1), text(&output.stdout), text(&output.stderr))
    };
    let unchanged = (0, "Edit cancelled, no changes made.\n".to_owned(), String::new());
    assert_eq!(edit("true", "subscription/orders"), unchanged);
    assert_eq!(edit(": > $1", "function/a"), unchanged, "an empty file");
    let (code, out, err) = edit("sed -i 's/attempts: 3/attempts: 4/' $1", "subscription/orders");
    assert_eq!((code, out.as_str()), (0, "subscription/orders edited\n"), "{err}");
    assert_eq!(shell.json(&["get", "sub/orders"])["spec"]["retry"]["attempts"], 4);
    let (code, out, err) = edit("sed -i 's/tier: web/team: x/' $1", "function/a");
    assert_eq!((code, out.as_str()), (0, "function/a edited\n"), "{err}");
    let labels = shell.json(&["get", "fn/a"])["metadata"]["labels"].clone();
    assert_eq!(labels, serde_json::json!({"app": "shop", "team": "x"}), "what was removed is gone");

    for (what, file) in [("subscription/orders", "s.yaml"), ("function/a", "f.yaml")] {
        let meanwhile = format!(
            "{:?} apply -f {file} >/dev/null; echo '# mine' >> $1; sed -i 's/app: shop/app: y/; s/attempts: 4/attempts: 5/' $1",
            support::KLAMBDA
        );
        let (code, _, err) = edit(&meanwhile, what);
        assert_eq!(code, 5, "{err}");
        assert!(err.contains("someone changed the resource while you edited it"), "{err}");
        let kept =
            err.split("your edits are in ").nth(1).and_then(|rest| rest.split(':').next()).expect("a file");
        let text = std::fs::read_to_string(kept).expect("the kept file");
        assert!(text.contains("# mine"), "{text}");
        std::fs::remove_file(kept).expect("removed");
    }
    let (code, _, err) = edit("echo 'spec: [' > $1", "function/a");
    assert!(code == 2 && err.contains("your edits are in"), "{code} {err}");
    let (code, _, err) = edit("exit 3", "function/a");
    assert!(code == 1 && err.contains("the editor sh editor failed"), "{err}");
}

#[test]
fn what_cannot_be_undone_needs_a_yes() {
    let shell = shop();
    let id = shell.json(&["dlq", "list"])["items"][0]["id"].as_str().expect("an id").to_owned();
    let letter = format!("deadletter/{id}");
    let lane = shell.ok(&["get", "lanes", "--subscription", "orders", "-o", "name"]).trim().to_owned();
    let refused: [&[&str]; 3] = [&["delete", &letter], &["lane", "skip", &lane], &["lane", "purge", &lane]];
    for words in refused {
        let (code, told) = shell.fails(words);
        assert!(code == 2 && told.contains("refusing to ") && told.contains("--yes"), "{words:?}: {told}");
    }
    let purged = shell.run(&["dlq", "purge", "--subscription", "orders", "--yes"]);
    assert_eq!(text(&purged.stdout), "0 dead letters purged\n");
    assert_eq!(text(&purged.stderr), "1 kept: it blocks its lane; use --holders to purge it too\n");
    assert_eq!(shell.ok(&["dlq", "get", &letter, "-o", "name"]), format!("{letter}\n"));

    let started = shell.ok(&["dlq", "replay", "--id", &id, "--wait=false"]);
    assert!(!started.contains("Selected:          0 dead letters"), "{started}");
    eventually("the end of the replay", || {
        match shell.json(&["get", "replays"])["items"][0]["state"].as_str() {
            Some("running") => Err("it runs".to_owned()),
            _ => Ok(()),
        }
    });
    assert!(shell.ok(&["lane", "skip", &lane, "--yes"]).contains(" skipped"));
    let audit = shell.ok(&["get", "audit", "-o", "name"]);
    assert!(shell.ok(&["lane", "resume", &lane]).contains(" resumed, now open"));
    assert_eq!(shell.ok(&["get", "audit", "-o", "name"]), audit, "an open, empty lane has nothing to resume");
    assert_eq!(shell.ok(&["delete", &letter, "--yes"]), format!("{letter} deleted\n"));
    let idle = shell.run(&["get", "lanes", "--subscription", "orders", "--sort", "depth"]);
    assert!(text(&idle.stderr).contains("no lanes with pending events found"), "{}", text(&idle.stderr));
}

#[test]
fn habits_from_kubectl_work() {
    let shell = shop();
    assert_eq!(shell.ok(&["get", "all", "-l", "tier=web", "-o", "name"]), "function/a\n");
    let (_, entries, told) = sh(&shell, "klambda get audit -o name | xargs \"$KLAMBDA\" get -o name");
    assert_eq!((entries.as_str(), told.as_str()), (shell.ok(&["get", "audit", "-o", "name"]).as_str(), ""));
    assert_eq!(shell.fails(&["get", "audit/999"]).0, 4);
    for name in ["sub/orders", "subscription/orders", "orders"] {
        assert_eq!(shell.ok(&["subscription", "pause", name]), "subscription/orders paused\n");
    }
    assert_eq!(shell.ok(&["sub", "list", "-o", "name"]), "subscription/mail\nsubscription/orders\n");
    assert_eq!(shell.ok(&["namespace", "list", "-o", "name"]), "namespace/default\n");
    shell.ok(&["secret", "set", "db", "x=y"]);
    assert_eq!(shell.ok(&["secret", "get", "secret/db", "-o", "name"]), "secret/db\n");
    for words in [&["token", "list"][..], &["context", "get"]] {
        let home = shell.path().join("config");
        let output = shell.command(words).env("KLAMBDA_CONFIG_DIR", home).output().expect("klambda");
        assert!(output.status.success(), "{words:?}: {}", text(&output.stderr));
    }
    assert_eq!(shell.fails(&["namespace", "create", "default"]).0, 5);
}

#[test]
fn messages_name_the_cause() {
    let shell = Shell::new();
    let told: [(&[&str], i32, &str); 8] = [
        (&["get", "sub/../x"], 4, "error: subscription/../x not found\n"),
        (&["event", "tail", "--after", "x"], 2, "'--after <POSITION>': expected a whole number\n"),
        (&["wait", "sub/x"], 2, "for other types, use --for=Deleted"),
        (&["get", "dlq", "-A", "-n", "x"], 2, "Usage: klambda get --all-namespaces <TYPE[/NAME]>..."),
        (&["upgrade-check", "."], 1, "it is not a data folder"),
        (&["serve", "--data", "bomb.yaml"], 1, "bomb.yaml is a file, not a folder"),
        (&["apply", "-f", "bomb.yaml"], 2, "bomb.yaml: the document is too large or too deeply nested"),
        (&["context", "add", "x"], 2, "--server URL is required"),
    ];
    let anchors: Vec<String> =
        (1..8).map(|n| format!("a{n}: &a{n} [{}]", vec![format!("*a{}", n - 1); 20].join(", "))).collect();
    shell.write("bomb.yaml", &format!("a0: &a0 [x]\n{}\n", anchors.join("\n")));
    for (words, code, message) in told {
        let mut command = shell.command(words);
        if words[0] == "context" {
            command.env_remove("KLAMBDA_SERVER").env("KLAMBDA_CONFIG_DIR", shell.path().join("config"));
        }
        let output = command.output().expect("klambda");
        let error = text(&output.stderr);
        assert!(error.contains(message), "{words:?}: {error}");
        assert_eq!(output.status.code(), Some(code), "{words:?}: {error}");
        assert!(!error.contains("--server <URL>"), "{words:?}: {error}");
    }
    let (_, error) = shell.fails(&["secret", "set", "a b", "x=y"]);
    assert_eq!(error.matches("is not a name for a secret").count(), 1, "{error}");
    let (_, _, error) = sh(&shell, "klambda get ns > /dev/full");
    assert!(error.starts_with("error: cannot write to stdout: "), "{error}");
    let rejected = shell.run(&["event", "send", "--type", "a", "--source", "", "-o", "name"]);
    assert_eq!(text(&rejected.stdout), "", "no event exists");
    assert!(text(&rejected.stderr).contains(" rejected: "), "{}", text(&rejected.stderr));
}

#[test]
fn a_body_over_the_limit_gets_the_answer_of_the_server() {
    let shell = Shell::new();
    std::fs::write(shell.path().join("big"), vec![b'a'; 40 << 20]).expect("written");
    let sent: [&[&str]; 2] =
        [&["secret", "set", "big", "--from-file", "big"], &["event", "send", "--type", "a", "-d", "@big"]];
    for words in sent {
        let (code, told) = shell.fails(words);
        assert!(code == 1 && told.contains("the request is larger than 8 MiB (limits.bodyBytes)"), "{told}");
    }
}
