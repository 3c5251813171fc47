//! `get`: what there is, as a list or by name.

use super::function::Place;
use super::{Context, for_each, namespace};
use crate::args::{Filter, Get, GetDeadLetter, GetEvent, GetFunction, GetLane, GetWhat};
use crate::client::Page;
use crate::kind::{Kind, Shown};
use crate::output::{Format, write_raw};
use crate::route::Route;
use crate::time;
use serde_json::Value;

pub fn run(context: &mut Context, args: &GetWhat) -> anyhow::Result<()> {
    if args.all_namespaces {
        context.client.look_everywhere();
    }
    match &args.what {
        Get::Function(args) => functions(context, Kind::Function, args),
        Get::Agent(args) => functions(context, Kind::Agent, args),
        Get::Subscription { name } if name.is_empty() => {
            list(context, Kind::Subscription, &Route::new(&["subscriptions"]), "cursor", 0)
        }
        Get::Subscription { name } => {
            named(context, Kind::Subscription, name, |name| Route::new(&["subscriptions", name]))
        }
        Get::Lane(args) => lanes(context, args),
        Get::Deadletter(args) => dead_letters(context, args),
        Get::Replay { id } if id.is_empty() => {
            list(context, Kind::Replay, &Route::new(&["dlq", "replays"]), "cursor", 0)
        }
        Get::Replay { id } => named(context, Kind::Replay, id, |id| Route::new(&["dlq", "replays", id])),
        Get::Event(args) => events(context, args),
        Get::Namespace { name } => namespace::get(context, name),
        Get::Audit(args) => list(context, Kind::Audit, &Route::new(&["audit"]), "cursor", args.limit),
    }
}

fn functions(context: &mut Context, kind: Kind, args: &GetFunction) -> anyhow::Result<()> {
    let namespace = context.client.namespace().to_owned();
    let place = Place::new(kind, &namespace);
    if !args.name.is_empty() {
        return named(context, kind, &args.name, |name| place.route(&[name]));
    }
    list(context, kind, &place.route(&[]), "cursor", args.limit.limit)
}

fn lanes(context: &mut Context, args: &GetLane) -> anyhow::Result<()> {
    let subscription = args.subscription.as_ref().or(args.of.as_ref());
    if let (Some(subscription), Some(key)) = (subscription, &args.key) {
        return named(context, Kind::Lane, std::slice::from_ref(key), |key| Route::lane(subscription, key));
    }
    let route = Route::new(&["lanes"])
        .query_opt("subscription", subscription)
        .query_opt("state", args.state.as_ref())
        .query_opt("sort", args.sort.as_ref());
    list(context, Kind::Lane, &route, "cursor", args.limit.limit)
}

fn dead_letters(context: &mut Context, args: &GetDeadLetter) -> anyhow::Result<()> {
    if args.id.is_empty() {
        let route = filtered(Route::new(&["dlq"]), &args.filter);
        return list(context, Kind::DeadLetter, &route, "cursor", args.limit.limit);
    }
    named(context, Kind::DeadLetter, &args.id, |id| Route::new(&["dlq", id]))
}

fn filtered(route: Route, filter: &Filter) -> Route {
    route
        .query_opt("subscription", filter.subscription.as_ref())
        .query_opt("key", filter.key.as_ref())
        .query_opt("type", filter.event_type.as_ref())
        .query_opt("reason", filter.reason.as_ref())
        .query_opt("since", filter.since.as_ref().map(|moment| &moment.0))
        .query_opt("until", filter.until.as_ref().map(|moment| &moment.0))
}

fn events(context: &mut Context, args: &GetEvent) -> anyhow::Result<()> {
    if !args.id.is_empty() {
        let route = |id: &str| Route::new(&["events", id]).query_opt("source", args.source.as_ref());
        return named(context, Kind::Event, &args.id, route);
    }
    let route = Route::new(&["events"]).query_opt("type", args.event_type.as_ref());
    // Positions are the cursors here, so the start is simply the first cursor.
    let page = context.client.list_from(&route, "after", args.after, args.limit.limit)?;
    print_page(context, Kind::Event, page)
}

pub fn list(
    context: &mut Context,
    kind: Kind,
    route: &Route,
    cursor: &str,
    limit: usize,
) -> anyhow::Result<()> {
    let page = context.client.list_from(route, cursor, None::<&str>, limit)?;
    print_page(context, kind, page)
}

fn print_page(context: &mut Context, kind: Kind, page: Page) -> anyhow::Result<()> {
    let for_people = matches!(context.format, Format::Table | Format::Wide);
    if for_people && page.items.is_empty() {
        eprintln!("no {}s found", kind.word());
        return Ok(());
    }
    let is_everywhere = context.client.looks_everywhere();
    print(context, kind, &Value::Array(page.items), is_everywhere)?;
    if page.more {
        context.out.flush()?;
        eprintln!("there are more; --limit 0 lists all");
    }
    Ok(())
}

/// Fetches each by name; what is found is printed even if something is missing.
pub fn named(
    context: &mut Context,
    kind: Kind,
    names: &[String],
    route: impl Fn(&str) -> Route,
) -> anyhow::Result<()> {
    let mut found = Vec::new();
    let result = for_each(names, |name| {
        found.push(context.client.get(&route(name))?);
        Ok(())
    });
    match (names.len(), found.pop()) {
        (_, None) => {}
        (1, Some(only)) => print(context, kind, &only, false)?,
        (_, Some(last)) => {
            found.push(last);
            print(context, kind, &Value::Array(found), false)?;
        }
    }
    result
}

fn print(context: &mut Context, kind: Kind, value: &Value, namespaces: bool) -> anyhow::Result<()> {
    if write_raw(context.out, context.format, value)? {
        return Ok(());
    }
    let items = value.as_array().map_or(std::slice::from_ref(value), Vec::as_slice);
    if context.format == Format::Name {
        for item in items {
            writeln!(context.out, "{}", crate::output::one_line(&kind.name_of(item)))?;
        }
        return Ok(());
    }
    let shown = Shown { wide: context.format == Format::Wide, namespaces };
    kind.table(items, shown, time::now()).write(context.out, "")?;
    Ok(())
}
