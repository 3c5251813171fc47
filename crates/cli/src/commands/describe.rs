//! `describe`: everything about a resource, for people.

mod dead_letter;
mod function;

use super::function::Place;
use super::{Context, dlq, for_each, why};
use crate::args::Describe;
use crate::exit::Usage;
use crate::function::target;
use crate::kind::{Kind, data_of};
use crate::output::{Format, Sheet, Table, bytes, cell, counted, number, text, write_raw};
use crate::resource::{self, Resource};
use crate::route::Route;
use crate::time::{self, age_of, relative};
use klambda_core::time::Millis;
use serde_json::Value;
use std::io::Write;

pub fn run(context: &mut Context, args: &Describe) -> anyhow::Result<()> {
    let named = resource::named(&args.resources)?;
    if args.source.is_some() && named.iter().any(|one| one.kind != Kind::Event) {
        return Err(Usage("--source works with events only".to_owned()).into());
    }
    let mut is_first = true;
    for_each(&named, |one| {
        if !std::mem::replace(&mut is_first, false) && context.format.is_for_people() {
            writeln!(context.out)?;
        }
        describe(context, one, args.source.as_deref())
    })
}

fn describe(context: &mut Context, resource: &Resource, source: Option<&str>) -> anyhow::Result<()> {
    let route = resource.route();
    match resource.kind {
        Kind::Function | Kind::Agent => {
            let namespace = context.client.namespace().to_owned();
            function::describe(context, Place::new(resource.kind, &namespace), &resource.name)
        }
        Kind::DeadLetter => dead_letter::describe(context, &resource.name),
        Kind::Subscription => one(context, Kind::Subscription, &route, subscription),
        Kind::Webhook => webhook(context, resource),
        Kind::EventType => one(context, Kind::EventType, &route, event_type),
        Kind::Lane => one(context, Kind::Lane, &route, why::lane),
        Kind::Replay => one(context, Kind::Replay, &route, replay),
        Kind::Event => one(context, Kind::Event, &route.query_opt("source", source), event),
        Kind::Secret => super::secret::show(context, &resource.name),
        Kind::Namespace | Kind::Token | Kind::Audit | Kind::Revision => {
            columns(context, resource.kind, &route)
        }
    }
}

fn columns(context: &mut Context, kind: Kind, route: &Route) -> anyhow::Result<()> {
    let Some(item) = for_people(context, kind, route)? else { return Ok(()) };
    kind.sheet(&item, time::now()).write(context.out)?;
    Ok(())
}

type Describer = fn(&mut dyn Write, &Value, Millis) -> anyhow::Result<()>;

fn one(context: &mut Context, kind: Kind, route: &Route, describe: Describer) -> anyhow::Result<()> {
    match for_people(context, kind, route)? {
        Some(item) => describe(context.out, &item, time::now()),
        None => Ok(()),
    }
}

/// Fetches a resource. Prints it and returns `None` if the output is for a script.
fn for_people(context: &mut Context, kind: Kind, route: &Route) -> anyhow::Result<Option<Value>> {
    let item = context.client.get(route)?;
    if write_raw(context.out, context.format, &item)? {
        return Ok(None);
    }
    if context.format == Format::Name {
        writeln!(context.out, "{}", kind.name_of(&item))?;
        return Ok(None);
    }
    Ok(Some(item))
}

fn subscription(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let mut sheet = Sheet::default();
    sheet.line("Name", cell(item, "/metadata/name"));
    sheet.line_opt("Created", moment(item, "/metadata/createdAt", now));
    sheet.line("Phase", cell(item, "/status/phase"));
    sheet.line("Target", target(item));
    sheet.line("Ordering", text(item, "/spec/ordering").unwrap_or_else(|| "unordered".to_owned()));
    let waiting = number(item, "/status/waiting");
    sheet.line("Waiting", format!("{waiting} ({})", bytes(number(item, "/status/waitingBytes"))));
    if item["status"]["unread"].is_object() {
        let unread = number(item, "/status/unread/events");
        let since = cell(item, "/status/unread/oldest");
        let size = bytes(number(item, "/status/unread/bytes"));
        sheet.line("Unread", format!("{unread} ({size}), oldest accepted at {since}"));
    }
    sheet.line_opt("Oldest", moment(item, "/status/oldest", now));
    sheet.line("In flight", number(item, "/status/inFlight"));
    sheet.line("Delivered", number(item, "/status/delivered"));
    sheet.line("Parked", number(item, "/status/parked"));
    sheet.line("Dead letters", number(item, "/status/deadLetters"));
    sheet.line("Lanes", lanes(&item["status"]["lanes"]));
    sheet.line("Breaker", breaker(&item["status"]["breaker"], now));
    write_messages_and_spec(out, sheet, item)
}

