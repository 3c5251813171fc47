//! Replay jobs and their reports.

use super::{Page, Time};
use crate::dead_letters::Selector;
use crate::engine::Engine;
use crate::operate::Refused;
use crate::replay::{Job, Request, State};
use klambda_core::time::Millis;
use serde::Serialize;
use std::collections::BTreeMap;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Replay {
    /// None for a dry run, which is no job.
    pub id: Option<String>,
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
    pub keys: u64,
    pub order_violations: u64,
    pub duplicates: u64,
    pub skipped_reasons: BTreeMap<String, u64>,
    /// Of a dry run: the first dead letters that would be replayed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub items: Option<Vec<String>>,
}

const ITEMS_MAX: usize = 100;

impl Engine {
    pub fn view_replay(&self, id: u64) -> Option<Replay> {
        self.replays.get(id).map(Replay::of)
    }

    /// Newest first, from the one before `before` on.
    pub fn view_replays(&self, before: Option<u64>, limit: usize) -> Page<Replay> {
        let jobs = self.replays.list().rev().filter(|job| before.is_none_or(|before| job.id < before));
        let mut items: Vec<&Job> = jobs.take(limit + 1).collect();
        let more = items.len() > limit;
        items.truncate(limit);
        let next = items.last().filter(|_| more).map(|job| name(job.id));
        Page { items: items.into_iter().map(Replay::of).collect(), next }
    }

    /// What a replay would do.
    pub fn dry_run(&mut self, request: Request) -> Result<Replay, Refused> {
        let preview = self.preview_replay(&request)?;
        let items = preview.letters.iter().take(ITEMS_MAX);
        let ids = items.map(|letter| letter.id(self.name_of(letter.subscription))).collect();
        let mut replay = Replay::new(request, self.now());
        replay.skipped = preview.left_out.values().sum();
        replay.skipped_reasons = preview.left_out;
        replay.selected = preview.letters.len() as u64 + replay.skipped;
        replay.keys = preview.keys;
        replay.items = Some(ids);
        Ok(replay)
    }
}

/// `r7`, as people name a job.
fn name(id: u64) -> String {
    format!("r{id}")
}

impl Replay {
    pub fn parse_id(text: &str) -> Option<u64> {
        text.strip_prefix('r').and_then(|number| number.parse().ok())
    }

    fn new(request: Request, now: Millis) -> Replay {
        Replay {
            id: None,
            state: State::Succeeded,
            created_at: Time(now),
            finished_at: Some(Time(now)),
            selector: request.selector,
            rate_per_second: request.rate_per_second,
            parallelism: request.parallelism,
            dry_run: true,
            selected: 0,
            replayed: 0,
            failed: 0,
            skipped: 0,
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
            state: job.state,
            created_at: Time(job.created),
            finished_at: job.finished.map(Time),
            selector: job.selector.clone(),
            rate_per_second: job.rate_per_second,
            parallelism: job.parallelism,
            dry_run: false,
            selected: job.selected,
            replayed: job.replayed,
            failed: job.failed,
            skipped: job.skipped,
            keys: job.keys,
            order_violations: job.order_violations,
            duplicates: job.duplicates,
            skipped_reasons: job.skipped_reasons.clone(),
            items: None,
        }
    }
}
