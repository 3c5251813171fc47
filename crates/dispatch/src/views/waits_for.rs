//! Describes what a lane waits for.

use crate::engine::Engine;
use crate::lanes::Resident;
use klambda_core::breaker;
use klambda_core::lane::{Hold, Lane, State};
use klambda_core::namespace;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook;

impl Engine {
    pub(crate) fn waits_for(&self, resident: &Resident) -> Option<String> {
        let subscription = self.subscriptions.get(resident.subscription)?;
        let lane = &resident.lane;
        if lane.depth() == 0 {
            return None;
        }
        let breaker = self.calls.endpoints.state(subscription.flow.endpoint);
        Some(match lane.state() {
            State::Running if self.put_off_of(resident).is_some() => {
                format!("room for the reply events: {}", self.put_off_of(resident)?)
            }
            State::Running => "the response of the target".into(),
            State::Paused => "manual action: lane is paused (resume)".into(),
            _ if subscription.life.health.disabled.is_some() => {
                let Document { namespace, name, .. } = &*subscription.document;
                let (name, flag) = (name.trim_start_matches(webhook::PREFIX), namespace::flag(namespace));
                format!("manual action: endpoint is disabled (klambda webhook enable {name}{flag})")
            }
            _ if subscription.is_paused() => {
                let (name, flag) =
                    (&subscription.document.name, namespace::flag(&subscription.document.namespace));
                format!("manual action: subscription is paused (klambda subscription resume {name}{flag})")
            }
            State::Parked if lane.hold() == Some(Hold::Gap) => {
                format!("sequence {}, or manual action (resume, skip or reset)", missing(lane))
            }
            State::Parked => "manual action: first event failed (resume, skip or replay)".into(),
            State::Gap => format!("sequence {} until {}", missing(lane), until(lane.gap_timer())),
            State::Open | State::Retrying if subscription.flow.suspension.is_some() => {
                let held = subscription.flow.suspension.as_ref()?;
                format!(
                    "{}: {}, until {}",
                    subscription.document.spec.target.address(),
                    held.why,
                    until(Some(held.until))
                )
            }
            _ if breaker != breaker::State::Closed => match breaker {
                breaker::State::Open { probe_at } => {
                    format!(
                        "the breaker of {}: next probe at {}",
                        subscription.document.spec.target.address(),
                        probe_at.rfc3339()
                    )
                }
                _ => {
                    format!(
                        "the breaker of {}: probe in progress",
                        subscription.document.spec.target.address()
                    )
                }
            },
            State::Retrying if lane.retry_at().is_some_and(|at| at > self.now) => {
                format!("the next attempt at {}", until(lane.retry_at()))
            }
            State::Open | State::Retrying => "a free slot".into(),
        })
    }
}

fn until(at: Option<Millis>) -> String {
    at.map_or_else(|| "now".into(), Millis::rfc3339)
}

fn missing(lane: &Lane) -> String {
    match lane.missing() {
        Some((from, to)) if from == to => from.to_string(),
        Some((from, to)) => format!("{from} to {to}"),
        None => "lower than the first one received".into(),
    }
}
