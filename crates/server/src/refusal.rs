//! Converts rejections of the engine to problems.

use crate::problem::Problem;
use klambda_core::binding::{Cause, Mismatch, Refusal};
use klambda_core::quantity::shown_bytes;
use klambda_dispatch::operate::Refused;
use klambda_dispatch::{Failure, Rejection, history};
use serde_json::json;
use std::time::Duration;

/// The Retry-After of rejected producers.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_DISK: Duration = Duration::from_secs(10);

impl From<Refused> for Problem {
    fn from(refused: Refused) -> Problem {
        let detail = refused.to_string();
        match refused {
            Refused::NotFound(_) => Problem::not_found(detail),
            Refused::EventsWaiting { waiting, .. } => {
                Problem::events_waiting(detail).with("waiting", waiting)
            }
            Refused::LanesParked { lanes, .. } => Problem::lanes_parked(detail).with("lanes", lanes),
            Refused::Conflict(_) => Problem::conflict(detail),
            Refused::Immutable(_) => Problem::immutable(detail).fault("spec.from", "cannot be changed"),
            Refused::Outdated(_) => Problem::outdated(detail),
            Refused::TooLarge(_) => Problem::too_large(detail),
            Refused::Limit(_) => Problem::limit_reached(detail),
            Refused::Invalid(faults) => Problem::invalid_selector(detail).faults(faults),
            Refused::DiskFull => Problem::disk_full(detail).retry_after(RETRY_DISK),
            Refused::Unavailable(_) => Problem::storage_failed(detail),
        }
    }
}

impl From<Failure> for Problem {
    fn from(failure: Failure) -> Problem {
        Problem::internal(format!("could not read the store: {failure}"))
    }
}

impl From<history::Error> for Problem {
    fn from(error: history::Error) -> Problem {
        match error {
            history::Error::TooOld { oldest } => Problem::gone(format!(
                "these events are no longer available: the oldest event is at position {oldest}; use after=0 to start there"
            ))
            .with("oldest", oldest.0),
            other => Problem::internal(format!("could not read the log: {other}")),
        }
    }
}

/// The problem of one rejected event.
pub fn rejection(rejection: &Rejection) -> Problem {
    match rejection {
        Rejection::Invalid { faults, cause } => {
            let detail = match faults.as_slice() {
                [one] => one.to_string(),
                many => format!("the event has {} errors", many.len()),
            };
            let problem = match cause {
                Cause::Invalid => Problem::invalid_event(detail),
                Cause::TooLarge => Problem::too_large(detail),
                Cause::Schema(mismatch) => mismatched(mismatch, &detail),
            };
            problem.faults(faults.iter().cloned())
        }
        Rejection::Backlog { subscription, limit, deepest } => backlog(subscription, limit, deepest.as_ref()),
        Rejection::DeadLetters { subscription } => Problem::backlog_full(format!(
            "subscription {subscription} has reached deadLetters.maxEvents, and its overflow is reject: replay or \
             purge some dead letters"
        ))
        .with("subscription", subscription.as_str())
        .retry_after(RETRY),
        Rejection::NoNamespace { namespace } => {
            Problem::not_found(format!("namespace {namespace:?} not found"))
        }
        Rejection::NamespaceFull { namespace, limit } => {
            Problem::limit_reached(format!("namespace {namespace:?} has reached its limit {limit}"))
                .with("namespace", namespace.as_str())
                .with("limit", *limit)
                .retry_after(RETRY)
        }
        Rejection::TooLarge { limit } => {
            let most = shown_bytes(*limit as u64);
            Problem::too_large(format!("the event does not fit into a log segment (at most {most})"))
                .with("limit", *limit)
        }
        Rejection::DiskFull => Problem::disk_full(
            "the disk has no room for new events; accepted events are safe and are still delivered",
        )
        .retry_after(RETRY_DISK),
        Rejection::Unavailable { why } => {
            Problem::storage_failed(format!("no events are accepted until the server is restarted: {why}"))
        }
    }
}

fn mismatched(mismatch: &Mismatch, detail: &str) -> Problem {
    let Mismatch { event_type, pointer, rule } = mismatch;
    Problem::schema_mismatch(format!(
        "the data does not match the schema of event type {event_type}: {detail}"
    ))
    .with("eventType", event_type.as_str())
    .with("pointer", pointer.as_str())
    .with("rule", rule.as_str())
}

fn backlog(subscription: &str, limit: &str, deepest: Option<&(String, u64)>) -> Problem {
    let name = match limit.contains('.') {
        true => limit.to_owned(),
        false => format!("backlog.{limit}"),
    };
    let mut detail = format!("subscription {subscription} has reached its limit {name}");
    if let Some((key, depth)) = deepest {
        detail.push_str(&format!("; its deepest lane is {key:?} with {depth} events"));
    }
    let problem = Problem::backlog_full(detail)
        .with("subscription", subscription)
        .with("limit", name)
        .retry_after(RETRY);
    match deepest {
        Some((key, depth)) => problem.with("deepestLane", json!({"key": key, "depth": depth})),
        None => problem,
    }
}

/// The problem of a request without any readable event.
pub fn refusal(refusal: Refusal, is_batch: bool) -> Problem {
    let detail = refusal.to_string();
    match refusal {
        Refusal::UnsupportedMediaType(_) => Problem::unsupported_media_type(detail),
        Refusal::BadRequest(faults) => {
            let detail = match faults.as_slice() {
                [one] => one.to_string(),
                _ => detail,
            };
            match is_batch {
                true => Problem::invalid_batch(detail).faults(faults),
                false => Problem::invalid_event(detail).faults(faults),
            }
        }
        Refusal::TooLarge { limit, .. } => {
            Problem::invalid_batch(format!("{detail} (limits.batchEvents)")).with("limit", limit)
        }
    }
}
