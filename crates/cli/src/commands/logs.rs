//! `logs`: the output of functions and their builds. Lines of several functions are merged by time. With `--follow`, a
//! lost connection is opened again and continues after the last line.

use super::function::{Place, with_place};
use super::{Context, exit, is_unreachable};
use crate::args::{Logs, Reference, Runs};
use crate::client::{Client, Error, Problem};
use crate::exit::Usage;
use crate::kind::Kind;
use crate::labels::Selector;
use crate::output::{Format, number, one_line, text, write_raw};
use crate::route::Route;
use crate::sse::Messages;
use klambda_core::time::Millis;
use serde_json::Value;
use std::io::{BufReader, Read};
use std::sync::mpsc::{self, Sender};
use std::time::Duration;
use ureq::http::Method;

const RECONNECT: Duration = Duration::from_secs(1);
/// Each needs a connection.
const FUNCTIONS_MAX: usize = 50;

pub fn run(context: &mut Context, args: &Logs) -> anyhow::Result<()> {
    let references = match &args.selector {
        Some(selector) => labelled(context, selector)?,
        None => args.references(),
    };
    if references.len() > FUNCTIONS_MAX {
        let message =
            format!("logs: {} functions are selected, at most {FUNCTIONS_MAX} can be", references.len());
        return Err(Usage(message).into());
    }
    let is_alone = references.len() == 1;
    let mut sources = Vec::new();
    for reference in &references {
        sources
            .push(with_place(context, reference, |context, place| source(context, place, reference, args))?);
    }
    let mut output = Output { context, is_alone };
    merge(&mut output, &mut sources)?;
    if args.follow {
        return follow(&mut output, sources, args);
    }
    if sources.iter().all(|source| source.last.is_none()) {
        eprintln!("no log lines found");
    }
    Ok(())
}

/// The functions and agents with these labels.
fn labelled(context: &Context, selector: &Selector) -> anyhow::Result<Vec<Reference>> {
    let mut found = Vec::new();
    for (kind, runs) in [(Kind::Function, Runs::Function), (Kind::Agent, Runs::Agent)] {
        let route = Place::new(kind, context.client.namespace()).route(&[]);
        let items = context.client.list_from(&route, "cursor", None::<String>, 0)?.items;
        let items = items.iter().filter(|item| selector.takes(&item["metadata"]["labels"]));
        let names = items.filter_map(|item| text(item, "/metadata/name"));
        found.extend(names.map(|name| Reference { kind: Some(runs), name }));
    }
    match found.is_empty() {
        true => Err(Usage("logs: no function or agent has these labels".to_owned()).into()),
        false => Ok(found),
    }
}

/// The log of one function.
struct Source {
    title: String,
    route: Route,
    /// The earlier lines.
    lines: Option<Lines>,
    last: Option<Last>,
}

/// The last line that was printed. After a restart of the server, numbers begin again, but times do not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
struct Last {
    time: Millis,
    number: u64,
}

impl Last {
    fn of(line: &Value) -> Last {
        let time = text(line, "/time").and_then(|time| Millis::parse_rfc3339(&time)).unwrap_or_default();
        Last { time, number: number(line, "/number") }
    }
}

fn source(context: &Context, place: Place, reference: &Reference, args: &Logs) -> anyhow::Result<Source> {
    let route = place.route(&[&reference.name, "logs"]);
    let selected = selection(&route, args, None).query("follow", false);
    let lines = Lines::open(&context.client, &selected)?;
    Ok(Source { title: place.title(&reference.name), route, lines: Some(lines), last: None })
}

/// The lines that are asked for, or those after the last one.
fn selection(route: &Route, args: &Logs, last: Option<Last>) -> Route {
    let since = last.map(|last| last.time.rfc3339()).or(args.since.clone());
    let tail = args.tail.filter(|_| last.is_none());
    let flag = |is_set: bool| is_set.then_some(true);
    let route = route.clone().query_opt("tail", tail).query_opt("since", since);
    let route = route.query_opt("build", flag(args.build)).query_opt("previous", flag(args.previous));
    route.query_opt("generation", args.generation).query_opt("eventId", args.event.as_ref())
}

/// The lines of a stream as they come.
struct Lines {
    messages: Messages<BufReader<Box<dyn Read + Send>>>,
    /// The line that is read but not taken.
    next: Option<Value>,
}

impl Lines {
    fn open(client: &Client, route: &Route) -> Result<Lines, Error> {
        let stream = client.stream(Method::GET, route, "text/event-stream")?;
        Ok(Lines { messages: Messages::new(BufReader::new(Box::new(stream))), next: None })
    }

