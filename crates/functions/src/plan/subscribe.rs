//! The function's triggers, kept as one subscription.

use super::{Action, Planner};
use crate::conditions::Saying;
use crate::resource::Aspect;
use crate::{hash, triggers};

impl Planner<'_> {
    /// The subscription is there before the function is: what comes meanwhile waits.
    pub(super) fn subscribe(&mut self) {
        let known = &self.observed.subscription;
        // Events go to what serves, and to the wanted version when that does.
        let elsewhere = match self.observed.serving() {
            Some(serving) => serving.elsewhere.as_deref(),
            None => self.desired.spec.url(),
        };
        let saying = match (triggers::subscription(self.desired, elsewhere), known) {
            (None, None) => Saying::yes("NoTriggers", "It has no triggers: it is only invoked."),
            (None, Some(_)) => {
                self.act(Action::Unsubscribe);
                Saying::unknown("Unsubscribing", "Its last trigger was taken away.")
            }
            (Some(document), Some(known)) if known.hash == hash::of(&document) => match &known.fault {
                Some(fault) => {
                    Saying::no("Refused", format!("{fault}. Change the triggers and apply it again."))
                }
                None => self.subscribed(),
            },
            (Some(document), _) => {
                self.act(Action::Subscribe { document });
                Saying::unknown("Subscribing", "Its triggers are being set up.")
            }
        };
        self.say(Aspect::TriggersReady, saying);
    }

    fn subscribed(&self) -> Saying {
        match triggers::that_match_nothing(&self.desired.spec).first() {
            Some(index) => Saying::no(
                "MatchesNothing",
                format!(
                    "The filters of spec.triggers[{index}] contradict each other: no event matches them all. Correct them."
                ),
            ),
            None => Saying::yes("Subscribed", "Events that match reach it."),
        }
    }
}
