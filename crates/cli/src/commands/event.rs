//! `event send`: CloudEvents from flags or from a file.

use super::Context;
use super::compose::{batches, from_flags, read_events};
use crate::args::Send;
use crate::client::{Answer, Error};
use crate::output::{Format, cell, one_line, write_raw};
use crate::route::Route;
use anyhow::bail;
use serde_json::Value;
use serde_json::value::RawValue;

/// Up to here every event gets its line; beyond, only what was rejected does.
const LINES_MAX: usize = 20;

pub fn send(context: &mut Context, args: &Send) -> anyhow::Result<()> {
    let mut results = Vec::new();
    let mut post_all = |events: &mut dyn Iterator<Item = anyhow::Result<Box<RawValue>>>| {
        batches(events).try_for_each(|batch| {
            results.extend(post(context, &batch?)?);
            anyhow::Ok(())
        })
    };
    let sent = match &args.filename {
        Some(file) => post_all(&mut read_events(file)?.into_iter().map(Ok)),
        None => post_all(&mut from_flags(args)?),
    };
    // What was accepted before a request failed is accepted: the user needs to know of it.
    let reported = if results.is_empty() { Ok(()) } else { report(context, results) };
    sent.and(reported)
}

fn post(context: &Context, batch: &[Box<RawValue>]) -> anyhow::Result<Vec<Value>> {
    let route = Route::new(&["events"]);
    let answer = match batch {
        [event] => context.client.post_as(&route, event.get().to_owned(), "application/cloudevents+json"),
        _ => {
            let body = serde_json::to_string(batch)?;
            context.client.post_as(&route, body, "application/cloudevents-batch+json")
        }
    };
    let body = match answer {
        Ok(Answer { body, .. }) => body,
        // Every event was rejected: still one result each.
        Err(Error::Problem(problem)) if problem.body["results"].is_array() => problem.body,
        Err(error) => return Err(error.into()),
    };
    match body {
        Value::Object(mut fields) => match fields.remove("results") {
            Some(Value::Array(results)) => Ok(results),
            _ => bail!("the server answered without results"),
        },
        _ => bail!("the server answered without results"),
    }
}

fn report(context: &mut Context, results: Vec<Value>) -> anyhow::Result<()> {
    let with = |status: &str| results.iter().filter(|result| result["status"] == status).count();
    let (accepted, skipped, rejected) = (with("accepted"), with("skipped"), with("rejected"));
    let total = results.len();
    let all = Value::Array(results);
    let names_only = context.format == Format::Name;
    if !write_raw(context.out, context.format, &all)? {
        for result in all.as_array().into_iter().flatten() {
            if names_only {
                writeln!(context.out, "{}", one_line(&name_of(result)))?;
            } else if total <= LINES_MAX || result["status"] == "rejected" {
                writeln!(context.out, "{}", one_line(&describe(result)))?;
            }
        }
        if total > LINES_MAX && !names_only {
            writeln!(context.out, "{accepted} accepted, {skipped} skipped, {rejected} rejected")?;
        }
    }
    match rejected {
        0 => Ok(()),
        _ if total == 1 => bail!("the event was rejected"),
        _ => bail!("{rejected} of {total} events rejected"),
    }
}

fn describe(result: &Value) -> String {
    let name = name_of(result);
    match result["status"].as_str() {
        Some("accepted") => format!("{name} accepted at position {}", cell(result, "/position")),
        Some("skipped") => format!("{name} skipped: {}", cell(result, "/reason")),
        _ => {
            let problem = crate::client::Problem { status: 0, body: result["problem"].clone() };
            format!("{name} rejected: {}", problem.to_string().replace("\n  ", "; "))
        }
    }
}

fn name_of(result: &Value) -> String {
    format!("event/{}", cell(result, "/id"))
}
