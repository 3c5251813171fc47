//! `webhook deliveries|resend|recover|link`: attempts of an endpoint, and sending events again.

use super::{Context, resource};
use crate::args::{Deliveries, Recover};
use crate::client;
use crate::commands::{dlq, is_unreachable};
use crate::exit::Usage;
use crate::output::{Format, cell, number, one_line, shorten, text, write_raw};
use crate::route::Route;
use crate::sse::Messages;
use crate::time::fixed;
use anyhow::{Context as _, bail};
use klambda_core::webhook::EventId;
use serde_json::{Map, Value, json};
use std::io::{BufReader, Read};
use std::time::Duration;
use ureq::http::Method;

const PAGE: usize = 100;
const RECONNECT: Duration = Duration::from_secs(1);
const ANSWER_CHARS_MAX: usize = 60;

/// Newest first, like other lists. With `-w` newest last, so that new ones follow.
pub fn list(context: &mut Context, args: &Deliveries) -> anyhow::Result<()> {
    // The stream begins before the list is read, so that no attempt is lost in between.
    let stream = args.watch.then(|| connect(context, args)).transpose();
    let stream = stream.with_context(|| resource(&args.name).to_string())?;
    let items = latest(context, args)?;
    print_header(context)?;
    match args.watch {
        true => items.iter().rev().try_for_each(|item| print(context, item))?,
        false => items.iter().try_for_each(|item| print(context, item))?,
    }
    context.out.flush()?;
    match stream {
        Some(stream) => follow(context, args, stream, &items),
        None => Ok(()),
    }
}

fn latest(context: &Context, args: &Deliveries) -> anyhow::Result<Vec<Value>> {
    let (mut found, mut cursor) = (Vec::new(), None);
    while found.len() < args.limit {
        let limit = PAGE.min(args.limit - found.len());
        let route = route(args).query("limit", limit).query_opt("cursor", cursor.as_deref());
        let mut page = context.client.get(&route).with_context(|| resource(&args.name).to_string())?;
        if let Value::Array(items) = page["items"].take() {
            found.extend(items);
        }
        // A filtered page can be empty before the end.
        cursor = text(&page, "/next");
        if cursor.is_none() {
            break;
        }
    }
    Ok(found)
}

fn route(args: &Deliveries) -> Route {
    let route = resource(&args.name).route().below("deliveries");
    let since = args.since.as_ref().map(|moment| moment.0.as_str());
    route
        .query_opt("workflowId", args.workflow.as_deref())
        .query_opt("status", args.failed.then_some("failed"))
        .query_opt("eventId", args.event.as_deref())
        .query_opt("since", since)
}

fn connect(context: &Context, args: &Deliveries) -> Result<impl Read + use<>, client::Error> {
    context.client.stream(Method::GET, &route(args), "text/event-stream")
}

/// Prints attempts as they happen, except those that were listed. Reconnects after a lost connection; attempts in
/// between are not shown.
fn follow(
    context: &mut Context,
    args: &Deliveries,
    stream: impl Read + 'static,
    listed: &[Value],
) -> anyhow::Result<()> {
    let mut stream: Box<dyn Read> = Box::new(stream);
    let mut is_first = true;
    loop {
        for message in Messages::new(BufReader::new(&mut stream)) {
            let Ok(message) = message else { break };
            let Ok(item) = serde_json::from_str::<Value>(&message.data) else { continue };
            if !is_first || !listed.contains(&item) {
                print(context, &item)?;
                context.out.flush()?;
            }
        }
        is_first = false;
        eprintln!("connection lost; reconnecting");
        stream = Box::new(reconnect(context, args)?);
    }
}

fn reconnect(context: &Context, args: &Deliveries) -> anyhow::Result<impl Read + use<>> {
    loop {
        std::thread::sleep(RECONNECT);
        match connect(context, args).map_err(anyhow::Error::from) {
            Err(error) if is_unreachable(&error) => {}
            other => return other,
        }
    }
}

fn print_header(context: &mut Context) -> anyhow::Result<()> {
    let titles =
        ["TIME", "OUTCOME", "STATUS", "ATTEMPT", "MS", "WORKFLOW", "SEQUENCE", "TYPE", "EVENT-ID", "ANSWER"];
    match context.format {
        Format::Table | Format::Wide => line(context, &titles.map(str::to_owned)),
        _ => Ok(()),
    }
}

