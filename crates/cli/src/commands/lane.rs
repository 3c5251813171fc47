//! `lane resume|skip|purge|pause|reset`.

use super::Context;
use crate::args::Lane;
use crate::confirm::confirm;
use crate::output::write_raw;
use crate::resource::Resource;
use crate::route::Route;
use anyhow::Context as _;
use serde_json::{Value, json};

pub fn run(context: &mut Context, action: &Lane) -> anyhow::Result<()> {
    match action {
        Lane::Resume(lane) => act(context, &lane.resource()?, "resume", None),
        Lane::Pause(lane) => act(context, &lane.resource()?, "pause", None),
        Lane::Skip(args) => {
            let lane = args.lane.resource()?;
            confirm(&format!("skip the first event or the sequence gap of {lane}"), args.yes)?;
            act(context, &lane, "skip", None)
        }
        Lane::Purge(args) => {
            let lane = args.lane.resource()?;
            confirm(&format!("drop all pending events of {lane}"), args.yes)?;
            act(context, &lane, "purge", None)
        }
        Lane::Reset { lane, expected } => {
            act(context, &lane.resource()?, "reset", Some(&json!({"expected": expected})))
        }
    }
}

fn act(context: &mut Context, lane: &Resource, action: &str, body: Option<&Value>) -> anyhow::Result<()> {
    let (subscription, key) = lane.lane().unwrap_or_default();
    let route = Route::lane_action(subscription, key, action);
    let answer = context.client.post(&route, body).with_context(|| lane.to_string())?;
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
    writeln!(context.out, "{lane} {done}{}", now(&answer.body))?;
    Ok(())
}

/// The state after the action.
fn now(lane: &Value) -> String {
    match lane["state"].as_str() {
        Some("gap") => "; waiting for the missing sequence".to_owned(),
        Some(state) => format!(", now {state}"),
        None => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_state_after_an_action_is_explained() {
        assert_eq!(now(&json!({"state": "gap"})), "; waiting for the missing sequence");
        assert_eq!(now(&json!({"state": "open"})), ", now open");
        assert_eq!(now(&json!({})), "");
    }
}
