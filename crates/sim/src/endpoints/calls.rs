//! Calls to the receivers of webhook endpoints. A receiver reads the body of the call, as it would in reality.

use crate::checkers::{Verdict, Violation};
use crate::event::{EventNo, ProducedEvent, SOURCES};
use crate::history::{EndpointNo, Entry, OrderStatus, Pushed, Webhook};
use crate::mix::Trouble;
use crate::world::World;
use klambda_core::outcome::CallOutcome;
use klambda_core::webhook::EventId;
use klambda_dispatch::client::webhook::body;
use klambda_dispatch::{Delivery, Ticket};
use serde_json::Value;

/// A call in flight.
pub struct EndpointCall {
    endpoint: EndpointNo,
    ticket: Ticket,
    /// The process that made the call.
    pub life: u64,
    workflow: String,
    numbers: Vec<u64>,
    outcome: CallOutcome,
}

impl World {
    pub fn call_endpoint(&mut self, endpoint: EndpointNo, delivery: &Delivery) -> Verdict {
        let (workflow, events) = self.read_call(endpoint, delivery)?;
        let numbers: Vec<u64> = events.iter().map(|pushed| pushed.number).collect();
        let ticket = delivery.ticket;
        let called = Webhook::Called { ticket: ticket.0, workflow: workflow.clone(), events };
        self.note(Entry::Webhook { endpoint, what: called })?;
        let (outcome, took) = self.answer(endpoint, numbers.len());
        let call = EndpointCall { endpoint, ticket, life: self.host.life, workflow, numbers, outcome };
        let at = (self.clock.time + took, self.endpoints.next);
        self.endpoints.next += 1;
        self.endpoints.calls.insert(at, call);
        Ok(())
    }

    fn read_call(
        &self,
        endpoint: EndpointNo,
        delivery: &Delivery,
    ) -> Result<(String, Vec<Pushed>), Violation> {
        let invented = |text: &str| Violation::new("no invention", format!("a webhook call {text}"));
        let body = body(delivery).ok_or_else(|| invented("has no body"))?;
        let body: Value = serde_json::from_slice(&body).map_err(|_| invented("is not JSON"))?;
        let elsewhere = self.outside.endpoint(endpoint).elsewhere;
        let events = match &body {
            Value::Array(events) => events.as_slice(),
            event => std::slice::from_ref(event),
        };
        let workflow = events.first().and_then(|event| event["workflowId"].as_str());
        let workflow = workflow.ok_or_else(|| invented("has no workflow"))?.to_owned();
        let mut pushed = Vec::new();
        for event in events {
            let text = |name: &str| event[name].as_str().unwrap_or_default();
            let no = self.producer.find(elsewhere, text("source"), text("id"));
            let no =
                no.ok_or_else(|| invented(&format!("has event {}, which was never made", event["id"])))?;
            let one = read_event(self.outside.made(no), no, event).filter(|_| text("workflowId") == workflow);
            pushed.push(one.ok_or_else(|| invented(&format!("has an invalid event: {event}")))?);
        }
        Ok((workflow, pushed))
    }

    /// The answer of the receiver to this number of events, and how long it takes. Without troubles it takes them all.
    fn answer(&mut self, endpoint: EndpointNo, events: usize) -> (CallOutcome, u64) {
        let (settings, rng) = (&self.endpoints.settings[endpoint as usize], &mut self.endpoints.rng);
        let took = rng.below(self.mix.round_ms * 2);
        let status = |code: u16| CallOutcome::Status { code, retry_after_ms: None, detail: String::new() };
        if self.outside.calm {
            return (status(200), took);
        }
        if rng.one_in(settings.gone_every) {
            return (status(410), took);
        }
        if rng.one_in(settings.fails_every) {
            return match rng.below(5) {
                0 => (CallOutcome::Timeout, 300),
                1 => (CallOutcome::Refused("no one listens".into()), took),
                2 => (CallOutcome::Broken("closed before the answer".into()), took),
                3 => (status(422), took),
                _ => (status(*rng.pick(&[301, 404, 429, 500, 503])), took),
            };
        }
        if events > 1 && rng.one_in(3) {
            let events = rng.between(1, events as u64 - 1) as usize;
            return (CallOutcome::Prefix { code: 200, events, detail: String::new() }, took);
        }
        (status(*rng.pick(&[200, 202, 204])), took)
    }

    pub fn end_endpoint_calls(&mut self) -> Verdict {
        while let Some(first) = self.endpoints.calls.first_entry()
            && first.key().0 <= self.clock.time
        {
            let call = first.remove();
            if call.life == self.host.life {
                self.end_endpoint_call(call)?;
            }
        }
        Ok(())
    }

    fn end_endpoint_call(&mut self, call: EndpointCall) -> Verdict {
        let EndpointCall { endpoint, ticket, workflow, mut numbers, outcome, .. } = call;
        let gone = matches!(outcome, CallOutcome::Status { code: 410, .. });
        match &outcome {
            CallOutcome::Status { code: 200..=299, .. } => {}
            CallOutcome::Prefix { events, .. } => numbers.truncate(*events),
            _ => numbers.clear(),
        }
        if gone {
            // Calls that have started are not affected.
            self.collect()?;
        }
        let may_be_full = self.mix.has(Trouble::FullDisk) || self.mix.has(Trouble::DiskError);
        let sure = if may_be_full { 1 } else { numbers.len() };
        self.host.engine.outcome(ticket, outcome);
        // If the store fails here, the result is unknown. Treat it as if it could not be written.
        let stalled = self.host.engine.is_open(ticket) || self.host.engine.failure().is_some();
        if stalled {
            self.endpoints.stalled.push((endpoint, ticket, workflow.clone()));
        }
        let ended = Webhook::Ended { ticket: ticket.0, workflow, numbers, sure, gone, stalled };
        self.note(Entry::Webhook { endpoint, what: ended })
    }

    pub fn look_at_stalled_webhooks(&mut self) -> Verdict {
        if self.endpoints.stalled.is_empty() || self.host.engine.failure().is_some() {
            return Ok(());
        }
        let engine = &self.host.engine;
        let written: Vec<_> =
            self.endpoints.stalled.extract_if(.., |stalled| !engine.is_open(stalled.1)).collect();
        for (endpoint, _, workflow) in written {
            self.note(Entry::Webhook { endpoint, what: Webhook::Unstalled { workflow } })?;
        }
        Ok(())
    }
}

/// `None` if a member is missing or has another type.
fn read_event(made: &ProducedEvent, no: EventNo, event: &Value) -> Option<Pushed> {
    let previous = match &event["previousEventId"] {
        Value::Null => None,
        id => Some(id.as_str()?.parse::<EventId>().ok()?),
    };
    let flag = match event["orderStatus"].as_str() {
        Some("gap") => OrderStatus::Gap,
        Some("late") => OrderStatus::Late,
        _ => OrderStatus::None,
    };
    let data = made.text();
    let unchanged = event["data"].as_str() == data.as_deref()
        && event["type"] == crate::event::KINDS[made.kind]
        && event["source"] == SOURCES[made.source];
    Some(Pushed {
        event: no,
        id: event["eventId"].as_str()?.parse().ok()?,
        number: event["sequenceNumber"].as_u64()?,
        previous,
        flag,
        unchanged,
    })
}
