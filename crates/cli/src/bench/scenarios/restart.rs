//! Kill -9 with a million events waiting: how long until the server is ready again, with all of them.

use std::time::Instant;

use serde_json::json;

use super::backlogged::{Backlogged, Wanted};
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::{Args, usage};

const EVENTS: u32 = 1_000_000;

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    rig.note(format!("restart: filling {}", figure(f64::from(EVENTS))));
    let per_key = (EVENTS / args.keys).max(1);
    let wanted = Wanted { keys: args.keys, per_key, delay_us: 0, concurrency: args.concurrency };
    let Backlogged { server, accepted, sink: _sink, .. } = Backlogged::fill(rig, &wanted)?;

    rig.note("restart: starting again");
    let data = server.crash();
    let killed = Instant::now();
    let (server, klambda) = rig.klambda_in(data)?;
    let ready_s = killed.elapsed().as_secs_f64();
    let waiting = klambda.waiting()?;
    let rss_kib = usage::rss_max_kib(server.child.pid())?;
    server.clear()?;

    let mut table = Table::new(&["accepted", "waiting after restart", "ready after", "RSS max"]);
    table.row([
        figure(accepted as f64),
        figure(waiting as f64),
        format!("{ready_s:.2} s"),
        mebibytes(rss_kib),
    ]);
    Ok(Report {
        scenario: "restart",
        about: format!("{} events of {} keys wait, kill -9, start", figure(accepted as f64), args.keys),
        table,
        goals: vec![Goal::new("seconds to ready", ready_s, Bound::AtMost(10.0), String::new())],
        faults: Faults { missing: accepted.saturating_sub(waiting), ..Faults::default() },
        rounds: json!({"accepted": accepted, "waiting": waiting, "readyS": ready_s, "rssMaxKib": rss_kib}),
    })
}