fn print(context: &mut Context, item: &Value) -> anyhow::Result<()> {
    if context.format == Format::Json {
        return Ok(writeln!(context.out, "{item}")?);
    }
    if write_raw(context.out, context.format, item)? {
        return Ok(());
    }
    if context.format == Format::Name {
        return Ok(writeln!(context.out, "{}", cell(item, "/eventId"))?);
    }
    let answer = text(item, "/error").or_else(|| text(item, "/answer")).unwrap_or_default();
    let wide = context.format == Format::Wide;
    let answer = if wide { answer } else { shorten(&answer, ANSWER_CHARS_MAX) };
    let attempt = if item["resend"] == true { "resend".to_owned() } else { cell(item, "/attempt") };
    let [time, outcome, status] = ["/time", "/outcome", "/status"].map(|at| cell(item, at));
    let time = fixed(&time);
    let [workflow, sequence] = ["/workflowId", "/sequenceNumber"].map(|at| cell(item, at));
    let (ms, kind, id) = (cell(item, "/durationMs"), cell(item, "/type"), cell(item, "/eventId"));
    line(context, &[time, outcome, status, attempt, ms, workflow, sequence, kind, id, answer])
}

fn line(context: &mut Context, cells: &[String; 10]) -> anyhow::Result<()> {
    let cells = cells.each_ref().map(|cell| one_line(cell));
    let widths = [24, 9, 6, 7, 6, 16, 8, 20, 36];
    let mut line = String::new();
    for (cell, width) in cells.iter().zip(widths) {
        line.push_str(&format!("{cell:<width$}   "));
    }
    line.push_str(&cells[9]);
    writeln!(context.out, "{}", line.trim_end())?;
    Ok(())
}

pub fn resend(context: &mut Context, name: &str, event: &str) -> anyhow::Result<()> {
    let resource = resource(name);
    if event.parse::<EventId>().is_err() {
        let feed = format!("klambda webhook events {}", resource.name);
        return Err(Usage(format!("{event:?} is not an event id; `{feed}` lists the ids")).into());
    }
    let route = resource.route().below("resend");
    let sent = context.client.post(&route, Some(&json!({"eventId": event})));
    let sent = sent.with_context(|| resource.to_string())?.body;
    let is_replay = sent["replay"].is_string();
    if !write_raw(context.out, context.format, &sent)? {
        let what = match text(&sent, "/error") {
            _ if is_replay => {
                format!("is replayed in its place: klambda get replay {}", cell(&sent, "/replay"))
            }
            Some(error) => format!("failed: {}", one_line(&error)),
            None => {
                format!("answered {} after {} ms", cell(&sent, "/status"), number(&sent, "/durationMs"))
            }
        };
        writeln!(context.out, "{resource} event {event} {what}")?;
    }
    context.out.flush()?;
    match is_replay || sent["succeeded"] == true {
        true => Ok(()),
        false => bail!("{resource} did not accept the event"),
    }
}

pub fn recover(context: &mut Context, args: &Recover) -> anyhow::Result<()> {
    let resource = resource(&args.name);
    let mut body = Map::new();
    body.insert("since".to_owned(), args.since.0.as_str().into());
    body.insert("dryRun".to_owned(), args.dry_run.into());
    if let Some(until) = &args.until {
        body.insert("until".to_owned(), until.0.as_str().into());
    }
    if let Some(workflow) = &args.workflow {
        body.insert("workflowId".to_owned(), workflow.as_str().into());
    }
    let route = resource.route().below("recover");
    let job = context.client.post(&route, Some(&Value::Object(body)));
    let job = job.with_context(|| resource.to_string())?.body;
    let id = text(&job, "/id").unwrap_or_default();
    dlq::finish(context, job, &route.below(&id), args.wait)
}

pub fn link(context: &mut Context, name: &str, expires: Option<&str>) -> anyhow::Result<()> {
    let resource = resource(name);
    let route = resource.route().below("link").query_opt("expires", expires);
    let created = context.client.post(&route, None).with_context(|| resource.to_string())?.body;
    if write_raw(context.out, context.format, &created)? {
        return Ok(());
    }
    writeln!(context.out, "{resource} can be managed until {} with", cell(&created, "/expiresAt"))?;
    let url = format!("{}{}", context.client.base().trim_end_matches('/'), cell(&created, "/url"));
    writeln!(context.out, "url: {url}\ntoken: {}", cell(&created, "/token"))?;
    context.out.flush()?;
    eprintln!("store the token now; it is not shown again");
    Ok(())
}
