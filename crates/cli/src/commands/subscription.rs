//! `subscription pause|resume`.

use super::{Context, for_each};
use crate::args::Subscription;
use crate::output::write_raw;
use crate::route::Route;
use anyhow::Context as _;

pub fn run(context: &mut Context, action: &Subscription) -> anyhow::Result<()> {
    let (names, verb, done) = match action {
        Subscription::Pause { name } => (name, "pause", "paused"),
        Subscription::Resume { name } => (name, "resume", "resumed"),
    };
    for_each(names, |name| {
        // `subscription/orders`, as `-o name` prints it. No name has a slash in it.
        let name = name.strip_prefix("subscription/").unwrap_or(name);
        let route = Route::new(&["subscriptions", name, verb]);
        let answer = context.client.post(&route, None).with_context(|| format!("subscription/{name}"))?;
        if !write_raw(context.out, context.format, &answer.body)? {
            writeln!(context.out, "subscription/{name} {done}")?;
        }
        Ok(())
    })
}
