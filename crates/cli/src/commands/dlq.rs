//! `dlq list|show|replay|purge`: dead letters. `edit` is in `letter_edit`, `export` and `import` are in `letters`.

use super::{Context, describe, get, is_unreachable, letter_edit, letters};
use crate::args::{Describe, Dlq, Purge, Replay, Selector};
use crate::confirm::confirm;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::{Format, Sheet, counted, number, text, write_raw};
use crate::progress;
use crate::route::Route;
use anyhow::{Context as _, bail};
use indicatif::ProgressBar;
use klambda_core::namespace;
use serde_json::{Map, Value, json};
use std::time::{Duration, Instant};

const POLL: Duration = Duration::from_millis(250);

pub fn run(context: &mut Context, action: &Dlq) -> anyhow::Result<()> {
    match action {
        Dlq::List(args) if !args.id.is_empty() => get::simple(context, Kind::DeadLetter, &args.id, 0),
        Dlq::List(args) => get::dead_letters(context, &args.filter, args.limit.limit),
        Dlq::Show { id } => describe::run(context, &Describe::of(Kind::DeadLetter, id)),
        Dlq::Edit(args) => letter_edit::run(context, args),
        Dlq::Replay(args) => replay(context, args),
        Dlq::Purge(args) => purge(context, args),
        Dlq::Export(args) => letters::export(context, args),
        Dlq::Import(args) => letters::import(context, args),
    }
}

fn replay(context: &mut Context, args: &Replay) -> anyhow::Result<()> {
    must_be_there(context, &args.selector.ids)?;
    let request = replay_request(args)?;
    run_replay(context, &request, args.wait)
}

pub fn run_replay(context: &mut Context, request: &Value, waits: bool) -> anyhow::Result<()> {
    let job = context.client.post(&Route::new(&["dlq", "replays"]), Some(request))?.body;
    let id = text(&job, "/id").unwrap_or_default();
    finish(context, job, &Route::new(&["dlq", "replays", &id]), waits)
}

/// Prints a new job at this route, or waits for it first. A job that did not succeed is an error.
pub fn finish(context: &mut Context, mut job: Value, route: &Route, waits: bool) -> anyhow::Result<()> {
    let is_dry = job["dryRun"] == true;
    if waits && !is_dry && is_running(&job) {
        job = wait(context, job, route)?;
    }
    print(context, &job)?;
    if is_dry || is_running(&job) {
        return Ok(());
    }
    let (id, failed) = (text(&job, "/id").unwrap_or_default(), number(&job, "/failed"));
    match text(&job, "/state").as_deref() {
        Some("succeeded") if failed == 0 => Ok(()),
        Some("stopped") => bail!("replay {id} was stopped"),
        _ if failed > 0 => bail!("replay {id}: {failed} failed again"),
        _ => bail!("replay {id} failed"),
    }
}

/// A wrong id is an error, not an empty selection. Checks all ids before anything changes.
fn must_be_there(context: &Context, ids: &[String]) -> anyhow::Result<()> {
    for id in ids {
        let found = context.client.get(&Route::new(&["dlq", id]));
        found.with_context(|| format!("deadletter/{id}"))?;
    }
    Ok(())
}

fn replay_request(args: &Replay) -> anyhow::Result<Value> {
    let mut request = Map::new();
    request.insert("selector".to_owned(), selector(&args.selector)?);
    request.insert("dryRun".to_owned(), args.dry_run.into());
    if let Some(rate) = args.rate {
        request.insert("ratePerSecond".to_owned(), rate.into());
    }
    if let Some(parallelism) = args.parallelism {
        request.insert("parallelism".to_owned(), parallelism.into());
    }
    Ok(Value::Object(request))
}

/// An empty selector is an error. Only --all selects every dead letter.
fn selector(selector: &Selector) -> anyhow::Result<Value> {
    let filter = &selector.filter;
    let named = [
        ("subscription", filter.subscription.as_ref()),
        ("key", filter.key.as_ref()),
        ("type", filter.event_type.as_ref()),
        ("reason", filter.reason.as_ref()),
        ("since", filter.since.as_ref().map(|moment| &moment.0)),
        ("until", filter.until.as_ref().map(|moment| &moment.0)),
    ];
    let given = named.into_iter().filter_map(|(name, value)| Some((name.to_owned(), json!(value?))));
    let mut fields: Map<String, Value> = given.collect();
    if !selector.ids.is_empty() {
        fields.insert("ids".to_owned(), json!(selector.ids));
    }
    if selector.all {
        fields.insert("all".to_owned(), true.into());
    }
    if fields.is_empty() {
        let options = "--subscription, --key, --type, --reason, --since, --until or --id";
        return Err(Usage(format!("select dead letters with {options}, or use --all")).into());
    }
    Ok(Value::Object(fields))
}

fn is_running(job: &Value) -> bool {
    job["state"] == "running"
}

/// Polls the job until it ends. A replay survives a restart of the server, so a lost connection is no failure yet.
fn wait(context: &Context, mut job: Value, route: &Route) -> anyhow::Result<Value> {
    let Some(id) = text(&job, "/id") else { bail!("the server answered without a job") };
    let progress = progress::counting(&format!("replay {id}"), 0);
    let mut seen = Instant::now();
    while is_running(&job) {
        show(&progress, &job);
        std::thread::sleep(POLL);
        match context.client.get(route) {
            Ok(now) => {
                job = now;
                seen = Instant::now();
            }
            Err(error) => {
                let error = anyhow::Error::from(error);
                if !is_unreachable(&error) || seen.elapsed() > context.client.timeout() {
                    return Err(error.context(format!(
                        "replay {id} continues on the server; to see it: klambda get replay {id}{}",
                        namespace::flag(context.client.namespace())
                    )));
                }
            }
        }
    }
    Ok(job)
}

