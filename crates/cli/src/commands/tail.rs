//! `event tail`: prints events as the server accepts them. After a lost connection it continues at the same position.

use super::{Context, is_unreachable};
use crate::args::Tail;
use crate::client;
use crate::kind::{Kind, data_of, key_of};
use crate::output::{Format, cell, number, one_line, shorten, write_raw};
use crate::route::Route;
use crate::sse::Messages;
use serde_json::Value;
use std::io::BufReader;
use std::time::Duration;
use ureq::http::Method;

const RECONNECT: Duration = Duration::from_secs(1);
const DATA_CHARS_MAX: usize = 80;

pub fn run(context: &mut Context, args: &Tail) -> anyhow::Result<()> {
    let after = match args.after {
        Some(position) => position,
        None => number(&context.client.get(&Route::new(&["status"]))?, "/positions/last"),
    };
    let mut tail = Tailing { after, left: args.limit, pattern: args.event_type.as_deref() };
    let mut connected = false;
    let mut warned = false;
    print_header(context)?;
    loop {
        match tail.connect(context) {
            Ok(stream) => {
                (connected, warned) = (true, false);
                if tail.follow(context, stream)? {
                    return Ok(());
                }
            }
            Err(error) => {
                let error = error.into();
                if !connected || !is_unreachable(&error) {
                    return Err(error);
                }
            }
        }
        if !warned {
            eprintln!("connection lost after position {}; reconnecting", tail.after);
            warned = true;
        }
        std::thread::sleep(RECONNECT);
    }
}

struct Tailing<'a> {
    after: u64,
    left: Option<u64>,
    pattern: Option<&'a str>,
}

impl Tailing<'_> {
    fn connect(&self, context: &Context) -> Result<impl std::io::Read + use<>, client::Error> {
        let exact = self.pattern.filter(|pattern| !pattern.contains('*'));
        let route = Route::new(&["events"]).query("after", self.after).query_opt("type", exact);
        context.client.stream(Method::GET, &route, "text/event-stream")
    }

    /// Prints until the connection ends (false) or the limit is reached (true).
    fn follow(&mut self, context: &mut Context, stream: impl std::io::Read) -> anyhow::Result<bool> {
        for message in Messages::new(BufReader::new(stream)) {
            // Reconnects after any error of the stream.
            let Ok(message) = message else { return Ok(false) };
            let Ok(item) = serde_json::from_str::<Value>(&message.data) else { continue };
            let Some(position) = item["position"].as_u64() else { continue };
            self.after = self.after.max(position);
            if !self.wanted(&item) {
                continue;
            }
            print(context, &item)?;
            self.left = self.left.map(|left| left - 1);
            if self.left == Some(0) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn wanted(&self, item: &Value) -> bool {
        let event_type = item["event"]["type"].as_str().unwrap_or_default();
        self.pattern.is_none_or(|pattern| matches(pattern, event_type))
    }
}

/// Column widths are fixed, because each line is printed before the next event is known. Long values shift the rest.
fn print_header(context: &mut Context) -> anyhow::Result<()> {
    if matches!(context.format, Format::Table | Format::Wide) {
        line(context, &["POSITION", "TYPE", "SOURCE", "ID", "KEY", "DATA"].map(str::to_owned))?;
    }
    Ok(())
}

fn print(context: &mut Context, item: &Value) -> anyhow::Result<()> {
    let event = &item["event"];
    match context.format {
        Format::Json => writeln!(context.out, "{item}")?,
        Format::Yaml => write!(context.out, "---\n{}", serde_saphyr::to_string(item)?)?,
        Format::Name => writeln!(context.out, "{}", Kind::Event.name_of(item))?,
        Format::Extract(_) => drop(write_raw(context.out, context.format, item)?),
        Format::Table | Format::Wide => {
            let data = data_of(event);
            let wide = context.format == Format::Wide;
            let data = if wide { data } else { shorten(&data, DATA_CHARS_MAX) };
            let cells = ["/type", "/source", "/id"].map(|at| cell(event, at));
            let [event_type, source, id] = cells;
            line(context, &[cell(item, "/position"), event_type, source, id, key_of(event), data])?;
        }
    }
    context.out.flush()?;
    Ok(())
}

fn line(context: &mut Context, cells: &[String; 6]) -> anyhow::Result<()> {
    let [position, event_type, source, id, key, data] = cells.each_ref().map(|cell| one_line(cell));
    writeln!(context.out, "{position:<10} {event_type:<24} {source:<16} {id:<36} {key:<16} {data}")?;
    context.out.flush()?;
    Ok(())
}

/// Whether a type matches a pattern. A star matches any text.
fn matches(pattern: &str, event_type: &str) -> bool {
    let mut parts = pattern.split('*');
    let Some(mut rest) = event_type.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::matches;

    #[test]
    fn a_star_matches_any_text() {
        for (pattern, event_type, fits) in [
            ("order.*", "order.paid", true),
            ("order.*", "orders", false),
            ("*", "", true),
            ("*.paid", "order.paid", true),
            ("a*b*c", "a-b-b-c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("exact", "exact", true),
            ("exact", "exactly", false),
        ] {
            assert_eq!(matches(pattern, event_type), fits, "{pattern} {event_type}");
        }
    }
}
