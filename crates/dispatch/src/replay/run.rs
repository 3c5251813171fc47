//! Runs replay jobs: the remaining work of each job is in queues, with one dead letter at a time per key.

use super::plan::{PART, Plan};
use super::{State, Work};
use crate::dead_letters::DeadLetter;
use crate::delivery::STEP_BYTES_MAX;
use crate::engine::{Engine, Failure, if_readable};
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::kinds::{self, Strategy};
use klambda_core::lane::Hold;
use klambda_core::planted::{self, Bug};
use klambda_store::address::Kept;
use klambda_store::record::{Gone, Record, ReplayChange, Step};

/// How many dead letters of a queue may turn out to be gone before other queues get their turn.
const GONE_AT_ONCE: usize = 32;

impl Engine {
    pub(crate) fn run_replays(&mut self) -> Result<(), Failure> {
        if !self.replays.is_running() || self.condition.failed.is_some() {
            return Ok(());
        }
        let running: Vec<u64> =
            self.replays.jobs.values().filter(|job| job.state == State::Running).map(|job| job.id).collect();
        running.into_iter().try_for_each(|id| self.run_replay(id))
    }

    pub(super) fn run_replay(&mut self, id: u64) -> Result<(), Failure> {
        let is_planned = self.replays.work.get(&id).is_some_and(|work| work.next_at > 0.0);
        if !is_planned && !self.plan_replay(id)? {
            return Ok(());
        }
        let Some(mut work) = self.replays.work.remove(&id) else { return Ok(()) };
        let result = self.advance(id, &mut work);
        let finished = work.queues.is_empty() && work.active.is_empty();
        self.replays.work.insert(id, work);
        result?;
        let Some(job) = self.replays.get(id) else { return Ok(()) };
        if finished && job.open.is_empty() {
            let state = if job.counts.failed > 0 { State::Failed } else { State::Succeeded };
            self.replays.work.remove(&id);
            return self.end_replay(id, state);
        }
        Ok(())
    }

    /// Plans the job, at first and again after a restart or a change of ordering, and logs the plan before any of it
    /// is done. Planning happens in parts. Returns true when the plan is complete and logged.
    fn plan_replay(&mut self, id: u64) -> Result<bool, Failure> {
        let known = self.replays.work.get_mut(&id).and_then(|work| work.plan.take());
        let Some(job) = self.replays.get(id) else { return Ok(false) };
        let mut plan = known.unwrap_or_else(|| Box::new(self.new_plan(&job.selector, job.created + 1)));
        self.plan_part(&mut plan)?;
        if !self.finish_plan(id, &mut plan)? {
            self.replays.work.entry(id).or_default().plan = Some(plan);
            return Ok(false);
        }
        let work = self.replays.work.entry(id).or_default();
        work.queues = plan.queues;
        work.next_at = self.now.0 as f64;
        Ok(true)
    }

    /// Returns true if the plan is complete and logged.
    fn finish_plan(&mut self, id: u64, plan: &mut Plan) -> Result<bool, Failure> {
        if !plan.is_done() || !self.discard_some(plan)? {
            return Ok(false);
        }
        let Some(mut job) = self.replays.get(id).cloned() else { return Ok(false) };
        job.looks_again();
        plan.left_out.iter().for_each(|(reason, count)| job.skip(reason, *count));
        job.planned(plan.letters, plan.queues.len() as u64);
        let text = job.to_text()?;
        if !self.store.log.has_room_for_steps(text.len() + STEP_BYTES_MAX) {
            return Ok(false);
        }
        self.commit(&Record::Replay { time: self.now, id, change: ReplayChange::Planned { job: &text } })?;
        Ok(true)
    }

    /// Deletes dead letters whose strategy is to discard them, in portions. Returns true if none is left.
    fn discard_some(&mut self, plan: &mut Plan) -> Result<bool, Failure> {
        for _ in 0..PART {
            if !self.store.log.has_room_for_steps(STEP_BYTES_MAX) {
                return Ok(false);
            }
            let Some((subscription, position)) = plan.discards.pop_front() else { return Ok(true) };
            let (time, why) = (self.now, Gone::Deleted);
            self.commit(&Record::DeadLetterGone { time, subscription, position, why })?;
        }
        Ok(plan.discards.is_empty())
    }

