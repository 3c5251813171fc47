//! CloudEvents made from flags or read from a file, and grouped into requests.

use crate::args::Send;
use crate::exit::Usage;
use anyhow::bail;
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use klambda_core::ids::uuid;
use klambda_core::key::SEQUENCE_MAX;
use serde_json::value::{RawValue, to_raw_value};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Attributes by name. Raw values keep the numbers and the spelling of the data.
type Attributes = BTreeMap<String, Box<RawValue>>;

const BATCH_EVENTS_MAX: usize = 100;
const BATCH_BYTES_MAX: usize = 512 * 1024;

/// The events that the flags describe, created as they are sent.
pub fn from_flags(args: &Send) -> anyhow::Result<impl Iterator<Item = anyhow::Result<Box<RawValue>>> + '_> {
    let template = template(args)?;
    let last = args.sequence.map(|first| first.checked_add(args.count.saturating_sub(1)));
    if last.is_some_and(|last| last.is_none_or(|last| last > SEQUENCE_MAX)) {
        return Err(Usage(format!("--sequence: the largest sequence is {SEQUENCE_MAX}")).into());
    }
    Ok((0..args.count).map(move |n| numbered(args, &template, n)))
}

/// The attributes that all events of one command share.
fn template(args: &Send) -> anyhow::Result<Attributes> {
    let mut event = Attributes::new();
    let mut set = |name: &str, value: &str| -> anyhow::Result<()> {
        event.insert(name.to_owned(), to_raw_value(value)?);
        Ok(())
    };
    for (name, value) in &args.attribute {
        if let Some(instead) = instead_of(name, args) {
            return Err(Usage(format!("-a {name}={value}: {instead}")).into());
        }
        set(name, value)?;
    }
    set("specversion", "1.0")?;
    set("source", &args.source)?;
    let named = [("type", &args.event_type), ("partitionkey", &args.key), ("subject", &args.subject)];
    for (name, value) in named {
        if let Some(value) = value {
            set(name, value)?;
        }
    }
    if let Some(data) = &args.data {
        set_data(&mut event, read_data(data)?, args.content_type.as_deref())?;
    }
    Ok(event)
}

/// The flag to use for attributes that `--attribute` cannot set.
fn instead_of(name: &str, args: &Send) -> Option<&'static str> {
    match name {
        "id" => Some("use --id"),
        "source" => Some("use --source"),
        "type" => Some("use --type"),
        "specversion" => Some("it is always 1.0"),
        "data" | "data_base64" => Some("use --data"),
        "datacontenttype" => Some("use --content-type"),
        "partitionkey" if args.key.is_some() => Some("--key sets it already"),
        "subject" if args.subject.is_some() => Some("--subject sets it already"),
        "sequence" if args.sequence.is_some() => Some("--sequence sets it already"),
        _ => None,
    }
}

fn numbered(args: &Send, template: &Attributes, n: u64) -> anyhow::Result<Box<RawValue>> {
    let mut event = template.clone();
    let id = match &args.id {
        Some(id) if args.count == 1 => id.clone(),
        Some(id) => format!("{id}-{}", n + 1),
        None => random_id()?,
    };
    event.insert("id".to_owned(), to_raw_value(&id)?);
    if let Some(first) = args.sequence {
        event.insert("sequence".to_owned(), to_raw_value(&(first + n).to_string())?);
    }
    Ok(to_raw_value(&event)?)
}

/// The data of `--data` and its content type.
pub fn content_of(given: &str, content_type: Option<&str>) -> anyhow::Result<(Vec<u8>, String)> {
    let data = read_data(given)?;
    let text = std::str::from_utf8(&data).ok();
    let is = match text {
        Some(text) if serde_json::from_str::<&RawValue>(text.trim()).is_ok() => "application/json",
        Some(_) => "text/plain",
        None => "application/octet-stream",
    };
    Ok((data, content_type.unwrap_or(is).to_owned()))
}

