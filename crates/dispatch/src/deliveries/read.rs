//! Reads the attempts of an endpoint in pages, backwards or forwards.

use super::{CHUNK, entries};
use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use crate::views::Attempt;
use crate::views::Time;
use klambda_core::event_codec::EventView;
use klambda_core::ids::SubscriptionId;
use klambda_core::time::Millis;
use klambda_core::webhook::EventId;
use klambda_store::address::LogAddress;
use klambda_store::log::{self, LogReader};
use klambda_store::record::{Record, Step};
use schemars::JsonSchema;
use serde::Serialize;

/// Entries that one page looks at, whatever it returns.
const LOOKED_AT_MAX: u64 = 2048;

/// Where a page begins. Numbers of attempts grow with time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum From {
    Newest,
    /// Older attempts than this one, newest first.
    Before(u64),
    /// Newer attempts than this one, oldest first.
    After(u64),
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeliveryFilter {
    pub workflow: Option<String>,
    pub succeeded: Option<bool>,
    pub since: Option<Millis>,
    pub event: Option<EventId>,
}

#[derive(Debug, Default)]
pub struct DeliveryPage {
    pub items: Vec<DeliveryItem>,
    /// The last attempt that was looked at.
    pub up_to: u64,
    /// There may be further attempts.
    pub more: bool,
}

/// An attempt, with the places in the log that describe it.
#[derive(Debug)]
pub struct DeliveryItem {
    pub number: u64,
    step: LogAddress,
    /// Where the event can be read now; `None` if retention deleted it.
    event: Option<LogAddress>,
    workflow: Option<String>,
    lane_number: Option<u64>,
}

/// An attempt as lists show it.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Delivery {
    pub time: Time,
    /// `delivered` or `failed`.
    pub outcome: &'static str,
    /// A user sent the event again. The attempt has the number 0.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub resend: bool,
    pub event_id: Option<String>,
    pub id: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub workflow_id: Option<String>,
    pub sequence_number: Option<u64>,
    #[serde(flatten)]
    pub attempt: Attempt,
    /// Why the attempt failed, unless the answer says it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

impl Engine {
    /// A page of attempts. Call it as a command: what it returns is durable when the command returns.
    pub fn read_deliveries(
        &self,
        name: &str,
        from: From,
        filter: &DeliveryFilter,
        limit: usize,
    ) -> Result<DeliveryPage, Refused> {
        let id = self.subscription_id(name)?;
        let Some(ends) = self.call_ends(id) else { return Ok(DeliveryPage::default()) };
        let event = match filter.event {
            Some(event) => Some(self.event_address(id, event)?.ok_or_else(|| unknown(name, event))?),
            None => None,
        };
        let mut page = DeliveryPage::default();
        let mut looked_at = 0;
        let mut next = match from {
            From::Newest => ends.count,
            From::Before(number) => number.saturating_sub(1).min(ends.count),
            From::After(number) => number.min(ends.count).max(ends.forgotten) + 1,
        };
        page.up_to = if let From::After(number) = from { number.min(ends.count) } else { next + 1 };
        while (ends.forgotten + 1..=ends.count).contains(&next) {
            let row = self.calls_chunk(id, (next - 1) / CHUNK)?;
            let chunk = entries(&row).map_err(Failure::from)?;
            if chunk.len() as u64 <= (next - 1) % CHUNK {
                return Err(Failure::State("a chunk of attempts is incomplete".to_owned()).into());
            }
            while let Some(call) = chunk.get(((next - 1) % CHUNK) as usize) {
                if page.items.len() == limit || looked_at == LOOKED_AT_MAX {
                    page.more = true;
                    return Ok(page);
                }
                let is_too_old = filter.since.is_some_and(|since| call.time < since);
                if is_too_old && !matches!(from, From::After(_)) {
                    return Ok(page);
                }
                (looked_at, page.up_to) = (looked_at + 1, next);
                if !is_too_old
                    && filter.succeeded.is_none_or(|wanted| wanted == call.succeeded)
                    && filter.workflow.as_deref().is_none_or(|wanted| wanted == call.workflow)
                    && event.is_none_or(|wanted| wanted == call.event)
                {
                    let lane_number = Some(call.number.0).filter(|number| *number > 0);
                    page.items.push(DeliveryItem {
                        number: next,
                        step: call.step,
                        event: self.locate(call.event)?,
                        workflow: lane_number.map(|_| call.workflow.to_owned()),
                        lane_number,
                    });
                }
                let chunk_before = (next - 1) / CHUNK;
                next = if let From::After(_) = from { next + 1 } else { next - 1 };
                if next == ends.forgotten || (next - 1) / CHUNK != chunk_before {
                    break;
                }
            }
        }
        Ok(page)
    }

    /// The number of the newest attempt.
    pub fn last_delivery(&self, name: &str) -> Result<u64, Refused> {
        let id = self.subscription_id(name)?;
        Ok(self.call_ends(id).map_or(0, |ends| ends.count))
    }

    fn event_address(&self, id: SubscriptionId, event: EventId) -> Result<Option<LogAddress>, Failure> {
        Ok(self.feed_entry(id, event)?.map(|entry| entry.at))
    }
}

fn unknown(name: &str, event: EventId) -> Refused {
    Refused::NotFound(format!("the feed of {name:?} has no event {event}"))
}

impl DeliveryItem {
    /// Reads the attempt and its event. `None` if retention has deleted the attempt. May block on the disk.
    pub fn read(self, namespace: &str, reader: &LogReader) -> Result<Option<Delivery>, Failure> {
        let Some(record) = if_kept(reader.read(self.step))? else { return Ok(None) };
        let Record::Step { time, step, .. } = Record::decode(&record)? else {
            return Err(Failure::State("the log has no attempt where the index expects it".to_owned()));
        };
        let (outcome, attempt, error) = match &step {
            Step::Delivered { attempt, .. } => ("delivered", attempt, ""),
            Step::Failed { attempt, error, .. } => ("failed", attempt, *error),
            Step::Resent { attempt, error, .. } => match attempt.status {
                200..300 => ("delivered", attempt, ""),
                _ => ("failed", attempt, *error),
            },
            _ => return Ok(None),
        };
        let is_said = error.is_empty() || !attempt.answer.is_empty();
        let mut delivery = Delivery {
            time: Time(time),
            outcome,
            resend: matches!(step, Step::Resent { .. }),
            event_id: None,
            id: None,
            kind: None,
            workflow_id: self.workflow,
            sequence_number: self.lane_number,
            attempt: Attempt::new(attempt),
            error: (!is_said).then(|| error.to_owned()),
        };
        if let Some(at) = self.event
            && let Some(record) = if_kept(reader.read(at))?
        {
            delivery.name(namespace, &record)?;
        }
        Ok(Some(delivery))
    }
}

impl Delivery {
    fn name(&mut self, namespace: &str, record: &[u8]) -> Result<(), Failure> {
        let (_, event) = crate::apply::event_of(record)?;
        let event = EventView::decode(event).map_err(|_| Failure::State("unreadable event".to_owned()))?;
        self.event_id = Some(EventId::new(namespace, event.source(), event.id()).to_string());
        self.id = Some(event.id().to_owned());
        self.kind = Some(event.kind().to_owned());
        Ok(())
    }
}

fn if_kept<T>(read: Result<T, log::Error>) -> Result<Option<T>, Failure> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(log::Error::Gone(_)) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
