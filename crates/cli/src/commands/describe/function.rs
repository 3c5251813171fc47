//! A function or agent: its conditions, last build, pending events and recent events.

use super::{lanes, moment};
use crate::client::Error;
use crate::commands::Context;
use crate::commands::function::Place;
use crate::function::{conditions, phase_in_words, ready, runtime, serves, source, trigger};
use crate::output::{Format, Sheet, Table, cell, number, one_line, text, write_raw};
use crate::route::Route;
use crate::time::{self, age_of};
use klambda_core::namespace;
use klambda_core::time::Millis;
use serde_json::Value;
use std::io::Write;

/// How many positions of the log are searched for events of the function, and how many events are shown.
const POSITIONS_BACK: u64 = 500;
const EVENTS_SHOWN: usize = 10;
const LANES_SHOWN: usize = 10;

pub fn describe(context: &mut Context, place: Place, name: &str) -> anyhow::Result<()> {
    let item = context.client.get(&place.route(&[name]))?;
    if write_raw(context.out, context.format, &item)? {
        return Ok(());
    }
    if context.format == Format::Name {
        writeln!(context.out, "{}", place.title(name))?;
        return Ok(());
    }
    let now = time::now();
    let commit = serving_commit(context, place, name)?;
    facts(&item, commit, now).write(context.out)?;
    write_conditions(context.out, &item, now)?;
    write_build(context.out, &item, now)?;
    write_lanes(context, &place.subscription(name), now)?;
    write_events(context, &item, now)
}

/// The commit of the revision that serves. A later build may have fetched another one and failed.
fn serving_commit(context: &Context, place: Place, name: &str) -> anyhow::Result<Option<String>> {
    let route = place.route(&[name, "revisions"]);
    let revisions = context.client.list_from(&route, "cursor", None::<&str>, 0)?.items;
    let serving = revisions.iter().find(|revision| revision["serving"] == true);
    Ok(serving.and_then(|revision| text(revision, "/commit")))
}

fn facts(item: &Value, commit: Option<String>, now: Millis) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.line("Name", cell(item, "/metadata/name"));
    sheet.line("Namespace", cell(item, "/metadata/namespace"));
    sheet.line_opt("Created", moment(item, "/metadata/creationTimestamp", now));
    sheet.line_opt("Deleting", moment(item, "/metadata/deletionTimestamp", now));
    sheet.line("Phase", phase_in_words(item));
    let (wanted, seen) = (number(item, "/metadata/generation"), number(item, "/status/observedGeneration"));
    let behind = if wanted == seen { String::new() } else { format!(" (status of {seen})") };
    sheet.line("Generation", format!("{wanted}{behind}"));
    sheet.line_opt("Serves", serves(item).map(|(serves, _)| format!("generation {serves}")));
    sheet.line_opt("Revision", text(item, "/status/serviceStatus/revision"));
    sheet.line_opt("Commit", commit);
    sheet.line_opt("Applied by", text(item, "/status/appliedBy"));
    sheet.line("Source", source(item));
    let handler = text(item, "/spec/runtime/handler").map(|handler| format!(", {handler}"));
    sheet.line("Runtime", format!("{}{}", runtime(item), handler.unwrap_or_default()));
    sheet.line("Scaling", scaling(item));
    sheet.line("Ordering", cell(item, "/spec/ordering"));
    for each in item["spec"]["triggers"].as_array().into_iter().flatten() {
        sheet.line("Trigger", format!("{}, from {}", trigger(each), cell(each, "/broker")));
    }
    sheet.line("Ready", ready(item));
    sheet.line("Replicas", number(item, "/status/serviceStatus/replicas"));
    sheet.line_opt("Version", text(item, "/status/serviceStatus/version"));
    sheet.line_opt("URL", text(item, "/status/serviceStatus/url"));
    sheet
}

fn scaling(item: &Value) -> String {
    let of = |name: &str| cell(item, &format!("/spec/scaling/{name}"));
    let (least, most, each) = (of("minReplicas"), of("maxReplicas"), of("targetConcurrency"));
    format!("{least} to {most} replicas, {each} calls each, to zero after {}", of("scaleToZeroGracePeriod"))
}

fn write_conditions(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let mut table = Table::new(&["TYPE", "STATUS", "REASON", "SINCE", "MESSAGE"]);
    for condition in conditions(item) {
        let since = age_of(text(condition, "/lastTransitionTime").as_deref(), now);
        let [kind, status, reason, message] =
            ["/type", "/status", "/reason", "/message"].map(|at| cell(condition, at));
        table.row(vec![kind, status, reason, since, message]);
    }
    writeln!(out, "Conditions:")?;
    table.write(out, "  ")?;
    Ok(())
}

