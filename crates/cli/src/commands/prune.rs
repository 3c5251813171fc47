//! `apply --prune`: deletes functions and agents that were applied earlier and are not in the files any more.
//! Only functions and agents record that they were applied.

use super::manifest::Manifest;
use super::{Context, for_each};
use crate::args::Apply;
use crate::client::Error;
use crate::confirm::confirm;
use crate::kind::Kind;
use crate::resource::Resource;
use crate::route::Route;
use anyhow::Context as _;
use klambda_functions::write::LAST_APPLIED;
use serde_json::Value;
use std::collections::BTreeSet;

/// A resource to prune, and its address.
pub type Stale = (Resource, Route);

/// What the command prunes, after the question.
pub fn confirmed(context: &Context, args: &Apply, manifests: &[Manifest]) -> anyhow::Result<Vec<Stale>> {
    let stale = stale(context, args, manifests)?;
    if !stale.is_empty() && !args.is_dry_run() {
        let names: Vec<String> = stale.iter().map(|(resource, _)| resource.to_string()).collect();
        confirm(&format!("prune {}", names.join(", ")), args.yes)?;
    }
    Ok(stale)
}

pub fn run(context: &mut Context, args: &Apply, stale: &[Stale]) -> anyhow::Result<()> {
    for_each(stale, |(resource, route)| {
        let suffix = if args.is_dry_run() { " (dry run)" } else { "" };
        if !args.is_dry_run() {
            context.client.delete(route).with_context(|| resource.to_string())?;
        }
        if context.format.is_for_people() {
            writeln!(context.out, "{resource} pruned{suffix}")?;
        }
        Ok(())
    })
}

/// In the namespaces of the files only.
fn stale(context: &Context, args: &Apply, manifests: &[Manifest]) -> anyhow::Result<Vec<Stale>> {
    let inside = manifests.iter().filter(|manifest| manifest.kind != Kind::Namespace);
    let namespaces: BTreeSet<&str> = inside.map(|manifest| manifest.namespace.as_str()).collect();
    let mut stale = Vec::new();
    for namespace in namespaces {
        for kind in [Kind::Function, Kind::Agent] {
            let route = kind.route().within(namespace);
            let list = match context.client.list_from(&route, "cursor", None::<&str>, 0) {
                // The files create the namespace.
                Err(Error::Problem(problem)) if problem.status == 404 => continue,
                found => found?,
            };
            let gone = list.items.iter().filter(|item| is_stale(args, manifests, namespace, kind, item));
            let named = gone.map(|item| Resource::new(kind, &kind.bare_name_of(item)));
            stale.extend(named.map(|one| {
                let route = one.route().within(namespace);
                (one, route)
            }));
        }
    }
    Ok(stale)
}

fn is_stale(args: &Apply, manifests: &[Manifest], namespace: &str, kind: Kind, item: &Value) -> bool {
    let metadata = &item["metadata"];
    let is_applied = metadata["annotations"][LAST_APPLIED].is_string();
    let is_going = metadata["deletionTimestamp"].is_string();
    let is_chosen = args.prune.selector.as_ref().is_none_or(|labels| labels.takes(&metadata["labels"]));
    let is_in_files = manifests.iter().any(|manifest| {
        manifest.kind == kind && manifest.namespace == namespace && metadata["name"] == manifest.name.as_str()
    });
    is_applied && !is_going && is_chosen && !is_in_files
}
