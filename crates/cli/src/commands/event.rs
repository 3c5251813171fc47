//! `event send`: CloudEvents from flags or from a file. `event show`: what happened to an event.

use super::compose::{batches, from_flags, read_events};
use super::{Context, describe};
use crate::args::{Describe, Send};
use crate::bench::interrupt;
use crate::client::{Answer, Error};
use crate::kind::Kind;
use crate::output::{Format, cell, counted, one_line, write_raw};
use crate::progress;
use crate::route::Route;
use anyhow::bail;
use serde_json::Value;
use serde_json::value::RawValue;

/// Up to this number every event gets a line. Above it, only rejected events do, and not more than this.
const LINES_MAX: u64 = 20;
/// Fewer events are sent before anybody could read a progress bar.
const PROGRESS_MIN: u64 = 1_000;

type Events<'a> = &'a mut dyn Iterator<Item = anyhow::Result<Box<RawValue>>>;

pub fn send(context: &mut Context, args: &Send) -> anyhow::Result<()> {
    let (mut tally, sent);
    match &args.filename {
        Some(file) => {
            let events = read_events(file)?;
            tally = Tally::new(context.format, events.len() as u64);
            sent = post_all(context, &mut tally, &mut events.into_iter().map(Ok));
        }
        None => {
            tally = Tally::new(context.format, args.count);
            sent = post_all(context, &mut tally, &mut from_flags(args)?);
        }
    }
    // The server keeps the events that it accepted before a request failed, so the user must see them.
    let reported = if tally.count() == 0 { Ok(()) } else { tally.report(context, false) };
    sent.and(reported)
}

pub fn show(context: &mut Context, id: &str, source: Option<&str>) -> anyhow::Result<()> {
    let mut what = Describe::of(Kind::Event, &[id.to_owned()]);
    what.source = source.map(str::to_owned);
    describe::run(context, &what)
}

/// The results of many events. Keeps only those that are printed: a million results need too much memory.
pub struct Tally {
    total: u64,
    keeps_all: bool,
    pub accepted: u64,
    pub skipped: u64,
    pub rejected: u64,
    kept: Vec<Value>,
}

impl Tally {
    pub fn new(format: Format, total: u64) -> Tally {
        let for_people = matches!(format, Format::Table | Format::Wide);
        let keeps_all = !for_people || total <= LINES_MAX;
        Tally { total, keeps_all, accepted: 0, skipped: 0, rejected: 0, kept: Vec::new() }
    }

    fn count(&self) -> u64 {
        self.accepted + self.skipped + self.rejected
    }

    fn add(&mut self, result: Value) {
        match result["status"].as_str() {
            Some("accepted") => self.accepted += 1,
            Some("skipped") => self.skipped += 1,
            _ => self.rejected += 1,
        }
        if self.keeps_all || (is_rejected(&result) && self.rejected <= LINES_MAX) {
            self.kept.push(result);
        }
    }

    /// `always_sums`: the last line has the sums, however few events there are.
    pub fn report(self, context: &mut Context, always_sums: bool) -> anyhow::Result<()> {
        let (count, rejected) = (self.count(), self.rejected);
        self.print(context, always_sums)?;
        match rejected {
            0 => Ok(()),
            _ if count == 1 => bail!("the event was rejected"),
            _ => bail!("{rejected} of {} rejected", counted(count, "event")),
        }
    }

    fn print(self, context: &mut Context, always_sums: bool) -> anyhow::Result<()> {
        let Tally { total, accepted, skipped, rejected, .. } = self;
        let kept = Value::Array(self.kept);
        if write_raw(context.out, context.format, &kept)? {
            return Ok(());
        }
        let names_only = context.format == Format::Name;
        for result in kept.as_array().into_iter().flatten() {
            match (names_only, is_rejected(result)) {
                (true, false) => writeln!(context.out, "{}", one_line(&name_of(result)))?,
                // A script reads the names of events that exist.
                (true, true) => eprintln!("{}", one_line(&describe_result(result))),
                (false, _) => writeln!(context.out, "{}", one_line(&describe_result(result)))?,
            }
        }
        if names_only {
            return Ok(());
        }
        if !self.keeps_all && rejected > LINES_MAX {
            writeln!(context.out, "and {} more rejected", rejected - LINES_MAX)?;
        }
        if always_sums || total > LINES_MAX {
            writeln!(context.out, "{accepted} accepted, {skipped} skipped, {rejected} rejected")?;
        }
        Ok(())
    }
}

/// Sends events in batches. `tally` has the results, also those before an error.
pub fn post_all(context: &Context, tally: &mut Tally, events: Events) -> anyhow::Result<()> {
    let bar = (tally.total >= PROGRESS_MIN).then(|| progress::counting("events", tally.total));
    if bar.is_some() {
        // After Ctrl-C the sums tell how many events the server has.
        interrupt::listen()?;
    }
    for batch in batches(events) {
        interrupt::check()?;
        let results = post(context, &batch?)?;
        if let Some(bar) = &bar {
            bar.inc(results.len() as u64);
        }
        results.into_iter().for_each(|result| tally.add(result));
    }
    Ok(())
}

fn post(context: &Context, batch: &[Box<RawValue>]) -> anyhow::Result<Vec<Value>> {
    let route = Route::new(&["events"]);
    let answer = match batch {
        [event] => context.client.post_as(&route, event.get().to_owned(), "application/cloudevents+json"),
        _ => {
            let body = serde_json::to_string(batch)?;
            context.client.post_as(&route, body, "application/cloudevents-batch+json")
        }
    };
    let body = match answer {
        Ok(Answer { body, .. }) => body,
        // The server rejected every event, and lists a result for each.
        Err(Error::Problem(problem)) if problem.body["results"].is_array() => problem.body,
        Err(error) => return Err(error.into()),
    };
    match body {
        Value::Object(mut fields) => match fields.remove("results") {
            Some(Value::Array(results)) => Ok(results),
            _ => bail!("the server answered without results"),
        },
        _ => bail!("the server answered without results"),
    }
}

fn describe_result(result: &Value) -> String {
    let name = name_of(result);
    match result["status"].as_str() {
        Some("accepted") => format!("{name} accepted at position {}", cell(result, "/position")),
        Some("skipped") => format!("{name} skipped: {}", cell(result, "/reason")),
        _ => {
            let problem = crate::client::Problem { status: 0, body: result["problem"].clone() };
            format!("{name} rejected: {}", problem.to_string().replace("\n  ", "; "))
        }
    }
}

fn is_rejected(result: &Value) -> bool {
    !matches!(result["status"].as_str(), Some("accepted" | "skipped"))
}

fn name_of(result: &Value) -> String {
    format!("event/{}", cell(result, "/id"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn many_results_are_counted_and_only_rejected_ones_are_kept() {
        let mut tally = Tally::new(Format::Table, 1_000);
        for n in 0..1_000 {
            let status = ["accepted", "skipped", "rejected", "accepted"][n % 4];
            tally.add(json!({"id": n, "status": status}));
        }
        assert_eq!((tally.accepted, tally.skipped, tally.rejected), (500, 250, 250));
        assert_eq!(tally.kept.len(), LINES_MAX as usize);
        let mut tally = Tally::new(Format::Json, 1_000);
        (0..1_000).for_each(|n| tally.add(json!({"id": n, "status": "accepted"})));
        assert_eq!(tally.kept.len(), 1_000, "a script wants every result");
    }
}
