//! The last steps of a lane, read from the log by following the chain of steps backwards.

use super::attempts::Tried;
use super::{Time, counted};
use crate::apply::range;
use bytes::Bytes;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::{Entry, Gap};
use klambda_store::address::{Kept, LogAddress};
use klambda_store::log::LogReader;
use klambda_store::record::{self, LaneRef, Missed, Record, Route, To};
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::HashMap;

pub const STEPS_MAX: usize = 100;
/// How many steps lead up to the failure of an event that parks its lane. They are shown even if many steps follow.
const STEPS_TO_HEAD_MAX: usize = 20;
/// How many steps of a lane are searched for those of one event.
const SEARCHED_MAX: usize = 1000;

#[derive(Clone, Debug, Serialize, JsonSchema)]
pub struct Step {
    pub at: Time,
    pub step: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub position: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    #[serde(flatten, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<Attempt>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub detail: Option<String>,
}

/// One call of a target.
#[derive(Clone, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Attempt {
    #[serde(rename = "attempt")]
    pub number: u32,
    pub duration_ms: u64,
    /// The HTTP status; `None` without a response.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub status: Option<u16>,
    /// The beginning of the response's body.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub answer: Option<String>,
}

impl Step {
    fn not_shown(at: Time) -> Step {
        let detail = Some("steps in between".to_owned());
        Step { at, step: "not shown", position: None, id: None, attempt: None, detail }
    }
}

/// The chain that a walk follows.
#[derive(Debug)]
pub enum Lane {
    Key(String),
    /// One event of an unordered subscription.
    Alone(Position),
}

