//! The demo proves what it shows, and leaves nothing behind, also when it is cut short.

mod support;

use rustix::process::Signal;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use support::process::{Process, agent, left_in, users_of};
use support::shell::text;
use support::{KLAMBDA, eventually, free_port, read};

fn demo(folder: &Path) -> Command {
    let mut command = Command::new(KLAMBDA);
    // Settings of the user's own server must not reach the server of the demo.
    let elsewhere = format!("127.0.0.1:{}", free_port());
    command.arg("demo").env("TMPDIR", folder).env("KLAMBDA_LISTEN", elsewhere);
    command
}

#[test]
fn it_proves_what_it_shows() {
    let folder = tempfile::tempdir().expect("a folder");
    let picture = folder.path().join("demo.svg");
    let rest = tempfile::tempdir_in(folder.path()).expect("a folder");
    let started = Instant::now();
    let output = demo(rest.path()).arg("--svg").arg(&picture).output().expect("the demo");
    let (out, err) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{out}\n{err}");
    assert!(started.elapsed() < Duration::from_secs(60), "it took {:?}", started.elapsed());
    for shown in [
        "18 sent: 17 accepted, 1 skipped as a duplicate",
        "order-8    ✓ 1  ✓ 2  ? 3  ○ 4  ○ 5  ○ 6  gap: waits for 3",
        "order-9    ✓ 1  ✓ 2  ✗ 3  ○ 4  ○ 5  ○ 6  parked: ",
        "dry run: 1 dead letter of 1 key would be replayed",
        "order-9    ✓ 1  ✓ 2  ✓ 3  ✓ 4  ✓ 5  ✓ 6  done",
        "✓ nothing lost: 18 events sent, 18 handled",
        "✓ each handled once: 0 repeated",
        "✓ in order within 3 keys: 0 out of order",
        "✓ duplicates skipped: 1 of 1",
        "✓ the failing event failed 2 times, then kept its place: 0 overtook it",
        ", 0 problems",
    ] {
        assert!(out.contains(shown), "{shown}\nis not in\n{out}");
    }
    assert!(!out.contains('\u{1b}'), "no terminal, no colours");
    assert!(!out.contains("\n  ✗"), "{out}");
    let picture = std::fs::read_to_string(picture).expect("a picture");
    assert!(picture.starts_with("<svg ") && picture.contains("nothing lost"), "{picture}");
    assert_eq!(left_in(rest.path()), [""; 0]);
}

/// The picture of the README is of a demo like this one.
#[test]
fn the_picture_is_of_this_demo() {
    let picture = read("docs/demo.svg");
    let source = read("crates/cli/src/demo/mod.rs");
    let titles: Vec<&str> =
        source.split("self.begin(\"").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert!(titles.len() >= 4, "{titles:?}");
    for shown in titles.into_iter().chain(["nothing lost: 18 events sent, 18 handled", ", 0 problems"]) {
        assert!(
            picture.contains(shown),
            "docs/demo.svg does not show {shown}: klambda demo --svg docs/demo.svg"
        );
    }
}

/// The page is there until Ctrl-C, with a parked lane and a gap in it.
#[test]
fn the_story_is_in_the_page() {
    let folder = tempfile::tempdir().expect("a folder");
    let rest = tempfile::tempdir_in(folder.path()).expect("a folder");
    let mut command = demo(rest.path());
    command.arg("--ui").env_remove("DISPLAY").env_remove("WAYLAND_DISPLAY");
    let mut process = Process::start(&mut command, &folder.path().join("printed"));
    let printed = eventually("it is the user's turn", || match process.printed() {
        printed if printed.contains("Ctrl-C") => Ok(printed),
        printed => {
            assert!(!process.has_ended(), "{printed}");
            Err(printed)
        }
    });
    let page = printed.lines().find_map(|line| line.trim().strip_prefix("open ")).expect("an address");
    let url = page.strip_suffix("/ui").expect("the page").to_owned();
    let get = |path: &str| {
        let mut answer = agent().get(format!("{url}{path}")).call().expect("an answer");
        (answer.status().as_u16(), answer.body_mut().read_to_string().expect("text"))
    };
    assert!(get("/ui").1.contains("/ui/app.js"));
    let (status, overview) = get("/api/v1/overview");
    assert!(status == 200 && overview.contains("lanesParked"), "{overview}");
    process.signal(Signal::INT);
    eventually("it ends", || process.has_ended().then_some(()).ok_or_else(|| process.printed()));
    assert!(!process.printed().contains("error"), "{}", process.printed());
    assert_eq!(left_in(rest.path()), [""; 0]);
}

#[test]
fn cut_short_it_leaves_nothing_behind() {
    let folder = tempfile::tempdir().expect("a folder");
    let rest = tempfile::tempdir_in(folder.path()).expect("a folder");
    let mut process = Process::start(&mut demo(rest.path()), &folder.path().join("printed"));
    eventually("orders arrive", || match process.printed() {
        printed if printed.contains("gap: ") => Ok(()),
        printed => {
            assert!(!process.has_ended(), "{printed}");
            Err(printed)
        }
    });
    process.signal(Signal::INT);
    eventually("it ends", || process.has_ended().then_some(()).ok_or_else(|| process.printed()));
    assert!(process.printed().contains("interrupted"), "{}", process.printed());
    assert_eq!(left_in(rest.path()), [""; 0]);
    eventually("its processes end", || match users_of(rest.path()) {
        0 => Ok(()),
        count => Err(format!("{count} processes")),
    });
}
