//! `delete`: deletes resources. Deleting a replay cancels it.

use super::function::Place;
use super::manifest::{self, Manifest};
use super::{Context, for_each, wait};
use crate::args::{Delete, Goal};
use crate::client::Answer;
use crate::confirm::confirm;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::output::write_raw;
use crate::resource::{self, Resource};
use crate::route::Route;
use anyhow::Context as _;
use std::time::{Duration, Instant};

/// How long the server lets a function finish its pending events.
const DRAIN: Duration = Duration::from_secs(30);

/// A resource, and its namespace if a file names it.
struct Doomed {
    resource: Resource,
    namespace: Option<String>,
}

pub fn run(context: &mut Context, args: &Delete) -> anyhow::Result<()> {
    let doomed = doomed(context, args)?;
    doomed.iter().try_for_each(|one| check(args, one.resource.kind))?;
    if let Some(action) = loss(args, &doomed) {
        confirm(&action, args.yes)?;
    }
    for_each(&doomed, |one| one.delete(context, args))
}

fn doomed(context: &Context, args: &Delete) -> anyhow::Result<Vec<Doomed>> {
    if args.filename.is_empty() {
        let named = resource::named(&args.resources)?.into_iter();
        return Ok(named.map(|resource| Doomed { resource, namespace: None }).collect());
    }
    let manifests = manifest::read(&args.filename, context.namespace.as_deref())?;
    let of = |Manifest { kind, namespace, name, .. }: Manifest| {
        let namespace = (kind != Kind::Namespace).then_some(namespace);
        Doomed { resource: Resource { kind, name }, namespace }
    };
    let mut doomed: Vec<Doomed> = manifests.into_iter().map(of).collect();
    // A namespace is deleted after its contents.
    doomed.sort_by_key(|one| one.resource.kind == Kind::Namespace);
    Ok(doomed)
}

fn check(args: &Delete, kind: Kind) -> Result<(), Usage> {
    let instead = match kind {
        Kind::Lane => "lanes cannot be deleted; drop their events with klambda lane purge",
        Kind::Event => "events cannot be deleted; the server removes them after the retention time",
        Kind::Audit => "audit entries cannot be deleted",
        _ if args.filename.is_empty() && !kind.has_backlog() && (args.drain || args.discard) => {
            "--drain and --discard work with subscriptions and webhooks only"
        }
        _ if args.filename.is_empty() && !kind.runs_code() && args.wait => {
            "--wait works with functions and agents only"
        }
        _ => return Ok(()),
    };
    Err(Usage(instead.to_owned()))
}

/// The data that the command loses for good, if any.
fn loss(args: &Delete, doomed: &[Doomed]) -> Option<String> {
    let is_loss = |one: &&Doomed| match one.resource.kind {
        // The secret and the tokens of an endpoint go with it.
        Kind::Namespace | Kind::Secret | Kind::Webhook | Kind::DeadLetter => true,
        Kind::Subscription => args.discard,
        _ => false,
    };
    let lost: Vec<String> = doomed.iter().filter(is_loss).map(|one| one.resource.to_string()).collect();
    let pending = if args.discard { " and drop pending events" } else { "" };
    (!lost.is_empty()).then(|| format!("delete {}{pending}", lost.join(", ")))
}

impl Doomed {
    fn delete(&self, context: &mut Context, args: &Delete) -> anyhow::Result<()> {
        let resource = &self.resource;
        match resource.kind {
            Kind::Function | Kind::Agent => self.delete_function(context, args.wait),
            Kind::Subscription | Kind::Webhook => {
                drain(context, resource, self.route(), args.drain, args.discard)
            }
            Kind::Replay => delete(context, resource, &self.route(), cancelled),
            _ => delete(context, resource, &self.route(), |_| "deleted"),
        }
    }

    fn route(&self) -> Route {
        match &self.namespace {
            Some(namespace) => self.resource.route().within(namespace),
            None => self.resource.route(),
        }
    }

    fn delete_function(&self, context: &mut Context, is_waiting: bool) -> anyhow::Result<()> {
        let resource = &self.resource;
        if !is_waiting {
            return delete(context, resource, &self.route(), |_| "is being deleted");
        }
        context.client.delete(&self.route()).with_context(|| resource.to_string())?;
        let deadline = Instant::now() + DRAIN + context.client.timeout();
        let namespace = self.namespace.clone().unwrap_or_else(|| context.client.namespace().to_owned());
        let place = Place::new(resource.kind, &namespace);
        wait::until(context, &place.route(&[&resource.name]), resource, &Goal::Deleted, deadline)?;
        writeln!(context.out, "{resource} deleted")?;
        Ok(())
    }
}

/// Deletes a resource that may have pending events.
pub fn drain(
    context: &mut Context,
    resource: &Resource,
    route: Route,
    drain: bool,
    discard: bool,
) -> anyhow::Result<()> {
    let route = route.query_opt("drain", drain.then_some(true));
    delete(context, resource, &route.query_opt("discard", discard.then_some(true)), drained)
}

/// 202: pending events are delivered first.
fn drained(answer: &Answer) -> &'static str {
    if answer.status == 202 { "draining" } else { "deleted" }
}

fn cancelled(answer: &Answer) -> &'static str {
    match answer.body["state"].as_str() {
        Some("succeeded" | "failed") => "already finished",
        _ => "cancelled",
    }
}

pub fn delete(
    context: &mut Context,
    resource: &Resource,
    route: &Route,
    done: impl Fn(&Answer) -> &'static str,
) -> anyhow::Result<()> {
    let answer = context.client.delete(route).with_context(|| resource.to_string())?;
    if !answer.body.is_null() && write_raw(context.out, context.format, &answer.body)? {
        return Ok(());
    }
    writeln!(context.out, "{resource} {}", done(&answer))?;
    Ok(())
}
