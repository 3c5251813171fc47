//! Views of replay jobs and their reports.

use super::{Page, Time};
use crate::dead_letters::Selector;
use crate::engine::Engine;
use crate::replay::{DryRun, Job, Request, State};
use klambda_core::ids::plain_number;
use klambda_core::namespace::{self, Within};
use klambda_core::time::Millis;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// `None` for a dry run, which is not a job.
    pub id: Option<String>,
    pub namespace: String,
    pub state: State,
    pub created_at: Time,
    pub finished_at: Option<Time>,
    pub selector: Selector,
    pub rate_per_second: u32,
    pub parallelism: u32,
    pub dry_run: bool,
    pub selected: u64,
    pub replayed: u64,
    pub failed: u64,
    pub skipped: u64,
    /// Queued behind the dead letter that parks their lane.
    pub waiting: u64,
    pub keys: u64,
    pub order_violations: u64,
    pub duplicates: u64,
    pub skipped_reasons: BTreeMap<String, u64>,
    /// Only for a dry run: the first dead letters that would be replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<String>>,
}

const ITEMS_MAX: usize = 100;

impl Engine {
    pub fn view_replay(&self, id: u64) -> Option<Replay> {
        self.replays.get(id).map(Replay::of)
    }

    /// Replays from newest to oldest, starting before `before`.
    pub fn view_replays(&self, within: &Within, before: Option<u64>, limit: usize) -> Page<Replay> {
        let is_inside =
            |job: &&Job| within.has(job.selector.namespace.as_deref().unwrap_or(namespace::DEFAULT));
        let jobs = self.replays.list().rev().filter(is_inside);
        let jobs = jobs.filter(|job| before.is_none_or(|before| job.id < before));
        let mut items: Vec<&Job> = jobs.take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|job| name(job.id));
        Page { items: items.into_iter().map(Replay::of).collect(), next }
    }

    /// The effect of a replay, from a complete plan.
    pub fn view_dry_run(&self, dry: DryRun) -> Replay {
        let DryRun { request, plan } = dry;
        let queues = plan.queues.values();
        let letters =
            queues.flat_map(|queue| queue.letters.iter().map(|letter| (queue.subscription, letter.0)));
        let ids = letters
            .take(ITEMS_MAX)
            .map(|(id, position)| format!("{}.{position}", namespace::split(self.name_of(id)).1));
        let mut replay = Replay::new(request, self.now());
        replay.items = Some(ids.collect());
        replay.skipped = plan.left_out.values().sum();
        replay.selected = plan.letters + replay.skipped;
        replay.keys = plan.queues.len() as u64;
        replay.skipped_reasons = plan.left_out.into_iter().map(|(why, n)| (why.to_owned(), n)).collect();
        replay
    }
}

/// A job belongs to one namespace.
fn namespace_of(selector: &Selector) -> String {
    selector.namespace.clone().unwrap_or_else(|| namespace::DEFAULT.to_owned())
}

/// The selector with names relative to their namespace.
fn shown(selector: Selector) -> Selector {
    let bare = |name: String| namespace::split(&name).1.to_owned();
    let ids = selector.ids.map(|ids| ids.into_iter().map(bare).collect());
    Selector {
        namespace: None,
        without_commands: false,
        subscription: selector.subscription.map(bare),
        ids,
        ..selector
    }
}

/// The public name of a job, such as `r7`.
fn name(id: u64) -> String {
    format!("r{id}")
}

impl Replay {
    pub fn parse_id(text: &str) -> Option<u64> {
        text.strip_prefix('r').and_then(plain_number)
    }

    fn new(request: Request, now: Millis) -> Replay {
        Replay {
            id: None,
            namespace: namespace_of(&request.selector),
            state: State::Succeeded,
            created_at: Time(now),
            finished_at: Some(Time(now)),
            selector: shown(request.selector),
            rate_per_second: request.rate_per_second,
            parallelism: request.parallelism,
            dry_run: true,
            selected: 0,
            replayed: 0,
            failed: 0,
            skipped: 0,
            waiting: 0,
            keys: 0,
            order_violations: 0,
            duplicates: 0,
            skipped_reasons: BTreeMap::new(),
            items: None,
        }
    }

    fn of(job: &Job) -> Replay {
        Replay {
            id: Some(name(job.id)),
            namespace: namespace_of(&job.selector),
            state: job.state,
            created_at: Time(job.created),
            finished_at: job.finished.map(Time),
            selector: shown(job.selector.clone()),
            rate_per_second: job.rate_per_second,
            parallelism: job.parallelism,
            dry_run: false,
            selected: job.counts.selected,
            replayed: job.counts.replayed,
            failed: job.counts.failed,
            skipped: job.counts.skipped,
            waiting: job.counts.waiting,
            keys: job.counts.keys,
            order_violations: job.counts.order_violations,
            duplicates: job.counts.duplicates,
            skipped_reasons: job.skipped_reasons.clone(),
            items: None,
        }
    }
}
