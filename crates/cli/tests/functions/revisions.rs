//! Versions that served, and the way back to one.

use crate::support::repository::{commit, served};
use crate::support::{KLAMBDA, eventually};
use crate::world::{World, node};
use serde_json::{Value, json};
use std::process::Command;

pub fn from_git(url: &str) -> Value {
    json!({ "source": { "type": "git", "git": { "url": url } }, "runtime": { "language": "nodejs" } })
}

pub fn answering(text: &str) -> String {
    format!("exports.handler = () => ({{ says: '{text}' }});\n")
}

/// Waits until the function answers so.
pub fn says(world: &World, name: &str, text: &str) {
    eventually(&format!("{name} says {text}"), || match world.invoke(name, &json!({})) {
        (200, body) if body["says"] == text => Ok(()),
        (status, body) => Err(format!("{status} {body}")),
    });
}

pub fn klambda(world: &World, words: &[&str]) -> (bool, String) {
    let mut command = Command::new(KLAMBDA);
    let output = command.args(["--server", &world.url]).args(words).current_dir(world.folder.path()).output();
    let output = output.expect("klambda");
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

fn revisions(world: &World, name: &str) -> Vec<Value> {
    let (status, page) = world.get(&format!("/api/v1/lambda/functions/{name}/revisions"));
    assert_eq!((status, &page["next"]), (200, &Value::Null), "{page}");
    page["items"].as_array().cloned().unwrap_or_default()
}

fn rollback(world: &World, name: &str, revision: u64) -> (u16, Value) {
    let path = format!("/api/v1/lambda/functions/{name}/rollback");
    world.post(&path, &json!({ "revision": revision }))
}

/// The branch moves on and the repository disappears: the code of each revision is still there, byte for byte.
#[test]
fn a_rollback_needs_no_source() {
    let mut world = World::new();
    let repository = world.folder.path().join("shop");
    let first = commit(&repository, "index.js", &answering("one"));
    let (url, daemon) = served(&repository, world.folder.path());
    world.apply("f", &from_git(&url));
    world.ready("f");
    let second = commit(&repository, "index.js", &answering("two"));
    says(&world, "f", "one");
    world.post("/api/v1/lambda/functions/f/rebuild", &json!({}));
    says(&world, "f", "two");
    drop(daemon);

    let known = eventually("both are revisions", || match revisions(&world, "f") {
        known if known.len() == 2 => Ok(known),
        known => Err(format!("{known:#?}")),
    });
    assert_eq!(known.iter().map(|one| one["number"].clone()).collect::<Vec<_>>(), [json!(1), json!(2)]);
    assert_eq!((&known[0]["commit"], &known[1]["commit"]), (&json!(first), &json!(second)));
    assert_eq!((&known[0]["serving"], &known[1]["serving"]), (&json!(false), &json!(true)));
    assert_eq!(known[1]["appliedBy"], "anonymous");
    assert_eq!(known[0]["spec"]["source"]["git"]["url"], url.as_str());

    let (done, text) = klambda(&world, &["rollback", "function", "f"]);
    assert!(done, "{text}");
    assert_eq!(text, "function/f rolled back to revision 1 as generation 2\n");
    assert!(klambda(&world, &["wait", "function", "f"]).0);
    says(&world, "f", "one");
    let (_, history) = klambda(&world, &["history", "function", "f"]);
    let lines: Vec<Vec<&str>> = history.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["REVISION", "GENERATION", "SERVING", "SOURCE", "APPLIED-BY", "AGE"]);
    assert_eq!(lines[3][..3], ["3", "2", "yes"], "{history}");
    assert!(history.contains(&format!("@{}", &first[..10])) && history.contains("anonymous"), "{history}");
    let (_, described) = klambda(&world, &["describe", "function", "f"]);
    assert!(described.contains(&first) && described.contains("Applied by:"), "{described}");
    let (_, audit) = world.get("/api/v1/audit?limit=1");
    assert_eq!((&audit["items"][0]["verb"], &audit["items"][0]["name"]), (&json!("rollback"), &json!("f")));

    let (status, problem) = rollback(&world, "f", 7);
    assert_eq!(
        (status, problem["detail"].as_str()),
        (404, Some("function f has no revision 7; there are 1, 2, 3"))
    );
    assert_eq!(rollback(&world, "f", 0).0, 422);

    // A restart keeps them, and nothing is fetched.
    world.process.take().expect("it runs").stop();
    world.start();
    says(&world, "f", "one");
    assert_eq!(rollback(&world, "f", 2).0, 202);
    says(&world, "f", "two");
    let gone = revisions(&world, "f").iter().find(|one| one["number"] == 1).cloned().expect("it");
    let made = world.folder.path().join("data/functions/made");
    std::fs::remove_file(made.join(format!("{}.json", gone["artifact"].as_str().expect("text"))))
        .expect("removed");
    let (status, problem) = rollback(&world, "f", 1);
    assert!(
        status == 409 && problem["detail"].to_string().contains("no longer exists"),
        "{status} {problem}"
    );
    world.delete("/api/v1/lambda/functions/f");
    world.until("f", "is gone", |seen| seen["status"] == 404);
    assert_eq!(world.get("/api/v1/lambda/functions/f/revisions").0, 404);
}

