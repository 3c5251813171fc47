//! Functions that fail: each ends in a state with a reason, and does not delay others.

use crate::world::{NODE_HELLO, World, inline, is, node};
use serde_json::{Value, json};

fn git(url: &str) -> Value {
    json!({ "source": { "type": "git", "git": { "url": url } }, "runtime": { "language": "nodejs" } })
}

#[test]
fn each_ends_with_a_reason() {
    let world = World::with(vec![
        ("KLAMBDA_FUNCTIONS_START_TIMEOUT", "3s".into()),
        ("KLAMBDA_FUNCTIONS_TRIES_WITHIN", "1s".into()),
    ]);
    let mut version = node(NODE_HELLO);
    version["runtime"]["version"] = json!("4");
    let mut dependency = node(NODE_HELLO);
    dependency["source"]["inline"]["dependencies"] = json!("klambda-no-such-package-a8f2@1.0.0");
    let mut memory = node(
        "const kept = []; setInterval(() => kept.push(Buffer.alloc(1 << 24, 1)), 1); exports.handler = () => 1; while (true) kept.push(Buffer.alloc(1 << 24, 1));",
    );
    memory["resources"] = json!({ "limits": { "memory": "96Mi" } });
    let mut slow = node(NODE_HELLO);
    slow["build"] = json!({ "timeout": "1s" });
    // Takes connections, and never says a word.
    let silent = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let package = format!("http://{}/slow.tgz", silent.local_addr().expect("an address"));
    slow["source"]["inline"]["dependencies"] = json!(json!({ "slow": package }).to_string());
    let folder = json!({ "source": { "type": "folder", "folder": { "path": "/no/such/folder" } },
        "runtime": { "language": "nodejs" } });
    let cases: Vec<(&str, Value, &[&str])> = vec![
        ("slow", slow, &["BuildTimeout"]),
        ("no-folder", folder, &["SourceNotFound"]),
        ("no-repository", git("http://127.0.0.1:9/none.git"), &["SourceUnreachable", "SourceNotFound"]),
        ("syntax", node("exports.handler = ("), &["SyntaxError"]),
        ("python-syntax", inline("python", "index.handler", "def handler(:"), &["SyntaxError"]),
        (
            "go-syntax",
            inline("go", "index.Handler", "package function\n\nfunc Handler("),
            &["SyntaxError", "BuildFailed"],
        ),
        ("no-handler", node("exports.other = 1;"), &["HandlerNotFound"]),
        ("python-no-handler", inline("python", "index.handler", "other = 1"), &["HandlerNotFound"]),
        (
            "go-no-handler",
            inline("go", "index.Handler", "package function\n\nfunc Other() {}\n"),
            &["HandlerNotFound"],
        ),
        ("no-port", node("exports.handler = () => 1; while (true) {}"), &["NeverAnswered"]),
        (
            "crash",
            node("setTimeout(() => process.exit(3), 1); exports.handler = () => 1; process.exit(3);"),
            &["CrashLoop", "LoadError"],
        ),
        ("memory", memory, &["OutOfMemory"]),
        ("no-version", version, &["RuntimeNotFound"]),
        ("no-dependency", dependency, &["DependencyNotFound", "DependencyFailed", "BuildFailed"]),
        (
            "image",
            json!({ "source": { "type": "image", "image": { "uri": "no.such.host/x:1" } } }),
            &["NoContainerEngine", "ImageNotFound"],
        ),
    ];
    for (name, spec, _) in &cases {
        world.apply(name, spec);
    }
    world.apply("fine", &node(NODE_HELLO));
    world.ready("fine");
    for (name, _, reasons) in &cases {
        let seen = world.until(name, &format!("{reasons:?}"), |seen| {
            let conditions = crate::world::conditions(seen);
            let said = conditions.iter().any(|one| reasons.iter().any(|reason| one["reason"] == *reason));
            said && seen["status"]["phase"] == "Failed"
        });
        let failed = crate::world::conditions(&seen)
            .into_iter()
            .find(|one| reasons.iter().any(|r| one["reason"] == *r));
        let message = failed.map(|one| one["message"].to_string()).unwrap_or_default();
        assert!(message.len() > 30, "{name}: {message}");
        let (status, body) = world.invoke(name, &json!({}));
        // Temporary failures are retried. A call during a retry gets its result.
        assert!(matches!(status, 502 | 503), "{name}: {status} {body}");
    }
    let mut never = node(NODE_HELLO);
    never["triggers"] = json!([{ "filters": [{ "exact": { "type": "a" } }, { "exact": { "type": "b" } }] }]);
    world.apply("never", &never);
    world.until("never", "its trigger matches nothing", |seen| is(seen, "TriggersReady", "False"));
    assert_eq!(world.invoke("fine", &json!({ "name": "Ada" })), (200, json!({ "hello": "Ada" })));
}
