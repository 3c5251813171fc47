//! `wait`: comes back when a function or agent is what it should be, or when it will not become that by itself.

use super::function::Place;
use super::{Context, for_each};
use crate::args::{Goal, Wait, WaitFor};
use crate::client::Error;
use crate::function::{Progress, condition, is_current, phase, progress};
use crate::kind::Kind;
use crate::output::cell;
use crate::time::span;
use anyhow::{Context as _, bail};
use serde_json::Value;
use std::time::{Duration, Instant};

const POLL_MIN: Duration = Duration::from_millis(20);
const POLL_MAX: Duration = Duration::from_millis(500);

pub fn run(context: &mut Context, what: &Wait) -> anyhow::Result<()> {
    let (kind, args) = match what {
        Wait::Function(args) => (Kind::Function, args),
        Wait::Agent(args) => (Kind::Agent, args),
    };
    all(context, kind, args)
}

fn all(context: &mut Context, kind: Kind, args: &WaitFor) -> anyhow::Result<()> {
    let namespace = context.client.namespace().to_owned();
    let place = Place::new(kind, &namespace);
    let deadline = Instant::now() + context.client.timeout();
    for_each(&args.names.name, |name| {
        until(context, place, name, &args.goal, deadline)?;
        writeln!(context.out, "{} {}", place.title(name), met(&args.goal))?;
        context.out.flush()?;
        Ok(())
    })
}

/// Asks again and again, less and less often, until the goal is met, cannot be met any more, or time is up.
pub fn until(
    context: &Context,
    place: Place,
    name: &str,
    goal: &Goal,
    deadline: Instant,
) -> anyhow::Result<()> {
    let started = Instant::now();
    let mut pause = POLL_MIN;
    loop {
        let item = look(context, place, name, goal)?;
        if is_met(goal, item.as_ref()).with_context(|| place.title(name))? {
            return Ok(());
        }
        if Instant::now() + pause > deadline {
            let waited = span(started.elapsed().as_millis().try_into().unwrap_or(u64::MAX));
            let now = item.map_or_else(|| "not there".to_owned(), |item| cell(&item, "/status/phase"));
            bail!(
                "{}: not {} after {waited}, it is {now}; --timeout waits longer",
                place.title(name),
                met(goal)
            );
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(POLL_MAX);
    }
}

/// None if it is gone, where that is what is waited for.
fn look(context: &Context, place: Place, name: &str, goal: &Goal) -> anyhow::Result<Option<Value>> {
    match context.client.get(&place.route(&[name])) {
        Ok(item) => Ok(Some(item)),
        Err(Error::Problem(problem)) if problem.status == 404 && *goal == Goal::Deleted => Ok(None),
        Err(error) => Err(anyhow::Error::from(error).context(place.title(name))),
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

/// What it is when the goal is met.
fn met(goal: &Goal) -> String {
    match goal {
        Goal::Ready => "ready".to_owned(),
        Goal::Deleted => "deleted".to_owned(),
        Goal::Phase(phase) => phase.clone(),
        Goal::Condition(name) => format!("{name}=True"),
    }
}