#[test]
fn only_so_many_are_kept_and_what_does_not_build_is_none() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_REVISIONS", "2".into())]);
    for text in ["one", "two", "three"] {
        world.apply("f", &node(&answering(text)));
        world.ready("f");
    }
    world.apply("f", &node("exports.handler = ("));
    world.until("f", "it does not build", |seen| seen["status"]["buildStatus"]["outcome"] == "failed");
    let known = revisions(&world, "f");
    let numbers: Vec<(u64, bool)> =
        known.iter().map(|one| (one["number"].as_u64().unwrap_or(0), one["serving"] == true)).collect();
    assert_eq!(numbers, [(2, false), (3, true)]);
    let (_, listed) = klambda(&world, &["get", "functions"]);
    assert!(listed.contains("Ready (serves 3, wants 4)"), "{listed}");
    // The revision before the last applied one serves.
    let (_, text) = klambda(&world, &["rollback", "function", "f"]);
    assert_eq!(text, "function/f rolled back to revision 3 as generation 5\n");
    world.ready("f");
    says(&world, "f", "three");
    let (_, listed) = klambda(&world, &["get", "functions"]);
    assert!(!listed.contains("wants"), "{listed}");

    let agent = json!({ "metadata": { "name": "a" }, "spec": node(&answering("agent")) });
    assert_eq!(world.post("/api/v1/lambda/agents", &agent).0, 202);
    assert!(klambda(&world, &["wait", "agent", "a"]).0);
    let (status, page) = world.get("/api/v1/lambda/agents/a/revisions");
    assert_eq!((status, &page["items"][0]["serving"]), (200, &json!(true)), "{page}");
    let (done, text) = klambda(&world, &["rollback", "agent", "a", "--to", "1"]);
    assert!(done && text == "agent/a already serves revision 1; nothing changed\n", "{text}");
    let (done, text) = klambda(&world, &["rollback", "agent", "a"]);
    assert!(!done && text.contains("no earlier revision"), "{text}");
}

#[test]
fn a_folder_is_looked_into_at_every_apply() {
    let world = World::new();
    let folder = world.folder.path().join("code");
    std::fs::create_dir(&folder).expect("a folder");
    std::fs::write(folder.join("index.js"), answering("one")).expect("written");
    let spec = json!({ "source": { "type": "folder", "folder": { "path": folder } },
        "runtime": { "language": "nodejs" } });
    world.apply("f", &spec);
    world.ready("f");
    assert_eq!(world.apply("f", &spec)["change"], "unchanged");
    std::fs::write(folder.join("index.js"), answering("two")).expect("written");
    let applied = world.apply("f", &spec);
    assert_eq!((&applied["change"], &applied["generation"]), (&json!("configured"), &json!(2)));
    world.ready("f");
    says(&world, "f", "two");
    assert_eq!(world.apply("f", &spec)["change"], "unchanged");
    assert_eq!(revisions(&world, "f").len(), 2);
    // Code that was built before is not built again.
    std::fs::write(folder.join("index.js"), answering("one")).expect("written");
    world.apply("f", &spec);
    world.ready("f");
    says(&world, "f", "one");
    std::fs::remove_dir_all(&folder).expect("removed");
    assert_eq!(world.apply("f", &spec)["change"], "configured");
    world.until("f", "the status says that the folder is gone", |seen| {
        seen["status"]["phase"] == "Ready" && seen.to_string().contains("SourceNotFound")
    });
    says(&world, "f", "one");
}
