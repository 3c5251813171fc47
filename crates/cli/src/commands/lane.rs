//! `lane resume|skip|purge|pause|reset`: steers one lane.

use super::{Context, confirm};
use crate::args::{Lane, LaneName};
use crate::output::{one_line, write_raw};
use crate::route::Route;
use anyhow::Context as _;
use serde_json::{Value, json};

pub fn run(context: &mut Context, action: &Lane) -> anyhow::Result<()> {
    match action {
        Lane::Resume(lane) => act(context, lane, "resume", None),
        Lane::Pause(lane) => act(context, lane, "pause", None),
        Lane::Skip(skip) => {
            confirm(&format!("Let {} go on without what it waits for?", title(&skip.lane)), skip.yes)?;
            act(context, &skip.lane, "skip", None)
        }
        Lane::Purge(purge) => {
            confirm(&format!("Throw away everything that waits in {}?", title(&purge.lane)), purge.yes)?;
            act(context, &purge.lane, "purge", None)
        }
        Lane::Reset { lane, expected } => act(context, lane, "reset", Some(&json!({"expected": expected}))),
    }
}

fn act(context: &mut Context, lane: &LaneName, action: &str, body: Option<&Value>) -> anyhow::Result<()> {
    let route = Route::lane_action(&lane.subscription, &lane.key, action);
    let answer = context.client.post(&route, body).with_context(|| title(lane))?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    let done = match action {
        "resume" => "resumed",
        "skip" => "skipped",
        "purge" => "purged",
        "pause" => "paused",
        _ => "reset",
    };
    let state = answer.body["state"].as_str().map(|state| format!(", now {state}")).unwrap_or_default();
    writeln!(context.out, "{} {done}{state}", title(lane))?;
    Ok(())
}

fn title(lane: &LaneName) -> String {
    one_line(&format!("lane/{}/{}", lane.subscription, lane.key))
}
