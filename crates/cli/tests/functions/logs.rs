//! Logs on disk: what they survive, how much they keep, and how they are read.

use crate::support::{KLAMBDA, eventually};
use crate::world::{World, node};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

const TELLS: &str = "exports.handler = (event, context) => { \
    context.log.info(`saw ${event.data.n}`); process.stderr.write(`also ${event.data.n}\n`); return {}; };";

/// The output of a command that must succeed.
fn klambda(world: &World, words: &[&str]) -> String {
    let output =
        Command::new(KLAMBDA).args(words).env("KLAMBDA_SERVER", &world.url).output().expect("klambda");
    let error = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{words:?}: {error}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

fn folder(world: &World) -> PathBuf {
    world.folder.path().join("data/functions/logs")
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("read").path()).collect();
    files.sort();
    files
}

fn saw(world: &World, query: &str) -> Vec<String> {
    let (status, page) = world.get(&format!("/api/v1/lambda/functions/f/logs?{query}"));
    assert_eq!(status, 200, "{page}");
    let lines = page["items"].as_array().expect("a list").iter();
    let messages = lines.filter_map(|line| serde_json::from_str::<Value>(line["text"].as_str()?).ok());
    let messages = messages.filter_map(|line| line["message"].as_str().map(str::to_owned));
    messages.filter(|message| message.starts_with("saw")).collect()
}

fn call(world: &World, n: u64) {
    assert_eq!(world.invoke("f", &json!({ "n": n })).0, 200);
    eventually("both lines are there", || match klambda(world, &["logs", "f"]) {
        log if log.contains(&format!("saw {n}")) && log.contains(&format!("also {n}")) => Ok(()),
        log => Err(log),
    });
}

#[test]
fn logs_outlive_a_restart_and_a_kill_and_damage_costs_only_itself() {
    let mut world = World::new();
    world.apply("f", &node(TELLS));
    world.ready("f");
    call(&world, 1);
    world.process.take().expect("running").stop();
    world.start();
    assert_eq!(saw(&world, "since=1h"), ["saw 1"]);
    call(&world, 2);
    let server = world.process.take().expect("running");
    let id = i32::try_from(server.id()).ok().and_then(Pid::from_raw).expect("an id");
    kill_process(id, Signal::KILL).expect("killed");
    server.wait();
    let own = folder(&world).join("default/f");
    for (path, mode) in [(folder(&world), 0o700), (own.clone(), 0o700), (files(&own)[0].clone(), 0o600)] {
        assert_eq!(path.metadata().expect("there").permissions().mode() & 0o777, mode, "{path:?}");
    }
    let newest = files(&own).pop().expect("a file");
    let mut newest = std::fs::OpenOptions::new().append(true).open(newest).expect("opened");
    newest.write_all(b"\xffgarbage\n{\"number\":9,\"time\":\"2026-").expect("written");
    world.start();
    assert_eq!(saw(&world, "since=1h"), ["saw 1", "saw 2"]);
    call(&world, 3);
    assert_eq!(saw(&world, "since=1h"), ["saw 1", "saw 2", "saw 3"]);
    assert_eq!(saw(&world, "previous=true"), ["saw 2"]);
    assert_eq!(saw(&world, "tail=2"), ["saw 3"], "two lines, one of them to stderr");
    let (_, page) = world.get("/api/v1/lambda/functions/f/logs?tail=2");
    let line =
        page["items"].as_array().into_iter().flatten().find(|line| line["text"] == "also 3").expect("there");
    assert_eq!((&line["generation"], &line["stream"]), (&json!(1), &json!("stderr")), "{line}");
    assert!(line["replica"].as_u64().is_some_and(|replica| replica > 200), "{line}");
    let since = line["time"].as_str().expect("a time").to_owned();
    assert!(saw(&world, &format!("since={since}")).len() <= 1);
    let (status, problem) = world.get("/api/v1/lambda/functions/f/logs?since=soon&previous=true&follow=true");
    assert_eq!(status, 400, "{problem}");
    let said = problem.to_string();
    assert!(said.contains("since") && said.contains("previous"), "{said}");
    assert_eq!(world.delete("/api/v1/lambda/functions/f").0, 202);
    eventually("its log is removed", || match own.exists() {
        false => Ok(()),
        true => Err(format!("{:?}", files(&own))),
    });
}

