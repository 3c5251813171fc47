//! `subscription get|pause|resume`.

use super::{Context, for_each, get};
use crate::args::Subscription;
use crate::kind::Kind;
use crate::output::write_raw;
use crate::resource::Resource;
use anyhow::Context as _;

pub fn run(context: &mut Context, action: &Subscription) -> anyhow::Result<()> {
    let (names, verb, done) = match action {
        Subscription::Get { name, all_namespaces, limit } => {
            if *all_namespaces {
                context.client.look_everywhere();
            }
            return get::simple(context, Kind::Subscription, name, limit.limit);
        }
        Subscription::Pause { name } => (name, "pause", "paused"),
        Subscription::Resume { name } => (name, "resume", "resumed"),
    };
    for_each(names, |name| {
        let resource = Resource::of(Kind::Subscription, name);
        let route = resource.route().below(verb);
        let answer = context.client.post(&route, None).with_context(|| resource.to_string())?;
        if !write_raw(context.out, context.format, &answer.body)? {
            writeln!(context.out, "{resource} {done}")?;
        }
        Ok(())
    })
}
