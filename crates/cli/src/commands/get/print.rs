//! Prints what `get` found.

use super::Group;
use super::query::Query;
use crate::commands::Context;
use crate::kind::{Kind, Shown};
use crate::output::{Format, list_of, write_raw};
use crate::time;
use serde_json::Value;

pub fn print(context: &mut Context, groups: Vec<Group>, query: &Query) -> anyhow::Result<()> {
    let more = groups.iter().any(|group| group.more);
    match context.format {
        Format::Table | Format::Wide => tables(context, &groups, query.is_sorted())?,
        Format::Name => names(context, &groups)?,
        _ => raw(context, groups, query.is_single())?,
    }
    if more {
        context.out.flush()?;
        eprintln!("there are more; use --limit 0 to list all");
    }
    Ok(())
}

fn raw(context: &mut Context, groups: Vec<Group>, is_single: bool) -> anyhow::Result<()> {
    let mut items: Vec<Value> = groups.into_iter().flat_map(|group| group.items).collect();
    let value = match items.pop() {
        Some(only) if is_single => only,
        last => {
            items.extend(last);
            list_of(items)
        }
    };
    write_raw(context.out, context.format, &value)?;
    Ok(())
}

fn names(context: &mut Context, groups: &[Group]) -> anyhow::Result<()> {
    for group in groups {
        for item in &group.items {
            writeln!(context.out, "{}", group.kind.name_of(item))?;
        }
    }
    Ok(())
}

/// One table for each type, with the type in front of the names if there are several.
fn tables(context: &mut Context, groups: &[Group], is_sorted: bool) -> anyhow::Result<()> {
    let mut filled = groups.iter().filter(|group| !group.items.is_empty()).peekable();
    if filled.peek().is_none() {
        nothing(context, groups, is_sorted);
    }
    let shown = shown(context, groups.len());
    while let Some(group) = filled.next() {
        group.kind.table(&group.items, shown, time::now()).write(context.out, "")?;
        if filled.peek().is_some() {
            writeln!(context.out)?;
        }
    }
    Ok(())
}

/// `is_sorted`: the server sorted the lanes. It sorts only those with pending events.
fn nothing(context: &Context, groups: &[Group], is_sorted: bool) {
    let (what, is_inside) = match groups {
        [only] if only.kind == Kind::Lane && is_sorted => ("lanes with pending events", true),
        [only] => (only.kind.plural_in_words(), !matches!(only.kind, Kind::Namespace | Kind::Token)),
        _ => ("resources", true),
    };
    let idle = if is_sorted { "; without --sort, idle lanes are listed too" } else { "" };
    match is_inside && !context.client.looks_everywhere() {
        true => eprintln!("no {what} found in namespace {}{idle}", context.client.namespace()),
        false => eprintln!("no {what} found{idle}"),
    }
}

pub fn shown(context: &Context, kinds: usize) -> Shown {
    let namespaces = context.client.looks_everywhere();
    Shown { wide: context.format == Format::Wide, namespaces, types: kinds > 1 }
}
