//! `dlq export|import`: dead letters as a file of JSON lines. Each line is a CloudEvent in its JSON form, with one more
//! member that says where and why it failed. Raw JSON throughout: numbers and spelling survive the round trip.

use super::event::{Tally, post_all};
use super::{Context, get};
use crate::args::{Export, Import};
use crate::client::Error;
use crate::exit::Usage;
use crate::output::{Format, cell, counted, text, write_raw};
use crate::progress;
use crate::route::Route;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::value::{RawValue, to_raw_value};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader};
use std::path::Path;
use ureq::http::Method;

/// Attributes of CloudEvents are lower-case, so that no attribute has this name.
pub const MEMBER: &str = "deadLetter";

type Members = BTreeMap<String, Box<RawValue>>;

/// A dead letter as the server shows it.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Letter {
    id: String,
    subscription: String,
    key: Option<String>,
    reason: String,
    attempts: u64,
    failed_at: String,
    last_error: String,
    event: Members,
    #[serde(flatten)]
    edit: Option<Edit>,
}

/// Marks an exported event as edited.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Edit {
    edits: u64,
    edited_by: String,
    edited_at: String,
}

pub fn export(context: &mut Context, args: &Export) -> anyhow::Result<()> {
    let ids = selected(context, args)?;
    let progress = progress::counting("dead letters", ids.len() as u64);
    let (mut exported, mut gone) = (0, 0);
    for id in &ids {
        match fetch(context, id) {
            Ok(letter) => {
                writeln!(context.out, "{}", line(letter)?)?;
                exported += 1;
            }
            // It was replayed or deleted after the list was made.
            Err(error) if args.ids.is_empty() && is_not_found(&error) => gone += 1,
            Err(error) => return Err(error.context(format!("deadletter/{id}"))),
        }
        progress.inc(1);
    }
    drop(progress);
    context.out.flush()?;
    let note = if gone > 0 { format!("; {gone} disappeared meanwhile") } else { String::new() };
    eprintln!("{} exported{note}", counted(exported, "dead letter"));
    Ok(())
}

fn selected(context: &Context, args: &Export) -> anyhow::Result<Vec<String>> {
    if !args.ids.is_empty() {
        return Ok(args.ids.clone());
    }
    let route = get::filtered(Route::new(&["dlq"]), &args.filter);
    let page = context.client.list_from(&route, "cursor", None::<&str>, 0)?;
    Ok(page.items.iter().filter_map(|item| text(item, "/id")).collect())
}

fn fetch(context: &Context, id: &str) -> anyhow::Result<Letter> {
    let stream = context.client.stream(Method::GET, &Route::new(&["dlq", id]), "application/json")?;
    serde_json::from_reader(BufReader::new(stream)).context("the server sent no dead letter")
}

fn is_not_found(error: &anyhow::Error) -> bool {
    matches!(error.downcast_ref(), Some(Error::Problem(problem)) if problem.status == 404)
}

fn line(letter: Letter) -> anyhow::Result<String> {
    let Letter { id, subscription, key, reason, attempts, failed_at, last_error, mut event, edit } = letter;
    let mut about = json!({
        "id": id, "subscription": subscription, "key": key, "reason": reason, "lastError": last_error,
        "attempts": attempts, "failedAt": failed_at,
    });
    if let Some(Edit { edits, edited_by, edited_at }) = edit {
        about["edits"] = edits.into();
        about["editedBy"] = edited_by.into();
        about["editedAt"] = edited_at.into();
    }
    event.insert(MEMBER.to_owned(), to_raw_value(&about)?);
    Ok(serde_json::to_string(&event)?)
}

pub fn import(context: &mut Context, args: &Import) -> anyhow::Result<()> {
    let events = read(&args.filename)?;
    if args.dry_run {
        return print_dry_run(context, &events);
    }
    let total = events.len() as u64;
    let mut tally = Tally::new(context.format, total);
    let raw = events.into_iter().map(|event| Ok(to_raw_value(&event.members)?));
    let sent = post_all(context, &mut tally, &mut { raw });
    let any_skipped = tally.skipped > 0;
    let reported = tally.report(context, true);
    if any_skipped {
        context.out.flush()?;
        eprintln!("the server still knows the skipped events; to deliver them, use `klambda dlq replay`");
    }
    sent.and(reported)
}