/// Stores JSON as JSON, text as text and anything else as base64, by the given content type or by the data.
fn set_data(event: &mut Attributes, data: Vec<u8>, content_type: Option<&str>) -> anyhow::Result<()> {
    let text = String::from_utf8(data);
    let json = text.as_ref().ok().and_then(|text| RawValue::from_string(text.trim().to_owned()).ok());
    let json = json.filter(|_| content_type.is_none_or(is_json));
    if json.is_none() && content_type.is_some_and(is_json) {
        return Err(Usage("--content-type is JSON, but --data is not".to_owned()).into());
    }
    let (name, value, detected) = match (json, text) {
        (Some(json), _) => ("data", json, "application/json"),
        (None, Ok(text)) => ("data", to_raw_value(&text)?, "text/plain"),
        (None, Err(binary)) => {
            let encoded = BASE64.encode(binary.as_bytes());
            ("data_base64", to_raw_value(&encoded)?, "application/octet-stream")
        }
    };
    event.insert(name.to_owned(), value);
    event.insert("datacontenttype".to_owned(), to_raw_value(content_type.unwrap_or(detected))?);
    Ok(())
}

fn is_json(content_type: &str) -> bool {
    let essence = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    essence == "application/json" || essence == "text/json" || essence.ends_with("+json")
}

fn read_data(given: &str) -> anyhow::Result<Vec<u8>> {
    match (given, given.strip_prefix('@')) {
        ("-", _) => read(Path::new("-")),
        (_, Some(file)) => read(Path::new(file)),
        (text, None) => Ok(text.as_bytes().to_vec()),
    }
}

pub fn read(file: &Path) -> anyhow::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let result = match file.to_str() {
        Some("-") => std::io::stdin().read_to_end(&mut bytes).map(|_| ()),
        _ => std::fs::read(file).map(|read| bytes = read),
    };
    result.map_err(|error| Usage::file(file, &error))?;
    Ok(bytes)
}

pub fn read_events(file: &Path) -> anyhow::Result<Vec<Box<RawValue>>> {
    let text = String::from_utf8(read(file)?).map_err(|error| Usage::file(file, &error))?;
    let events = parse_events(&text)
        .map_err(|error| Usage::file(file, &format_args!("expected CloudEvents in JSON ({error})")))?;
    match events.is_empty() {
        true => Err(Usage::file(file, &"no events in it").into()),
        false => Ok(events),
    }
}

/// Reads JSON values one after another: events, batches, or one of them per line.
fn parse_events(text: &str) -> serde_json::Result<Vec<Box<RawValue>>> {
    let mut events = Vec::new();
    for value in serde_json::Deserializer::from_str(text).into_iter::<Box<RawValue>>() {
        let value = value?;
        if value.get().starts_with('[') {
            events.extend(serde_json::from_str::<Vec<Box<RawValue>>>(value.get())?);
        } else {
            events.push(value);
        }
    }
    Ok(events)
}

/// Groups events into requests of moderate size, without creating all of them first.
pub fn batches(
    events: impl Iterator<Item = anyhow::Result<Box<RawValue>>>,
) -> impl Iterator<Item = anyhow::Result<Vec<Box<RawValue>>>> {
    let mut events = events.peekable();
    std::iter::from_fn(move || {
        events.peek()?;
        let mut batch: Vec<Box<RawValue>> = Vec::new();
        let mut size = 0;
        while batch.len() < BATCH_EVENTS_MAX {
            let fits = |event: &anyhow::Result<Box<RawValue>>| {
                event.as_ref().map_or(true, |event| size + event.get().len() <= BATCH_BYTES_MAX)
            };
            let first = batch.is_empty();
            match events.next_if(|event| first || fits(event)) {
                Some(Ok(event)) => {
                    size += event.get().len();
                    batch.push(event);
                }
                Some(Err(error)) => return Some(Err(error)),
                None => break,
            }
        }
        Some(Ok(batch))
    })
}

