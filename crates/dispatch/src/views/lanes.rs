//! View of one lane: its state, since when, and what it waits for.

use super::timeline::{Step, Walk};
use super::{Edit, Time};
use crate::dead_letters::{Attempts, DeadLetter};
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use klambda_core::event_codec::EventView;
use klambda_core::ids::SubscriptionId;
use klambda_core::lane::{self, Entry, Hold, State};
use klambda_core::namespace;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::log::LogReader;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    pub namespace: String,
    pub subscription: String,
    pub key: String,
    #[schemars(extend("enum" = State::ALL.map(State::name)))]
    pub state: &'static str,
    pub since: Time,
    pub waits_for: Option<String>,
    pub depth: u64,
    /// When the oldest pending event was accepted.
    pub oldest: Option<Time>,
    /// Arrivals per second, averaged over about ten seconds.
    pub events_per_second: f64,
    pub expected_sequence: Option<u64>,
    /// The last assigned lane sequence.
    pub lane_sequence: u64,
    pub buffered: u64,
    pub head: Option<Head>,
    pub gap: Option<Gap>,
    /// How many ranges of missing sequences the lane skipped and remembers.
    pub gaps_given_up: u64,
    /// These ranges, only in the view of a single lane.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Vec<GivenUp>>,
    /// Up to this sequence it is unknown which events were delivered, because gaps were forgotten or events were
    /// released.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps_forgotten_up_to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<Step>>,
    #[serde(skip)]
    walk: Option<Walk>,
}

/// The next event to deliver, or the event that parks the lane.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub id: Option<String>,
    pub source: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub position: u64,
    /// Since the attempts were last reset.
    pub attempts: u32,
    /// All attempts.
    pub attempts_total: u32,
    pub last_error: Option<String>,
    pub next_attempt: Option<Time>,
    /// Set if the head was edited as a dead letter.
    #[serde(flatten)]
    pub edit: Option<Edit>,
    #[serde(skip)]
    at: LogAddress,
}

#[derive(Debug, Serialize, JsonSchema)]
pub struct Gap {
    /// First and last; `None` while a new lane waits for sequences lower than the first it received.
    pub missing: Option<[u64; 2]>,
    pub until: Option<Time>,
}

/// Sequences that the lane no longer waits for.
#[derive(Debug, Serialize, JsonSchema)]
pub struct GivenUp {
    pub from: u64,
    pub to: u64,
    pub at: Time,
}

impl Engine {
    /// One lane with its timeline, which `resolve` completes.
    pub fn view_lane(&self, name: &str, key: &str) -> Result<Option<Lane>, Failure> {
        let Some(id) = self.subscriptions.named(name) else { return Ok(None) };
        let stored;
        let resident = match self.lanes.find(id, key).and_then(|slot| self.lanes.get(slot)) {
            Some(resident) => resident,
            None => match self.peek_lane(id, key)? {
                Some(resident) => {
                    stored = resident;
                    &stored
                }
                None => return Ok(None),
            },
        };
        let mut lane = self.lane_view(name, resident)?;
        let gaps = resident.lane.gaps();
        let given_up = |gap: &lane::Gap| GivenUp { from: gap.from.0, to: gap.to.0, at: Time(gap.at) };
        lane.gaps = Some(gaps.ranges().iter().map(given_up).collect());
        lane.gaps_forgotten_up_to = gaps.forgotten().map(|sequence| sequence.0);
        let mut walk = Walk::new(id, key, resident.last_step, resident.lane.entries(), gaps.ranges());
        if let Some(letter) = self.parking_letter(resident)? {
            walk = walk.with_head(letter.last_step);
        }
        walk.follow(|at| self.store.log.cached(at));
        lane.walk = Some(walk);
        Ok(Some(lane))
    }

    /// The dead letter that parks the lane.
    fn parking_letter(&self, resident: &Resident) -> Result<Option<DeadLetter>, Failure> {
        match resident.lane.first_waiting().filter(|_| resident.lane.hold() == Some(Hold::Failed)) {
            Some(entry) => self.dead_letter(rows::HELD, resident.subscription, entry.position),
            None => Ok(None),
        }
    }

