//! A copy serves the same code as the original, without fetching it.

use crate::revisions::{answering, from_git, klambda, says};
use crate::support::KLAMBDA;
use crate::support::repository::{commit, served};
use crate::world::{World, inline, node};
use serde_json::json;
use std::process::Command;

#[test]
fn a_restored_server_serves_the_same_code() {
    let mut world = World::new();
    let repository = world.folder.path().join("shop");
    let first = commit(&repository, "index.js", &answering("one"));
    let (url, daemon) = served(&repository, world.folder.path());
    world.apply("moved", &from_git(&url));
    world.apply("broken", &node(&answering("previous")));
    let python = "def handler(event, context):\n    return {'says': 'python'}\n";
    world.apply("python", &inline("python", "index.handler", python));
    for name in ["moved", "broken", "python"] {
        world.ready(name);
    }
    world.apply("broken", &node("exports.handler = ("));
    world.until("broken", "it does not build", |seen| seen["status"]["buildStatus"]["outcome"] == "failed");
    world.apply("rolled", &node(&answering("old")));
    world.ready("rolled");
    world.apply("rolled", &node(&answering("new")));
    world.ready("rolled");
    commit(&repository, "index.js", &answering("two"));

    let (done, text) = klambda(&world, &["backup", "copy"]);
    assert!(done, "{text}");
    let (done, text) = klambda(&world, &["backup", "copy.tar"]);
    assert!(done, "{text}");
    drop(daemon);
    world.process.take().expect("it runs").stop();
    let home = world.folder.path().to_owned();
    let checked = Command::new(KLAMBDA).args(["check", "copy"]).current_dir(&home).output().expect("klambda");
    assert!(checked.status.success() && checked.stdout.ends_with(b"\nok\n"), "{checked:?}");
    // Nothing of the original exists any more.
    std::fs::rename(home.join("data"), home.join("gone")).expect("renamed");
    std::fs::create_dir(home.join("data")).expect("a folder");
    let unpacked = Command::new("tar").args(["xf", "copy.tar", "-C", "data"]).current_dir(&home).status();
    assert!(unpacked.expect("tar").success());
    std::fs::remove_dir_all(home.join("gone")).expect("removed");

    world.start();
    says(&world, "moved", "one");
    says(&world, "broken", "previous");
    says(&world, "python", "python");
    says(&world, "rolled", "new");
    for name in ["moved", "python", "rolled"] {
        let seen = world.ready(name);
        assert_eq!(seen["status"]["buildStatus"]["outcome"], "completed", "{seen:#}");
    }
    assert_eq!(world.function("moved")["status"]["buildStatus"]["commit"], first.as_str());
    let seen = world.function("broken");
    assert_eq!(
        (&seen["status"]["phase"], &seen["status"]["serviceStatus"]["generation"]),
        (&json!("Ready"), &json!(1))
    );
    let builds = world.events("lambda.build.started").len();
    assert_eq!(builds, 6, "nothing is fetched or built again");
    let path = "/api/v1/lambda/functions/rolled/rollback";
    assert_eq!(world.post(path, &json!({ "revision": 1 })).0, 202);
    says(&world, "rolled", "old");
}
