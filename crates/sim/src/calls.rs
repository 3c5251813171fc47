//! Calls to receivers, and their responses.

use crate::checkers::attempt_log::{self, Answer};
use crate::checkers::{self, Verdict, Violation};
use crate::editing::content;
use crate::event::{EventNo, HOME};
use crate::history::{Ending, Entry, Request, SubNo};
use crate::mix::Trouble;
use crate::network::Call;
use crate::rules::{Place, Rules};
use crate::world::{Stalled, World};
use klambda_core::event_codec::EventView;
use klambda_core::outcome::{CallOutcome, Verdict as Meaning};
use klambda_core::retry::RETRY_AFTER_MS_MAX;
use klambda_dispatch::Delivery;

impl World {
    pub(crate) fn deliver(&mut self, delivery: Delivery) -> Verdict {
        let name = delivery.document.full_name();
        if let Some(endpoint) = self.endpoint_named(&name) {
            return self.call_endpoint(endpoint, &delivery);
        }
        let Some(sub) = self.known.names.get(&*name).copied() else {
            let text = format!("a request was made for subscription {name}, which does not exist");
            return Err(Violation::new("no invention", text));
        };
        let request = self.request(sub, &delivery)?;
        checkers::replay_order::waits_behind(&self.outside, &request, self.replayed_beside(&request))?;
        self.note(Entry::Started(request.clone()))?;
        let made = self.outside.made(request.event);
        let rules = &self.outside.sub(sub).rules;
        let (outcome, acts, took) = self.network.call(&self.mix, rules, made, self.clock.time, &mut self.rng);
        let event = request.event;
        let (outcome, replies) = self.with_replies(sub, event, outcome);
        let call = Call { sub, event, ticket: delivery.ticket, life: self.host.life, outcome, replies, acts };
        self.network.start(call, self.clock.time + took);
        Ok(())
    }

    /// Some receivers respond with events of their own. A receiver that did so for an event does so again.
    fn with_replies(
        &mut self,
        sub: SubNo,
        event: EventNo,
        outcome: CallOutcome,
    ) -> (CallOutcome, Vec<EventNo>) {
        let succeeds = outcome.verdict() == Meaning::Delivered;
        let answers = self.producer.has_replies(sub, event) || self.rng.one_in(12);
        if !self.mix.has(Trouble::Replies) || !succeeds || !answers || self.outside.made(event).reply {
            return (outcome, Vec::new());
        }
        let events = &mut self.outside.events;
        let replies = self.producer.replies(sub, event, &self.mix, events, &mut self.rng);
        let made = replies.iter().map(|reply| events[*reply as usize].to_event()).collect();
        (CallOutcome::Replied { status: outcome.status(), replies: made }, replies)
    }

    fn request(&self, sub: SubNo, delivery: &Delivery) -> Result<Request, Violation> {
        let invented = |text: String| Violation::new("no invention", text);
        let view = EventView::decode(&delivery.record[delivery.event.clone()])
            .map_err(|_| invented("an unreadable event was delivered".into()))?;
        let elsewhere = view.attribute(HOME).is_some();
        let event = self.producer.find(elsewhere, view.source(), view.id());
        let event = event.ok_or_else(|| invented(format!("event {} was never made", view.id())))?;
        let made = self.outside.made(event);
        let place = delivery.place.as_ref();
        Ok(Request {
            sub,
            event,
            ticket: delivery.ticket.0,
            place: self.place(event, delivery),
            number: place.map(|place| place.number.0),
            previous: place.and_then(|place| place.previous_id.clone()),
            flag: place.map_or(klambda_core::lane::Flag::None, |place| place.flag).into(),
            attempt: delivery.attempt,
            host: Rules::host_of(&delivery.document),
            now: self.host.engine.now().0,
            content: content(made, &view),
        })
    }

    /// The place by the rules that came with the delivery. A replayed dead letter needs no sequence.
    fn place(&self, event: EventNo, delivery: &Delivery) -> Place {
        let (ordering, made) = (Rules::ordering_of(&delivery.document), self.outside.made(event));
        match (ordering.place(made), ordering.key(made)) {
            (Place::Invalid, Some(key)) => Place::Lane { key, sequence: None },
            (place, _) => place,
        }
    }

    /// The position of a dead letter of the request's lane that is currently replayed from outside the lane.
    fn replayed_beside(&self, request: &Request) -> Option<u64> {
        let Place::Lane { key: lane, .. } = &request.place else { return None };
        let jobs = (1..=self.watched.replays_made).rev().take(8).filter_map(|id| self.host.engine.replay(id));
        let mut open = jobs.flat_map(|job| &job.open);
        let found = open.find(|(id, position, key)| {
            key == lane
                && self.known.ids.get(id) == Some(&request.sub)
                && self.outside.has_number_outside(request.sub, position.0, key)
        });
        found.map(|(_, position, _)| position.0)
    }

    pub(crate) fn end_calls(&mut self) -> Verdict {
        while let Some(call) = self.network.ended(self.clock.time) {
            let Call { sub, event, ticket, life, outcome, replies, acts } = call;
            if life != self.host.life {
                self.note(Entry::EndedUnheard { sub, event, acted: acts })?;
                continue;
            }
            let ending = ending(&outcome);
            let status = attempt_log::status_of(&outcome);
            let retry_after_ms = self.delay_least(sub, &outcome);
            self.host.engine.outcome(ticket, outcome);
            // If the store fails here, the result is unknown. Treat it as if it could not be written.
            let stalled = self.host.engine.is_open(ticket) || self.host.engine.failure().is_some();
            // A deleted subscription gets no response, so the events in the response are not accepted either.
            let taken = !stalled && self.outside.sub(sub).life.there;
            if let Some(status) = status {
                let answer = Answer { status, life, taken };
                self.network.answered.entry((sub, event)).or_default().push(answer);
            }
            let number = ticket.0;
            self.note(Entry::Ended {
                sub,
                event,
                ticket: number,
                ending,
                retry_after_ms,
                acted: acts,
                stalled,
            })?;
            self.replied(&replies, taken)?;
            if stalled {
                self.stalled.push(Stalled { sub, event, ticket, replies });
            }
        }
        Ok(())
    }

    pub(crate) fn replied(&mut self, replies: &[EventNo], taken: bool) -> Verdict {
        for event in replies {
            let token = self.take_token();
            self.note(Entry::Replied { token, event: *event, taken })?;
        }
        Ok(())
    }

    /// A new subscription, or one with changed filters, may accept events that are waiting for space.
    pub fn offer_stalled_replies(&mut self) -> Verdict {
        let stalled: Vec<EventNo> =
            self.stalled.iter().flat_map(|stalled| &stalled.replies).copied().collect();
        self.replied(&stalled, false)
    }

    fn delay_least(&self, sub: SubNo, outcome: &CallOutcome) -> u64 {
        if let CallOutcome::NotReady { retry_after_ms, .. } = outcome {
            return *retry_after_ms;
        }
        let rules = &self.outside.sub(sub).rules;
        let asked = outcome.retry_after_ms().unwrap_or(0).min(RETRY_AFTER_MS_MAX);
        asked.max(rules.retry.backoff_ms.min(rules.retry.max_backoff_ms) / 2)
    }
}

fn ending(outcome: &CallOutcome) -> Ending {
    match outcome.verdict() {
        _ if matches!(outcome, CallOutcome::NotReady { .. }) => Ending::NotMade,
        Meaning::Delivered => Ending::Delivered,
        Meaning::Retry => Ending::Retry,
        Meaning::Fatal => Ending::Fatal,
    }
}
