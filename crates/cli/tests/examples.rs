//! The examples work as described.

mod support;

use support::eventually;
use support::repository::{commit, served};
use support::shell::Shell;

fn same(manifest: String) -> String {
    manifest
}

/// Applied twice, invoked, reached through its trigger, logged, deleted.
fn says_hello(file: &str, name: &str, language: &str) {
    let shell = Shell::new();
    let file = shell.example(file, same);
    assert_eq!(shell.ok(&["apply", "-f", &file]), format!("function/{name} created\n"));
    assert_eq!(shell.ok(&["wait", "function", name, "--timeout", "2m"]), format!("function/{name} ready\n"));
    let before = shell.json(&["get", "function", name]);
    assert_eq!(shell.ok(&["apply", "-f", &file]), format!("function/{name} unchanged\n"));

    assert_eq!(shell.ok(&["invoke", name, "--data", r#"{"name":"Ada"}"#]), "{\"hello\":\"Ada\"}\n");
    for order in ["Bob", "Cy"] {
        let data = format!(r#"{{"name":"{order}"}}"#);
        shell.ok(&["event", "send", "--type", "order.placed", "--key", "order-42", "--data", &data]);
    }
    assert_eq!(shell.logged(name, "name", 3), ["Ada", "Bob", "Cy"]);

    let table = shell.ok(&["get", "functions"]);
    let row: Vec<&str> = table.lines().nth(1).unwrap_or_default().split_whitespace().collect();
    assert_eq!(&row[..4], [name, language, "Ready", "True"], "{table}");
    assert_eq!(row[5], "ordered", "{table}");
    let after = shell.json(&["get", "function", name]);
    assert_eq!(before["metadata"]["generation"], after["metadata"]["generation"]);
    assert_eq!(before["status"]["buildStatus"], after["status"]["buildStatus"], "it was built again");

    assert_eq!(shell.ok(&["delete", "function", name, "--wait"]), format!("function/{name} deleted\n"));
    assert_eq!(shell.fails(&["get", "function", name]).0, 4);
}

#[test]
fn hello_in_nodejs() {
    says_hello("hello-nodejs.yaml", "hello", "nodejs");
}

#[test]
fn hello_in_python() {
    says_hello("hello-python.yaml", "hello-python", "python");
}

#[test]
fn hello_in_go() {
    says_hello("hello-go.yaml", "hello-go", "go");
}

#[test]
fn an_ordered_agent_puts_right_what_arrives_mixed_up() {
    let shell = Shell::new();
    // As it was first written, it has no source yet.
    let bare = "apiVersion: lambda.knative.dev/v1alpha1\nkind: LambdaAgent\nmetadata:\n  name: test-ordered\nspec:\n  ordering: ordered\n";
    assert_eq!(shell.ok(&["apply", "-f", &shell.write("bare.yaml", bare)]), "agent/test-ordered created\n");
    let (_, told) = shell.fails(&["wait", "agent", "test-ordered"]);
    assert!(told.contains("SourceMissing"), "{told}");
    let file = shell.example("ordered-agent.yaml", same);
    assert_eq!(shell.ok(&["apply", "-f", &file]), "agent/test-ordered configured\n");
    shell.ok(&["wait", "agent", "test-ordered", "--timeout", "1m"]);
    for sequence in ["1", "4", "3", "2", "5"] {
        shell.ok(&["event", "send", "--type", "ticket.moved", "--key", "t-1", "--sequence", sequence]);
    }
    assert_eq!(shell.logged("agent/test-ordered", "sequence", 5), ["1", "2", "3", "4", "5"]);
    let agents = shell.ok(&["get", "agents"]);
    assert!(agents.contains("test-ordered") && agents.contains("ordered"), "{agents}");
    assert!(!shell.ok(&["get", "functions", "-A", "-o", "name"]).contains("test-ordered"));
}

#[test]
fn a_function_from_a_git_repository() {
    let shell = Shell::new();
    let repository = shell.path().join("functions");
    let code = "exports.handler = (event) => ({ greeting: `Hello, ${event.data.name}` });\n";
    commit(&repository, "greeter/greet.js", code);
    let (url, _daemon) = served(&repository, shell.path());
    let file = shell.example("git-source.yaml", |manifest| {
        let changed = manifest.replace("https://github.com/example/functions.git", &url);
        assert_ne!(changed, manifest);
        changed
    });
    shell.ok(&["apply", "-f", &file]);
    shell.ok(&["wait", "function", "from-git", "--timeout", "1m"]);
    let greet = || shell.ok(&["invoke", "from-git", "--data", r#"{"name":"Ada"}"#]);
    assert_eq!(greet(), "{\"greeting\":\"Hello, Ada\"}\n");

    // `rebuild` fetches and builds the new tip of the branch, while the old version serves.
    commit(&repository, "greeter/greet.js", &code.replace("Hello", "Welcome"));
    assert_eq!(greet(), "{\"greeting\":\"Hello, Ada\"}\n");
    shell.ok(&["rebuild", "from-git"]);
    eventually("the new code answers", || match greet() {
        greeting if greeting.contains("Welcome") => Ok(()),
        greeting => Err(greeting),
    });
}

#[test]
fn a_chain_of_two_functions() {
    let shell = Shell::new();
    let file = shell.example("chain.yaml", same);
    assert_eq!(shell.ok(&["apply", "-f", &file]), "function/price created\nfunction/invoice created\n");
    shell.ok(&["wait", "function", "price", "invoice", "--timeout", "1m"]);
    for count in ["1", "2"] {
        let data = format!(r#"{{"items": [{{"price": 3, "count": {count}}}, {{"price": 1, "count": 4}}]}}"#);
        shell.ok(&[
            "event",
            "send",
            "--type",
            "basket.filled",
            "--key",
            "b-1",
            "--id",
            count,
            "--data",
            &data,
        ]);
    }
    assert_eq!(shell.logged("invoice", "total", 2), ["7", "10"]);
    assert_eq!(shell.logged("invoice", "basket", 2), ["b-1", "b-1"]);
    let priced = shell.json(&["get", "events", "--type", "basket.priced"]);
    assert_eq!(priced["items"].as_array().map(Vec::len), Some(2));
}
