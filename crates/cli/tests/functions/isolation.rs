//! Functions run as the server's own user: a server with roles says so, and can refuse them.

use crate::support::KLAMBDA;
use crate::support::process::{Receiver, Server};
use crate::world::{NODE_HELLO, World, conditions, node};
use serde_json::json;
use std::process::Command;

const ISOLATION: &str = "KLAMBDA_FUNCTIONS_ISOLATION";
const DEVELOPERS: &str = "the role developer is equivalent to admin";
const STAYS_ON: &str = "Authentication is on because this data folder has had tokens";

#[test]
fn required_isolation_refuses_code() {
    let mut world = World::new();
    world.apply("before", &node(NODE_HELLO));
    world.ready("before");
    assert!(world.process.take().expect("a server").stop().success());

    world.settings = vec![(ISOLATION, "required".to_owned())];
    world.start();
    let receiver = Receiver::start(world.folder.path(), &[]);
    world.apply("away", &json!({ "source": { "type": "url", "url": { "url": receiver.url } } }));
    world.ready("away");
    world.apply("inline", &node("exports.handler = () => 1;"));
    let git = json!({ "type": "git", "git": { "url": "http://127.0.0.1:9/shop.git" } });
    world.apply("git", &json!({ "source": git, "runtime": { "language": "nodejs" } }));
    for name in ["before", "inline", "git"] {
        let seen = world.failed(name, "IsolationRequired");
        let refused = conditions(&seen).into_iter().find(|one| one["reason"] == "IsolationRequired");
        let message = refused.expect("the condition")["message"].to_string();
        for part in ["functions.isolation is set to required", "cannot isolate functions from itself"] {
            assert!(message.contains(part), "{name}: {message}");
        }
        assert_ne!(world.invoke(name, &json!({})).0, 200, "{name}");
    }
    assert_eq!(world.children(), [""; 0]);
    assert!(world.process.take().expect("a server").stop().success());

    world.settings.clear();
    world.start();
    world.ready("before");
    assert_eq!(world.invoke("before", &json!({ "name": "Ada" })).0, 200);
    world.post("/api/v1/lambda/functions/inline/rebuild", &json!({}));
    world.ready("inline");
}

#[test]
fn a_server_with_roles_says_what_a_developer_can_do() {
    let folder = tempfile::tempdir().expect("a folder");
    let tokens = folder.path().join("tokens");
    std::fs::write(&tokens, "first").expect("a token");
    let file = ("KLAMBDA_TOKEN_FILE", tokens.to_str().expect("a path"));
    let mut said = 0;
    let mut start = |settings: &[(&str, &str)]| {
        let server = Server::with(folder.path(), settings);
        let mut command = Command::new(KLAMBDA);
        let asked = command.args(["get", "events", "--server", &server.url]).output().expect("an answer");
        let log = server.process.printed();
        assert!(server.process.stop().success());
        let new = log[said..].to_owned();
        said = std::fs::metadata(folder.path().join("serve.log")).expect("a log").len() as usize;
        (new.matches(DEVELOPERS).count(), new.matches(STAYS_ON).count(), asked)
    };
    let (developers, stays_on, asked) = start(&[]);
    assert_eq!((developers, stays_on, asked.status.success()), (0, 0, true), "nobody needs a token");
    let (developers, stays_on, asked) = start(&[file]);
    assert_eq!((developers, stays_on, asked.status.success()), (1, 0, false));
    let (developers, stays_on, _) = start(&[file, (ISOLATION, "required")]);
    assert_eq!((developers, stays_on), (0, 0));
    let (developers, stays_on, asked) = start(&[]);
    assert_eq!((developers, stays_on, asked.status.success()), (1, 1, false));
    let error = String::from_utf8_lossy(&asked.stderr).into_owned();
    assert!(error.contains("restart the server with a token file (tokenFile)"), "{error}");
}
