//! Replay jobs: dead letters go back to their targets, in order within a key and one at a time per key, with keys in
//! parallel.
//!
//! A job is logged when it begins, when its plan is complete, and when it ends. In between, its counts follow from
//! the steps of its dead letters. So a restart continues where the crash happened: every event that is still a dead
//! letter and failed before the job began is left to do.

mod plan;
mod run;

pub use plan::PART;

use self::plan::Plan;

use crate::dead_letters::{Selector, rfc3339};
use crate::engine::{Engine, Failure};
use crate::operate::Refused;
use hashbrown::{HashMap, HashSet};
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook;
use klambda_store::record::{Record, ReplayChange};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Job {
    pub id: u64,
    pub state: State,
    pub created: Millis,
    #[serde(default, with = "rfc3339")]
    pub finished: Option<Millis>,
    pub selector: Selector,
    pub rate_per_second: u32,
    pub parallelism: u32,
    #[serde(flatten)]
    pub counts: Counts,
    pub skipped_reasons: BTreeMap<String, u64>,
    /// The dead letters that are in their lanes now: subscription, position, key.
    pub open: Vec<(SubscriptionId, Position, String)>,
}

#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Counts {
    pub selected: u64,
    pub replayed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// Queued behind a dead letter that parks their lane. The job does not wait for these.
    pub waiting: u64,
    pub keys: u64,
    pub order_violations: u64,
    pub duplicates: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[serde(rename_all = "lowercase")]
#[schemars(rename = "ReplayState")]
pub enum State {
    Running,
    Succeeded,
    Failed,
    Stopped,
}

/// Maximum number of finished jobs that are kept for inspection.
const ENDED_KEPT: usize = 100;

#[derive(Default)]
pub struct Replays {
    pub next_id: u64,
    jobs: BTreeMap<u64, Job>,
    work: HashMap<u64, Work>,
}

/// The remaining work of a running job. Built from the existing dead letters and kept in memory only.
#[derive(Default)]
struct Work {
    /// Set until the plan is complete.
    plan: Option<Box<Plan>>,
    /// By the age of the oldest dead letter of each queue.
    queues: BTreeMap<(Millis, u64), Queue>,
    active: Vec<Queue>,
    done: HashSet<(SubscriptionId, Position)>,
    last: HashMap<(SubscriptionId, String), LaneNumber>,
    stopped: HashSet<(SubscriptionId, String)>,
    /// The earliest time of the next replay under the rate limit.
    next_at: f64,
}

/// Dead letters that are replayed one after the other.
pub(crate) struct Queue {
    pub(crate) subscription: SubscriptionId,
    key: Option<String>,
    pub(crate) letters: VecDeque<(Position, LaneNumber)>,
    current: Option<Position>,
}

impl Job {
    /// Resets the counts of skipped dead letters that still exist and are checked again, after a restart or a change
    /// of ordering.
    fn looks_again(&mut self) {
        for reason in ["manual", "invalid", "paused", "parked", "stopped", "noSubscription", "unreadable"] {
            self.counts.skipped -= self.skipped_reasons.remove(reason).unwrap_or(0);
        }
    }

    /// `left` dead letters are left to do. Selected ones that can no longer be found are counted as gone.
    fn planned(&mut self, left: u64, keys: u64) {
        if self.counts.selected == 0 {
            self.counts.keys = keys;
        }
        let open = self.open.len() as u64;
        let known = self.counts.replayed
            + self.counts.failed
            + self.counts.skipped
            + self.counts.waiting
            + open
            + left;
        self.skip("gone", self.counts.selected.saturating_sub(known));
        self.counts.selected = self.counts.selected.max(known);
    }

    fn skip(&mut self, reason: &str, count: u64) {
        if count > 0 {
            self.counts.skipped += count;
            *self.skipped_reasons.entry(reason.to_owned()).or_default() += count;
        }
    }

    fn to_text(&self) -> Result<String, Failure> {
        serde_json::to_string(self).map_err(|error| Failure::State(error.to_string()))
    }
}

impl Job {
    fn memory_bytes(&self) -> usize {
        let open =
            self.open.iter().map(|(_, _, key)| size_of::<(SubscriptionId, Position, String)>() + key.len());
        let ids = self.selector.ids.iter().flatten().map(|id| size_of::<String>() + id.len());
        size_of::<Job>() + open.sum::<usize>() + ids.sum::<usize>()
    }
}

impl Work {
    fn memory_bytes(&self) -> usize {
        let queues = self.queues.values().chain(&self.active).map(Queue::memory_bytes).sum::<usize>();
        let keys = self.last.keys().chain(&self.stopped).map(|(_, key)| key.len());
        let entries = self.done.capacity() * size_of::<(SubscriptionId, Position)>()
            + self.last.capacity() * size_of::<((SubscriptionId, String), LaneNumber)>()
            + self.stopped.capacity() * size_of::<(SubscriptionId, String)>();
        queues + keys.sum::<usize>() + entries + self.plan.as_ref().map_or(0, |plan| plan.memory_bytes())
    }
}