/// A random UUID (version 4).
pub fn random_id() -> anyhow::Result<String> {
    let mut bytes = [0; 16];
    if let Err(error) = getrandom::fill(&mut bytes) {
        bail!("could not create a random id: {error}");
    }
    Ok(uuid(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::{Cli, Command, Event};
    use clap::Parser;
    use serde_json::{Value, json};

    fn made(line: &[&str]) -> Vec<Value> {
        let cli = Cli::try_parse_from(["klambda", "event", "send"].iter().chain(line)).expect("parsed");
        let Command::Event(Event::Send(args)) = cli.command else { panic!("not a send") };
        let events = from_flags(&args).expect("a template");
        events.map(|event| serde_json::from_str(event.expect("an event").get()).expect("JSON")).collect()
    }

    #[test]
    fn flags_become_attributes() {
        let events =
            made(&["--type", "t", "--id", "e", "--key", "k", "--sequence", "9", "--count", "2", "-a", "x=y"]);
        let event = |id: &str, sequence: &str| {
            json!({"specversion": "1.0", "type": "t", "source": "/klambda", "id": id, "partitionkey": "k",
                "sequence": sequence, "x": "y"})
        };
        assert_eq!(events, [event("e-1", "9"), event("e-2", "10")]);
    }

    #[test]
    fn what_no_event_can_have_is_a_wrong_flag() {
        let refused = |words: &[&str]| {
            let line = ["klambda", "event", "send", "--type", "t", "--key", "k"].iter().chain(words);
            let Command::Event(Event::Send(args)) = Cli::try_parse_from(line).expect("parsed").command else {
                panic!("not a send")
            };
            let error = from_flags(&args).err().expect("refused");
            assert_eq!(crate::exit::code(&error), 2);
            error.to_string()
        };
        let largest = SEQUENCE_MAX.to_string();
        assert!(refused(&["--sequence", &largest, "--count", "3"]).contains(&largest));
        assert!(refused(&["--sequence", &u64::MAX.to_string()]).contains(&largest));
        assert_eq!(refused(&["-a", "source=/mine"]), "-a source=/mine: use --source");
        assert_eq!(refused(&["-a", "x=y", "-a", "id=7"]), "-a id=7: use --id");
        assert_eq!(refused(&["-a", "partitionkey=p"]), "-a partitionkey=p: --key sets it already");
        for name in ["type", "specversion", "data", "data_base64", "datacontenttype"] {
            refused(&["-a", &format!("{name}=x")]);
        }
    }

    #[test]
    fn data_says_what_it_is() {
        let data = |data: &str, content_type: Option<&str>| {
            let mut event = Attributes::new();
            set_data(&mut event, data.as_bytes().to_vec(), content_type).map(|()| event)
        };
        let shown = |event: &Attributes| serde_json::to_string(event).expect("JSON");
        let huge = data(" {\"n\": 12345678901234567890123} ", None).expect("data");
        assert_eq!(
            shown(&huge),
            r#"{"data":{"n": 12345678901234567890123},"datacontenttype":"application/json"}"#
        );
        let text = data("hello", None).expect("data");
        assert_eq!(shown(&text), r#"{"data":"hello","datacontenttype":"text/plain"}"#);
        let xml = data("3", Some("application/xml")).expect("data");
        assert_eq!(shown(&xml), r#"{"data":"3","datacontenttype":"application/xml"}"#);
        assert!(data("hello", Some("application/vnd.x+json; charset=utf-8")).is_err());
        let mut binary = Attributes::new();
        set_data(&mut binary, vec![0xff, 0x00], None).expect("data");
        assert_eq!(shown(&binary), r#"{"data_base64":"/wA=","datacontenttype":"application/octet-stream"}"#);
    }

    #[test]
    fn files_hold_one_event_a_batch_or_lines() {
        let count = |text| parse_events(text).map(|events| events.len()).ok();
        assert_eq!(count(r#"{"id":"1"}"#), Some(1));
        assert_eq!(count(r#" [{"id":"1"}, {"id":"2"}] "#), Some(2));
        assert_eq!(count("{\"id\":\"1\"}\n\n{\"id\":\"2\"}\n{\"id\":\"3\"}\n"), Some(3));
        assert_eq!(count("{\"id\":"), None);
    }

    #[test]
    fn batches_respect_count_and_size() {
        let sizes = |size: usize, count: usize| -> Vec<usize> {
            let event = to_raw_value(&"x".repeat(size)).expect("JSON");
            batches((0..count).map(|_| Ok(event.clone()))).map(|batch| batch.expect("fine").len()).collect()
        };
        assert_eq!(sizes(10, 250), [100, 100, 50]);
        assert_eq!(sizes(200 * 1024, 5), [2, 2, 1]);
        assert_eq!(sizes(BATCH_BYTES_MAX * 2, 2), [1, 1]);
    }

    #[test]
    fn random_ids_are_uuids() {
        let id = random_id().expect("random");
        assert_eq!(id.len(), 36);
        assert_eq!(id.as_bytes()[14], b'4');
        assert!(matches!(id.as_bytes()[19], b'8' | b'9' | b'a' | b'b'), "{id}");
        assert_ne!(id, random_id().expect("random"));
    }
}