fn write_messages_and_spec(out: &mut dyn Write, mut sheet: Sheet, item: &Value) -> anyhow::Result<()> {
    for message in item["status"]["messages"].as_array().into_iter().flatten() {
        sheet.line("Message", message.as_str().map_or_else(|| message.to_string(), str::to_owned));
    }
    sheet.write(out)?;
    writeln!(out, "Spec:")?;
    for line in serde_saphyr::to_string(&item["spec"])?.lines() {
        writeln!(out, "  {line}")?;
    }
    Ok(())
}

fn event_type(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let mut sheet = Sheet::default();
    sheet.line("Name", cell(item, "/metadata/name"));
    sheet.line("Type", cell(item, "/spec/type"));
    sheet.line_opt("Created", moment(item, "/metadata/createdAt", now));
    sheet.line_opt("Description", text(item, "/spec/description"));
    sheet.write(out)?;
    for (title, member) in [("Schema", "schema"), ("Example", "example")] {
        if item["spec"][member].is_null() {
            continue;
        }
        writeln!(out, "{title}:")?;
        for line in serde_saphyr::to_string(&item["spec"][member])?.lines() {
            writeln!(out, "  {line}")?;
        }
    }
    Ok(())
}

pub fn webhook(context: &mut Context, resource: &Resource) -> anyhow::Result<()> {
    one(context, Kind::Webhook, &resource.route(), endpoint)
}

fn endpoint(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let mut sheet = Sheet::default();
    sheet.line("Name", cell(item, "/metadata/name"));
    sheet.line_opt("Created", moment(item, "/metadata/createdAt", now));
    sheet.line("Phase", cell(item, "/status/phase"));
    if let Some(reason) = text(item, "/status/disabled/reason") {
        sheet.line("Disabled", format!("since {} ({reason})", cell(item, "/status/disabled/since")));
    }
    sheet.line("URL", cell(item, "/spec/url"));
    sheet.line("Ordering", cell(item, "/spec/ordering"));
    sheet.line_opt("Failing since", moment(item, "/status/failingSince", now));
    sheet.line_opt("Last success", moment(item, "/status/lastSuccessAt", now));
    let waiting = number(item, "/status/waiting");
    sheet.line("Waiting", format!("{waiting} ({})", bytes(number(item, "/status/waitingBytes"))));
    sheet.line_opt("Oldest", moment(item, "/status/oldest", now));
    sheet.line("In flight", number(item, "/status/inFlight"));
    sheet.line("Delivered", number(item, "/status/delivered"));
    sheet.line("Parked", number(item, "/status/parked"));
    sheet.line("Dead letters", number(item, "/status/deadLetters"));
    sheet.line("Workflows", lanes(&item["status"]["lanes"]));
    sheet.line("Breaker", breaker(&item["status"]["breaker"], now));
    statistics(&mut sheet, &item["status"]["statistics"], now);
    write_messages_and_spec(out, sheet, item)
}

fn statistics(sheet: &mut Sheet, latest: &Value, now: Millis) {
    let Some(rate) = latest["successRate"].as_f64() else { return };
    let (calls, failed) = (number(latest, "/calls"), number(latest, "/failed"));
    sheet.line("Latest calls", format!("{calls}, {failed} failed ({:.1} % succeeded)", rate * 100.0));
    let (p50, p99) = (number(latest, "/durationP50Ms"), number(latest, "/durationP99Ms"));
    sheet.line("Duration", format!("p50 {p50} ms, p99 {p99} ms"));
    sheet.line_opt("Last failure", moment(latest, "/lastFailureAt", now));
    sheet.line("Failing", counted(number(latest, "/failingWorkflows"), "workflow"));
}

