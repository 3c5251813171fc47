//! Logs on disk: limits, damage, restarts and queries.

use super::*;
use klambda_functions::logs::Part;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use tempfile::TempDir;

const F: &str = "shop/f";

fn open(folder: &TempDir, limits: Limits) -> LogStore {
    LogStore::open(folder.path().join("logs"), limits, HashSet::from([F.into()])).expect("a store")
}

fn print(store: &LogStore, replica: u64, texts: impl IntoIterator<Item = String>) {
    let printer = Printer { logs: store.of(F), replica, generation: replica };
    texts.into_iter().for_each(|text| printer.push(Stream::Stdout, &text));
}

fn numbered(numbers: std::ops::Range<u32>) -> impl Iterator<Item = String> {
    numbers.map(|number| format!("line {number}"))
}

async fn read(store: &LogStore, query: Query, live: Vec<u64>) -> Vec<String> {
    let mut reading = store.read(F, query, live);
    let mut texts = Vec::new();
    while let Some(lines) = reading.next().await {
        texts.extend(lines.into_iter().map(|line| line.text));
    }
    texts
}

async fn all(store: &LogStore) -> Vec<String> {
    read(store, Query::default(), Vec::new()).await
}

fn files(folder: &TempDir) -> Vec<PathBuf> {
    let folder = folder.path().join("logs").join(F);
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).into_iter().flatten().map(|entry| entry.expect("read").path()).collect();
    files.sort();
    files
}

fn mode(path: &Path) -> u32 {
    path.metadata().expect("it is there").permissions().mode() & 0o777
}

#[tokio::test]
async fn the_oldest_lines_go_when_there_are_too_many_and_nobody_else_can_read_them() {
    let folder = TempDir::new().expect("a folder");
    let limits = Limits { bytes: 1 << 20, ..Limits::default() };
    let store = open(&folder, limits);
    let long = "x".repeat(1000);
    for round in 0..40 {
        print(&store, 1, (0..100).map(|number| format!("{long} {}", round * 100 + number)));
        store.settle();
    }
    let sizes: u64 = files(&folder).iter().map(|file| file.metadata().expect("it is there").len()).sum();
    assert!(sizes <= limits.bytes && sizes > limits.bytes / 2, "{sizes}");
    assert!(files(&folder).len() <= 4, "{:?}", files(&folder));
    assert_eq!(store.dropped(), 0);
    let lines = all(&store).await;
    assert!(lines.len() > 500 && lines.len() < 1000, "{}", lines.len());
    let numbers: Vec<usize> = lines.iter().map(|line| line[1001..].parse().expect("a number")).collect();
    assert_eq!(numbers, (4000 - lines.len()..4000).collect::<Vec<_>>(), "in order, without a hole");
    assert!(files(&folder).iter().all(|file| mode(file) == 0o600));
    for below in ["logs", "logs/shop", "logs/shop/f"] {
        assert_eq!(mode(&folder.path().join(below)), 0o700, "{below}");
    }
    let last = read(&store, Query { tail: Some(3), ..Query::default() }, Vec::new()).await;
    assert_eq!(last, lines[lines.len() - 3..]);
}

#[tokio::test]
async fn damage_and_a_torn_line_cost_only_themselves() {
    let folder = TempDir::new().expect("a folder");
    let store = open(&folder, Limits::default());
    print(&store, 1, numbered(0..3));
    store.settle();
    drop(store);
    let file = files(&folder).pop().expect("a file");
    let mut bytes = std::fs::read(&file).expect("read");
    bytes.extend(b"\xff\xfe{\"number\": 1}\n");
    bytes.extend(vec![b'y'; 300 << 10]);
    bytes.extend(b"\n{\"number\":3,\"time\":\"2026-01-01T00:0");
    std::fs::write(&file, &bytes).expect("written");
    let store = open(&folder, Limits::default());
    assert_eq!(all(&store).await, ["line 0", "line 1", "line 2"]);
    print(&store, 2, numbered(3..5));
    assert_eq!(all(&store).await, ["line 0", "line 1", "line 2", "line 3", "line 4"]);
    let last = read(&store, Query { tail: Some(3), ..Query::default() }, Vec::new()).await;
    assert_eq!(last, ["line 2", "line 3", "line 4"]);
}

