//! A dead letter: what failed, and what to do about it.

use super::{for_people, moment, write_event};
use crate::client::Error;
use crate::commands::{Context, why};
use crate::function::error;
use crate::kind::Kind;
use crate::output::{Sheet, cell, number, text};
use crate::route::Route;
use crate::time;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use serde_json::Value;

pub fn describe(context: &mut Context, id: &str) -> anyhow::Result<()> {
    let Some(item) = for_people(context, Kind::DeadLetter, &Route::new(&["dlq", id]))? else { return Ok(()) };
    let obstacle = obstacle(context, &item)?;
    sheet(&item, time::now()).write(context.out)?;
    let id = why::quoted(&cell(&item, "/id")) + &why::namespace_flag(&item);
    writeln!(context.out, "What to do:")?;
    match obstacle {
        Some(obstacle) => writeln!(context.out, "  Replay is not possible: {obstacle}.")?,
        None => writeln!(context.out, "  klambda dlq replay --id {id}     deliver it again")?,
    }
    writeln!(context.out, "  klambda dlq edit {id}            correct its event")?;
    let end = if holds_lane(&item) { "drop it; the lane continues" } else { "drop it" };
    writeln!(context.out, "  klambda delete deadletter {id}   {end}")?;
    write_event(context.out, "Event", &item["event"])?;
    write_event(context.out, "Original event", &item["original"])
}

fn sheet(item: &Value, now: Millis) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.line("Dead letter", cell(item, "/id"));
    sheet.line_opt("Namespace", why::other_namespace(item));
    sheet.line("Subscription", cell(item, "/subscription"));
    sheet.line("Key", cell(item, "/key"));
    sheet.line("Reason", cell(item, "/reason"));
    sheet.line("Last error", error(&cell(item, "/lastError")));
    sheet.line("Attempts", number(item, "/attempts"));
    sheet.line_opt("Failed", moment(item, "/failedAt", now));
    sheet.line_opt("Accepted", moment(item, "/acceptedAt", now));
    sheet.line_opt("Edited", why::edited(item, now));
    sheet.line("Position", cell(item, "/position"));
    sheet.line_opt("Lane sequence", text(item, "/laneSequence"));
    let holds = if holds_lane(item) { "yes, later events of its key wait for it" } else { "no" };
    sheet.line("Blocks its lane", holds);
    sheet
}

fn holds_lane(item: &Value) -> bool {
    item["holdsLane"] == true
}

/// Why a replay would pass it over, and what to do instead.
fn obstacle(context: &Context, item: &Value) -> anyhow::Result<Option<String>> {
    let name = cell(item, "/subscription");
    let subscription = match context.client.get(&Route::new(&["subscriptions", &name])) {
        Ok(subscription) => subscription,
        Err(Error::Problem(problem)) if problem.status == 404 => return Ok(Some(gone(&name))),
        Err(error) => return Err(error.into()),
    };
    let is_keyless = item["key"].is_null() && subscription["spec"]["ordering"] == "ordered";
    Ok(is_keyless.then(|| {
        "the event has no key, and the subscription is ordered. Send the event again with a key".to_owned()
    }))
}

fn gone(subscription: &str) -> String {
    match Document::function_of(subscription) {
        Some((namespace, name)) => {
            format!(
                "the function was deleted. Apply function {name} (namespace {namespace}) again, then replay"
            )
        }
        None => {
            format!("the subscription was deleted. Apply subscription {subscription} again, then replay")
        }
    }
}
