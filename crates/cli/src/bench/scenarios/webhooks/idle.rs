//! What endpoints that have nothing to do cost in memory.

use serde_json::json;

use super::endpoint;
use crate::bench::report::{Bound, Faults, Goal, Report, Table, figure, mebibytes};
use crate::bench::rig::Rig;
use crate::bench::{Args, interrupt, usage};

pub fn run(rig: &Rig, args: &Args) -> anyhow::Result<Report> {
    let (server, klambda) = rig.klambda()?;
    let before_kib = usage::rss_kib(server.child.pid())?;
    // One subscription less than the limit, as in `subscriptions`.
    let endpoints = args.subscriptions.saturating_sub(1);
    for number in 0..endpoints {
        interrupt::check()?;
        if number.is_multiple_of(500) {
            rig.note(format!("webhooks-idle: {number} of {endpoints}"));
        }
        let filters = json!([{"exact": {"type": format!("idle.{number}")}}]);
        let url = format!("http://127.0.0.1:9/{number}");
        klambda.put_endpoint(&endpoint(&format!("idle-{number}"), &url, 256, &filters))?;
    }
    let after_kib = usage::rss_kib(server.child.pid())?;
    server.clear()?;
    let each_kib = after_kib.saturating_sub(before_kib) as f64 / f64::from(endpoints);
    let mut table = Table::new(&["endpoints", "RSS before", "RSS after"]);
    table.row([figure(f64::from(endpoints)), mebibytes(before_kib), mebibytes(after_kib)]);
    Ok(Report {
        scenario: "webhooks-idle",
        about: format!("{} idle endpoints", figure(f64::from(endpoints))),
        table,
        goals: vec![Goal::new("KiB per endpoint", each_kib, Bound::AtMost(10.0), String::new())],
        faults: Faults::default(),
        rounds: json!({"beforeKib": before_kib, "afterKib": after_kib}),
    })
}
