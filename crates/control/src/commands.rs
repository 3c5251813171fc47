//! Commands: received events that change functions, exactly as the same call of the REST API does.

use crate::control::Control;
use crate::writes::{self, Applied, Error};
use klambda_core::event::Event;
use klambda_core::event_codec::EventView;
use klambda_core::namespace::full_name;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::{API_VERSION, CONTROLLER, Document, KIND};
use klambda_dispatch::audit::{Entry, on_behalf};
use klambda_dispatch::functions::Handling;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::{Delivery, Engine};
use klambda_functions::events::{ALIASES, Command, Named, command};
use klambda_functions::name::Name;
use klambda_functions::request;
use klambda_functions::resource::{Form, ResourceKind, source};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The event types that are commands, including aliases.
const TYPES: [&str; 11] = [
    "lambda.function.created",
    "lambda.function.updated",
    "lambda.function.deleted",
    "lambda.build.started",
    "lambda.build.stopped",
    "lambda.build.cancelled",
    "lambda.parser.started",
    "lambda.parser.completed",
    "lambda.parser.failed",
    ALIASES[0].0,
    ALIASES[1].0,
];

/// How often to check whether a function is deleted before it is created again, and how long to wait beyond its drain time.
const GONE_LOOK: Duration = Duration::from_millis(100);
const GONE_WITHIN: Duration = Duration::from_secs(30);

/// Whether events of this type are commands.
pub fn is_command(kind: &str) -> bool {
    // This cheap check excludes nearly all events.
    (kind.starts_with("lambda.") || kind.starts_with("network.")) && TYPES.contains(&kind)
}

/// Creates the subscription that delivers commands: in order per key, and no key delays another. The events choose the
/// key: most name their function in `partitionkey` or `subject`. An event with neither is a command all the same.
fn subscribe(engine: &mut Engine, namespace: &str) -> Result<(), Refused> {
    let any: Vec<Value> = TYPES.iter().map(|kind| json!({ "exact": { "type": kind } })).collect();
    let document = json!({
        "apiVersion": API_VERSION, "kind": KIND, "metadata": { "namespace": namespace, "name": CONTROLLER },
        "spec": {
            "filters": [{ "any": any }],
            "target": { "function": { "namespace": "klambda", "name": "controller" } },
            "ordering": "ordered",
            "orderingPolicy": { "onFailure": "skip" },
        },
    });
    let document = Document::parse(&document).map_err(Refused::Invalid)?;
    match engine.put_subscription(document, false) {
        // An earlier version created the subscription, and lanes of it are parked. Leave it as it is.
        Ok(_) | Err(Refused::LanesParked { .. }) => Ok(()),
        Err(refused) => Err(refused),
    }
}

impl Control {
    /// Call this before accepting a command: the first command of a namespace creates the subscription.
    pub async fn listen(&self, namespace: &str) -> Result<(), Error> {
        let unavailable = |why: &str| Error::Store(Refused::Unavailable(why.into()).into());
        self.handle().map_err(|_| unavailable("the server is starting"))?;
        let controller = full_name(namespace, CONTROLLER).into_owned();
        let is_there = self.look(move |engine| engine.subscription_id(&controller).is_ok()).await;
        if is_there.map_err(|_| unavailable("the server is shutting down"))? {
            return Ok(());
        }
        let home = namespace.to_owned();
        let done = self.step(move |engine| subscribe(engine, &home)).await;
        let done = done.map_err(|_| unavailable("the server is shutting down"))?;
        done.map_err(|refused| Error::Store(refused.into()))
    }

    /// Returns `None` if the delivery is not for the control plane.
    pub(crate) fn run_command(&self, delivery: &Delivery) -> Option<Handling> {
        let document: &Arc<Document> = &delivery.document;
        if !document.is_controller() {
            return None;
        }
        if delivery.is_emitted() {
            return Some(Box::pin(std::future::ready(done())));
        }
        let bytes = delivery.record.get(delivery.event.clone()).unwrap_or_default();
        let event = match EventView::decode(bytes) {
            Ok(view) => view.to_event(),
            Err(error) => {
                return Some(Box::pin(std::future::ready(CallOutcome::Unusable(error.to_string()))));
            }
        };
        let asked = match command(&event, &document.namespace) {
            Ok(Some(asked)) => asked,
            Ok(None) => return Some(Box::pin(std::future::ready(done()))),
            Err(faults) => {
                let why: Vec<String> = faults.iter().map(ToString::to_string).collect();
                return Some(Box::pin(std::future::ready(CallOutcome::Invalid(why.join("; ")))));
            }
        };
        if asked.namespace() != document.namespace {
            let refused = forbidden(asked.namespace(), &document.namespace);
            return Some(Box::pin(std::future::ready(refused)));
        }
        if !self.is_open.load(Ordering::Relaxed) && folder_of(&asked).is_some() {
            let why = "403: a command must not name a folder of the server as its source; an admin can apply the function over the API";
            return Some(Box::pin(std::future::ready(CallOutcome::Invalid(why.to_owned()))));
        }
        let control = self.clone();
        Some(Box::pin(async move {
            let done = control.carry_out(&asked, &event);
            match entry(&asked, &event) {
                Some(entry) => on_behalf(entry, done).await,
                None => done.await,
            }
        }))
    }

