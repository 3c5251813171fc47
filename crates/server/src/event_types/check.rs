//! Checks the data of accepted events by the schema of their type, outside of the engine.

use super::catalogue::Catalogue;
use super::schemas::Compiled;
use crate::api::blocking;
use crate::problem::{Fault, Problem};
use klambda_core::binding::{Cause, Mismatch, Rejected};
use klambda_core::event::{Attribute, Event, Value};
use klambda_core::event_type::{STATUS_ATTRIBUTE, STATUS_INVALID};
use klambda_core::namespace::SchemaCheck;
use klambda_dispatch::schema_checks::{Marking, SchemaChecks};
use klambda_event_schema::Violation;
use std::collections::HashMap;

type Offered = Result<Event, Rejected>;

impl Catalogue {
    /// Marks or rejects the events that do not match. `check` is that of the namespace.
    pub async fn check(
        &self,
        namespace: &str,
        check: SchemaCheck,
        mut events: Vec<Offered>,
    ) -> Result<Vec<Offered>, Problem> {
        events.iter_mut().flatten().for_each(remove_status);
        let schemas = self.schemas_of(namespace, events.iter().flatten()).await?;
        if schemas.is_empty() {
            return Ok(events);
        }
        let _turn = self.turns.acquire().await;
        let (events, found) = blocking(move || {
            let found = violations(&schemas, &events);
            (events, found)
        })
        .await?;
        Ok(self.settle(namespace, check, events, found))
    }

    /// The schemas of these events, by type.
    async fn schemas_of(
        &self,
        namespace: &str,
        events: impl Iterator<Item = &Event>,
    ) -> Result<HashMap<String, Compiled>, Problem> {
        let mut schemas = HashMap::new();
        for event in events {
            if schemas.contains_key(&event.kind) {
                continue;
            }
            let Some(known) = self.with_schema(namespace, &event.kind) else { continue };
            if let Some(schema) = self.schema(namespace, &known).await? {
                schemas.insert(event.kind.clone(), schema);
            }
        }
        Ok(schemas)
    }

    fn settle(
        &self,
        namespace: &str,
        check: SchemaCheck,
        events: Vec<Offered>,
        mut found: HashMap<usize, Violation>,
    ) -> Vec<Offered> {
        let settled = |(n, event): (usize, Offered)| match (event, found.remove(&n)) {
            (Ok(event), Some(violation)) => self.violated(namespace, check, event, violation),
            (event, _) => event,
        };
        events.into_iter().enumerate().map(settled).collect()
    }

    fn violated(
        &self,
        namespace: &str,
        check: SchemaCheck,
        mut event: Event,
        violation: Violation,
    ) -> Offered {
        let result = if check == SchemaCheck::Reject { "rejected" } else { "flagged" };
        self.violations.lock().count(namespace, &event.kind, result);
        let Violation { pointer, rule, message } = violation;
        tracing::info!(
            namespace,
            event_type = event.kind,
            id = event.id,
            source = event.source,
            pointer,
            rule,
            result,
            "Event does not match the schema of its type"
        );
        if check == SchemaCheck::Flag {
            let value = Value::String(STATUS_INVALID.to_owned());
            event.attributes.push(Attribute { name: STATUS_ATTRIBUTE.to_owned(), value });
            return Ok(event);
        }
        let faults = vec![Fault::new(format!("data{pointer}"), message)];
        let Event { id, source, kind, .. } = event;
        let cause = Cause::Schema(Box::new(Mismatch { event_type: kind, pointer, rule }));
        Err(Rejected { id: Some(id), source: Some(source), faults, cause })
    }
}

/// What a producer says about the check has no meaning.
fn remove_status(event: &mut Event) {
    event.attributes.retain(|attribute| attribute.name != STATUS_ATTRIBUTE);
}

/// By the place of the event in its request.
fn violations(schemas: &HashMap<String, Compiled>, events: &[Offered]) -> HashMap<usize, Violation> {
    let check = |(n, event): (usize, &Offered)| {
        let event = event.as_ref().ok()?;
        let checked = match &**schemas.get(&event.kind)? {
            Ok(schema) => schema.check(event),
            Err(why) => Err(unusable(why)),
        };
        Some((n, checked.err()?))
    };
    events.iter().enumerate().filter_map(check).collect()
}

/// A stored schema compiled when it was written, so this is rare.
fn unusable(why: &str) -> Violation {
    let (pointer, rule) = (String::new(), "schema".to_owned());
    Violation { pointer, rule, message: format!("the schema cannot be used: {why}") }
}

/// Replies are part of the acknowledgement of their cause, so they are never rejected.
impl SchemaChecks for Catalogue {
    fn is_on(&self, namespace: &str) -> bool {
        !self.check_of(namespace).is_off()
    }

    fn mark<'a>(&'a self, namespace: &'a str, replies: Vec<Event>) -> Marking<'a> {
        Box::pin(async move {
            let kept = replies.clone();
            let events = replies.into_iter().map(Ok).collect();
            match self.check(namespace, SchemaCheck::Flag, events).await {
                Ok(events) => events.into_iter().filter_map(Result::ok).collect(),
                Err(problem) => {
                    tracing::warn!(namespace, why = problem.detail(), "Reply events were not checked");
                    kept
                }
            }
        })
    }
}
