//! Receiver: what the receiver of a webhook endpoint checks by itself. In each workflow, sequence numbers begin at 1
//! and have no holes; `previousEventId` is the event before; a number belongs to one event forever, and an event keeps
//! its id. A workflow has one open call. A number follows only when the one before is delivered, or tells by its flag
//! that something is missing. A disabled endpoint is not called.
//!
//! A receiver cannot tell why an event before is missing. It may have expired in a disabled endpoint, or an operator
//! purged or skipped it. If none of these happened, it must not be missing.

use super::{Verdict, Violation};
use crate::history::{Entry, OrderStatus, Pushed, Webhook};
use crate::outside::Outside;
use crate::outside::endpoints::{Endpoint, Place, State, Workflow};
use crate::rules::Ordering;

const NAME: &str = "receiver";

/// Ids of delivered events are known for a day. Half of it is certain also for the clock of a receiver.
const SURELY_KNOWN_MS: u64 = 12 * 3_600_000;

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Webhook { endpoint, what: Webhook::Called { workflow, events, .. } } = entry else {
        return Ok(());
    };
    let call = Call { outside, endpoint: outside.endpoint(*endpoint), name: workflow };
    call.whole(events)?;
    events.iter().try_for_each(|pushed| call.event(pushed))?;
    match events.first() {
        Some(first) => call.turn(first),
        None => Err(Violation::new(NAME, "a call has no event".into())),
    }
}

struct Call<'a> {
    outside: &'a Outside,
    endpoint: &'a Endpoint,
    /// The workflow.
    name: &'a str,
}

impl Call<'_> {
    fn wrong(&self, pushed: &Pushed, text: &str) -> Verdict {
        let (id, number) = (&self.outside.made(pushed.event).id, pushed.number);
        let text = format!(
            "endpoint {} workflow {}: event {id} number {number}: {text}",
            self.endpoint.name, self.name
        );
        // The number of a subscription does not matter here: only the key selects the lines that are shown.
        let lane = Some((0, self.name.to_owned()));
        Err(Violation { lane, ..Violation::of_event(NAME, pushed.event, text) })
    }

    fn workflow(&self) -> Option<&Workflow> {
        self.endpoint.workflow(self.name)
    }

    fn whole(&self, events: &[Pushed]) -> Verdict {
        let Some(first) = events.first() else { return Ok(()) };
        if self.outside.stopping {
            return self.wrong(first, "called during shutdown");
        }
        if self.endpoint.disabled.is_some() {
            return self.wrong(first, "called although the endpoint is disabled");
        }
        if self.workflow().is_some_and(|workflow| workflow.open.is_some()) {
            return self.wrong(first, "called while another call of its workflow is open");
        }
        if events.len() > self.endpoint.batch_max {
            return self.wrong(first, &format!("{} events in one call", events.len()));
        }
        for (before, pushed) in events.iter().zip(events.iter().skip(1)) {
            if pushed.number != before.number + 1 || pushed.previous != Some(before.id) {
                return self.wrong(pushed, "does not follow the event before it in the same call");
            }
        }
        Ok(())
    }

    fn event(&self, pushed: &Pushed) -> Verdict {
        let made = self.outside.made(pushed.event);
        let key = Ordering::Ordered { by_subject: false, sequenced: false }.key(made);
        if !pushed.unchanged {
            return self.wrong(pushed, "the content differs from what was sent");
        }
        if !self.endpoint.matches(made) || key.as_deref() != Some(self.name) {
            return self.wrong(pushed, "does not belong to this endpoint and workflow");
        }
        if pushed.number == 0 {
            return self.wrong(pushed, "numbers begin at 1");
        }
        if pushed.number == 1 && pushed.previous.is_some() {
            return self.wrong(pushed, "the first event of a workflow names a previous event");
        }
        // Retention may have removed the previous event.
        let is_unnamed = self.endpoint.retention && pushed.previous.is_none();
        if pushed.number > 1 && pushed.previous.is_none() && !is_unnamed {
            return self.wrong(pushed, "names no previous event");
        }
        let Some(workflow) = self.workflow() else { return Ok(()) };
        self.number(workflow, pushed)?;
        match workflow.places.get(&(pushed.number - 1)) {
            Some(before) if pushed.previous != Some(before.id) && !is_unnamed => {
                let id = &self.outside.made(before.event).id;
                self.wrong(
                    pushed,
                    &format!("names {:?} as the previous event instead of {id}", pushed.previous),
                )
            }
            _ => Ok(()),
        }
    }

    fn number(&self, workflow: &Workflow, pushed: &Pushed) -> Verdict {
        if let Some(place) = workflow.places.get(&pushed.number) {
            return match place {
                place if place.event != pushed.event => {
                    let other = &self.outside.made(place.event).id;
                    self.wrong(pushed, &format!("its number was already assigned to {other}"))
                }
                place if place.id != pushed.id => self.wrong(pushed, "has another event id than before"),
                _ => Ok(()),
            };
        }
        let Some(number) = workflow.numbers.get(&pushed.event) else { return Ok(()) };
        let Some(place) = workflow.places.get(number) else { return Ok(()) };
        match self.is_known(place) {
            true => self.wrong(pushed, &format!("its number was previously {number}")),
            false => Ok(()),
        }
    }

    /// True if an event with the id of this place cannot be accepted as a new one.
    fn is_known(&self, place: &Place) -> bool {
        match place.state {
            State::Waiting => self.endpoint.surely_waits(self.name, place),
            State::Done { at, .. } => {
                let is_recent = at > 0 && self.outside.now.saturating_sub(at) < SURELY_KNOWN_MS;
                is_recent && !self.endpoint.ids_limited && !self.endpoint.may_be_left_out(self.name, place)
            }
            State::DoneMaybe(_) => false,
        }
    }

    /// The first event of the call has its turn.
    fn turn(&self, first: &Pushed) -> Verdict {
        let Some(workflow) = self.workflow() else { return Ok(()) };
        let Some(before) = first.number.checked_sub(1).and_then(|number| workflow.places.get(&number)) else {
            return Ok(());
        };
        if self.endpoint.surely_waits(self.name, before) {
            let id = &self.outside.made(before.event).id;
            return self.wrong(first, &format!("{id} precedes it and is still pending"));
        }
        let is_missing = before.state == State::Waiting;
        if is_missing && first.flag != OrderStatus::Gap {
            return self.wrong(first, "the event before it is missing, but the gap flag is missing too");
        }
        let is_first_call = workflow.places.get(&first.number).is_none_or(|place| place.calls == 0);
        let is_whole = matches!(before.state, State::Done { at, .. } if at > 0) && before.calls > 0;
        if is_first_call
            && is_whole
            && first.flag == OrderStatus::Gap
            && !self.endpoint.may_be_left_out(self.name, before)
        {
            return self.wrong(first, "has the gap flag although nothing is missing before it");
        }
        Ok(())
    }
}