#[tokio::test]
async fn lines_that_the_disk_refuses_are_counted_and_read_from_memory() {
    let folder = TempDir::new().expect("a folder");
    let store = open(&folder, Limits::default());
    print(&store, 1, numbered(0..2));
    store.settle();
    // A file where the folder must be: nothing can be written.
    std::fs::remove_dir_all(folder.path().join("logs")).expect("removed");
    std::fs::write(folder.path().join("logs"), "").expect("written");
    store.of("shop/other").push_build(1, &Build { hash: "h".into(), started: ring::now() }, "lost");
    store.settle();
    assert_eq!(store.dropped(), 1);
    let mut reading = store.read("shop/other", Query { part: Part::Build, ..Query::default() }, Vec::new());
    assert_eq!(reading.next().await.expect("lines")[0].text, "lost");
    std::fs::remove_file(folder.path().join("logs")).expect("removed");
    store.of("shop/other").push_build(1, &Build { hash: "h".into(), started: ring::now() }, "kept");
    store.settle();
    assert_eq!(store.dropped(), 1);
}

#[tokio::test]
async fn old_lines_and_logs_of_deleted_functions_go() {
    let folder = TempDir::new().expect("a folder");
    let limits = Limits { age: Duration::from_secs(2), ..Limits::default() };
    let store = open(&folder, limits);
    print(&store, 1, numbered(0..2));
    assert_eq!(all(&store).await.len(), 2);
    let until = std::time::Instant::now() + Duration::from_secs(20);
    while !files(&folder).is_empty() {
        assert!(std::time::Instant::now() < until, "the old file stays");
        std::thread::sleep(Duration::from_millis(50));
    }
    print(&store, 1, numbered(2..3));
    assert_eq!(all(&store).await, ["line 2"]);
    store.forget(F);
    store.settle();
    assert!(!folder.path().join("logs/shop").exists());
    print(&store, 1, numbered(3..4));
    store.settle();
    files(&folder).iter().for_each(|file| std::fs::remove_file(file).expect("removed"));
    print(&store, 1, numbered(4..5));
    assert_eq!(all(&store).await, ["line 4"], "a file that somebody removed is replaced");
    drop(store);
    let unknown = folder.path().join("logs/shop/gone");
    std::fs::create_dir_all(&unknown).expect("a folder");
    let store = open(&folder, limits);
    store.settle();
    assert!(!unknown.exists());
}

#[tokio::test]
async fn queries_select_lines_across_restarts() {
    let folder = TempDir::new().expect("a folder");
    let store = open(&folder, Limits::default());
    print(&store, 1, numbered(0..2));
    let build = |started| Build { hash: "h".into(), started: ring::now() + started };
    store.of(F).push_build(1, &build(0), "built first");
    store.settle();
    drop(store);
    let store = open(&folder, Limits::default());
    print(&store, 101, [r#"{"event_id":"e1","message":"seen"}"#.to_owned()]);
    print(&store, 102, numbered(2..3));
    ["fetch", "compile"].iter().for_each(|text| store.of(F).push_build(2, &build(5), text));
    let ask = async |query: Query, live: &[u64]| read(&store, query, live.to_vec()).await;
    let previous = Query { part: Part::Previous, ..Query::default() };
    assert_eq!(ask(previous.clone(), &[102]).await, [r#"{"event_id":"e1","message":"seen"}"#]);
    assert_eq!(ask(previous.clone(), &[101, 102]).await, ["line 0", "line 1"]);
    assert_eq!(ask(previous, &[]).await, ["line 2"]);
    let builds = Query { part: Part::Build, ..Query::default() };
    assert_eq!(ask(builds.clone(), &[]).await, ["fetch", "compile"]);
    assert_eq!(ask(Query { generation: Some(1), ..builds }, &[]).await, ["built first"]);
    let event = Query { event_id: Some("e1".into()), ..Query::default() };
    assert_eq!(ask(event, &[]).await.len(), 1);
    let later = Query { since: Some(ring::now() + 1000), ..Query::default() };
    assert_eq!(ask(later, &[]).await, Vec::<String>::new());
    // Following begins where the files end.
    let mut following = store.read(F, Query { follow: true, tail: Some(1), ..Query::default() }, Vec::new());
    assert_eq!(following.next().await.expect("lines")[0].text, "line 2");
    print(&store, 102, numbered(3..4));
    assert_eq!(following.next().await.expect("lines")[0].text, "line 3");
    store.forget(F);
    assert_eq!(following.next().await, None);
}