fn lanes(counts: &Value) -> String {
    let counts = counts.as_object().into_iter().flatten();
    let some = counts.filter(|(_, count)| count.as_u64() != Some(0));
    let words: Vec<String> = some.map(|(state, count)| format!("{count} {state}")).collect();
    if words.is_empty() { "none busy".to_owned() } else { words.join(", ") }
}

fn breaker(breaker: &Value, now: Millis) -> String {
    let state = cell(breaker, "/state");
    match text(breaker, "/nextProbe") {
        Some(at) => format!("{state}, next probe {}", relative(&at, now)),
        None => state,
    }
}

fn replay(out: &mut dyn Write, job: &Value, now: Millis) -> anyhow::Result<()> {
    let mut sheet = dlq::report(job);
    sheet.line_opt("Started", moment(job, "/createdAt", now));
    sheet.line_opt("Finished", moment(job, "/finishedAt", now));
    sheet.line_opt("Events per second", text(job, "/ratePerSecond"));
    sheet.line_opt("Lanes at once", text(job, "/parallelism"));
    let chosen = job["selector"].as_object().into_iter().flatten().filter(|(_, value)| !value.is_null());
    for (name, value) in chosen {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        sheet.line(&format!("Selector {name}"), value);
    }
    sheet.write(out)?;
    Ok(())
}

fn event(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let mut sheet = Sheet::default();
    sheet.line("Position", cell(item, "/position"));
    sheet.line_opt("Accepted", moment(item, "/acceptedAt", now));
    sheet.write(out)?;
    write_event(out, "Event", &item["event"])?;
    let fates = item["fates"].as_array().map_or(&[][..], Vec::as_slice);
    if fates.is_empty() {
        writeln!(out, "Fates: no subscription matched")?;
        return Ok(());
    }
    let names = ["SUBSCRIPTION", "KEY", "FATE", "ATTEMPTS", "LANE-SEQUENCE", "DEAD-LETTER", "REASON"];
    let mut table = Table::new(&names);
    for fate in fates {
        let at = ["/subscription", "/key", "/fate", "/attempts", "/laneSequence", "/deadLetter", "/reason"];
        table.row(at.map(|at| cell(fate, at)).to_vec());
    }
    writeln!(out, "Fates:")?;
    table.write(out, "  ")?;
    fates.iter().try_for_each(|fate| attempts(out, fate, now))
}

/// The attempts of an event in one subscription, newest first.
fn attempts(out: &mut dyn Write, fate: &Value, now: Millis) -> anyhow::Result<()> {
    let Some(items) = fate["attemptLog"].as_array().filter(|items| !items.is_empty()) else { return Ok(()) };
    let mut table = Table::new(&["ATTEMPT", "AGE", "AT", "OUTCOME", "STATUS", "DURATION", "ANSWER"]);
    for item in items {
        let answer = text(item, "/answer").or_else(|| text(item, "/error"));
        table.row(vec![
            cell(item, "/attempt"),
            age_of(text(item, "/at").as_deref(), now),
            text(item, "/at").map_or_else(|| "-".to_owned(), |at| time::fixed(&at)),
            cell(item, "/outcome"),
            cell(item, "/status"),
            duration_of(item),
            answer.unwrap_or_else(|| "-".to_owned()),
        ]);
    }
    writeln!(out, "Attempts of {}:", cell(fate, "/subscription"))?;
    table.write(out, "  ")?;
    if fate["more"] == true {
        writeln!(out, "  Older attempts are not shown.")?;
    }
    Ok(())
}

/// How long a call took.
pub fn duration_of(item: &Value) -> String {
    item["durationMs"].as_u64().map_or_else(|| "-".to_owned(), |ms| format!("{ms}ms"))
}

fn write_event(out: &mut dyn Write, title: &str, event: &Value) -> anyhow::Result<()> {
    let Some(attributes) = event.as_object() else { return Ok(()) };
    writeln!(out, "{title}:")?;
    let mut sheet = Sheet::default();
    for name in attributes.keys().filter(|name| !name.starts_with("data") || *name == "datacontenttype") {
        sheet.line(&format!("  {name}"), cell(event, &format!("/{name}")));
    }
    sheet.line("  data", data_of(event));
    sheet.write(out)?;
    Ok(())
}

fn moment(item: &Value, pointer: &str, now: Millis) -> Option<String> {
    text(item, pointer).map(|at| format!("{at} ({})", relative(&at, now)))
}