fn show(progress: &ProgressBar, job: &Value) {
    let (failed, skipped) = (number(job, "/failed"), number(job, "/skipped"));
    progress.set_length(number(job, "/selected"));
    progress.set_position(number(job, "/replayed") + failed + skipped);
    if failed + skipped > 0 {
        progress.set_message(format!("{failed} failed, {skipped} skipped"));
    }
}

fn print(context: &mut Context, job: &Value) -> anyhow::Result<()> {
    if write_raw(context.out, context.format, job)? {
        return Ok(());
    }
    if context.format == Format::Name {
        writeln!(context.out, "replay/{}", text(job, "/id").unwrap_or_default())?;
        return Ok(());
    }
    if job["dryRun"] == true {
        return print_dry_run(context, job);
    }
    report(job).write(context.out)?;
    Ok(())
}

fn print_dry_run(context: &mut Context, job: &Value) -> anyhow::Result<()> {
    let selected = number(job, "/selected");
    writeln!(context.out, "dry run: {} would be replayed", chosen(job))?;
    let listed = job["items"].as_array().map_or(&[][..], Vec::as_slice);
    for item in listed {
        // An item is an id or a dead letter.
        let id = item.as_str().map(str::to_owned).or_else(|| text(item, "/id"));
        writeln!(context.out, "  {}", crate::output::one_line(&id.unwrap_or_else(|| item.to_string())))?;
    }
    let unlisted = selected.saturating_sub(listed.len() as u64);
    if unlisted > 0 && !listed.is_empty() {
        writeln!(context.out, "  and {unlisted} more")?;
    }
    Ok(())
}

/// The report of a replay. `describe replay` prints it too.
pub fn report(job: &Value) -> Sheet {
    let mut sheet = Sheet::default();
    sheet.line("Replay", text(job, "/id").unwrap_or_default());
    sheet.line("State", text(job, "/state").unwrap_or_default());
    sheet.line("Selected", selected(job));
    sheet.line("Replayed", number(job, "/replayed"));
    sheet.line("Failed", number(job, "/failed"));
    sheet.line("Skipped", skipped(job));
    if number(job, "/waiting") > 0 {
        sheet.line(
            "Waiting",
            format!("{} behind dead letters that block their lanes", number(job, "/waiting")),
        );
    }
    sheet.line("Order violations", number(job, "/orderViolations"));
    sheet.line("Duplicates", number(job, "/duplicates"));
    sheet
}

/// A new job selects while it runs, so the count grows.
fn selected(job: &Value) -> String {
    match (is_running(job), number(job, "/selected")) {
        (true, 0) => "not known yet".to_owned(),
        (true, _) => format!("{} so far", chosen(job)),
        (false, _) => chosen(job),
    }
}

fn chosen(job: &Value) -> String {
    let (letters, keys) = (number(job, "/selected"), number(job, "/keys"));
    format!("{} of {}", counted(letters, "dead letter"), counted(keys, "key"))
}

fn skipped(job: &Value) -> String {
    let count = number(job, "/skipped");
    let reasons = job["skippedReasons"].as_object().into_iter().flatten();
    let explained = |reason: &str| match reason {
        "invalid" => ": no key in an ordered subscription",
        "noSubscription" => ": the subscription no longer exists",
        _ => "",
    };
    let reasons: Vec<String> =
        reasons.map(|(reason, count)| format!("{count} {reason}{}", explained(reason))).collect();
    match reasons.is_empty() {
        true => count.to_string(),
        false => format!("{count} ({})", reasons.join(", ")),
    }
}

fn purge(context: &mut Context, args: &Purge) -> anyhow::Result<()> {
    let selector = selector(&args.selector)?;
    let action = match args.selector.all {
        true => "purge every dead letter".to_owned(),
        false => format!("purge the dead letters with {}", in_words(&selector)),
    };
    must_be_there(context, &args.selector.ids)?;
    confirm(&action, args.yes)?;
    let mut request = json!({"selector": selector});
    if args.holders {
        request["holders"] = true.into();
    }
    let answer = context.client.post(&Route::new(&["dlq", "purge"]), Some(&request))?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    writeln!(context.out, "{} purged", counted(number(&answer.body, "/purged"), "dead letter"))?;
    let kept = number(&answer.body, "/kept");
    if kept > 0 {
        context.out.flush()?;
        let (they_block, them) =
            if kept == 1 { ("it blocks its lane", "it") } else { ("they block their lanes", "them") };
        eprintln!("{kept} kept: {they_block}; use --holders to purge {them} too");
    }
    Ok(())
}

/// `subscription orders, key order-42`.
fn in_words(selector: &Value) -> String {
    let word = |value: &Value| match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(" "),
        other => other.to_string(),
    };
    let members = selector.as_object().into_iter().flatten();
    let words: Vec<String> =
        members.map(|(name, value)| format!("{} {}", name.trim_end_matches('s'), word(value))).collect();
    crate::output::one_line(&words.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_still_grows_is_no_result() {
        let job = |state: &str, letters: u64| json!({"state": state, "selected": letters, "keys": 1});
        assert_eq!(selected(&job("running", 0)), "not known yet");
        assert_eq!(selected(&job("running", 2)), "2 dead letters of 1 key so far");
        assert_eq!(selected(&job("succeeded", 1)), "1 dead letter of 1 key");
    }

    #[test]
    fn the_question_names_the_selection() {
        let selector = json!({"subscription": "orders", "key": "a\nb"});
        assert_eq!(in_words(&selector), "key a\\nb, subscription orders");
        assert_eq!(in_words(&json!({"ids": ["a.1", "b.2"]})), "id a.1 b.2");
    }
}