    /// The lane that a dead letter goes back to: its own lane. If it had none, or the rules have changed, the lane of
    /// its key under the current rules.
    pub(super) fn lane_of_letter(
        &self,
        id: SubscriptionId,
        letter: &DeadLetter,
    ) -> Result<Option<String>, Failure> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(None) };
        if letter.holds_lane || !subscription.is_ordered() {
            return Ok(letter.key.clone().filter(|_| letter.holds_lane));
        }
        if letter.key.is_some() && subscription.life.epochs == 0 {
            return Ok(letter.key.clone());
        }
        let lane = self.read_event(letter.entry.address()).and_then(|record| self.key_by_rules(id, &record));
        Ok(if_readable(lane)?.unwrap_or_else(|| letter.key.clone()))
    }

    pub(super) fn strategy(&self, kind: &str) -> Strategy {
        self.config.strategies.get(kind).copied().unwrap_or_else(|| kinds::default_strategy(kind))
    }

    pub(super) fn advance(&mut self, id: u64, work: &mut Work) -> Result<(), Failure> {
        let Some(job) = self.replays.get(id) else { return Ok(()) };
        let parallelism = job.parallelism as usize;
        while work.active.len() < parallelism
            && let Some((_, queue)) = work.queues.pop_first()
        {
            work.active.push(queue);
        }
        let mut n = 0;
        while n < work.active.len() {
            if self.advance_queue(id, work, n)? {
                n += 1;
            } else {
                work.active.swap_remove(n);
                if let Some((_, queue)) = work.queues.pop_first() {
                    work.active.push(queue);
                }
            }
        }
        Ok(())
    }

    /// Advances one queue. Returns true if there is more to do.
    pub(super) fn advance_queue(&mut self, id: u64, work: &mut Work, n: usize) -> Result<bool, Failure> {
        let queue = &mut work.active[n];
        let subscription = queue.subscription;
        if let Some(current) = queue.current {
            let open = self
                .replays
                .get(id)
                .is_some_and(|job| job.open.iter().any(|open| open.0 == subscription && open.1 == current));
            if open {
                return Ok(true);
            }
            queue.current = None;
        }
        // A change of ordering left this lane behind, so its dead letters are replayed individually.
        let ordered = self.subscriptions.get(subscription).is_some_and(|s| s.is_ordered());
        let key = work.active[n].key.clone().filter(|_| ordered);
        let name = (subscription, key.clone().unwrap_or_default());
        // While the job's work is out of the table, outcomes are recorded under the job's number.
        let stopped = self.replays.work.get_mut(&id).is_some_and(|noted| noted.stopped.contains(&name));
        if (stopped || work.stopped.contains(&name)) && key.is_some() {
            let left = work.active[n].letters.len() as u64;
            work.stopped.insert(name);
            self.replays.skip(id, "stopped", left);
            return Ok(false);
        }
        for _ in 0..GONE_AT_ONCE {
            let queue = &mut work.active[n];
            let Some((position, number)) = queue.letters.front().copied() else { return Ok(false) };
            match self.replay_obstacle(subscription, key.as_deref(), position, number)? {
                None => return self.replay_next(id, work, n, key.as_deref()),
                Some("gone") => {
                    self.replays.skip(id, "gone", 1);
                    queue.letters.pop_front();
                }
                Some(reason) => {
                    self.replays.skip(id, reason, queue.letters.len() as u64);
                    return Ok(false);
                }
            }
        }
        Ok(true)
    }

    /// Replays the first dead letter of a queue when it is due.
    fn replay_next(
        &mut self,
        id: u64,
        work: &mut Work,
        n: usize,
        key: Option<&str>,
    ) -> Result<bool, Failure> {
        if work.next_at > self.now.0 as f64 || !self.store.log.has_room_for_steps(4096) {
            return Ok(true);
        }
        let rate = self.replays.get(id).map_or(0, |job| job.rate_per_second);
        if rate > 0 {
            work.next_at = work.next_at.max(self.now.0 as f64 - 1000.0) + 1000.0 / f64::from(rate);
        }
        let queue = &mut work.active[n];
        let subscription = queue.subscription;
        let Some((position, _)) = queue.letters.pop_front() else { return Ok(false) };
        self.replay_one(subscription, key, position, id)?;
        // The job does not wait for a dead letter that is queued behind a parked head.
        let is_open = self.replays.is_open(subscription, position);
        work.active[n].current = is_open.then_some(position);
        Ok(true)
    }

    /// Why a dead letter cannot be replayed now, if so.
    pub(super) fn replay_obstacle(
        &mut self,
        id: SubscriptionId,
        key: Option<&str>,
        position: Position,
        number: LaneNumber,
    ) -> Result<Option<&'static str>, Failure> {
        let Some(letter) = self.find_dead_letter(id, position)? else { return Ok(Some("gone")) };
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Some("gone")) };
        if subscription.is_retired() {
            let successor = self.successor(id).and_then(|to| self.subscriptions.get(to));
            return Ok(match successor {
                None => Some("noSubscription"),
                Some(successor) => successor.is_paused().then_some("paused"),
            });
        }
        if subscription.is_paused() {
            return Ok(Some("paused"));
        }
        let Some(key) = key else {
            return Ok(subscription.is_ordered().then_some("invalid"));
        };
        if letter.number_in(key) != number {
            // Another job replayed the dead letter since, and it failed again: its place among the others has
            // changed.
            return Ok(Some("gone"));
        }
        let slot = self.resident(id, key)?;
        let Some(resident) = self.lanes.get(slot) else { return Ok(Some("gone")) };
        if resident.lane.is_paused() {
            return Ok(Some("paused"));
        }
        let parked = resident.lane.hold() == Some(Hold::Failed) && planted::is_on(Bug::LateLetterSkipped);
        Ok((parked && !letter.holds_lane && number == LaneNumber(0)).then_some("parked"))
    }

    /// Replays one dead letter for a job, or for an operator if `job` is 0.
    pub(crate) fn replay_one(
        &mut self,
        id: SubscriptionId,
        key: Option<&str>,
        position: Position,
        job: u64,
    ) -> Result<(), Failure> {
        if let Some(to) = self.successor(id) {
            return self.move_letter(id, position, to, job);
        }
        let step = Step::Replay { position, job };
        match key {
            Some(key) => self.step_lane(id, key, step).map(|_| ()),
            None => self.step_single(id, position, step).map(|_| ()),
        }
    }
}
