//! Functions from an image, with a small program in the place of podman.

use crate::support::{KLAMBDA, free_port};
use crate::world::World;
use serde_json::json;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

const DIGEST: &str = "sha256:3b1e0c5a";

/// Runs a server in Node.js as the container. Only images with `pulled` in their name have a digest.
fn podman(port: u16) -> String {
    let serve = "require('http').createServer((_, answer) => answer.end('{}')).listen(process.argv[1])";
    format!(
        r#"#!/bin/sh
case "$1 $*" in
*inspect*--format*pulled*) echo '["registry.example/pulled@{DIGEST}"]' ;;
*inspect*--format*) echo '[]' ;;
"run "*) exec node -e "{serve}" {port} ;;
"port "*) echo 127.0.0.1:{port} ;;
esac
"#
    )
}

#[test]
fn describe_shows_the_digest_of_an_image_if_the_engine_knows_it() {
    let tools = tempfile::tempdir().expect("a folder");
    let program = tools.path().join("podman");
    std::fs::write(&program, podman(free_port())).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).expect("executable");
    let path = format!("{}:{}", tools.path().display(), std::env::var("PATH").expect("a path"));
    let world = World::with(vec![("PATH", path)]);
    for (name, digest) in [("pulled", Some(DIGEST)), ("built", None)] {
        let image = format!("registry.example/{name}:1.2");
        let source = json!({ "type": "image", "image": { "uri": image } });
        world.apply(name, &json!({ "source": source, "scaling": { "maxReplicas": 1 } }));
        let seen = world.ready(name);
        assert_eq!(seen["status"]["buildStatus"]["imageDigest"].as_str(), digest, "{seen:#}");
        let mut command = Command::new(KLAMBDA);
        let shown = command.args(["describe", "function", name, "--server", &world.url]).output();
        let shown = String::from_utf8(shown.expect("an answer").stdout).expect("text");
        assert!(shown.contains(&format!("Artifact:         {image}")), "{shown}");
        assert_eq!(shown.contains("Image digest:     sha256:3b1e0c5a"), digest.is_some(), "{shown}");
        assert_eq!(world.delete(&format!("/api/v1/lambda/functions/{name}")).0, 202);
        world.until(name, "is gone", |seen| seen["status"] == 404);
    }
}
