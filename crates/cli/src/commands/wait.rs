//! `wait`: returns when a function or agent is ready, or when it cannot become ready.

use super::{Context, for_each};
use crate::args::{Goal, Wait};
use crate::client::Error;
use crate::exit::Usage;
use crate::function::{Progress, condition, is_current, phase, progress};
use crate::output::cell;
use crate::progress::waiting;
use crate::resource::{self, Resource};
use crate::route::Route;
use crate::time::span;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(500);

pub fn run(context: &mut Context, args: &Wait) -> anyhow::Result<()> {
    let named = resource::named(&args.resources)?;
    let other = named.iter().find(|one| !one.kind.runs_code());
    if let Some(other) = other.filter(|_| args.goal != Goal::Deleted) {
        let fault =
            format!("{other}: wait works with functions and agents; for other types, use --for=Deleted");
        return Err(Usage(fault).into());
    }
    let deadline = Instant::now() + context.client.timeout();
    for_each(&named, |one| {
        until(context, &one.route(), one, &args.goal, deadline)?;
        writeln!(context.out, "{one} {}", met(&args.goal))?;
        context.out.flush()?;
        Ok(())
    })
}

/// Polls, less and less often, until the goal is met, cannot be met, or time is up.
pub fn until(
    context: &Context,
    route: &Route,
    resource: &Resource,
    goal: &Goal,
    deadline: Instant,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut pause = POLL_MIN;
    let bar = waiting();
    loop {
        let item = look(context, route, goal).with_context(|| resource.to_string())?;
        let now = item.as_ref().map_or_else(|| "-".to_owned(), |item| cell(item, "/status/phase"));
        bar.set_message(format!("{resource}: {now}, waiting until it is {}", met(goal)));
        if is_met(goal, item.as_ref()).with_context(|| resource.to_string())? {
            return Ok(());
        }
        if Instant::now() + pause > deadline {
            let waited = deadline.saturating_duration_since(started);
            // The deadline was set a moment before.
            let waited = span(u64::try_from(waited.as_millis()).unwrap_or(u64::MAX).saturating_add(500));
            let now = item.map_or_else(|| "gone".to_owned(), |item| cell(&item, "/status/phase"));
            bail!(
                "{resource}: timed out after {waited}: not {}, but {now}; use --timeout to wait longer",
                met(goal)
            );
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// `None` when waiting for deletion and the resource no longer exists.
fn look(context: &Context, route: &Route, goal: &Goal) -> anyhow::Result<Option<Value>> {
    match context.client.get(route) {
        Ok(item) => Ok(Some(item)),
        Err(Error::Problem(problem)) if problem.status == 404 && *goal == Goal::Deleted => Ok(None),
        Err(error) => Err(error.into()),
    }
}

fn is_met(goal: &Goal, item: Option<&Value>) -> anyhow::Result<bool> {
    let Some(item) = item else { return Ok(true) };
    match goal {
        Goal::Ready => match progress(item) {
            Progress::Done => Ok(true),
            Progress::Underway => Ok(false),
            Progress::Failed(why) => bail!("{why}"),
        },
        Goal::Deleted => Ok(false),
        Goal::Phase(wanted) => Ok(phase(item) == Some(wanted) && is_current(item)),
        Goal::Condition(name) => match condition(item, name).filter(|_| is_current(item)) {
            Some(found) if found["status"] == "True" => Ok(true),
            Some(found) if found["status"] == "False" => {
                bail!("{} ({})", cell(found, "/message"), cell(found, "/reason"))
            }
            _ => Ok(false),
        },
    }
}

/// The state that the goal names.
fn met(goal: &Goal) -> String {
    match goal {
        Goal::Ready => "ready".to_owned(),
        Goal::Deleted => "deleted".to_owned(),
        Goal::Phase(phase) => phase.clone(),
        Goal::Condition(name) => format!("{name}=True"),
    }
}
