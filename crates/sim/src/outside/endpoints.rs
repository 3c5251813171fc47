//! What the receivers of webhook endpoints know: the places of events in their workflows, from calls and from the
//! feed, and which of them are delivered.
//!
//! Some facts are not visible from outside. An endpoint that was disabled may have lost waiting events to their age, and
//! an operator may have skipped or purged some of them. Such an event may be gone, or may still come.

use super::Outside;
use crate::event::{EventNo, ProducedEvent};
use crate::history::{Acked, EndpointNo, Listed, Page, Pushed, Webhook};
use klambda_core::webhook::EventId;
use std::collections::{BTreeMap, BTreeSet};

pub struct Endpoint {
    /// Includes the namespace if it is not the default one.
    pub name: String,
    /// It is in the second namespace.
    pub elsewhere: bool,
    /// Only events of this type.
    pub kind: Option<usize>,
    /// The highest number of events per call that it ever allowed.
    pub batch_max: usize,
    /// Retention removes old events, so the beginning of the feed is lost, and waiting events of a disabled endpoint too.
    pub retention: bool,
    /// Ids of delivered events may be forgotten at any time.
    pub ids_limited: bool,
    /// The operation that disabled it, if it is certainly disabled.
    pub disabled: Option<u64>,
    /// It was disabled at some time.
    pub was_disabled: bool,
    /// Entries of the feed up to this one may have been skipped when the endpoint was enabled from a time.
    pub skipped_through: u64,
    /// Entries up to this one may have been acknowledged before the feed showed them.
    pub acked_through: u64,
    pub workflows: BTreeMap<String, Workflow>,
    pub feed: Feed,
    /// Events that a producer knows to be accepted.
    pub accepted: BTreeSet<EventNo>,
}

/// The feed, as far as it was shown.
#[derive(Default)]
pub struct Feed {
    /// The workflow and the sequence number of each entry, by its number in the feed.
    pub entries: BTreeMap<u64, (String, u64)>,
    /// Everything up to this number was shown.
    pub up_to: u64,
    /// Retention has removed entries that were never shown.
    pub has_holes: bool,
}

#[derive(Default)]
pub struct Workflow {
    /// The open call.
    pub open: Option<u64>,
    pub places: BTreeMap<u64, Place>,
    /// The numbers of an event. A second one is possible after the id of the event was released or forgotten.
    pub numbers: BTreeMap<EventNo, u64>,
    /// Entries of the feed up to this one may have been purged.
    pub purged_through: u64,
}

/// A place in a workflow, known from a call or from the feed.
#[derive(Clone, Debug)]
pub struct Place {
    pub event: EventNo,
    pub id: EventId,
    pub previous: Option<EventId>,
    pub state: State,
    /// How often it was called.
    pub calls: u32,
    /// Its number in the feed, if the feed has shown it.
    pub listed: Option<u64>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Waiting,
    /// Delivered or acknowledged, with the operation and the time.
    Done {
        op: u64,
        at: u64,
    },
    /// Delivered or acknowledged, but a crash may have undone it, or it is unknown whether it was covered. With the
    /// operation; zero if it is durable in case it happened.
    DoneMaybe(u64),
}

impl Endpoint {
    pub fn matches(&self, made: &ProducedEvent) -> bool {
        self.elsewhere == made.elsewhere && self.kind.is_none_or(|kind| kind == made.kind)
    }

    pub fn workflow(&self, name: &str) -> Option<&Workflow> {
        self.workflows.get(name)
    }

    pub fn place(&self, workflow: &str, number: u64) -> Option<&Place> {
        self.workflow(workflow)?.places.get(&number)
    }

    /// True if the event may have left its place without success.
    pub fn may_be_left_out(&self, workflow: &str, place: &Place) -> bool {
        let is_up_to = |through: u64| through > 0 && place.listed.is_none_or(|number| number <= through);
        let purged_through = self.workflow(workflow).map_or(0, |workflow| workflow.purged_through);
        (self.retention && self.was_disabled) || is_up_to(self.skipped_through) || is_up_to(purged_through)
    }

    pub fn surely_waits(&self, workflow: &str, place: &Place) -> bool {
        place.state == State::Waiting && !self.may_be_left_out(workflow, place)
    }

