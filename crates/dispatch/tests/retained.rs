//! Events that stay in the feed of a webhook endpoint after their delivery are on disk only. Counted by an allocator.

use cap::Cap;
use klambda_core::time::Millis;
use klambda_core::webhook::{Document, EventId};
use klambda_dispatch::benchmark_data::retained_events;
use klambda_dispatch::feed::Since;
use klambda_dispatch::{Config, Engine};
use klambda_store::real_disk::RealDisk;
use serde_json::json;
use std::alloc::System;
use std::sync::Arc;

#[global_allocator]
static ALLOCATOR: Cap<System> = Cap::new(System, usize::MAX);

const NOW: Millis = Millis(1_700_000_000_000);
const FEW: u64 = 2_000;
const MANY: u64 = 42_000;
/// Entries of the indexes of tables: about 100 bytes for 2 MB.
const ADDED_BYTES_MAX: usize = 16 << 10;

/// The memory of an engine that was opened on a folder with these events, at rest and after pages from the feed.
fn memory_with(events: u64) -> [usize; 2] {
    let document = Document::parse(&json!({
        "apiVersion": "lambda.knative.io/v1alpha1", "kind": "WebhookEndpoint", "metadata": {"name": "partner"},
        "spec": {"url": "http://127.0.0.1:9/", "workflowKey": {"attribute": "partitionkey"}},
    }));
    let document = document.expect("a valid endpoint").subscription();
    let name = document.name.clone();
    let folder = tempfile::tempdir().expect("a folder");
    let open = || Arc::new(RealDisk::open(folder.path()).expect("the folder is not locked"));
    let sought = retained_events(open(), document, events, NOW).expect("the events are delivered");
    let before = ALLOCATOR.allocated();
    let mut engine = Engine::open(open(), Config::default(), NOW, [7; 16]).expect("opens").0;
    for n in 0..20 {
        engine.tick(NOW + n * 1000);
        engine.flush();
        engine.run_jobs();
    }
    assert_eq!(engine.failure(), None);
    let rest = ALLOCATOR.allocated() - before;
    let mut pages = vec![engine.read_feed(&name, Since::Beginning, None, 1000)];
    for id in &sought {
        let id: EventId = id.parse().expect("an id");
        pages.push(engine.read_feed(&name, Since::Event(id), None, 1000));
    }
    let items = |n: usize| pages[n].as_ref().expect("an endpoint").as_ref().expect("available").items.len();
    assert_eq!((items(0), items(2), items(4)), (1000, 1000, 0));
    drop(pages);
    [rest, ALLOCATOR.allocated() - before]
}

#[test]
fn retained_events_cost_no_memory() {
    // What is built once for the process is not counted.
    memory_with(FEW);
    let (few, many) = (memory_with(FEW), memory_with(MANY));
    println!("{FEW} events: {few:?} bytes, {MANY} events: {many:?} bytes");
    for (few, many) in few.into_iter().zip(many) {
        assert!(many <= few + ADDED_BYTES_MAX, "{FEW} events: {few} bytes, {MANY} events: {many} bytes");
    }
}
