//! `get --watch`: rows as they change. The server has no stream of changes, so the lists are read every second.

use super::Group;
use super::print::shown;
use super::query::Query;
use crate::bench::interrupt;
use crate::commands::{Context, is_unreachable};
use crate::kind::Kind;
use crate::output::{Format, write_raw};
use crate::resource::Resource;
use crate::time;
use serde_json::Value;
use std::collections::BTreeMap;
use std::time::Duration;

const POLL: Duration = Duration::from_secs(1);

/// Returns without an error when interrupted.
pub fn run(context: &mut Context, query: &Query) -> anyhow::Result<()> {
    interrupt::listen()?;
    let mut watch = Watch { types: query.kinds().count() > 1, ..Watch::default() };
    let mut is_lost = false;
    loop {
        match query.fetch(&context.client) {
            (groups, None) => {
                is_lost = false;
                watch.update(context, groups)?;
            }
            (_, Some(error)) if watch.is_started && is_unreachable(&error) => {
                if !std::mem::replace(&mut is_lost, true) {
                    eprintln!("connection lost; retrying");
                }
            }
            (_, Some(error)) => return Err(error),
        }
        if interrupt::sleep(POLL).is_err() {
            return Ok(());
        }
    }
}

/// Type, namespace and name.
type Key = (Kind, String, String);

#[derive(Default)]
struct Watch {
    /// The last printed state of each resource.
    seen: BTreeMap<Key, Vec<String>>,
    widths: BTreeMap<Kind, Vec<usize>>,
    /// The type of the last printed row: another type needs its header again.
    last: Option<Kind>,
    types: bool,
    is_started: bool,
}

impl Watch {
    fn update(&mut self, context: &mut Context, groups: Vec<Group>) -> anyhow::Result<()> {
        let mut seen = BTreeMap::new();
        for Group { kind, items, .. } in groups {
            let changed: Vec<Value> =
                items.into_iter().filter(|item| self.is_new(context, &mut seen, kind, item)).collect();
            self.print(context, kind, &changed)?;
        }
        self.report_deleted(&seen);
        (self.seen, self.is_started) = (seen, true);
        context.out.flush()?;
        Ok(())
    }

    fn is_new(
        &self,
        context: &Context,
        seen: &mut BTreeMap<Key, Vec<String>>,
        kind: Kind,
        item: &Value,
    ) -> bool {
        let namespace = item.pointer("/metadata/namespace").or_else(|| item.get("namespace"));
        let namespace = namespace.and_then(Value::as_str).unwrap_or_default().to_owned();
        let key = (kind, namespace, kind.bare_name_of(item));
        let looks = match context.format.is_for_people() {
            true => kind.fingerprint(item),
            false => vec![item.to_string()],
        };
        let is_new = self.seen.get(&key) != Some(&looks);
        seen.insert(key, looks);
        is_new
    }

    fn print(&mut self, context: &mut Context, kind: Kind, items: &[Value]) -> anyhow::Result<()> {
        if items.is_empty() {
            return Ok(());
        }
        if context.format.is_for_people() {
            let mut shown = shown(context, 1);
            shown.types = self.types;
            let header = self.last.replace(kind) != Some(kind);
            let widths = self.widths.entry(kind).or_default();
            kind.table(items, shown, time::now()).write_more(context.out, widths, header)?;
            return Ok(());
        }
        items.iter().try_for_each(|item| one(context, kind, item))
    }

    fn report_deleted(&self, seen: &BTreeMap<Key, Vec<String>>) {
        for (kind, _, name) in self.seen.keys().filter(|key| !seen.contains_key(*key)) {
            // Idle lanes leave the list.
            let end = if *kind == Kind::Lane { "is idle" } else { "deleted" };
            eprintln!("{} {end}", Resource::new(*kind, name));
        }
    }
}

/// JSON one document per line, YAML with document markers.
fn one(context: &mut Context, kind: Kind, item: &Value) -> anyhow::Result<()> {
    match context.format {
        Format::Json => writeln!(context.out, "{item}")?,
        Format::Yaml => write!(context.out, "---\n{}", serde_saphyr::to_string(item)?)?,
        Format::Name => writeln!(context.out, "{}", kind.name_of(item))?,
        _ => drop(write_raw(context.out, context.format, item)?),
    }
    Ok(())
}