    /// True if nothing ever leaves without success here, so the counts must be equal.
    pub fn is_lossless(&self) -> bool {
        let is_purged = |workflow: &Workflow| workflow.purged_through > 0;
        !self.retention && self.skipped_through == 0 && !self.workflows.values().any(is_purged)
    }

    fn is_disabled_since(&mut self, op: u64) {
        self.disabled.get_or_insert(op);
        self.was_disabled = true;
    }

    /// The entries up to `through` that an acknowledgement covers. Calls that are open end first.
    pub fn covered<'a>(&'a self, acked: &'a Acked) -> impl Iterator<Item = (&'a str, u64)> {
        let entries =
            self.feed.entries.range(..=acked.through).map(|(_, (workflow, number))| (workflow, *number));
        let is_meant = |workflow: &str| {
            acked.workflow.as_deref().is_none_or(|only| only == workflow)
                && self.workflow(workflow).is_some_and(|workflow| workflow.open.is_none())
        };
        entries
            .filter(move |(workflow, _)| is_meant(workflow))
            .map(|(workflow, number)| (workflow.as_str(), number))
    }

    fn acknowledged(&mut self, acked: &Acked, op: u64, at: u64) {
        let covered: Vec<(String, u64)> =
            self.covered(acked).map(|(workflow, number)| (workflow.to_owned(), number)).collect();
        for (workflow, number) in covered {
            let workflow = self.workflows.entry(workflow).or_default();
            let Some(place) = workflow.places.get_mut(&number) else { continue };
            match (place.state, acked.complete) {
                (State::Done { .. }, _) => {}
                (_, true) => place.state = State::Done { op, at },
                (_, false) => place.state = State::DoneMaybe(op),
            }
        }
        if self.feed.has_holes || acked.through > self.feed.up_to {
            self.may_cover_unlisted(acked, op);
        }
        self.acked_through = self.acked_through.max(acked.through);
    }

    /// The entries of events that are known only from calls may be among those that the feed has not shown.
    fn may_cover_unlisted(&mut self, acked: &Acked, op: u64) {
        let is_meant = |name: &str| acked.workflow.as_deref().is_none_or(|only| only == name);
        for (_, workflow) in self.workflows.iter_mut().filter(|(name, _)| is_meant(name)) {
            let unlisted = workflow.places.values_mut().filter(|place| place.listed.is_none());
            for place in unlisted.filter(|place| place.state == State::Waiting) {
                place.state = State::DoneMaybe(op);
            }
        }
    }

    fn called(&mut self, ticket: u64, workflow: &str, events: &[Pushed]) {
        let workflow = self.workflows.entry(workflow.to_owned()).or_default();
        workflow.open = Some(ticket);
        for pushed in events {
            let Pushed { event, id, number, previous, .. } = *pushed;
            let place = workflow.placed(event, id, number, previous);
            place.calls += 1;
            // It was called again, so a crash had undone its acknowledgement.
            place.state = State::Waiting;
        }
        // A workflow continues only when everything before is settled.
        let first = events.first().map_or(0, |pushed| pushed.number);
        for (_, place) in workflow.places.range_mut(..first).rev() {
            match place.state {
                State::Done { .. } => break,
                State::Waiting => {}
                State::DoneMaybe(op) => place.state = State::Done { op, at: 0 },
            }
        }
    }

    /// An outcome that could not be written has the highest `op`, because it survives no crash.
    fn ended(&mut self, workflow: &str, numbers: &[u64], sure: usize, op: u64, at: u64) {
        let workflow = self.workflows.entry(workflow.to_owned()).or_default();
        if op < u64::MAX {
            workflow.open = None;
        }
        for (n, number) in numbers.iter().enumerate() {
            if let Some(place) = workflow.places.get_mut(number) {
                place.state = if n < sure { State::Done { op, at } } else { State::DoneMaybe(op) };
            }
        }
    }

    fn unstalled(&mut self, workflow: &str, op: u64, at: u64) {
        let Some(workflow) = self.workflows.get_mut(workflow) else { return };
        workflow.open = None;
        for place in workflow.places.values_mut() {
            match place.state {
                State::Done { op: u64::MAX, .. } => place.state = State::Done { op, at },
                State::DoneMaybe(u64::MAX) => place.state = State::DoneMaybe(op),
                _ => {}
            }
        }
    }

    fn shown(&mut self, page: &Page, op: u64) {
        for Listed { feed, event, id, workflow, number, previous, .. } in &page.items {
            let may_be_acked = *feed <= self.acked_through;
            let known = self.workflows.entry(workflow.clone()).or_default();
            let place = known.placed(*event, *id, *number, *previous);
            // An acknowledgement covers entries that were not shown yet, too.
            let is_new = place.listed.replace(*feed).is_none();
            if is_new && may_be_acked && place.state == State::Waiting {
                place.state = State::DoneMaybe(op);
            }
            self.feed.entries.insert(*feed, (workflow.clone(), *number));
        }
        if page.workflow.is_none() {
            self.feed.has_holes |= page.since > self.feed.up_to;
            self.feed.up_to = self.feed.up_to.max(page.up_to);
        }
    }

    fn crashed(&mut self, kept: u64) {
        self.disabled = self.disabled.filter(|op| *op <= kept);
        for workflow in self.workflows.values_mut() {
            workflow.open = None;
            for place in workflow.places.values_mut() {
                // A restart makes everything durable that it finds.
                match place.state {
                    State::Done { op, .. } | State::DoneMaybe(op) if op > kept => {
                        place.state = State::DoneMaybe(0);
                    }
                    _ => {}
                }
            }
        }
    }
}

