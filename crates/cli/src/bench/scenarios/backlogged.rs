//! A klambda server with events waiting in a paused subscription: where several scenarios begin.

use std::time::Duration;

use crate::bench::klambda::Klambda;
use crate::bench::rig::{Rig, Server, Sink};
use crate::bench::{load, round, sink};

/// Requests of this many events fill the backlog.
pub const BATCH: u32 = 100;
/// Enough to keep the server busy with batches, without holding much of them in flight.
pub const BATCH_CONNECTIONS: u32 = 16;

pub struct Backlogged {
    pub server: Server,
    pub klambda: Klambda,
    pub sink: Sink,
    pub accepted: u64,
    pub accepted_per_s: f64,
}

pub struct Wanted {
    pub keys: u32,
    pub per_key: u32,
    pub delay_us: u64,
    pub concurrency: u32,
}

impl Backlogged {
    pub fn fill(rig: &Rig, wanted: &Wanted) -> anyhow::Result<Self> {
        let sink = rig.sink(&sink::Spec { keys: wanted.keys, delay_us: wanted.delay_us, hot_keys: 0 })?;
        let (server, klambda) = rig.klambda()?;
        klambda.subscribe(sink.address, wanted.concurrency)?;
        klambda.pause()?;
        let mut load = rig.load(&load::Spec {
            target: server.address,
            run: round::run_name(),
            connections: BATCH_CONNECTIONS,
            keys: wanted.keys,
            batch: BATCH,
            per_key: Some(wanted.per_key),
            rate: None,
            hot_keys: 0,
            long_way: false,
        })?;
        let started = load.go()?;
        let filled = load.finish(Duration::from_secs(1_800))?;
        let accepted_per_s = filled.accepted as f64 / round::seconds(started.at_ns, filled.at_ns);
        Ok(Self { server, klambda, sink, accepted: filled.accepted, accepted_per_s })
    }
}
