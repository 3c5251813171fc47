//! Keeps the triggers of a function as one subscription.

use super::{Action, Planner};
use crate::conditions::Saying;
use crate::resource::Aspect;
use crate::{hash, triggers};

impl Planner<'_> {
    /// The subscription exists before the function serves, so early events wait in it.
    pub(super) fn subscribe(&mut self) {
        let known = &self.observed.subscription;
        // Events go to the serving version. When the desired version serves, they go there.
        let elsewhere = match self.observed.serving() {
            Some(serving) => serving.elsewhere.as_deref(),
            None => self.desired.spec.url(),
        };
        let saying = match (triggers::subscription(self.desired, elsewhere), known) {
            (None, None) => Saying::yes("NoTriggers", "No triggers; the function runs only when invoked"),
            (None, Some(_)) => {
                self.act(Action::Unsubscribe);
                Saying::unknown("Unsubscribing", "Removing the subscription of the deleted triggers")
            }
            (Some(document), Some(known)) if known.hash == hash::of(&document) => match &known.fault {
                Some(fault) => Saying::no("Refused", format!("{fault}. Fix the triggers and apply again.")),
                None if !known.taken => Saying::unknown(
                    "WaitingForDispatcher",
                    "The dispatcher has not read the Subscription yet",
                ),
                None => self.subscribed(),
            },
            (Some(document), _) => {
                self.act(Action::Subscribe { document });
                Saying::unknown("Subscribing", "Setting up the triggers")
            }
        };
        self.say(Aspect::TriggersReady, saying);
    }

    fn subscribed(&self) -> Saying {
        match triggers::that_match_nothing(&self.desired.spec).first() {
            Some(index) => Saying::no(
                "MatchesNothing",
                format!(
                    "The filters of spec.triggers[{index}] contradict each other, so no event matches. Fix the filters and apply again."
                ),
            ),
            None => Saying::yes("Subscribed", "Matching events are delivered"),
        }
    }
}
