//! `delete`: removes what has a name. Stopping a replay is deleting it.

use super::function::Place;
use super::{Context, for_each, wait};
use crate::args::{Delete, DeleteFunction, Goal};
use crate::client::Answer;
use crate::kind::Kind;
use crate::output::write_raw;
use crate::route::Route;
use anyhow::Context as _;
use std::time::{Duration, Instant};

/// How long the server lets a function finish what waits for it.
const DRAIN: Duration = Duration::from_secs(30);

pub fn run(context: &mut Context, what: &Delete) -> anyhow::Result<()> {
    match what {
        Delete::Function(args) => functions(context, Kind::Function, args),
        Delete::Agent(args) => functions(context, Kind::Agent, args),
        Delete::Subscription { name, drain, discard } => for_each(name, |name| {
            let route = Route::new(&["subscriptions", name])
                .query_opt("drain", drain.then_some(true))
                .query_opt("discard", discard.then_some(true));
            // 202: what waits is delivered first, and the subscription is gone after that.
            let done = |answer: &Answer| if answer.status == 202 { "draining" } else { "deleted" };
            delete(context, "subscription", name, &route, done)
        }),
        Delete::Deadletter { id } => {
            for_each(id, |id| delete(context, "deadletter", id, &Route::new(&["dlq", id]), |_| "deleted"))
        }
        Delete::Replay { id } => {
            for_each(id, |id| delete(context, "replay", id, &Route::new(&["dlq", "replays", id]), stopped))
        }
    }
}

/// What has ended stays as it is.
fn stopped(answer: &Answer) -> &'static str {
    match answer.body["state"].as_str() {
        Some("succeeded" | "failed") => "had ended already",
        _ => "stopped",
    }
}

fn functions(context: &mut Context, kind: Kind, args: &DeleteFunction) -> anyhow::Result<()> {
    let namespace = context.client.namespace().to_owned();
    let place = Place::new(kind, &namespace);
    for_each(&args.names.name, |name| {
        let route = place.route(&[name]);
        if !args.wait {
            return delete(context, kind.word(), name, &route, |_| "is being deleted");
        }
        context.client.delete(&route).with_context(|| place.title(name))?;
        let deadline = Instant::now() + DRAIN + context.client.timeout();
        wait::until(context, place, name, &Goal::Deleted, deadline)?;
        writeln!(context.out, "{} deleted", place.title(name))?;
        Ok(())
    })
}

pub fn delete(
    context: &mut Context,
    kind: &str,
    name: &str,
    route: &Route,
    done: impl Fn(&Answer) -> &'static str,
) -> anyhow::Result<()> {
    let answer = context.client.delete(route).with_context(|| format!("{kind}/{name}"))?;
    if !answer.body.is_null() && write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    writeln!(context.out, "{kind}/{name} {}", done(&answer))?;
    Ok(())
}
