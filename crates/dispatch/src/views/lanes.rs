//! One lane: what it does, since when, and what it waits for.

use super::Time;
use super::timeline::{Step, Walk};
use crate::dead_letters::Attempts;
use crate::engine::{Engine, Failure};
use crate::lanes::Resident;
use crate::rows;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, SubscriptionId};
use klambda_core::lane::{self, Entry, Hold, State};
use klambda_core::namespace;
use klambda_store::log::LogReader;
use serde::Serialize;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Lane {
    pub namespace: String,
    pub subscription: String,
    pub key: String,
    pub state: &'static str,
    pub since: Time,
    pub waits_for: Option<String>,
    pub depth: u64,
    /// When the event that waits longest was accepted.
    pub oldest: Option<Time>,
    /// Arrivals, about the last ten seconds.
    pub events_per_second: f64,
    pub expected_sequence: Option<u64>,
    /// The last number that was given.
    pub lane_sequence: u64,
    pub buffered: u64,
    pub head: Option<Head>,
    pub gap: Option<Gap>,
    /// How many ranges of missing sequences the lane gave up and remembers.
    pub gaps_given_up: u64,
    /// Those ranges, of a lane that is shown alone.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps: Option<Vec<GivenUp>>,
    /// There were too many, or events were released: of those up to here it is not known whether they were delivered.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gaps_forgotten_up_to: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub timeline: Option<Vec<Step>>,
    #[serde(skip)]
    walk: Option<Walk>,
}

/// The event whose turn it is, or that holds the lane.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Head {
    pub id: Option<String>,
    pub source: Option<String>,
    #[serde(rename = "type")]
    pub kind: Option<String>,
    pub position: u64,
    /// Since it was last given fresh ones.
    pub attempts: u32,
    /// All.
    pub attempts_total: u32,
    pub last_error: Option<String>,
    pub next_attempt: Option<Time>,
    #[serde(skip)]
    at: Address,
}

#[derive(Debug, Serialize)]
pub struct Gap {
    /// First and last; none while a new lane waits for lower sequences than the first it saw.
    pub missing: Option<[u64; 2]>,
    pub until: Option<Time>,
}

/// Sequences that the lane does not wait for any more.
#[derive(Debug, Serialize)]
pub struct GivenUp {
    pub from: u64,
    pub to: u64,
    pub at: Time,
}

impl Engine {
    /// One lane with its timeline, which `resolve` completes.
    pub fn view_lane(&self, name: &str, key: &str) -> Result<Option<Lane>, Failure> {
        let Some(id) = self.subscriptions.named(name) else { return Ok(None) };
        if key.is_empty() {
            return Ok(None);
        }
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
        walk.follow(|at| self.store.log.cached(at));
        lane.walk = Some(walk);
        Ok(Some(lane))
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

    /// A paused subscription pauses its lanes, whatever each of them would wait for.
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
        let mut head = Head {
            id: None,
            source: None,
            kind: None,
            position: entry.position.0,
            attempts: fresh,
            attempts_total: total,
            last_error: (total > 0 && !resident.last_error.is_empty()).then(|| resident.last_error.clone()),
            // One that is past waits for something else, such as a breaker.
            next_attempt: lane.retry_at().filter(|at| *at > self.now).map(Time),
            at: self.located(entry.at)?,
        };
        if let Some(record) = self.store.log.cached(head.at) {
            head.read(&record);
        }
        Ok(head)
    }

    /// Of the head of a lane, or of the dead letter that holds it.
    pub(super) fn head_attempts(&self, resident: &Resident, entry: &Entry) -> Result<Attempts, Failure> {
        let lane = &resident.lane;
        if lane.head().is_none()
            && let Some(letter) = self.dead_letter(rows::HELD, resident.subscription, entry.position)?
        {
            return Ok(letter.attempts);
        }
        let earlier = resident.earlier.iter().find(|earlier| earlier.position == entry.position);
        let total = lane.head_attempts_total() + earlier.map_or(0, |earlier| earlier.attempts);
        Ok(Attempts { fresh: lane.attempts(), total })
    }

    /// Where an event stands now: retention may have copied it forward.
    pub(super) fn located(&self, at: Address) -> Result<Address, Failure> {
        if at >= self.store.log.oldest() {
            return Ok(at);
        }
        let row = self.store.rows.get(&rows::kept(at))?;
        let moved = row.and_then(|row| row.try_into().ok()).map(u64::from_be_bytes);
        Ok(moved.map_or(at, Address))
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

    /// Reads what is not in memory: on a thread that may wait for the disk.
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
