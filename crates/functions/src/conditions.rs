//! Conditions with the same meaning as in Kubernetes: the transition time changes only when `status` changes.

use crate::failure::cut;
use crate::resource::{Aspect, Condition, Truth};
use crate::scalar::Time;
use klambda_core::time::Millis;

/// Limit on the message of a condition as JSON. It fits the message of a failure with its advice.
const MESSAGE_BYTES_MAX: usize = 1536;

/// The new value of a condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Saying {
    pub status: Truth,
    pub reason: String,
    pub message: String,
}

impl Saying {
    pub fn new(status: Truth, reason: impl Into<String>, message: impl Into<String>) -> Saying {
        Saying { status, reason: reason.into(), message: message.into() }
    }

    pub fn yes(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new(Truth::True, reason, message)
    }

    pub fn no(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new(Truth::False, reason, message)
    }

    pub fn unknown(reason: &str, message: impl Into<String>) -> Saying {
        Saying::new(Truth::Unknown, reason, message)
    }
}

/// Sets one condition. Returns whether its status or reason changed, because those changes emit an event.
pub fn set(
    conditions: &mut Vec<Condition>,
    aspect: Aspect,
    saying: Saying,
    generation: u64,
    now: Millis,
) -> bool {
    let Saying { status, reason, mut message } = saying;
    message.truncate(cut(&message, MESSAGE_BYTES_MAX).len());
    let observed_generation = generation;
    match conditions.iter_mut().find(|condition| condition.aspect == aspect) {
        Some(old) => {
            let turned = old.status != status;
            let changed = turned || old.reason != reason;
            let last_transition_time = if turned { Time(now) } else { old.last_transition_time };
            *old = Condition { aspect, status, reason, message, last_transition_time, observed_generation };
            changed
        }
        None => {
            let last_transition_time = Time(now);
            conditions.push(Condition {
                aspect,
                status,
                reason,
                message,
                last_transition_time,
                observed_generation,
            });
            conditions.sort_by_key(|condition| condition.aspect);
            true
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_changes_with_the_status_only() {
        let mut conditions = Vec::new();
        let mut at = |now: u64, status: Truth, reason: &str, message: &str| {
            let saying = Saying::new(status, reason, message);
            let changed = set(&mut conditions, Aspect::BuildReady, saying, now, Millis(now));
            let condition = &conditions[0];
            (changed, condition.last_transition_time.0.0, condition.observed_generation)
        };
        assert_eq!(at(1, Truth::Unknown, "Building", ""), (true, 1, 1));
        assert_eq!(at(2, Truth::Unknown, "Building", "still"), (false, 1, 2));
        assert_eq!(at(3, Truth::Unknown, "Retrying", ""), (true, 1, 3));
        assert_eq!(at(4, Truth::True, "Built", ""), (true, 4, 4));
        assert_eq!(at(5, Truth::True, "Built", ""), (false, 4, 5));
    }
}
