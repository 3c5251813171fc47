//! The runner answers every request, however it ends, and does not reject a request that only has to wait briefly.

use klambda_core::event::Event;
use klambda_core::subscription::Document;
use klambda_dispatch::audit::{Entry, named, on_behalf};
use klambda_dispatch::documents::{Expected, Write};
use klambda_dispatch::operate::Refused;
use klambda_dispatch::runner::{Clock, Handle, Runner, Stopped, StoreFailed};
use klambda_dispatch::{Config, Engine, Sender, Token, client};
use klambda_store::faulty_disk::{MemoryDisk, Op};
use klambda_store::log;
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn start(disk: &MemoryDisk) -> (JoinHandle<Result<(), StoreFailed>>, Handle) {
    let (runner, handle) = runner(engine(disk, 64 << 10));
    (tokio::spawn(runner.run()), handle)
}

fn engine(disk: &MemoryDisk, reserve_bytes: u64) -> Engine {
    let log = log::Options { segment_bytes: 1 << 20, reserve_bytes, tail_bytes: 64 << 10 };
    let config = Config { log, ..Config::default() };
    let opened = Engine::open(Arc::new(disk.clone()), config, Clock::new().now(), [7; 16]);
    opened.expect("a new folder").0
}

fn runner(engine: Engine) -> (Runner, Handle) {
    Runner::new(engine, client::Options::default(), Clock::new(), 1).expect("threads")
}

fn event(id: &str) -> Event {
    Event { id: id.into(), source: "/test".into(), kind: "a".into(), attributes: Vec::new(), data: None }
}

#[tokio::test]
async fn after_the_end_every_call_answers_that_it_stopped() {
    let (running, handle) = start(&MemoryDisk::new());
    handle.stop(Duration::ZERO);
    assert_eq!(timeout(PATIENCE, running).await.expect("the runner ends").expect("no panic"), Ok(()));
    let accepted = timeout(PATIENCE, handle.accept(Sender::default(), vec![Ok(event("1"))])).await;
    assert_eq!(accepted.expect("an answer"), Err(Stopped));
    assert_eq!(timeout(PATIENCE, handle.command(|_| ())).await.expect("an answer"), Err(Stopped));
    assert_eq!(timeout(PATIENCE, handle.query(|_| ())).await.expect("an answer"), Err(Stopped));
}

#[tokio::test]
async fn a_failed_sync_ends_the_runner_and_answers_those_who_wait() {
    let disk = MemoryDisk::new();
    let (running, handle) = start(&disk);
    // All syncs, because the next segment is prepared meanwhile.
    (1..=50).for_each(|n| disk.fail_nth(Op::Sync, n));
    let accepted = timeout(PATIENCE, handle.accept(Sender::default(), vec![Ok(event("1"))])).await;
    assert_eq!(accepted.expect("an answer"), Err(Stopped));
    let ended = timeout(PATIENCE, running).await.expect("the runner ends").expect("no panic");
    assert!(ended.is_err_and(|failed| failed.to_string().starts_with("the store failed: ")));
}

/// The end of a segment is not a full disk: the next segment is being prepared.
#[tokio::test]
async fn a_change_waits_for_the_next_segment() {
    let mut engine = engine(&MemoryDisk::new(), 4 << 10);
    let subscription = json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
        "spec": {"target": {"url": "http://127.0.0.1:9"}, "filters": [{"exact": {"type": "none"}}]},
    });
    let document = Document::parse(&subscription).expect("a valid document");
    let mut refused = None;
    for n in 0.. {
        engine.accept(Token(n), &Sender::default(), vec![Ok(event(&n.to_string()))]);
        engine.flush();
        refused = engine.put_subscription(document.clone(), false).err();
        engine.run_sync();
        if refused.is_some() {
            break;
        }
    }
    assert!(matches!(refused, Some(Refused::DiskFull)), "{refused:?}");
    let (runner, handle) = runner(engine);
    let change = handle.command(move |engine| engine.put_subscription(document, false));
    tokio::select! {
        // The change is in the inbox before the runner asks for a segment.
        biased;
        changed = timeout(PATIENCE, change) => {
            changed.expect("an answer").expect("it runs").expect("there is room again");
        }
        ended = runner.run() => panic!("the runner ended: {ended:?}"),
    }
}

/// However many steps the task takes, and whether or not the first one changes something.
#[tokio::test]
async fn a_task_on_behalf_of_a_user_is_audited_once() {
    let (running, handle) = start(&MemoryDisk::new());
    let write = |key: &str| Write {
        kind: "function".into(),
        key: key.into(),
        content: Some(b"{}".to_vec()),
        expected: Expected::Absent,
    };
    handle.put_documents(vec![write("a")], Vec::new()).await.expect("runs").expect("written");
    let entry = Entry { who: "somebody".into(), verb: "create".into(), ..Entry::default() };
    on_behalf(entry.clone(), async {
        let taken = handle.put_documents(vec![write("a")], Vec::new()).await.expect("runs");
        assert!(taken.is_err());
        named("b");
        for key in ["b", "c"] {
            handle.put_documents(vec![write(key)], Vec::new()).await.expect("runs").expect("written");
        }
    })
    .await;
    handle.put_documents(vec![write("d")], Vec::new()).await.expect("runs").expect("written");
    let page = handle.query(|engine| engine.audit_page(None, 10, |_| true)).await.expect("runs");
    let entries: Vec<Entry> = page.expect("read").0.into_iter().map(|audited| audited.entry).collect();
    assert_eq!(entries, [Entry { name: "b".into(), ..entry }]);
    handle.stop(Duration::ZERO);
    timeout(PATIENCE, running).await.expect("the runner ends").expect("no panic").expect("a clean stop");
}
