//! Acknowledgement by the receiver of a webhook endpoint: it has everything up to an event, from the feed or from
//! another source.

use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use klambda_core::ids::{FeedNumber, SubscriptionId};
use klambda_core::lane::Turn;
use klambda_core::webhook::EventId;
use klambda_store::address::Kept;
use klambda_store::record::Step;

/// Lanes and events of one part.
const LANES: usize = 256;
const EVENTS: u64 = 1024;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Acknowledged {
    pub events: u64,
    /// Workflows whose first event is in flight. Its call ends first.
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

    fn is_up_to(
        &mut self,
        id: SubscriptionId,
        through: FeedNumber,
        entry: &klambda_core::lane::Entry,
    ) -> Result<bool, Failure> {
        let Some(event_id) = self.event_id_of(id, entry.address())? else { return Ok(false) };
        Ok(self.feed_number(id, event_id)?.is_some_and(|number| number <= through))
    }
}
