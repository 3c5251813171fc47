//! Acknowledgement by the receiver of a webhook endpoint: it has everything up to an event, from the feed or from
//! another source.

use crate::dead_letters::Selector;
use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use klambda_core::fault::Fault;
use klambda_core::ids::{FeedNumber, Position, SubscriptionId};
use klambda_core::lane::{Entry, Turn};
use klambda_core::planted::{self, Bug};
use klambda_core::webhook::EventId;
use klambda_store::address::Kept;
use klambda_store::record::Step;

/// Lanes and events of one part.
const LANES: usize = 256;
const EVENTS: u64 = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    pub events: u64,
    /// Calls of such events that are open. They end first.
    pub busy: u64,
    /// Where the next part begins; `None` if this was the last one.
    pub next: Option<String>,
}

impl Engine {
    /// Marks the events of an endpoint up to `through` as delivered, in one workflow or in all of them, starting at a
    /// workflow. Repeating it changes nothing more.
    pub fn acknowledge_part(
        &mut self,
        name: &str,
        through: EventId,
        workflow: Option<&str>,
        from: &str,
    ) -> Result<Acknowledged, Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let Some(through) = self.feed_number(id, through)? else {
            return Err(Refused::NotFound(format!("the feed of {name:?} has no event {through}")));
        };
        let mut part = Acknowledged::default();
        if self.subscriptions.get(id).is_some_and(|subscription| !subscription.is_ordered()) {
            if workflow.is_some() {
                let text = "must be left out, because events of an unordered endpoint have no workflow";
                return Err(Refused::Invalid(vec![Fault::new("workflowId", text)]));
            }
            let stage = Stage::parse(from);
            part.next = self.acknowledge_unordered(id, through, stage, &mut part)?.map(Stage::text);
            return Ok(part);
        }
        if let Some(workflow) = workflow {
            while self.acknowledge_lane(id, workflow, through, &mut part)? {}
            return Ok(part);
        }
        let (keys, up_to) = self.waiting_keys_from(id, from, LANES)?;
        for key in keys {
            if self.acknowledge_lane(id, &key, through, &mut part)? {
                part.next = Some(key);
                return Ok(part);
            }
        }
        part.next = up_to.map(|key| key + "\0");
        Ok(part)
    }

    /// Returns true if the part is full and the lane may have more.
    fn acknowledge_lane(
        &mut self,
        id: SubscriptionId,
        key: &str,
        through: FeedNumber,
        part: &mut Acknowledged,
    ) -> Result<bool, Refused> {
        let full_at = part.events + EVENTS;
        while part.events < full_at {
            let slot = self.resident(id, key)?;
            let Some(resident) = self.lanes.get(slot) else { return Ok(false) };
            let Some(entry) = resident.lane.queue().first().copied() else { return Ok(false) };
            let is_open = resident.lane.running() == Some(Turn::Queue);
            if !self.is_up_to(id, through, &entry)? {
                return Ok(false);
            }
            if is_open {
                part.busy += 1;
                return Ok(false);
            }
            self.must_write()?;
            self.step_lane(id, key, Step::Acknowledged { position: entry.position })?;
            part.events += 1;
        }
        Ok(true)
    }

    /// A part of the events of an unordered endpoint. Returns where the next part begins.
    fn acknowledge_unordered(
        &mut self,
        id: SubscriptionId,
        through: FeedNumber,
        stage: Stage,
        part: &mut Acknowledged,
    ) -> Result<Option<Stage>, Refused> {
        let limit = EVENTS as usize;
        match stage {
            Stage::Queue => {
                while part.events < EVENTS
                    && let Some(entry) = self.first_queued(id)
                    && self.is_up_to(id, through, &entry)?
                {
                    self.acknowledge_single(id, &entry, part)?;
                }
                let is_full = part.events == EVENTS;
                Ok(Some(if is_full { Stage::Queue } else { Stage::UnderWay(Position(0)) }))
            }
            Stage::UnderWay(after) => {
                let entries = self.under_way_after(id, after, limit);
                for (entry, in_flight) in &entries {
                    if !self.is_up_to(id, through, entry)? {
                        continue;
                    }
                    match in_flight {
                        true => part.busy += 1,
                        false => self.acknowledge_single(id, entry, part)?,
                    }
                }
                let last = entries.last().filter(|_| entries.len() == limit);
                let next = last.map(|(entry, _)| Stage::UnderWay(entry.position));
                Ok(Some(next.unwrap_or(Stage::DeadLetters(Position(0)))))
            }
            Stage::DeadLetters(after) => {
                let letters = self.select_dead_letters(id, &Selector::default(), after, limit)?;
                for letter in &letters {
                    if self.is_up_to(id, through, &letter.entry)? {
                        self.acknowledge_single(id, &letter.entry, part)?;
                    }
                }
                let last = letters.last().filter(|_| letters.len() == limit);
                Ok(last.map(|letter| Stage::DeadLetters(letter.entry.position)))
            }
        }
    }

    fn first_queued(&self, id: SubscriptionId) -> Option<Entry> {
        self.subscriptions.get(id)?.unordered.queue.first().copied()
    }

    /// Events that left the queue, and whether they are in flight.
    fn under_way_after(&self, id: SubscriptionId, after: Position, limit: usize) -> Vec<(Entry, bool)> {
        let Some(subscription) = self.subscriptions.get(id) else { return Vec::new() };
        let under_way = subscription.unordered.under_way.range(Position(after.0 + 1)..);
        under_way.take(limit).map(|(_, single)| (single.entry, single.in_flight)).collect()
    }

    fn acknowledge_single(
        &mut self,
        id: SubscriptionId,
        entry: &Entry,
        part: &mut Acknowledged,
    ) -> Result<(), Refused> {
        self.must_write()?;
        let position = entry.position;
        self.step_single(id, position, Step::Acknowledged { position })?;
        part.events += 1;
        Ok(())
    }

    /// A pending event that is no longer in the feed was there before everything that the feed still has.
    fn is_up_to(&mut self, id: SubscriptionId, through: FeedNumber, entry: &Entry) -> Result<bool, Failure> {
        let Some(event_id) = self.event_id_of(id, entry.address())? else { return Ok(false) };
        let through = through.0 + u64::from(planted::is_on(Bug::AckTooFar));
        Ok(self.feed_number(id, event_id)?.is_none_or(|number| number.0 <= through))
    }
}

/// Where a part of an unordered endpoint begins. Events move from one stage to the next, so none is missed: an open call
/// counts as busy, and the caller repeats the request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Queue,
    /// Events that left the queue, after a position.
    UnderWay(Position),
    DeadLetters(Position),
}

impl Stage {
    fn parse(text: &str) -> Stage {
        let (name, after) = text.split_once(' ').unwrap_or((text, ""));
        let after = Position(after.parse().unwrap_or(0));
        match name {
            "underway" => Stage::UnderWay(after),
            "dead" => Stage::DeadLetters(after),
            _ => Stage::Queue,
        }
    }

    fn text(self) -> String {
        match self {
            Stage::Queue => String::new(),
            Stage::UnderWay(after) => format!("underway {after}"),
            Stage::DeadLetters(after) => format!("dead {after}"),
        }
    }
}