    async fn carry_out(&self, asked: &Command, event: &Event) -> CallOutcome {
        let named = |named: &Named| Name::new(&named.namespace, &named.name);
        let written = match asked {
            Command::Create { form, document } => {
                let kind = kind_of(form);
                match self.create_anew(document, kind).await {
                    // The function was created twice with the same result.
                    Err(Error::Exists { kind: known, .. }) if known == kind => return done(),
                    other => other,
                }
            }
            Command::Update { named: who, body } => self.update(who.kind, &named(who), body).await,
            Command::Delete { named: who } => self.delete(who.kind, &named(who), None).await,
            Command::Rebuild { named: who } => self.rebuild(who.kind, &named(who)).await,
            Command::StopBuilds { named: who } => {
                self.mark(who.kind, &named(who), request::stop_builds).await
            }
            Command::CancelBuild { named: who } => {
                self.mark(who.kind, &named(who), request::cancel_build).await
            }
            Command::RunParser { named: who, parser } => return self.run_parser(who, parser, event).await,
            Command::ParserEnded { named: who, parser } => {
                tracing::info!(function = who.name, parser = parser.parser_id, "Parser finished");
                return done();
            }
        };
        match written {
            Ok(_) => done(),
            Err(error) => outcome(&error),
        }
    }
}

impl Control {
    /// Waits while a function of this name is being deleted. Only this lane waits: other functions have other lanes.
    async fn create_anew(&self, document: &Value, kind: ResourceKind) -> Result<Applied, Error> {
        let drain = Duration::from_millis(self.options.limits.drain_ms_max);
        let until = Instant::now() + drain + GONE_WITHIN;
        loop {
            match self.create(document, kind).await {
                Err(Error::Deleting) if Instant::now() < until => tokio::time::sleep(GONE_LOOK).await,
                other => return other,
            }
        }
    }
}

/// The audit entry of a command that changes a resource.
fn entry(asked: &Command, event: &Event) -> Option<Entry> {
    let (verb, named) = match asked {
        Command::Create { .. } => ("create", None),
        Command::Update { named, .. } => ("put", Some(named)),
        Command::Delete { named } => ("delete", Some(named)),
        Command::Rebuild { named } => ("rebuild", Some(named)),
        Command::StopBuilds { named } | Command::CancelBuild { named } => ("stop-build", Some(named)),
        Command::RunParser { .. } | Command::ParserEnded { .. } => return None,
    };
    let kind = match asked {
        Command::Create { form, .. } => kind_of(form),
        _ => named.map(|named| named.kind).unwrap_or_default(),
    };
    Some(Entry {
        who: format!("event {} of {}", event.id, event.source),
        verb: verb.to_owned(),
        kind: kind.word().to_owned(),
        namespace: Some(asked.namespace().to_owned()),
        // The name of a new function is known only after it is created.
        name: named.map(|named| named.name.clone()).unwrap_or_default(),
        from: String::new(),
    })
}

fn kind_of(form: &Form) -> ResourceKind {
    match form {
        Form::Body(kind) => *kind,
        Form::Manifest => ResourceKind::default(),
    }
}

pub fn done() -> CallOutcome {
    CallOutcome::Status { code: 204, retry_after_ms: None, detail: String::new() }
}

/// The folder of the server that a command names as its source.
fn folder_of(asked: &Command) -> Option<String> {
    match asked {
        Command::Create { document, .. } => source::folder_of(document),
        Command::Update { body, .. } => source::folder_of(body),
        _ => None,
    }
}

fn forbidden(named: &str, home: &str) -> CallOutcome {
    CallOutcome::Invalid(format!("403: the command names namespace {named} but was sent in namespace {home}"))
}

/// Temporary errors are retried. All others make the event a dead letter.
fn outcome(error: &writes::Error) -> CallOutcome {
    match error {
        writes::Error::Store(_) | writes::Error::Stopped(_) => {
            CallOutcome::Status { code: 503, retry_after_ms: Some(1000), detail: error.to_string() }
        }
        writes::Error::Invalid(faults) => {
            let why: Vec<String> = faults.iter().map(ToString::to_string).collect();
            CallOutcome::Invalid(why.join("; "))
        }
        other => CallOutcome::Invalid(other.to_string()),
    }
}
