//! `logs`: what a function writes, line by line. Followed, a lost connection is taken up again where it broke.

use super::function::Place;
use super::{Context, is_unreachable};
use crate::args::Logs;
use crate::output::{Format, number, text};
use crate::sse::Messages;
use anyhow::Context as _;
use serde_json::Value;
use std::io::BufReader;
use std::time::Duration;
use ureq::http::Method;

const RECONNECT: Duration = Duration::from_secs(1);

pub fn run(context: &mut Context, args: &Logs) -> anyhow::Result<()> {
    let place = Place::of(&args.name, &args.namespace.namespace);
    let route = place.route(&[&args.name.name, "logs"]);
    let title = || place.title(&args.name.name);
    let first = context.client.get(&route.clone().query_opt("tail", args.tail)).with_context(title)?;
    let mut after = None;
    for line in first["items"].as_array().into_iter().flatten() {
        after = Some(number(line, "/number"));
        print(context, line)?;
    }
    while args.follow {
        let route = route.clone().query_opt("after", after);
        match context.client.stream(Method::GET, &route, "text/event-stream") {
            Ok(stream) => after = follow(context, stream, after)?,
            Err(error) => {
                let error = anyhow::Error::from(error);
                if !is_unreachable(&error) {
                    return Err(error.context(title()));
                }
            }
        }
        std::thread::sleep(RECONNECT);
    }
    Ok(())
}

/// Prints until the connection ends; hands back the number of the last line seen.
fn follow(
    context: &mut Context,
    stream: impl std::io::Read,
    mut after: Option<u64>,
) -> anyhow::Result<Option<u64>> {
    for message in Messages::new(BufReader::new(stream)) {
        // A stream that breaks is taken up again, whatever broke it.
        let Ok(message) = message else { break };
        let Ok(line) = serde_json::from_str::<Value>(&message.data) else { continue };
        after = Some(number(&line, "/number"));
        print(context, &line)?;
    }
    Ok(after)
}

/// As it was written; with -o json and yaml, with what is known of it.
fn print(context: &mut Context, line: &Value) -> anyhow::Result<()> {
    match context.format {
        Format::Json => writeln!(context.out, "{line}")?,
        Format::Yaml => write!(context.out, "---\n{}", serde_saphyr::to_string(line)?)?,
        Format::Table | Format::Wide | Format::Name => {
            let said = text(line, "/text").unwrap_or_default();
            writeln!(context.out, "{}", crate::output::one_line(&said))?;
        }
    }
    context.out.flush()?;
    Ok(())
}