    /// A stream that breaks ends.
    fn peek(&mut self) -> Option<&Value> {
        while self.next.is_none() {
            let message = self.messages.next()?.ok()?;
            self.next = serde_json::from_str(&message.data).ok();
        }
        self.next.as_ref()
    }
}

impl Iterator for Lines {
    type Item = Value;

    fn next(&mut self) -> Option<Value> {
        self.peek()?;
        self.next.take()
    }
}

/// Prints the earlier lines of all functions, oldest first.
fn merge(output: &mut Output, sources: &mut [Source]) -> anyhow::Result<()> {
    loop {
        let first = |source: &mut Source| source.lines.as_mut().and_then(Lines::peek).map(Last::of);
        let firsts =
            sources.iter_mut().enumerate().filter_map(|(index, source)| Some((first(source)?.time, index)));
        let Some((_, index)) = firsts.min() else { return Ok(()) };
        let source = &mut sources[index];
        if let Some(line) = source.lines.as_mut().and_then(Iterator::next) {
            source.last = Some(Last::of(&line));
            output.print(&source.title, line)?;
        }
    }
}

/// A new line with the title of its function, or the error that ended the stream.
type Received = (String, anyhow::Result<Value>);

/// Prints the lines of one function until it is gone.
pub fn follow_one_at(context: &mut Context, route: Route) -> anyhow::Result<()> {
    let source = Source { title: String::new(), route, lines: None, last: None };
    follow(&mut Output { context, is_alone: true }, vec![source], &Logs::following())
}

/// Until all functions are gone.
fn follow(output: &mut Output, sources: Vec<Source>, args: &Logs) -> anyhow::Result<()> {
    let (lines, received) = mpsc::channel::<Received>();
    for source in sources {
        let (client, args, lines) = (output.context.client.clone(), args.clone(), lines.clone());
        // Ends with the program, at the latest.
        std::thread::spawn(move || {
            let title = source.title.clone();
            if let Err(error) = follow_one(&client, source, &args, &lines) {
                let _ = lines.send((title, Err(error)));
            }
        });
    }
    drop(lines);
    let mut failed = None;
    for (title, line) in received {
        match line {
            Ok(line) => output.print(&title, line)?,
            Err(error) => {
                if let Some(earlier) = failed.replace(error.context(title)) {
                    exit::print(&earlier);
                }
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

/// Until the function is gone.
fn follow_one(
    client: &Client,
    source: Source,
    args: &Logs,
    received: &Sender<Received>,
) -> anyhow::Result<()> {
    let Source { title, route, mut last, .. } = source;
    loop {
        let selected = selection(&route, args, last).query("follow", true);
        match Lines::open(client, &selected) {
            Ok(lines) => {
                // Lines come in order: after the first that is new, all are.
                let known = last;
                for line in lines.skip_while(|line| known.is_some_and(|known| Last::of(line) <= known)) {
                    last = Some(Last::of(&line));
                    if received.send((title.clone(), Ok(line))).is_err() {
                        return Ok(());
                    }
                }
            }
            Err(Error::Problem(Problem { status: 404, .. })) => return Ok(()),
            // Functions are not started yet.
            Err(Error::Problem(Problem { status: 503, .. })) => {}
            Err(error) => {
                let error = error.into();
                if !is_unreachable(&error) {
                    return Err(error);
                }
            }
        }
        std::thread::sleep(RECONNECT);
    }
}

struct Output<'a, 'b> {
    context: &'a mut Context<'b>,
    /// Lines of several functions name their function.
    is_alone: bool,
}

impl Output<'_, '_> {
    /// Prints the text of a line, or with -o json and yaml all of its members.
    fn print(&mut self, title: &str, mut line: Value) -> anyhow::Result<()> {
        let Output { context, is_alone } = self;
        if !*is_alone && let Some(fields) = line.as_object_mut() {
            fields.insert("resource".to_owned(), title.into());
        }
        match context.format {
            Format::Json => writeln!(context.out, "{line}")?,
            Format::Yaml => write!(context.out, "---\n{}", serde_saphyr::to_string(&line)?)?,
            Format::Extract(_) => drop(write_raw(context.out, context.format, &line)?),
            Format::Table | Format::Wide | Format::Name => {
                let prefix = if *is_alone { String::new() } else { format!("[{title}] ") };
                let text = text(&line, "/text").unwrap_or_default();
                writeln!(context.out, "{prefix}{}", one_line(&text))?;
            }
        }
        context.out.flush()?;
        Ok(())
    }
}