impl Queue {
    fn memory_bytes(&self) -> usize {
        let letters = self.letters.capacity() * size_of::<(Position, LaneNumber)>();
        2 * size_of::<((Millis, u64), Queue)>() + self.key.as_ref().map_or(0, String::capacity) + letters
    }
}

impl Replays {
    /// The lanes have changed, so all jobs plan again.
    pub fn plan_again(&mut self) {
        self.work.clear();
    }

    /// Approximate memory of the jobs and their remaining work.
    pub fn memory_bytes(&self) -> usize {
        let jobs = self.jobs.values().map(Job::memory_bytes).sum::<usize>();
        jobs + self.work.values().map(Work::memory_bytes).sum::<usize>()
    }

    pub fn put(&mut self, id: u64, job: &str) {
        if let Ok(job) = serde_json::from_str::<Job>(job) {
            self.next_id = self.next_id.max(id + 1);
            if job.state != State::Running {
                self.work.remove(&id);
            }
            self.jobs.insert(id, job);
        }
    }

    pub fn get(&self, id: u64) -> Option<&Job> {
        self.jobs.get(&id)
    }

    pub fn list(&self) -> impl DoubleEndedIterator<Item = &Job> {
        self.jobs.values()
    }

    pub fn is_running(&self) -> bool {
        self.jobs.values().any(|job| job.state == State::Running)
    }

    /// The jobs as rows for a checkpoint.
    pub fn changed(&self) -> Vec<(u64, String)> {
        self.jobs.iter().filter_map(|(id, job)| Some((*id, serde_json::to_string(job).ok()?))).collect()
    }

    /// When the next dead letter may be replayed. A queue with a dead letter in flight waits for its outcome.
    pub fn wake_at(&self) -> Option<Millis> {
        if self.work.values().any(|work| work.plan.as_ref().is_some_and(|plan| plan.has_more())) {
            return Some(Millis::ZERO);
        }
        let waits = |work: &&Work| work.active.iter().any(|queue| queue.current.is_none());
        self.work.values().filter(waits).map(|work| Millis(work.next_at as u64)).min()
    }

    pub fn started(&mut self, job: u64, id: SubscriptionId, position: Position, key: &str) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.open.push((id, position, key.to_owned()));
        }
    }

    /// A dead letter of this job is pending behind the one that parks its lane.
    pub fn waits(&mut self, job: u64) {
        if let Some(job) = self.jobs.get_mut(&job) {
            job.counts.waiting += 1;
        }
    }

    /// True if a running job returned this dead letter to its lane and the outcome is unknown.
    pub fn is_open(&self, id: SubscriptionId, position: Position) -> bool {
        self.jobs.values().any(|job| job.open.iter().any(|open| open.0 == id && open.1 == position))
    }

    fn close(&mut self, id: SubscriptionId, position: Position) -> Option<(u64, String)> {
        for (number, job) in &mut self.jobs {
            if let Some(n) = job.open.iter().position(|open| open.0 == id && open.1 == position) {
                return Some((*number, job.open.swap_remove(n).2));
            }
        }
        None
    }

    pub fn delivered(&mut self, id: SubscriptionId, position: Position, number: LaneNumber) {
        if self.jobs.is_empty() {
            return;
        }
        let Some((job_id, key)) = self.close(id, position) else { return };
        let Some(job) = self.jobs.get_mut(&job_id) else { return };
        job.counts.replayed += 1;
        let work = self.work.entry(job_id).or_default();
        if !work.done.insert((id, position)) {
            job.counts.duplicates += 1;
        }
        if number != LaneNumber(0) {
            let last = work.last.entry((id, key)).or_default();
            job.counts.order_violations += u64::from(number < *last);
            *last = number;
        }
    }

    /// A dead letter in flight was purged or dropped, so no job waits for it.
    pub fn dropped(&mut self, id: SubscriptionId, position: Position) {
        if let Some((job, _)) = self.close(id, position) {
            self.skip(job, "purged", 1);
        }
    }

    /// A subscription was deleted with all of its events in flight.
    pub fn forget(&mut self, id: SubscriptionId) {
        let positions: Vec<Position> = self
            .jobs
            .values()
            .flat_map(|job| &job.open)
            .filter(|open| open.0 == id)
            .map(|open| open.1)
            .collect();
        positions.into_iter().for_each(|position| self.dropped(id, position));
    }

    pub(crate) fn skip(&mut self, id: u64, reason: &str, count: u64) {
        if let Some(job) = self.jobs.get_mut(&id) {
            job.skip(reason, count);
        }
    }

    pub fn failed(&mut self, id: SubscriptionId, position: Position) {
        if self.jobs.is_empty() {
            return;
        }
        let Some((job_id, key)) = self.close(id, position) else { return };
        if let Some(job) = self.jobs.get_mut(&job_id) {
            job.counts.failed += 1;
        }
        self.work.entry(job_id).or_default().stopped.insert((id, key));
    }
}

