//! `namespace create|get|delete`: where everything lives.

use super::{Context, delete, for_each, get};
use crate::args::{CreateNamespace, Namespace};
use crate::client::{Error, Problem};
use crate::kind::Kind;
use crate::output::{Format, write_raw};
use crate::route::Route;
use anyhow::{Context as _, bail};
use serde_json::{Map, Value, json};

pub fn run(context: &mut Context, action: &Namespace) -> anyhow::Result<()> {
    match action {
        Namespace::Create(args) => create(context, args),
        Namespace::Get { name } => get(context, name),
        Namespace::Delete { name } => for_each(name, |name| {
            delete::delete(context, "namespace", name, &Route::new(&["namespaces", name]), |_| "deleted")
        }),
    }
}

pub fn get(context: &mut Context, names: &[String]) -> anyhow::Result<()> {
    match names.is_empty() {
        true => get::list(context, Kind::Namespace, &Route::new(&["namespaces"]), "cursor", 0),
        false => get::named(context, Kind::Namespace, names, |name| Route::new(&["namespaces", name])),
    }
}

fn create(context: &mut Context, args: &CreateNamespace) -> anyhow::Result<()> {
    let title = format!("namespace/{}", args.name);
    let route = Route::new(&["namespaces", &args.name]);
    let is_there = match context.client.get(&route) {
        Ok(_) => true,
        Err(Error::Problem(Problem { status: 404, .. })) => false,
        Err(error) => return Err(error).context(title),
    };
    if is_there && !args.replace {
        bail!("{title} is there already; --replace changes its limits");
    }
    let limits = json!({"limits": limits(args)});
    let body = json!({"metadata": {"name": args.name}, "spec": limits});
    let answer = context.client.put(&route, &body).with_context(|| title.clone())?;
    if write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    match context.format {
        Format::Name => writeln!(context.out, "{title}")?,
        _ => writeln!(context.out, "{title} {}", if is_there { "configured" } else { "created" })?,
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
