//! `get`: resources as a list or by name.

mod print;
mod query;
mod watch;

use super::Context;
use crate::args::{Filter, Get};
use crate::kind::Kind;
use crate::resource::Resource;
use crate::route::Route;
use query::Query;
pub use query::filtered;
use serde_json::Value;

/// Resources of one type.
#[derive(Debug)]
struct Group {
    kind: Kind,
    items: Vec<Value>,
    /// The limit left some out.
    more: bool,
}

pub fn run(context: &mut Context, args: &Get) -> anyhow::Result<()> {
    if args.all_namespaces {
        context.client.look_everywhere();
    }
    let query = Query::new(args)?;
    match args.watch {
        true => watch::run(context, &query),
        false => show(context, &query),
    }
}

/// Lists a type, or shows the resources with these names.
pub fn simple(context: &mut Context, kind: Kind, names: &[String], limit: usize) -> anyhow::Result<()> {
    let named = names.iter().map(|name| Resource::of(kind, name)).collect();
    show(context, &Query::simple(kind, named, limit))
}

/// A list that no resource argument names.
pub fn list(context: &mut Context, kind: Kind, route: Route) -> anyhow::Result<()> {
    show(context, &Query::list(kind, route))
}

pub fn dead_letters(context: &mut Context, filter: &Filter, limit: usize) -> anyhow::Result<()> {
    show(context, &Query::dead_letters(filter, limit))
}

/// Prints the resources that exist, even if some are missing.
fn show(context: &mut Context, query: &Query) -> anyhow::Result<()> {
    let (groups, failure) = query.fetch(&context.client);
    if failure.is_none() || groups.iter().any(|group| !group.items.is_empty()) {
        print::print(context, groups, query)?;
    }
    failure.map_or(Ok(()), Err)
}
