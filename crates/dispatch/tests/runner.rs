//! However the runner ends, whoever asked it something is answered.

use klambda_core::event::Event;
use klambda_dispatch::runner::{Clock, Handle, Runner, Stopped, StoreFailed};
use klambda_dispatch::{Config, Engine, client};
use klambda_store::faulty_disk::{MemoryDisk, Op};
use klambda_store::log;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio::time::timeout;

const PATIENCE: Duration = Duration::from_secs(30);

fn start(disk: &MemoryDisk) -> (JoinHandle<Result<(), StoreFailed>>, Handle) {
    let clock = Clock::new();
    let log = log::Options { segment_bytes: 1 << 20, reserve_bytes: 64 << 10, tail_bytes: 64 << 10 };
    let config = Config { log, ..Config::default() };
    let opened = Engine::open(Arc::new(disk.clone()), config, clock.now(), [7; 16]);
    let (engine, _) = opened.expect("a new folder");
    let (runner, handle) = Runner::new(engine, client::Options::default(), clock, 1).expect("threads");
    (tokio::spawn(runner.run()), handle)
}

fn event(id: &str) -> Event {
    Event { id: id.into(), source: "/test".into(), kind: "a".into(), attributes: Vec::new(), data: None }
}

#[tokio::test]
async fn after_the_end_every_call_answers_that_it_stopped() {
    let (running, handle) = start(&MemoryDisk::new());
    handle.stop(Duration::ZERO);
    assert_eq!(timeout(PATIENCE, running).await.expect("it ends").expect("no panic"), Ok(()));
    let accepted = timeout(PATIENCE, handle.accept(vec![Ok(event("1"))])).await;
    assert_eq!(accepted.expect("an answer"), Err(Stopped));
    assert_eq!(timeout(PATIENCE, handle.command(|_| ())).await.expect("an answer"), Err(Stopped));
    assert_eq!(timeout(PATIENCE, handle.query(|_| ())).await.expect("an answer"), Err(Stopped));
}

#[tokio::test]
async fn a_failed_sync_ends_the_runner_and_answers_those_who_wait() {
    let disk = MemoryDisk::new();
    let (running, handle) = start(&disk);
    // All of them, since the next segment is prepared meanwhile.
    (1..=50).for_each(|n| disk.fail_nth(Op::Sync, n));
    let accepted = timeout(PATIENCE, handle.accept(vec![Ok(event("1"))])).await;
    assert_eq!(accepted.expect("an answer"), Err(Stopped));
    let ended = timeout(PATIENCE, running).await.expect("it ends").expect("no panic");
    assert!(ended.is_err_and(|failed| failed.to_string().starts_with("the store failed: ")));
}