impl Workflow {
    fn placed(&mut self, event: EventNo, id: EventId, number: u64, previous: Option<EventId>) -> &mut Place {
        let newest = self.numbers.entry(event).or_insert(number);
        *newest = number.max(*newest);
        let new = Place { event, id, previous, state: State::Waiting, calls: 0, listed: None };
        self.places.entry(number).or_insert(new)
    }
}

impl Outside {
    pub fn endpoint(&self, endpoint: EndpointNo) -> &Endpoint {
        &self.endpoints[endpoint as usize]
    }

    /// True if the event belongs to a webhook endpoint, about which the other checkers know nothing.
    pub fn is_for_endpoint(&self, event: EventNo) -> bool {
        self.endpoints.iter().any(|endpoint| endpoint.matches(self.made(event)))
    }

    /// A producer knows that the event is in the log.
    pub(super) fn endpoints_have(&mut self, event: EventNo) {
        let made = &self.events[event as usize];
        for endpoint in self.endpoints.iter_mut().filter(|endpoint| endpoint.matches(made)) {
            endpoint.accepted.insert(event);
        }
    }

    pub(super) fn endpoints_crashed(&mut self, kept: u64) {
        self.endpoints.iter_mut().for_each(|endpoint| endpoint.crashed(kept));
    }

    pub(super) fn webhook(&mut self, endpoint: EndpointNo, what: &Webhook) {
        if !matches!(what, Webhook::Called { .. } | Webhook::Shown(_) | Webhook::Unavailable { .. }) {
            self.op += 1;
        }
        let (op, now) = (self.op, self.now);
        let endpoint = &mut self.endpoints[endpoint as usize];
        match what {
            Webhook::Called { ticket, workflow, events, .. } => endpoint.called(*ticket, workflow, events),
            Webhook::Ended { workflow, numbers, sure, gone, stalled, .. } => {
                endpoint.ended(workflow, numbers, *sure, if *stalled { u64::MAX } else { op }, now);
                match (gone, stalled) {
                    (true, false) => endpoint.is_disabled_since(op),
                    (true, true) => endpoint.was_disabled = true,
                    (false, _) => {}
                }
            }
            Webhook::Unstalled { workflow } => endpoint.unstalled(workflow, op, now),
            Webhook::Acknowledged(acked) => endpoint.acknowledged(acked, op, now),
            Webhook::Disabled => endpoint.is_disabled_since(op),
            Webhook::Enabled => endpoint.disabled = None,
            Webhook::SkippedThrough(feed) => endpoint.skipped_through = endpoint.skipped_through.max(*feed),
            Webhook::Purged { workflow, through } => {
                let workflow = endpoint.workflows.entry(workflow.clone()).or_default();
                workflow.purged_through = workflow.purged_through.max(*through);
            }
            Webhook::Changed { batch_max } => endpoint.batch_max = endpoint.batch_max.max(*batch_max),
            Webhook::Shown(page) => endpoint.shown(page, op),
            Webhook::Unavailable { .. } => {}
        }
    }
}