/// The parameters of a replay.
#[derive(Clone, Debug)]
pub struct Request {
    pub selector: Selector,
    pub rate_per_second: u32,
    pub parallelism: u32,
}

/// The effect that a replay would have, computed in parts.
pub struct DryRun {
    pub request: Request,
    pub(crate) plan: Plan,
}

impl Engine {
    pub fn begin_dry_run(&self, request: Request) -> Result<DryRun, Refused> {
        self.check_selector(&request.selector)?;
        let plan = self.new_plan(&request.selector, self.now + 1);
        Ok(DryRun { request, plan })
    }

    /// Processes one more part. Returns true if it was the last.
    pub fn continue_dry_run(&self, dry: &mut DryRun) -> Result<bool, Refused> {
        self.plan_part(&mut dry.plan)?;
        Ok(dry.plan.is_done())
    }

    pub fn create_replay(&mut self, request: Request) -> Result<u64, Refused> {
        self.check_selector(&request.selector)?;
        self.must_write()?;
        let id = self.replays.next_id.max(1);
        let job = Job {
            id,
            state: State::Running,
            created: self.now,
            finished: None,
            selector: request.selector,
            rate_per_second: request.rate_per_second,
            parallelism: request.parallelism.max(1),
            counts: Counts::default(),
            skipped_reasons: BTreeMap::new(),
            open: Vec::new(),
        };
        let text = job.to_text()?;
        self.commit(&Record::Replay { time: self.now, id, change: ReplayChange::Created { job: &text } })?;
        self.forget_old_replays();
        Ok(id)
    }

    fn check_selector(&self, selector: &Selector) -> Result<(), Refused> {
        match &selector.subscription {
            Some(name) if self.subscriptions.named(name).is_none() => {
                if !self.subscriptions_named(name).is_empty() {
                    let remedy = match Document::function_of(name) {
                        Some((namespace, name)) => {
                            format!("apply function {name} (namespace {namespace}) again")
                        }
                        None => match klambda_core::namespace::split(name).1.strip_prefix(webhook::PREFIX) {
                            Some(endpoint) => format!("create webhook endpoint {endpoint} again"),
                            None => "create a subscription with this name".to_owned(),
                        },
                    };
                    return Err(Refused::Conflict(format!(
                        "subscription {name:?} was deleted and only its dead letters are left; {remedy} to replay them \
                         to it"
                    )));
                }
                Err(Refused::NotFound(format!("subscription {name:?} not found")))
            }
            _ => Ok(()),
        }
    }

    fn forget_old_replays(&mut self) {
        let ended: Vec<u64> =
            self.replays.jobs.values().filter(|job| job.state != State::Running).map(|job| job.id).collect();
        for id in ended.iter().take(ended.len().saturating_sub(ENDED_KEPT)) {
            self.replays.jobs.remove(id);
            self.store.rows.delete(&crate::rows::replay(*id));
        }
    }

    pub(crate) fn forget_replays_of(&mut self, namespace: &str) {
        let jobs = self.replays.jobs.values();
        let its = jobs.filter(|job| job.selector.namespace.as_deref() == Some(namespace));
        for id in its.map(|job| job.id).collect::<Vec<u64>>() {
            self.replays.jobs.remove(&id);
            self.replays.work.remove(&id);
            self.store.rows.delete(&crate::rows::replay(id));
        }
    }

    /// The full name of the subscription that a replay is limited to.
    pub fn replay_subscription(&self, id: u64) -> Option<&str> {
        self.replays.get(id)?.selector.subscription.as_deref()
    }

    /// A running replay that is limited to this subscription.
    pub fn running_replay_of(&self, name: &str) -> Option<u64> {
        let is_its =
            |job: &&Job| job.state == State::Running && job.selector.subscription.as_deref() == Some(name);
        self.replays.jobs.values().find(is_its).map(|job| job.id)
    }

    pub fn stop_replay(&mut self, id: u64) -> Result<(), Refused> {
        let job = self.replays.get(id).ok_or_else(|| Refused::NotFound(format!("replay r{id} not found")))?;
        if job.state != State::Running {
            return Ok(());
        }
        self.must_write()?;
        Ok(self.end_replay(id, State::Stopped)?)
    }

    fn end_replay(&mut self, id: u64, state: State) -> Result<(), Failure> {
        let Some(job) = self.replays.get(id).cloned() else { return Ok(()) };
        let text = Job { state, finished: Some(self.now), ..job }.to_text()?;
        self.commit(&Record::Replay { time: self.now, id, change: ReplayChange::Ended { job: &text } })?;
        Ok(())
    }
}
