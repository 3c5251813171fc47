//! What a lane waits for, in words.

use crate::engine::Engine;
use crate::lanes::Resident;
use klambda_core::breaker;
use klambda_core::lane::{Hold, Lane, State};
use klambda_core::time::Millis;

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
                format!("room for the events it was answered with: {}", self.put_off_of(resident)?)
            }
            State::Running => "the answer of the target".into(),
            State::Paused => "a person: the lane is paused (resume)".into(),
            _ if subscription.is_paused() => {
                let name = subscription.name();
                format!("a person: the subscription is paused (klambda subscription resume {name})")
            }
            State::Parked if lane.hold() == Some(Hold::Gap) => {
                format!("sequence {}, or a person (resume, skip, reset)", missing(lane))
            }
            State::Parked => "a person: its head is a dead letter (resume, skip, replay)".into(),
            State::Gap => format!("sequence {} until {}", missing(lane), until(lane.gap_timer())),
            State::Open | State::Retrying if subscription.flow.held.is_some() => {
                let held = subscription.flow.held.as_ref()?;
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
                        "the breaker of {}: next probe {}",
                        subscription.document.spec.target.address(),
                        probe_at.rfc3339()
                    )
                }
                _ => {
                    format!(
                        "the breaker of {}: a probe is under way",
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
        None => "below the first seen".into(),
    }
}
