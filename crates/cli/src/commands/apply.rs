//! `apply`: creates and updates resources from files.

use super::manifest::{self, Manifest};
use super::{Context, for_each, prune, wait, webhook};
use crate::args::{Apply, Goal};
use crate::client::Error;
use crate::confirm::confirm;
use crate::kind::Kind;
use crate::output::{Format, one_line, write_raw};
use crate::route::Route;
use anyhow::Context as _;
use serde_json::{Value, json};
use std::time::Instant;

pub fn run(context: &mut Context, args: &Apply) -> anyhow::Result<()> {
    let manifests = manifest::read(&args.files.filename, context.namespace.as_deref())?;
    if args.discard && !args.is_dry_run() {
        confirm("drop pending events of subscriptions whose ordering changes", args.yes)?;
    }
    // Asks first: a refusal must not leave the files applied and the rest not pruned.
    let stale = match args.prune.prune {
        true => prune::confirmed(context, args, &manifests)?,
        false => Vec::new(),
    };
    for_each(&manifests, |manifest| {
        apply(context, manifest, args).with_context(|| manifest.resource().to_string())
    })?;
    prune::run(context, args, &stale)?;
    if args.wait {
        wait_for(context, &manifests)?;
    }
    Ok(())
}

fn wait_for(context: &mut Context, manifests: &[Manifest]) -> anyhow::Result<()> {
    context.out.flush()?;
    let deadline = Instant::now() + context.client.timeout();
    for_each(manifests.iter().filter(|manifest| manifest.kind.runs_code()), |manifest| {
        let resource = manifest.resource();
        wait::until(context, &manifest.route(), &resource, &Goal::Ready, deadline)?;
        if context.format.is_for_people() {
            writeln!(context.out, "{resource} ready")?;
            context.out.flush()?;
        }
        Ok(())
    })
}

fn apply(context: &mut Context, manifest: &Manifest, args: &Apply) -> anyhow::Result<()> {
    let (answer, done) = match (args.is_dry_run(), manifest.kind) {
        (true, _) => try_out(context, manifest, args.discard)?,
        (false, Kind::Function | Kind::Agent) => apply_function(context, manifest)?,
        (false, _) => apply_document(context, manifest, args.discard)?,
    };
    if write_raw(context.out, context.format, &answer)? {
        return Ok(());
    }
    let result = write_done(context, manifest, args, done);
    if manifest.kind == Kind::Webhook && context.format != Format::Name {
        webhook::print_once(context, &answer)?;
    }
    result
}

fn write_done(context: &mut Context, manifest: &Manifest, args: &Apply, done: &str) -> anyhow::Result<()> {
    let suffix = if args.is_dry_run() { " (dry run)" } else { "" };
    match context.format {
        Format::Name => writeln!(context.out, "{}", manifest.resource())?,
        _ => writeln!(context.out, "{} {done}{suffix}", manifest.resource())?,
    }
    Ok(())
}

/// The document as it would be after the change, and what kind of change it is.
fn try_out(context: &Context, manifest: &Manifest, discard: bool) -> anyhow::Result<(Value, &'static str)> {
    let mut answer = dry_run(context, manifest, discard)?;
    let done = change(&answer);
    Ok((answer["document"].take(), done))
}

/// The server checks the document and changes nothing.
pub fn dry_run(context: &Context, manifest: &Manifest, discard: bool) -> anyhow::Result<Value> {
    let route = manifest.route().query("dryRun", true);
    let route = route.query_opt("apply", manifest.kind.runs_code().then_some(true));
    let route = route.query_opt("discard", (discard && manifest.kind.has_backlog()).then_some(true));
    match context.client.put(&route, &manifest.document) {
        Ok(answer) => Ok(answer.body),
        Err(Error::Problem(problem)) if problem.status == 404 && manifest.has_own_namespace => {
            eprintln!("{}: not validated, because its namespace does not exist yet", manifest.resource());
            Ok(json!({ "change": "created", "document": manifest.document }))
        }
        Err(error) => Err(error.into()),
    }
}

/// The server merges the document with the last applied one and the live one.
fn apply_function(context: &Context, manifest: &Manifest) -> anyhow::Result<(Value, &'static str)> {
    let answer = context.client.put(&manifest.route().query("apply", true), &manifest.document)?;
    let done = change(&answer.body);
    Ok((answer.body, done))
}

pub fn change(answer: &Value) -> &'static str {
    match answer["change"].as_str() {
        Some("created") => "created",
        Some("unchanged") => "unchanged",
        _ => "configured",
    }
}

/// A subscription, a webhook endpoint, an event type or a namespace.
fn apply_document(
    context: &Context,
    manifest: &Manifest,
    discard: bool,
) -> anyhow::Result<(Value, &'static str)> {
    // The server compares values that it does not show, such as headers.
    let done = change(&dry_run(context, manifest, discard)?);
    let discard = (discard && manifest.kind.has_backlog()).then_some(true);
    let route = manifest.route().query_opt("discard", discard);
    let after = context.client.put(&route, &manifest.document)?.body;
    for warning in warnings(&after) {
        eprintln!("{}: {}", manifest.resource(), one_line(warning));
    }
    Ok((after, done))
}

pub fn found(context: &Context, route: &Route) -> anyhow::Result<Option<Value>> {
    match context.client.get(route) {
        Ok(found) => Ok(Some(found)),
        Err(Error::Problem(problem)) if problem.status == 404 => Ok(None),
        Err(error) => Err(error.into()),
    }
}

/// Messages about the fields of a subscription, not about its deliveries.
fn warnings(subscription: &Value) -> impl Iterator<Item = &str> {
    let messages = subscription.pointer("/status/messages").and_then(Value::as_array);
    let texts = messages.into_iter().flatten().filter_map(Value::as_str);
    texts.filter(|text| text.starts_with("target.") || text.starts_with("headers."))
}
