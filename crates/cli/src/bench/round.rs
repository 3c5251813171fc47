//! One round: sink, server and load started, warmed up, measured over a window, drained, and cleared away.

use std::time::Duration;

use serde::Serialize;

use super::histogram::Summary;
use super::report::Faults;
use super::rig::{Load, Rig, Server, Sink, Subject, faults};
use super::{interrupt, load, sink, usage};

#[derive(Clone, Debug)]
pub struct Plan {
    pub connections: u32,
    pub keys: u32,
    pub concurrency: u32,
    pub rate: Option<f64>,
    pub hot_keys: u32,
    pub delay_us: u64,
    pub warm_up: Duration,
    pub window: Duration,
}

#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Round {
    pub subject: Subject,
    pub delivered_per_s: f64,
    pub accepted_per_s: f64,
    /// Accepted and not yet delivered, at the end of the window.
    pub backlog: u64,
    pub accept: Summary,
    pub end_to_end: Summary,
    pub ack_to_next: Summary,
    pub cpu_us_per_event: f64,
    pub load_cpu_us_per_event: f64,
    pub sink_cpu_us_per_event: f64,
    pub rss_max_kib: u64,
    /// Requests that the server was too busy to take.
    pub busy: u64,
    pub faults: Faults,
}

impl Plan {
    pub fn load(&self, server: &Server) -> load::Spec {
        load::Spec {
            target: server.address,
            run: run_name(),
            connections: self.connections,
            keys: self.keys,
            batch: 1,
            per_key: None,
            rate: self.rate,
            hot_keys: self.hot_keys,
            long_way: false,
        }
    }

    pub fn sink(&self) -> sink::Spec {
        sink::Spec { keys: self.keys, delay_us: self.delay_us, hot_keys: self.hot_keys }
    }
}

/// A name that no earlier run on this machine has used.
pub fn run_name() -> String {
    format!("{:x}", super::wire::poll::now_ns() >> 10)
}

pub fn run(rig: &Rig, subject: Subject, plan: &Plan) -> anyhow::Result<Round> {
    let mut sink = rig.sink(&plan.sink())?;
    let server = match subject {
        Subject::Ceiling => rig.ceiling(&sink)?,
        Subject::Klambda | Subject::LongWay => {
            let (server, klambda) = rig.klambda()?;
            klambda.subscribe(sink.address, plan.concurrency)?;
            server
        }
    };
    let long_way = subject == Subject::LongWay;
    let mut load = rig.load(&load::Spec { long_way, ..plan.load(&server) })?;
    load.go()?;
    interrupt::sleep(plan.warm_up)?;
    let mut round = measure(subject, plan.window, &mut load, &server, &mut sink)?;
    let accepted = load.stop()?.accepted;
    drop(load);
    round.faults = faults(accepted, &sink.drain(accepted)?);
    round.rss_max_kib = usage::rss_max_kib(server.child.pid())?;
    server.clear()?;
    Ok(round)
}

fn measure(
    subject: Subject,
    window: Duration,
    load: &mut Load,
    server: &Server,
    sink: &mut Sink,
) -> anyhow::Result<Round> {
    let pids = [server.child.pid(), load.child.pid(), sink.child.pid()];
    let cpu = || -> anyhow::Result<Vec<u64>> { pids.iter().map(|pid| usage::cpu_us(*pid)).collect() };
    let (sent_before, cpu_before, before) = (load.mark()?, cpu()?, sink.mark()?);
    interrupt::sleep(window)?;
    let (sent, cpu_after, after) = (load.mark()?, cpu()?, sink.mark()?);

    let events = after.totals.delivered - before.totals.delivered;
    let per_event = |index: usize| (cpu_after[index] - cpu_before[index]) as f64 / events.max(1) as f64;
    Ok(Round {
        subject,
        delivered_per_s: events as f64 / seconds(before.at_ns, after.at_ns),
        accepted_per_s: (sent.accepted - sent_before.accepted) as f64
            / seconds(sent_before.at_ns, sent.at_ns),
        backlog: sent.accepted.saturating_sub(after.totals.delivered),
        accept: sent.accept,
        end_to_end: after.end_to_end,
        ack_to_next: after.ack_to_next,
        cpu_us_per_event: per_event(0),
        load_cpu_us_per_event: per_event(1),
        sink_cpu_us_per_event: per_event(2),
        rss_max_kib: 0,
        busy: sent.busy,
        faults: Faults::default(),
    })
}

pub fn seconds(from_ns: u64, to_ns: u64) -> f64 {
    (to_ns - from_ns) as f64 / 1e9
}