#[test]
fn a_log_stays_within_its_limit() {
    let world = World::with(vec![("KLAMBDA_FUNCTIONS_LOG_BYTES", "1Mi".into())]);
    let code = "exports.handler = (event) => { for (let n = 0; n < 1000; n++) \
        process.stdout.write(`${event.data.n} ${n} ${'x'.repeat(500)}\\n`); };";
    world.apply("f", &node(code));
    world.ready("f");
    for n in 0..6 {
        assert_eq!(world.invoke("f", &json!({ "n": n })).0, 204);
    }
    eventually("the last line is there", || match klambda(&world, &["logs", "f", "--tail", "1"]) {
        line if line.starts_with("5 999 ") => Ok(()),
        line => Err(line),
    });
    let own = folder(&world).join("default/f");
    let bytes: u64 = files(&own).iter().map(|file| file.metadata().expect("there").len()).sum();
    assert!((400_000..=1 << 20).contains(&bytes), "{bytes}");
    let kept = klambda(&world, &["logs", "f", "--since", "1h"]);
    let kept: Vec<&str> = kept.lines().filter(|line| line.contains("xxx")).collect();
    assert!((500..2000).contains(&kept.len()), "{}", kept.len());
    let (_, metrics) = world.get("/metrics");
    let metrics = metrics.as_str().expect("text");
    assert!(metrics.contains("\nklambda_function_log_lines_dropped_total 0\n"), "{metrics}");
}

#[test]
fn the_output_of_builds_is_kept_whether_they_succeed_or_not() {
    let world = World::new();
    world.apply("f", &node("exports.handler = ( => {"));
    let seen = world.failed("f", "SyntaxError");
    assert!(seen.to_string().contains("`klambda logs --build f`"), "{seen:#}");
    let failed = klambda(&world, &["logs", "--build", "f"]);
    assert!(failed.starts_with("Build started (hash "), "{failed}");
    assert!(failed.contains("SyntaxError: ") && failed.contains("Build failed: "), "{failed}");
    world.apply("f", &node(TELLS));
    world.ready("f");
    let built = klambda(&world, &["logs", "--build", "f"]);
    assert!(built.starts_with("Build started") && built.contains("Build succeeded in "), "{built}");
    assert!(!built.contains("SyntaxError"), "{built}");
    assert_eq!(klambda(&world, &["logs", "--build", "--generation", "1", "f"]), failed);
    call(&world, 1);
    assert!(!klambda(&world, &["logs", "f"]).contains("Build"), "builds are not part of the log of replicas");
}

#[test]
fn logs_of_several_functions_are_merged_by_time_and_selected_by_event_and_label() {
    let world = World::new();
    for name in ["a", "b"] {
        let mut spec = node(TELLS);
        spec["triggers"] = json!([{ "filter": { "type": name } }]);
        let document = json!({ "metadata": { "name": name, "labels": { "app": "shop" } }, "spec": spec });
        assert_eq!(world.put(&format!("/api/v1/lambda/functions/{name}?apply=true"), &document).0, 202);
        world.ready(name);
    }
    for (n, name) in ["a", "b", "a", "b"].into_iter().enumerate() {
        world.send(name, &format!("e-{n}"), "k", &json!({ "n": n }));
        eventually("it is logged", || match klambda(&world, &["logs", name]) {
            log if log.contains(&format!("also {n}")) => Ok(()),
            log => Err(log),
        });
    }
    for words in [["logs", "a", "b"], ["logs", "-l", "app=shop"]] {
        let printed = klambda(&world, &words);
        let order: Vec<&str> =
            printed.lines().filter(|line| line.contains("saw")).map(|line| &line[..14]).collect();
        assert_eq!(
            order,
            ["[function/a] {", "[function/b] {", "[function/a] {", "[function/b] {"],
            "{printed}"
        );
    }
    let one = klambda(&world, &["logs", "a", "b", "--event", "e-2"]);
    assert_eq!(one.lines().count(), 1, "{one}");
    assert!(one.starts_with("[function/a] ") && one.contains("saw 2"), "{one}");
    let line: Value = serde_json::from_str(&klambda(&world, &["logs", "a", "--event", "e-2", "-o", "json"]))
        .expect("one document");
    assert_eq!(line["eventId"], "e-2", "{line}");
}