fn write_build(out: &mut dyn Write, item: &Value, now: Millis) -> anyhow::Result<()> {
    let build = &item["status"]["buildStatus"];
    if build.is_object() {
        let mut sheet = Sheet::default();
        sheet.line("  Job", cell(build, "/jobName"));
        sheet.line("  Outcome", text(build, "/outcome").unwrap_or_else(|| "pending".to_owned()));
        sheet.line("  Attempts", number(build, "/attempts"));
        sheet.line_opt("  Started", moment(build, "/startedAt", now));
        sheet.line_opt("  Ended", moment(build, "/completedAt", now));
        sheet.line_opt("  Next attempt", moment(build, "/retryAt", now));
        sheet.line_opt("  Source digest", text(build, "/sourceDigest"));
        sheet.line_opt("  Git commit", text(build, "/commit"));
        let is_built = build["outcome"] == "completed";
        sheet.line_opt("  Artifact digest", text(build, "/hash").filter(|_| is_built));
        sheet.line_opt("  Artifact", text(build, "/imageURI"));
        sheet.line_opt("  Image digest", text(build, "/imageDigest"));
        sheet.line_opt("  Error", text(build, "/error"));
        writeln!(out, "Last build:")?;
        sheet.write(out)?;
    }
    let lines = item["status"]["logLines"].as_array().map_or(&[][..], Vec::as_slice);
    if !lines.is_empty() {
        writeln!(out, "Last log lines:")?;
    }
    for line in lines.iter().filter_map(Value::as_str) {
        writeln!(out, "  {}", one_line(line))?;
    }
    Ok(())
}

/// The deliveries to the function.
fn write_lanes(context: &mut Context, subscription: &str, now: Millis) -> anyhow::Result<()> {
    let found = match context.client.get(&Route::new(&["subscriptions", subscription])) {
        Ok(found) => found,
        Err(Error::Problem(problem)) if problem.status == 404 => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let mut sheet = Sheet::default();
    let status = &found["status"];
    sheet.line("  Subscription", subscription);
    sheet.line("  Waiting", number(status, "/waiting"));
    sheet.line("  In flight", number(status, "/inFlight"));
    sheet.line("  Delivered", number(status, "/delivered"));
    sheet.line("  Dead letters", number(status, "/deadLetters"));
    sheet.line("  Lanes", lanes(&status["lanes"]));
    writeln!(context.out, "Deliveries:")?;
    sheet.write(context.out)?;
    if found["spec"]["ordering"] != "ordered" {
        return Ok(());
    }
    let route = Route::new(&["lanes"]).query("subscription", subscription);
    let page = context.client.list_from(&route, "cursor", None::<&str>, LANES_SHOWN)?;
    let busy: Vec<&Value> = page.items.iter().filter(|lane| number(lane, "/depth") > 0).collect();
    if busy.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["KEY", "STATE", "DEPTH", "SINCE", "WAITS-FOR"]);
    for lane in busy {
        let since = age_of(text(lane, "/since").as_deref(), now);
        let depth = number(lane, "/depth").to_string();
        table.row(vec![cell(lane, "/key"), cell(lane, "/state"), depth, since, cell(lane, "/waitsFor")]);
    }
    table.write(context.out, "  ")?;
    if page.more {
        let flag = namespace::flag(context.client.namespace());
        writeln!(context.out, "  there are more: klambda get lanes --subscription {subscription}{flag}")?;
    }
    Ok(())
}

/// The events of the platform about the function, from the end of the log.
fn write_events(context: &mut Context, item: &Value, now: Millis) -> anyhow::Result<()> {
    let status = match context.client.get(&Route::new(&["status"])) {
        Ok(status) => status,
        // A caller with a role in some namespaces only may not see where the log ends.
        Err(Error::Problem(problem)) if problem.status == 403 => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    let after = number(&status, "/positions/last").saturating_sub(POSITIONS_BACK);
    let limit = usize::try_from(POSITIONS_BACK).unwrap_or(usize::MAX);
    let page = context.client.list_from(&Route::new(&["events"]), "after", Some(after), limit)?;
    let subject = format!("{}/{}", cell(item, "/metadata/namespace"), cell(item, "/metadata/name"));
    let of_it = |found: &&Value| {
        let event = &found["event"];
        let kind = event["type"].as_str().unwrap_or_default();
        kind.starts_with("lambda.") && event["subject"] == subject.as_str()
    };
    let told: Vec<&Value> = page.items.iter().filter(of_it).collect();
    if told.is_empty() {
        return Ok(());
    }
    let mut table = Table::new(&["AGE", "POSITION", "TYPE", "DETAILS"]);
    for found in &told[told.len().saturating_sub(EVENTS_SHOWN)..] {
        let age = age_of(text(found, "/acceptedAt").as_deref(), now);
        table.row(vec![
            age,
            cell(found, "/position"),
            cell(found, "/event/type"),
            gist(&found["event"]["data"]),
        ]);
    }
    writeln!(context.out, "Recent events:")?;
    table.write(context.out, "  ")?;
    Ok(())
}

/// The most useful values of the data.
fn gist(data: &Value) -> String {
    let words = ["/phase", "/health_status", "/url", "/image_uri", "/error"].iter();
    let words: Vec<String> = words.filter_map(|at| text(data, at)).filter(|word| !word.is_empty()).collect();
    if words.is_empty() { "-".to_owned() } else { words.join(", ") }
}
