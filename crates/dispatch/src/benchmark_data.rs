//! Creates data folders for benchmarks that would otherwise take days of traffic.

use crate::engine::{Config, Engine, Failure};
use crate::lanes::{Previous, Resident};
use crate::rows;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Flag, Input, Lane, Policy};
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
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
