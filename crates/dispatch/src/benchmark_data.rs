//! Creates data folders for benchmarks that would otherwise take days of traffic.

use crate::commits::Token;
use crate::engine::{Config, Engine, Failure};
use crate::lanes::{Previous, Resident};
use crate::namespaces::Sender;
use crate::rows;
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag, Input, Lane, Policy};
use klambda_core::namespace;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_store::address::LogAddress;
use klambda_store::disk::Disk;
use klambda_store::manifest::Manifest;
use klambda_store::table::{Options, Writer};
use std::sync::Arc;

/// Creates a folder with one subscription and this many empty lanes that have delivered one event each.
pub fn idle_lanes(disk: Arc<dyn Disk>, document: Document, lanes: u64) -> Result<(), Failure> {
    let now = Millis(1_700_000_000_000);
    let policy = Policy::new(&document.spec);
    let config = Config::default();
    let (mut engine, _) = Engine::open(disk.clone(), config, now, [7; 16])?;
    engine.put_subscription(document, false).map_err(|refused| Failure::State(refused.to_string()))?;
    engine.flush();
    engine.request_checkpoint();
    finish(&mut engine, now)?;
    drop(engine);
    let mut manifest = Manifest::load(&*disk)?.ok_or(Failure::State("no manifest".into()))?;
    let name = manifest.take_table_name("rows");
    let mut writer = Writer::new(&*disk, &name, Options { bloom: false })?;
    for n in 0..lanes {
        let key = format!("order-{n:012}");
        let row = delivered_lane(&key, n, &policy, now).row();
        writer.add(&rows::of_lane(rows::LANE, SubscriptionId(1), &key), Some(&row))?;
    }
    writer.finish()?;
    manifest.rows.push(name);
    manifest.save(&*disk)?;
    Ok(())
}

/// Events that are accepted together.
const BATCH: u64 = 4096;
const WORKFLOWS: u64 = 10_000;
const DAY_MS: u64 = 24 * 3_600_000;
/// The events are accepted between these times before `now`: within the retention of the feed, but before the time for which
/// ids are remembered to find duplicates. That memory is another one, which every subscription needs.
const OLDEST_MS: u64 = 5 * DAY_MS;
const NEWEST_MS: u64 = 2 * DAY_MS;

/// Creates a folder with one webhook endpoint and this many delivered events in its feed. Returns ids of events from all
/// parts of the feed.
pub fn retained_events(
    disk: Arc<dyn Disk>,
    document: Document,
    events: u64,
    now: Millis,
) -> Result<Vec<String>, Failure> {
    let step_ms = (OLDEST_MS - NEWEST_MS) / events.div_ceil(BATCH);
    let mut time = now - OLDEST_MS;
    let (mut engine, _) = Engine::open(disk, Config::default(), time, [7; 16])?;
    engine.put_subscription(document, false).map_err(|refused| Failure::State(refused.to_string()))?;
    let mut sent = 0;
    while sent < events || engine.waiting() > 0 || !engine.is_idle() {
        time = time + 1;
        engine.tick(time);
        if engine.waiting() == 0 && engine.is_accepting() {
            time = time + step_ms.saturating_sub(1);
            let batch = sent..events.min(sent + BATCH);
            sent = batch.end;
            engine.accept(Token(sent), &Sender::default(), batch.map(|n| Ok(small_event(n))).collect());
        }
        deliver_all(&mut engine)?;
    }
    forget_ids(&mut engine, now)?;
    engine.request_checkpoint();
    finish(&mut engine, now)?;
    let id_of = |n: u64| EventId::new(namespace::DEFAULT, SOURCE, &small_event(n).id).to_string();
    Ok([0, events / 4, events / 2, events - 1].map(id_of).into())
}

const SOURCE: &str = "/bench";

fn small_event(n: u64) -> Event {
    let workflow = Value::String(format!("order-{}", n % WORKFLOWS));
    Event {
        id: format!("event-{n}"),
        source: SOURCE.into(),
        kind: "bench.retained".into(),
        attributes: vec![Attribute { name: "partitionkey".into(), value: workflow }],
        data: None,
    }
}

/// Every call that starts succeeds.
fn deliver_all(engine: &mut Engine) -> Result<(), Failure> {
    engine.flush();
    engine.run_jobs();
    drop(engine.take_completions());
    for delivery in engine.take_deliveries() {
        let outcome = CallOutcome::Status { code: 200, retry_after_ms: None, detail: String::new() };
        engine.outcome(delivery.ticket, outcome);
    }
    match engine.failure() {
        Some(failure) => Err(Failure::State(failure.to_string())),
        None => Ok(()),
    }
}

/// Lets the time pass until no id is remembered.
fn forget_ids(engine: &mut Engine, now: Millis) -> Result<(), Failure> {
    const ROUNDS_MAX: u64 = 1_000_000;
    for n in 0..ROUNDS_MAX {
        if engine.store.marks.is_empty() {
            return Ok(());
        }
        engine.tick(now - ROUNDS_MAX + n);
        if engine.store.marks.recent_len() > 0 {
            engine.request_checkpoint();
        }
        deliver_all(engine)?;
    }
    Err(Failure::State("ids are remembered for longer than expected".into()))
}

/// Runs the engine's jobs until its checkpoint is complete.
fn finish(engine: &mut Engine, now: Millis) -> Result<(), Failure> {
    for n in 0..1000 {
        engine.tick(now + n * 100);
        engine.flush();
        engine.run_sync();
        engine.run_chore();
        if !engine.is_checkpointing() {
            return Ok(());
        }
    }
    Err(Failure::State("the checkpoint did not complete".into()))
}

fn delivered_lane(key: &str, n: u64, policy: &Policy, now: Millis) -> Resident {
    let mut lane = Lane::new(now);
    let entry = Entry {
        position: Position(n + 1),
        at: LogAddress(0).into(),
        number: LaneNumber(0),
        accepted: now,
        bytes: 1024,
        flag: Flag::None,
    };
    let mut actions = Vec::new();
    let arrived = Input::Arrived { entry, sequence: None, taken: false };
    for input in [arrived, Input::Delivered] {
        // Neither input can be refused.
        let _ = lane.apply(input, policy, now, &mut actions);
    }
    let mut resident = Resident::new(SubscriptionId(1), key, lane);
    resident.before.event = Previous::Id(format!("event-{n}"));
    resident.before.number = LaneNumber(1);
    resident
}
