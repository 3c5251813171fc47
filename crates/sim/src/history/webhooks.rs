//! What the receivers and the operators of webhook endpoints observe and do.

use super::OrderStatus;
use crate::event::EventNo;
use klambda_core::webhook::EventId;

/// Identifies a webhook endpoint of this run.
pub type EndpointNo = u32;

#[derive(Clone, Debug, Hash)]
pub enum Webhook {
    /// A call arrives at the receiver, with events of one workflow.
    Called {
        ticket: u64,
        workflow: String,
        events: Vec<Pushed>,
    },
    /// The engine learns the outcome. `numbers`: what the receiver acknowledged. `sure`: how many of them the engine
    /// keeps certainly; a full disk has room for a part only. `gone`: the receiver asked to be disabled.
    Ended {
        ticket: u64,
        workflow: String,
        numbers: Vec<u64>,
        sure: usize,
        gone: bool,
        stalled: bool,
    },
    /// An outcome for which the log had no space is finally written.
    Unstalled {
        workflow: String,
    },
    Acknowledged(Acked),
    /// An operator disabled the endpoint, or the status shows that it is disabled.
    Disabled,
    Enabled,
    /// Waiting events up to this entry of the feed may be skipped, because they are older than a chosen time.
    SkippedThrough(u64),
    /// Waiting events of a workflow up to this entry of the feed may be purged.
    Purged {
        workflow: String,
        through: u64,
    },
    Changed {
        batch_max: usize,
    },
    /// A page of the feed, when it is durable.
    Shown(Page),
    /// The feed cannot continue after an entry or an event that it has shown.
    Unavailable {
        since: u64,
        passed: bool,
    },
}

/// One event of a call, as its receiver reads it.
#[derive(Clone, Debug, Hash)]
pub struct Pushed {
    pub event: EventNo,
    pub id: EventId,
    pub number: u64,
    pub previous: Option<EventId>,
    pub flag: OrderStatus,
    /// The event equals the sent event.
    pub unchanged: bool,
}

/// One event of the feed.
#[derive(Clone, Debug, Hash)]
pub struct Listed {
    /// Its number in the feed.
    pub feed: u64,
    pub event: EventNo,
    pub id: EventId,
    pub workflow: String,
    pub number: u64,
    pub previous: Option<EventId>,
    pub unchanged: bool,
}

#[derive(Clone, Debug, Hash)]
pub struct Page {
    /// The page begins after this entry.
    pub since: u64,
    /// Only this workflow.
    pub workflow: Option<String>,
    pub items: Vec<Listed>,
    pub up_to: u64,
}

/// The receiver has everything up to an entry of the feed.
#[derive(Clone, Debug, Hash)]
pub struct Acked {
    pub through: u64,
    pub workflow: Option<String>,
    /// How many events were waiting.
    pub events: u64,
    /// It repeats the previous acknowledgement, and nothing happened in between.
    pub again: bool,
    /// The engine did not refuse in the middle.
    pub complete: bool,
}

impl Webhook {
    /// True if something moves. Reading the feed moves nothing.
    pub(super) fn is_progress(&self) -> bool {
        matches!(self, Webhook::Called { .. } | Webhook::Ended { .. })
    }

    /// True if it concerns this event or this workflow.
    pub(super) fn concerns(&self, event: Option<EventNo>, lane: Option<&str>) -> bool {
        let is_lane = |workflow: &str| lane == Some(workflow);
        match self {
            Webhook::Called { workflow, events, .. } => {
                is_lane(workflow) || events.iter().any(|pushed| Some(pushed.event) == event)
            }
            Webhook::Ended { workflow, gone, .. } => is_lane(workflow) || *gone,
            Webhook::Unstalled { workflow } | Webhook::Purged { workflow, .. } => is_lane(workflow),
            Webhook::Acknowledged(acked) => acked.workflow.as_deref().is_none_or(is_lane),
            Webhook::Shown(page) => page.items.iter().any(|listed| Some(listed.event) == event),
            Webhook::Disabled | Webhook::Enabled | Webhook::SkippedThrough(_) => true,
            Webhook::Changed { .. } | Webhook::Unavailable { .. } => true,
        }
    }
}
