//! The invariants, one file each. A checker examines each entry of the history with what was known before it. Some
//! checkers also examine what the program shows to its users at the end.

pub mod acknowledged;
pub mod attempt_log;
pub mod attempts;
pub mod bounded;
pub mod deletion;
pub mod detection;
pub mod edits;
pub mod feed;
pub mod gap_policy;
pub mod isolation;
pub mod liveness;
pub mod memory;
pub mod no_double_effect;
pub mod no_invention;
pub mod no_loss;
pub mod order;
pub mod receiver;
pub mod replay_order;

use crate::event::EventNo;
use crate::history::{Entry, Request, SubNo};
use crate::outside::Outside;
use crate::rules::Place;

/// A violated invariant.
#[derive(Clone, Debug)]
pub struct Violation {
    pub invariant: &'static str,
    pub text: String,
    pub event: Option<EventNo>,
    pub lane: Option<(SubNo, String)>,
}

pub type Verdict = Result<(), Violation>;

impl Violation {
    pub fn new(invariant: &'static str, text: String) -> Violation {
        Violation { invariant, text, event: None, lane: None }
    }

    pub fn of_event(invariant: &'static str, event: EventNo, text: String) -> Violation {
        Violation { invariant, text, event: Some(event), lane: None }
    }

    /// A violation by a request that should not have been made, or not in this form.
    pub fn of_request(
        invariant: &'static str,
        outside: &Outside,
        request: &Request,
        text: &str,
    ) -> Violation {
        let made = outside.made(request.event);
        let name = &outside.sub(request.sub).rules.name;
        let (place, lane) = match &request.place {
            Place::Lane { key, .. } => (format!(" lane {key}"), Some((request.sub, key.clone()))),
            _ => (String::new(), None),
        };
        let number = request.number.map(|number| format!(" number {number}")).unwrap_or_default();
        let text = format!(
            "subscription {name}{place}: event {} (attempt {}{number}): {text}",
            made.id, request.attempt
        );
        Violation { invariant, text, event: Some(request.event), lane }
    }
}

/// Runs all checkers that follow the history.
pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    isolation::look(outside, entry)?;
    no_invention::look(outside, entry)?;
    no_double_effect::look(outside, entry)?;
    order::look(outside, entry)?;
    gap_policy::look(outside, entry)?;
    replay_order::look(outside, entry)?;
    attempts::look(outside, entry)?;
    no_loss::look(outside, entry)?;
    edits::look(outside, entry)?;
    receiver::look(outside, entry)?;
    acknowledged::look(outside, entry)?;
    feed::look(outside, entry)?;
    bounded::look(outside, entry)
}
