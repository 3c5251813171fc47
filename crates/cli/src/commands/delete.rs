//! `delete`: removes what has a name. Stopping a replay is deleting it.

use super::{Context, for_each};
use crate::args::Delete;
use crate::client::Answer;
use crate::output::write_raw;
use crate::route::Route;
use anyhow::Context as _;

pub fn run(context: &mut Context, what: &Delete) -> anyhow::Result<()> {
    match what {
        Delete::Subscription { name, drain, discard } => for_each(name, |name| {
            let route = Route::new(&["subscriptions", name])
                .query_opt("drain", drain.then_some(true))
                .query_opt("discard", discard.then_some(true));
            // 202: what waits is delivered first, and the subscription is gone after that.
            let done = |answer: &Answer| if answer.status == 202 { "draining" } else { "deleted" };
            delete(context, "subscription", name, &route, done)
                .map_err(|error| advise(error, *drain || *discard))
        }),
        Delete::Deadletter { id } => {
            for_each(id, |id| delete(context, "deadletter", id, &Route::new(&["dlq", id]), |_| "deleted"))
        }
        Delete::Replay { id } => for_each(id, |id| {
            delete(context, "replay", id, &Route::new(&["dlq", "replays", id]), |_| "stopped")
        }),
    }
}

fn delete(
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

/// With events waiting the server wants to know what becomes of them; the flags are how to say it.
fn advise(error: anyhow::Error, said: bool) -> anyhow::Error {
    if said || crate::exit::code(&error) != 5 {
        return error;
    }
    error.context("--drain delivers what waits first, --discard throws it away")
}