    pub(super) fn lane_view(&self, name: &str, resident: &Resident) -> Result<Lane, Failure> {
        let lane = &resident.lane;
        let (namespace, name) = namespace::split(name);
        Ok(Lane {
            namespace: namespace.to_owned(),
            subscription: name.to_owned(),
            key: resident.key.to_string(),
            state: self.shown_state(resident).name(),
            since: Time(lane.since()),
            waits_for: self.waits_for(resident),
            depth: lane.depth(),
            oldest: lane.first_waiting().map(|entry| Time(entry.accepted)),
            events_per_second: (resident.rate.per_second(self.now) * 100.0).round() / 100.0,
            expected_sequence: lane.expected().map(|sequence| sequence.0),
            lane_sequence: lane.next_number().0.saturating_sub(1),
            buffered: lane.buffered(),
            head: head_entry(resident).map(|entry| self.head_view(resident, entry)).transpose()?,
            gap: gap(resident),
            gaps_given_up: lane.gaps().ranges().len() as u64,
            gaps: None,
            gaps_forgotten_up_to: None,
            timeline: None,
            walk: None,
        })
    }

    /// A paused subscription pauses all of its lanes, whatever each of them waits for.
    pub(super) fn shown_state(&self, resident: &Resident) -> State {
        let is_paused = self
            .subscriptions
            .get(resident.subscription)
            .is_some_and(|subscription| subscription.is_paused());
        match resident.lane.state() {
            State::Running => State::Running,
            _ if is_paused => State::Paused,
            state => state,
        }
    }

    fn head_view(&self, resident: &Resident, entry: &Entry) -> Result<Head, Failure> {
        let lane = &resident.lane;
        let Attempts { fresh, total } = self.head_attempts(resident, entry)?;
        let edit = self.edit(resident.subscription, entry.position);
        let mut head = Head {
            id: None,
            source: None,
            kind: None,
            position: entry.position.0,
            attempts: fresh,
            attempts_total: total,
            last_error: (total > 0 && !resident.failure.error.is_empty())
                .then(|| resident.failure.error.clone()),
            // If the time has passed, the lane waits for something else, such as a breaker.
            next_attempt: lane.retry_at().filter(|at| *at > self.now).map(Time),
            edit: edit.map(Edit::from),
            at: match edit {
                Some(edit) => edit.at,
                None => self.located(entry.address())?,
            },
        };
        if let Some(record) = self.store.log.cached(head.at) {
            head.read(&record);
        }
        Ok(head)
    }

    /// The attempts of the head of a lane, or of the dead letter that parks it.
    pub(super) fn head_attempts(&self, resident: &Resident, entry: &Entry) -> Result<Attempts, Failure> {
        let lane = &resident.lane;
        if lane.head().is_none()
            && let Some(letter) = self.dead_letter(rows::HELD, resident.subscription, entry.position)?
        {
            return Ok(letter.attempts);
        }
        let total = lane.head_attempts_total() + resident.tried_earlier(entry.position);
        Ok(Attempts { fresh: lane.attempts(), total })
    }

    /// The current address of an event, which retention may have copied forward.
    pub(super) fn located(&self, at: LogAddress) -> Result<LogAddress, Failure> {
        if at >= self.store.log.oldest() {
            return Ok(at);
        }
        let row = self.store.rows.get(&rows::kept(at))?;
        let moved = row.and_then(|row| row.try_into().ok()).map(u64::from_be_bytes);
        Ok(moved.map_or(at, LogAddress))
    }

    pub(crate) fn name_of(&self, id: SubscriptionId) -> &str {
        self.subscriptions.get(id).map_or("", |subscription| subscription.name())
    }
}

fn head_entry(resident: &Resident) -> Option<&Entry> {
    let lane = &resident.lane;
    let held = lane.hold() == Some(Hold::Failed);
    lane.head().map(|(_, entry)| entry).or_else(|| lane.first_waiting().filter(|_| held))
}

fn gap(resident: &Resident) -> Option<Gap> {
    let lane = &resident.lane;
    (lane.buffered() > 0).then(|| Gap {
        missing: lane.missing().map(|(from, to)| [from.0, to.0]),
        until: lane.gap_timer().map(Time),
    })
}

impl Lane {
    /// The full name of its subscription.
    pub fn subscription_name(&self) -> String {
        namespace::full_name(&self.namespace, &self.subscription).into_owned()
    }

    /// Reads rows that are not in memory. Must run on a thread that may block on the disk.
    pub fn resolve(&mut self, reader: &LogReader) {
        if let Some(head) = &mut self.head
            && head.id.is_none()
            && let Ok(record) = reader.read(head.at)
        {
            head.read(&record);
        }
        if let Some(walk) = self.walk.take() {
            self.timeline = Some(walk.finish(reader));
        }
    }
}

impl Head {
    fn read(&mut self, record: &[u8]) {
        let Ok((_, event)) = crate::apply::event_of(record) else { return };
        let Ok(view) = EventView::decode(event) else { return };
        self.id = Some(view.id().to_owned());
        self.source = Some(view.source().to_owned());
        self.kind = Some(view.kind().to_owned());
    }
}
