//! `dlq edit`: corrects the event of a dead letter, in an editor or from a file.

use super::edit::{keep, open_editor};
use super::letters::MEMBER;
use super::{Context, dlq};
use crate::args::EditLetter;
use crate::client::Body;
use crate::exit::Usage;
use crate::output::{Format, write_raw};
use crate::route::Route;
use anyhow::Context as _;
use serde::Deserialize;
use serde_json::value::RawValue;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{BufReader, Read};
use std::path::Path;
use ureq::http::Method;

/// What the server shows of a dead letter. Raw JSON: numbers and spelling survive.
#[derive(Deserialize)]
struct Letter {
    event: Box<RawValue>,
    #[serde(default)]
    edits: u64,
}

/// An event to write, and the number of edits that its author has seen, if known.
struct Edited {
    event: String,
    seen: Option<u64>,
}

pub fn run(context: &mut Context, args: &EditLetter) -> anyhow::Result<()> {
    let is_written = match &args.from_file {
        Some(file) => {
            let edited = read(file).map_err(|error| Usage::file(file, &error))?;
            submit(context, &args.id, &edited).map(|()| true)?
        }
        None => in_editor(context, &args.id)?,
    };
    if !is_written || !args.replay {
        return Ok(());
    }
    let request = json!({"selector": {"ids": [args.id]}});
    dlq::run_replay(context, &request, true)
}

/// Returns false if the person changed nothing.
fn in_editor(context: &mut Context, id: &str) -> anyhow::Result<bool> {
    let route = Route::new(&["dlq", id]);
    let stream = context.client.stream(Method::GET, &route, "application/json");
    let stream = stream.with_context(|| format!("deadletter/{id}"))?;
    let letter: Letter =
        serde_json::from_reader(BufReader::new(stream)).context("the server sent no dead letter")?;
    let text = indented(letter.event.get()) + "\n";
    let mut file = tempfile::Builder::new().prefix("klambda-edit-").suffix(".json").tempfile()?;
    std::io::Write::write_all(&mut file, text.as_bytes())?;
    open_editor(file.path())?;
    let event = std::fs::read_to_string(file.path())?;
    if event.trim().is_empty() || event == text {
        writeln!(context.out, "Edit cancelled, no changes made.")?;
        return Ok(false);
    }
    match submit(context, id, &Edited { event, seen: Some(letter.edits) }) {
        Ok(()) => Ok(true),
        Err(error) => Err(keep(file, error)),
    }
}

fn submit(context: &mut Context, id: &str, edited: &Edited) -> anyhow::Result<()> {
    let mut body = Body::new(edited.event.as_str(), "application/cloudevents+json");
    if let Some(seen) = edited.seen {
        body = body.header("if-match", &format!("\"{seen}\""));
    }
    let answer = context.client.put_body(&Route::new(&["dlq", id, "event"]), body);
    let answer = answer.with_context(|| format!("deadletter/{id}"))?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    let end = if context.format == Format::Name { "" } else { " edited" };
    Ok(writeln!(context.out, "deadletter/{id}{end}")?)
}

/// Reads an event, or a line that `dlq export` wrote. Such a line tells how often its dead letter was edited then.
fn read(file: &Path) -> Result<Edited, String> {
    let mut text = String::new();
    let done = match file.to_str() {
        Some("-") => std::io::stdin().lock().read_to_string(&mut text),
        _ => std::fs::File::open(file).and_then(|mut file| file.read_to_string(&mut text)),
    };
    done.map_err(|error| error.to_string())?;
    parse(&text).map_err(|error| format!("the file must contain one event as a JSON object: {error}"))
}

fn parse(text: &str) -> serde_json::Result<Edited> {
    let mut members: BTreeMap<String, Box<RawValue>> = serde_json::from_str(text)?;
    let Some(about) = members.remove(MEMBER) else {
        return Ok(Edited { event: text.to_owned(), seen: None });
    };
    let about: Value = serde_json::from_str(about.get())?;
    let seen = Some(about["edits"].as_u64().unwrap_or(0));
    Ok(Edited { event: serde_json::to_string(&members)?, seen })
}

/// JSON with one member per line. Unlike a parsed value, the text keeps every digit of a number.
fn indented(json: &str) -> String {
    let mut out = String::with_capacity(json.len() * 2);
    let (mut depth, mut in_text, mut is_escaped) = (0_usize, false, false);
    let mut rest = json.chars().peekable();
    while let Some(next) = rest.next() {
        if in_text {
            out.push(next);
            in_text = is_escaped || next != '"';
            is_escaped = next == '\\' && !is_escaped;
            continue;
        }
        match next {
            '{' | '[' => {
                while rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                out.push(next);
                if let Some(end) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(end);
                } else {
                    depth += 1;
                    new_line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                new_line(&mut out, depth);
                out.push(next);
            }
            ',' => {
                out.push(',');
                new_line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            next if next.is_ascii_whitespace() => {}
            next => {
                in_text = next == '"';
                out.push(next);
            }
        }
    }
    out
}

fn new_line(out: &mut String, depth: usize) {
    out.push('\n');
    (0..depth).for_each(|_| out.push_str("  "));
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn indented_json_is_the_same_json_with_every_digit() {
        let json = r#"{"a":[1.0, 12345678901234567890123,{ }],"b\"{":"x, {\\","c":[],"d":{"e":null}}"#;
        let shown = indented(json);
        assert!(
            shown.contains("    12345678901234567890123,\n    {}\n  ],\n  \"b\\\"{\": \"x, {\\\\\",\n"),
            "{shown}"
        );
        assert!(shown.ends_with("\"c\": [],\n  \"d\": {\n    \"e\": null\n  }\n}"), "{shown}");
        let value = |text: &str| serde_json::from_str::<Value>(text).expect("JSON");
        assert_eq!(value(&shown), value(json));
    }

    #[test]
    fn an_exported_line_tells_which_edit_it_holds() {
        let seen = |text: &str| parse(text).map(|edited| (edited.seen, edited.event)).ok();
        assert_eq!(seen(r#"{"id": "e"}"#), Some((None, r#"{"id": "e"}"#.to_owned())));
        let line = r#"{"id":"e","deadLetter":{"id":"s.1","edits":2}}"#;
        assert_eq!(seen(line), Some((Some(2), r#"{"id":"e"}"#.to_owned())));
        let line = r#"{"id":"e","deadLetter":{"id":"s.1"}}"#;
        assert_eq!(seen(line).map(|(seen, _)| seen), Some(Some(0)));
        assert_eq!(seen("[1]"), None);
    }
}