struct Line {
    members: Members,
    /// The data about the dead letter in the file; null for a plain event.
    about: Value,
}

fn read(file: &Path) -> anyhow::Result<Vec<Line>> {
    let reader: Box<dyn BufRead> = match file.to_str() {
        Some("-") => Box::new(std::io::stdin().lock()),
        _ => Box::new(BufReader::new(std::fs::File::open(file).map_err(|error| Usage::file(file, &error))?)),
    };
    let lines = parse(reader).map_err(|error| Usage::file(file, &error))?;
    match lines.is_empty() {
        true => Err(Usage::file(file, &"the file contains no events").into()),
        false => Ok(lines),
    }
}

fn parse(reader: impl BufRead) -> Result<Vec<Line>, String> {
    let mut lines = Vec::new();
    for (number, line) in reader.lines().enumerate() {
        let at = |error: &dyn std::fmt::Display| format!("line {}: {error}", number + 1);
        let line = line.map_err(|error| at(&error))?;
        if line.trim().is_empty() {
            continue;
        }
        let mut members: Members = serde_json::from_str(&line).map_err(|error| at(&error))?;
        let about = members.remove(MEMBER).map(|about| serde_json::from_str(about.get()));
        lines.push(Line {
            members,
            about: about.transpose().map_err(|error| at(&error))?.unwrap_or_default(),
        });
    }
    Ok(lines)
}

fn print_dry_run(context: &mut Context, lines: &[Line]) -> anyhow::Result<()> {
    let events: Vec<Value> = lines.iter().map(summary).collect();
    let names_only = context.format == Format::Name;
    if write_raw(context.out, context.format, &json!({"dryRun": true, "events": events}))? {
        return Ok(());
    }
    let keys: BTreeSet<String> = lines.iter().map(|line| line.about["key"].to_string()).collect();
    if !names_only {
        let (count, keys) = (counted(events.len() as u64, "event"), counted(keys.len() as u64, "key"));
        writeln!(context.out, "dry run: {count} of {keys} would be sent")?;
    }
    for event in &events {
        let name = crate::output::one_line(&format!("event/{}", cell(event, "/id")));
        match names_only {
            true => writeln!(context.out, "{name}")?,
            false => writeln!(context.out, "  {name} from {}", cell(event, "/source"))?,
        }
    }
    Ok(())
}

fn summary(line: &Line) -> Value {
    let member =
        |name: &str| line.members.get(name).and_then(|raw| serde_json::from_str::<Value>(raw.get()).ok());
    json!({"id": member("id"), "source": member("source"), "type": member("type"), "deadLetter": line.about})
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_holds_the_event_as_it_was_and_why_it_failed() {
        let shown = r#"{"id": "orders.7", "subscription": "orders", "key": "k", "reason": "rejected", "attempts": 3,
            "failedAt": "2026-01-01T00:00:00Z", "lastError": "500", "position": 7,
            "event": {"id": "e1", "source": "/s", "data": {"n": 12345678901234567890123, "d": 1.0}}}"#;
        let line = line(serde_json::from_str(shown).expect("a dead letter")).expect("a line");
        assert!(line.contains(r#""data":{"n": 12345678901234567890123, "d": 1.0}"#), "{line}");
        let read = parse(line.as_bytes()).expect("read").pop().expect("one");
        assert_eq!(read.about["subscription"], "orders");
        assert_eq!(read.about["attempts"], 3);
        assert_eq!(
            serde_json::to_string(&read.members).expect("JSON"),
            r#"{"data":{"n": 12345678901234567890123, "d": 1.0},"id":"e1","source":"/s"}"#
        );
    }

    #[test]
    fn a_wrong_line_is_named() {
        let error = |text: &str| parse(text.as_bytes()).err().expect("refused");
        assert!(error("{\"id\": 1}\n\n[]\n").starts_with("line 3: "));
        assert!(error("{\"id\": \n").starts_with("line 1: "));
    }
}