/// A walk back through a lane's steps, started in memory and finished on disk.
#[derive(Debug)]
pub struct Walk {
    subscription: SubscriptionId,
    lane: Lane,
    /// Only the attempts of this event are kept.
    only: Option<Position>,
    next: LogAddress,
    /// The record that was read last.
    read: LogAddress,
    reads_left: usize,
    /// The steps up to the failure of the event that parks the lane.
    to_head: Option<Box<Walk>>,
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
            lane: Lane::Key(key.to_owned()),
            only: None,
            next: last_step,
            read: LogAddress(u64::MAX),
            reads_left: STEPS_MAX,
            to_head: None,
            steps: Vec::new(),
            unplaced: Vec::new(),
            waiting: waiting.map(|entry| (entry.address(), entry.position)).collect(),
            gaps: gaps.to_vec(),
        }
    }

    /// A walk that keeps only the attempts of one event.
    pub fn of_event(subscription: SubscriptionId, lane: Lane, last_step: LogAddress, only: Position) -> Walk {
        Walk {
            subscription,
            lane,
            only: Some(only),
            next: last_step,
            read: LogAddress(u64::MAX),
            reads_left: SEARCHED_MAX,
            to_head: None,
            steps: Vec::new(),
            unplaced: Vec::new(),
            waiting: HashMap::new(),
            gaps: Vec::new(),
        }
    }

    /// Includes the steps up to this one, with which the head parked the lane.
    pub fn with_head(self, parked: LogAddress) -> Walk {
        let Lane::Key(key) = &self.lane else { return self };
        let mut walk = Walk::new(self.subscription, key, parked, std::iter::empty(), &[]);
        walk.waiting = self.waiting.clone();
        walk.reads_left = STEPS_TO_HEAD_MAX;
        Walk { to_head: Some(Box::new(walk)), ..self }
    }

    /// Continues as long as `read` returns records.
    pub fn follow(&mut self, mut read: impl FnMut(LogAddress) -> Option<Bytes>) {
        while self.steps.len() < STEPS_MAX
            && self.reads_left > 0
            && self.next > LogAddress(0)
            && let Some(body) = read(self.next)
        {
            self.reads_left -= 1;
            self.read = self.next;
            if self.take(&body).is_none() {
                self.next = LogAddress(0);
            }
        }
    }

    /// Reads the rest; returns the steps oldest first. The timeline begins where retention has deleted the log.
    pub fn finish(mut self, reader: &LogReader) -> Vec<Step> {
        self.follow(|at| reader.read(at).ok());
        let (read, next) = (self.read, self.next);
        let to_head = self.to_head.take().filter(|walk| walk.next < read);
        let is_cut = to_head.as_ref().is_some_and(|walk| walk.next != next);
        let mut steps = to_head.map(|walk| walk.finish(reader)).unwrap_or_default();
        self.place(reader);
        self.name_delivered();
        self.steps.reverse();
        self.add_gaps();
        let cut = self.steps.first().filter(|_| is_cut).map(|step| Step::not_shown(step.at));
        steps.extend(cut.into_iter().chain(self.steps));
        steps
    }

    /// Reads the rest of the attempts; newest first.
    pub fn attempts(mut self, reader: &LogReader) -> Vec<Tried> {
        self.follow(|at| reader.read(at).ok());
        self.steps.into_iter().filter_map(Tried::new).collect()
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
            attempt: None,
            detail: Some(format!("sequence {}", range(gap.from, gap.to))),
        }));
        self.steps.sort_by_key(|step| step.at.0);
        self.steps.drain(..self.steps.len().saturating_sub(STEPS_MAX));
    }

    /// Adds the step in this record. Returns `None` if the record is not a step of this lane.
    fn take(&mut self, body: &[u8]) -> Option<()> {
        let mut unplaced = None;
        let (step, previous) = match Record::decode(body).ok()? {
            Record::Event { time, routes, event, .. } => {
                let route = routes.iter().find(|route| route.subscription == self.subscription)?;
                let view = EventView::decode(event).ok()?;
                unplaced = Some(self.next);
                (self.arrival(time, route, Some(view.id()))?, route.previous)
            }
            Record::Routed { time, position, route, .. } => {
                let mut step = self.arrival(time, &route, None)?;
                step.position = Some(position.0);
                (step, route.previous)
            }
            Record::Step { time, subscription, lane, previous, step, .. } => {
                if subscription != self.subscription || !self.lane.is(lane) {
                    return None;
                }
                (lane_step(Time(time), &step), previous)
            }
            _ => return None,
        };
        self.next = previous;
        if self.wants(&step) {
            unplaced.into_iter().for_each(|at| self.unplaced.push((self.steps.len(), at)));
            self.steps.push(step);
        }
        Some(())
    }

    fn wants(&self, step: &Step) -> bool {
        self.only.is_none_or(|only| step.attempt.is_some() && step.position == Some(only.0))
    }

    fn arrival(&self, time: klambda_core::time::Millis, route: &Route<'_>, id: Option<&str>) -> Option<Step> {
        if let To::Missed { key, why } = &route.to {
            let detail = match why {
                Missed::Retention => "deleted by retention before it was read",
                Missed::Discarded => "discarded before it was read",
            };
            let (at, detail) = (Time(time), Some(detail.to_owned()));
            return self.lane.is(LaneRef::Key(key)).then_some(Step {
                at,
                step: "missed",
                position: None,
                id: None,
                attempt: None,
                detail,
            });
        }
        let To::Lane { key, sequence } = &route.to else { return None };
        self.lane.is(LaneRef::Key(key)).then(|| Step {
            at: Time(time),
            step: "accepted",
            position: None,
            id: id.map(str::to_owned),
            attempt: None,
            detail: sequence.map(|sequence| format!("sequence {sequence}")),
        })
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

impl Lane {
    fn is(&self, lane: LaneRef<'_>) -> bool {
        match (self, lane) {
            (Lane::Key(key), LaneRef::Key(other)) => key == other,
            (Lane::Alone(position), LaneRef::Alone(other)) => *position == other,
            _ => false,
        }
    }
}

impl Attempt {
    fn of(step: &record::Step<'_>) -> Option<Attempt> {
        step.attempt().map(Attempt::new)
    }

    pub(crate) fn new(attempt: &record::Attempt<'_>) -> Attempt {
        Attempt {
            number: attempt.number,
            duration_ms: attempt.duration_ms,
            status: Some(attempt.status).filter(|status| *status > 0),
            answer: Some(attempt.answer.to_owned()).filter(|answer| !answer.is_empty()),
        }
    }
}

fn lane_step(at: Time, step: &record::Step<'_>) -> Step {
    let (position, detail) = match step {
        record::Step::Delivered { position, .. } => (Some(position.0), None),
        record::Step::Failed { position, error, .. } => (Some(position.0), Some((*error).to_owned())),
        record::Step::Reset { expected, .. } => (None, Some(format!("expected {expected}"))),
        record::Step::Resent { position, attempt, error, .. } => {
            let answered = || format!("status {}", attempt.status);
            let detail = if error.is_empty() { answered() } else { (*error).to_owned() };
            (Some(position.0), Some(detail))
        }
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
    Step { at, step: step.name(), position, id: None, attempt: Attempt::of(step), detail }
}
