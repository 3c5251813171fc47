//! The last steps of a lane, read from the log by following the chain of steps backwards.

use super::{Time, counted};
use crate::apply::range;
use bytes::Bytes;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Gap};
use klambda_store::address::{Kept, LogAddress};
use klambda_store::log::LogReader;
use klambda_store::record::{self, LaneRef, Missed, Record, Route, To};
use serde::Serialize;
use std::collections::HashMap;

pub const STEPS_MAX: usize = 100;

#[derive(Clone, Debug, Serialize)]
pub struct Step {
    pub at: Time,
    pub step: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// A walk back through a lane's steps, started in memory and finished on disk.
#[derive(Debug)]
pub struct Walk {
    subscription: SubscriptionId,
    key: String,
    next: LogAddress,
    /// Newest first.
    steps: Vec<Step>,
    /// Arrivals whose positions are still unknown: the index of the step, and the address of its event.
    unplaced: Vec<(usize, LogAddress)>,
    waiting: HashMap<LogAddress, Position>,
    /// Skipped gaps. They have no records of their own: a timer, a limit or an operator may have skipped them.
    gaps: Vec<Gap>,
}

impl Walk {
    pub fn new<'a>(
        subscription: SubscriptionId,
        key: &str,
        last_step: LogAddress,
        waiting: impl Iterator<Item = &'a Entry>,
        gaps: &[Gap],
    ) -> Walk {
        Walk {
            subscription,
            key: key.to_owned(),
            next: last_step,
            steps: Vec::new(),
            unplaced: Vec::new(),
            waiting: waiting.map(|entry| (entry.address(), entry.position)).collect(),
            gaps: gaps.to_vec(),
        }
    }

    /// Continues as long as `read` returns records.
    pub fn follow(&mut self, mut read: impl FnMut(LogAddress) -> Option<Bytes>) {
        while self.steps.len() < STEPS_MAX
            && self.next > LogAddress(0)
            && let Some(body) = read(self.next)
        {
            if self.take(&body).is_none() {
                self.next = LogAddress(0);
            }
        }
    }

    /// Reads the rest; returns the steps oldest first. The timeline begins where retention has deleted the log.
    pub fn finish(mut self, reader: &LogReader) -> Vec<Step> {
        self.follow(|at| reader.read(at).ok());
        self.place(reader);
        self.name_delivered();
        self.steps.reverse();
        self.add_gaps();
        self.steps
    }

    /// Inserts each gap after the steps up to the time when it was skipped.
    fn add_gaps(&mut self) {
        let Some(first) = self.steps.first().map(|step| step.at.0) else { return };
        let shown = self.gaps.iter().filter(|gap| gap.at >= first);
        self.steps.extend(shown.map(|gap| Step {
            at: Time(gap.at),
            step: "gap skipped",
            position: None,
            id: None,
            detail: Some(format!("sequence {}", range(gap.from, gap.to))),
        }));
        self.steps.sort_by_key(|step| step.at.0);
        self.steps.drain(..self.steps.len().saturating_sub(STEPS_MAX));
    }

    /// Adds the step in this record. Returns `None` if the record is not a step of this lane.
    fn take(&mut self, body: &[u8]) -> Option<()> {
        let (step, previous) = match Record::decode(body).ok()? {
            Record::Event { time, routes, event, .. } => {
                let route = routes.iter().find(|route| route.subscription == self.subscription)?;
                let view = EventView::decode(event).ok()?;
                self.place_later(self.next);
                (self.arrival(time, route, Some(view.id()))?, route.previous)
            }
            Record::Routed { time, position, route, .. } => {
                let mut step = self.arrival(time, &route, None)?;
                step.position = Some(position.0);
                (step, route.previous)
            }
            Record::Step { time, subscription, lane: LaneRef::Key(key), previous, step, .. } => {
                if subscription != self.subscription || key != self.key {
                    return None;
                }
                (lane_step(Time(time), &step), previous)
            }
            _ => return None,
        };
        self.steps.push(step);
        self.next = previous;
        Some(())
    }

    fn arrival(&self, time: klambda_core::time::Millis, route: &Route<'_>, id: Option<&str>) -> Option<Step> {
        if let To::Missed { key, why } = &route.to {
            let detail = match why {
                Missed::Retention => "deleted by retention before it was read",
                Missed::Discarded => "discarded before it was read",
            };
            let (at, detail) = (Time(time), Some(detail.to_owned()));
            return (*key == self.key).then_some(Step {
                at,
                step: "missed",
                position: None,
                id: None,
                detail,
            });
        }
        let To::Lane { key, sequence } = &route.to else { return None };
        (*key == self.key).then(|| Step {
            at: Time(time),
            step: "accepted",
            position: None,
            id: id.map(str::to_owned),
            detail: sequence.map(|sequence| format!("sequence {sequence}")),
        })
    }

    fn place_later(&mut self, at: LogAddress) {
        self.unplaced.push((self.steps.len(), at));
    }

    fn place(&mut self, reader: &LogReader) {
        let addresses: Vec<LogAddress> = self.unplaced.iter().map(|(_, at)| *at).collect();
        let positions = reader.positions(&addresses).unwrap_or_else(|_| vec![None; addresses.len()]);
        for ((step, at), position) in std::mem::take(&mut self.unplaced).into_iter().zip(positions) {
            let position = position.or_else(|| self.waiting.get(&at).copied());
            if let Some(step) = self.steps.get_mut(step) {
                step.position = position.map(|position| position.0);
            }
        }
    }

    /// An acknowledgement names its event only by position. The id is in the arrival.
    fn name_delivered(&mut self) {
        let ids: HashMap<u64, String> =
            self.steps.iter().filter_map(|step| Some((step.position?, step.id.clone()?))).collect();
        for step in self.steps.iter_mut().filter(|step| step.id.is_none()) {
            step.id = step.position.and_then(|position| ids.get(&position).cloned());
        }
    }
}

fn lane_step(at: Time, step: &record::Step<'_>) -> Step {
    let (position, detail) = match step {
        record::Step::Delivered { position, .. } => (Some(position.0), None),
        record::Step::Failed { position, error, .. } => (Some(position.0), Some((*error).to_owned())),
        record::Step::Reset { expected, .. } => (None, Some(format!("expected {expected}"))),
        record::Step::Replay { position, job, .. } if *job > 0 => {
            (Some(position.0), Some(format!("replay r{job}")))
        }
        record::Step::Replay { position, .. }
        | record::Step::Discard { position }
        | record::Step::Acknowledged { position } => (Some(position.0), None),
        record::Step::Purge { events, .. } => (None, Some(counted(*events, "event"))),
        record::Step::PurgePart { positions, .. } => (None, Some(counted(positions.len() as u64, "event"))),
        _ => (None, None),
    };
    Step { at, step: step.name(), position, id: None, detail }
}
