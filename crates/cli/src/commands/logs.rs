//! `logs`: what a function writes, line by line. Followed, a lost connection is taken up again where it broke.

use super::function::with_place;
use super::{Context, is_unreachable};
use crate::args::Logs;
use crate::client::{Error, Problem};
use crate::output::{Format, number, one_line, text, write_raw};
use crate::route::Route;
use crate::sse::Messages;
use klambda_core::time::Millis;
use serde_json::Value;
use std::io::BufReader;
use std::time::Duration;
use ureq::http::Method;

const RECONNECT: Duration = Duration::from_secs(1);
/// How much of what was written meanwhile is asked for after a break.
const TAIL_AGAIN: u64 = 1_000;

pub fn run(context: &mut Context, args: &Logs) -> anyhow::Result<()> {
    let reference = args.name.reference()?;
    with_place(context, &reference, |context, place| {
        let route = place.route(&[&reference.name, "logs"]);
        if args.follow {
            return follow(context, &route, args.tail);
        }
        let found = context.client.get(&route.query_opt("tail", args.tail))?;
        found["items"].as_array().into_iter().flatten().try_for_each(|line| print(context, line))
    })
}

/// Until the function is gone, which is the end only if it was there.
pub fn follow(context: &mut Context, route: &Route, tail: Option<u64>) -> anyhow::Result<()> {
    let mut last = Last::default();
    let (mut connected, mut tail) = (false, tail);
    loop {
        let asked = route.clone().query_opt("tail", tail);
        match context.client.stream(Method::GET, &asked, "text/event-stream") {
            Ok(stream) => {
                (connected, tail) = (true, Some(TAIL_AGAIN));
                print_all(context, stream, &mut last)?;
            }
            Err(Error::Problem(Problem { status: 404, .. })) if connected => return Ok(()),
            // Nothing of it has been started yet.
            Err(Error::Problem(Problem { status: 503, .. })) => {}
            Err(error) => {
                let error = error.into();
                if !connected || !is_unreachable(&error) {
                    return Err(error);
                }
            }
        }
        std::thread::sleep(RECONNECT);
    }
}

/// The last line that was printed. Numbers begin again when the server does, times go on.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Last {
    time: Millis,
    number: u64,
}

/// Prints what is new until the connection ends.
fn print_all(context: &mut Context, stream: impl std::io::Read, last: &mut Last) -> anyhow::Result<()> {
    // Lines come in order: after the first that is new, all are.
    let mut is_new = false;
    for message in Messages::new(BufReader::new(stream)) {
        // A stream that breaks is taken up again, whatever broke it.
        let Ok(message) = message else { break };
        let Ok(line) = serde_json::from_str::<Value>(&message.data) else { continue };
        let time = text(&line, "/time").and_then(|time| Millis::parse_rfc3339(&time)).unwrap_or_default();
        let this = Last { time, number: number(&line, "/number") };
        if !is_new && this <= *last {
            continue;
        }
        (is_new, *last) = (true, this);
        print(context, &line)?;
    }
    Ok(())
}

/// As it was written; with -o json and yaml, with what is known of it.
fn print(context: &mut Context, line: &Value) -> anyhow::Result<()> {
    match context.format {
        Format::Json => writeln!(context.out, "{line}")?,
        Format::Yaml => write!(context.out, "---\n{}", serde_saphyr::to_string(line)?)?,
        Format::Extract(_) => drop(write_raw(context.out, context.format, line)?),
        Format::Table | Format::Wide | Format::Name => {
            writeln!(context.out, "{}", one_line(&text(line, "/text").unwrap_or_default()))?;
        }
    }
    context.out.flush()?;
    Ok(())
}
