//! An engine, a control plane and a platform, started and stopped in the same way as in a server.

use crate::memory::Memory;
use klambda_control::{Control, Name, Options};
use klambda_core::event::Event;
use klambda_dispatch::history::{Filter, History, Kinds, Limits};
use klambda_dispatch::runner::{Clock, Handle, Runner, StoreFailed};
use klambda_dispatch::{Config, Engine, Sender, client};
use klambda_functions::plan;
use klambda_functions::platform::Task;
use klambda_functions::resource::{Phase, Resource, ResourceKind};
use klambda_outbound::Guard;
use klambda_store::faulty_disk::MemoryDisk;
use serde_json::{Value, json};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const FUNCTION: ResourceKind = ResourceKind::LambdaFunction;
/// Delay before the second try. The delay before the third is twice as long.
pub const RETRY_MS: u64 = 40;

pub struct World {
    pub disk: MemoryDisk,
    pub memory: Memory,
    pub control: Control,
    pub handle: Handle,
    pub history: History,
    running: JoinHandle<Result<(), StoreFailed>>,
}

impl World {
    pub async fn new() -> World {
        World::on(MemoryDisk::new(), Memory::default()).await
    }

    pub async fn on(disk: MemoryDisk, memory: Memory) -> World {
        World::with_segments(disk, memory, 4 << 20).await
    }

    pub async fn with_segments(disk: MemoryDisk, memory: Memory, segment_bytes: u64) -> World {
        let log =
            klambda_store::log::Options { segment_bytes, reserve_bytes: 64 << 10, tail_bytes: 64 << 10 };
        let config = Config { log, ..Config::default() };
        let clock = Clock::new();
        let opened = Engine::open(Arc::new(disk.clone()), config, clock.now(), [7; 16]);
        let engine = opened.expect("a folder").0;
        let history = History::new(engine.reader());
        let limits = plan::Limits { retry_after_ms: RETRY_MS, ..plan::Limits::default() };
        let options = Options { limits, ..Options::default() };
        let control = Control::new(options, clock, memory.open());
        control.load(&engine).expect("functions are loaded");
        let functions = Arc::new(control.clone());
        let runner =
            Runner::with_functions(engine, client::Options::default(), clock, 1, functions, Guard::off());
        let (runner, handle) = runner.expect("threads");
        let running = tokio::spawn(runner.run());
        control.start(handle.clone()).await;
        World { disk, memory, control, handle, history, running }
    }

    /// Simulates a power cut, then starts again from the durable state with another platform.
    pub async fn restart(self, memory: Memory) -> World {
        let disk = self.disk.clone_image();
        disk.crash(&mut |_| 0);
        self.handle.stop(Duration::ZERO);
        let _ = tokio::time::timeout(PATIENCE, self.running).await;
        World::on(disk, memory).await
    }

    pub async fn apply(&self, name: &str, spec: &Value) {
        let applied = self.control.apply(&named(name), &document(name, spec), FUNCTION).await;
        applied.expect("applied");
    }

    /// Waits until the function matches. Returns `None` if the function does not exist.
    pub async fn until(
        &self,
        name: &str,
        is_so: impl Fn(Option<&Resource>) -> bool,
    ) -> Option<Arc<Resource>> {
        let until = Instant::now() + PATIENCE;
        loop {
            let seen = self.control.get(&named(name));
            if is_so(seen.as_deref()) {
                return seen;
            }
            assert!(Instant::now() < until, "{name} is still {seen:#?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    pub async fn phase(&self, name: &str, phase: Phase) -> Arc<Resource> {
        let is_so = |seen: Option<&Resource>| {
            seen.is_some_and(|seen| {
                seen.status.phase == phase && seen.status.observed_generation == seen.metadata.generation
            })
        };
        self.until(name, is_so).await.expect("the function exists")
    }

    /// The events of the platform, oldest first: type, transition number and data.
    pub fn told(&self) -> Vec<(String, u64, Value)> {
        let limits = Limits { events: 1000, bytes: 16 << 20, scanned_bytes: 64 << 20 };
        let cursor = self.history.behind(Default::default()).expect("the beginning");
        let page = self
            .history
            .read(cursor, &Filter { namespaces: None, kinds: Kinds::TypePrefix("lambda.".into()) }, limits)
            .expect("read");
        let event = |json: &[u8]| serde_json::from_slice::<Value>(json).expect("JSON")["event"].take();
        let own = page.items.iter().map(|item| event(&item.json));
        let own = own.filter(|event| event["sequence"].is_string());
        own.map(|event| {
            let number = event["sequence"].as_str().and_then(|text| text.parse().ok()).expect("a number");
            (event["type"].as_str().unwrap_or_default().to_owned(), number, event["data"].clone())
        })
        .collect()
    }

    /// Waits for this many events of a type and returns the types of all events.
    pub async fn until_told(&self, kind: &str, count: usize) -> Vec<String> {
        let until = Instant::now() + PATIENCE;
        loop {
            let told = self.told();
            if told.iter().filter(|(known, ..)| known == kind).count() >= count {
                return told.into_iter().map(|(kind, ..)| kind).collect();
            }
            assert!(Instant::now() < until, "{told:#?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Waits until the platform received this many tasks. A task arrives after the status that caused it.
    pub async fn until_tasks(&self, count: usize) -> Vec<Task> {
        let until = Instant::now() + PATIENCE;
        loop {
            let tasks = self.memory.tasks();
            if tasks.len() >= count {
                return tasks;
            }
            assert!(Instant::now() < until, "{tasks:#?}");
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// Checks that transitions are numbered from 1 without gaps.
    pub fn check_numbers(&self) {
        let numbers: Vec<u64> = self.told().into_iter().map(|(_, number, _)| number).collect();
        let expected: Vec<u64> = (1..=numbers.len() as u64).collect();
        assert_eq!(numbers, expected);
    }

    pub async fn send(&self, event: Event) {
        let judged = self
            .handle
            .accept(Sender { namespace: None, may_command: true }, vec![Ok(event)])
            .await
            .expect("it runs");
        assert_eq!(judged.len(), 1);
    }

    pub async fn is_subscribed(&self, name: &str) -> bool {
        let subscription = format!("lambda.default.{name}");
        let look = move |engine: &mut Engine| engine.subscription_id(&subscription).is_ok();
        self.handle.query(look).await.expect("it runs")
    }
}

pub fn named(name: &str) -> Name {
    Name::new("default", name)
}

pub fn document(name: &str, spec: &Value) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1",
        "kind": "LambdaFunction",
        "metadata": { "name": name },
        "spec": spec,
    })
}

pub fn inline(code: &str) -> Value {
    json!({
        "source": { "type": "inline", "inline": { "code": code } },
        "runtime": { "language": "nodejs" },
        "triggers": [{ "filter": { "type": "order.placed" } }],
    })
}

pub fn git() -> Value {
    json!({
        "source": { "type": "git", "git": { "url": "https://example.com/shop.git" } },
        "runtime": { "language": "go" },
    })
}
