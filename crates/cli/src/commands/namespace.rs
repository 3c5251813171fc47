//! `namespace create|get|delete`.

use super::{Context, delete, for_each, get};
use crate::args::{CreateNamespace, Namespace};
use crate::client::{Error, Problem};
use crate::confirm::confirm;
use crate::exit::Conflict;
use crate::kind::Kind;
use crate::output::{Format, write_raw};
use crate::resource::Resource;
use crate::route::Route;
use anyhow::Context as _;
use serde_json::{Map, Value, json};

pub fn run(context: &mut Context, action: &Namespace) -> anyhow::Result<()> {
    match action {
        Namespace::Create(args) => create(context, args),
        Namespace::Get { name } => get::simple(context, Kind::Namespace, name, 0),
        Namespace::Delete { name, yes } => {
            confirm(&format!("delete namespace {}", name.join(", ")), *yes)?;
            for_each(name, |name| {
                let namespace = Resource::of(Kind::Namespace, name);
                delete::delete(context, &namespace, &namespace.route(), |_| "deleted")
            })
        }
    }
}

fn create(context: &mut Context, args: &CreateNamespace) -> anyhow::Result<()> {
    let title = format!("namespace/{}", args.name);
    let route = Route::new(&["namespaces", &args.name]);
    let exists = match context.client.get(&route) {
        Ok(_) => true,
        Err(Error::Problem(Problem { status: 404, .. })) => false,
        Err(error) => return Err(error).context(title),
    };
    if exists && !args.replace {
        return Err(Conflict(format!("{title} already exists; use --replace to change its limits")).into());
    }
    let spec = json!({"limits": limits(args), "schemaCheck": args.schema_check});
    let body = json!({"metadata": {"name": args.name}, "spec": spec});
    let answer = context.client.put(&route, &body).with_context(|| title.clone())?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    match context.format {
        Format::Name => writeln!(context.out, "{title}")?,
        _ => writeln!(context.out, "{title} {}", if exists { "configured" } else { "created" })?,
    }
    Ok(())
}

fn limits(args: &CreateNamespace) -> Map<String, Value> {
    let given = [
        ("eventsPerSecond", args.events_per_second),
        ("backlog", args.backlog),
        ("subscriptions", args.subscriptions),
        ("functions", args.functions),
    ];
    given.into_iter().filter_map(|(name, limit)| Some((name.to_owned(), limit?.into()))).collect()
}
