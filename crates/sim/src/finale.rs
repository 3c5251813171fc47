//! The end of a run. First the troubles stop: everything drains, or lanes stay parked with a reason. Then operators
//! clean up: they resume lanes, skip gaps and replay dead letters. After that nothing may be left, and all counts
//! must match.

use crate::checkers::detection::Known;
use crate::checkers::liveness::Standing;
use crate::checkers::{Verdict, Violation, bounded, detection, liveness, memory, no_loss, replay_order};
use crate::editing::content;
use crate::event::{EventNo, HOME};
use crate::history::{Content, Entry, SubNo};
use crate::mix::Trouble;
use crate::recovery::catching_up;
use crate::rules::Rules;
use crate::world::World;
use klambda_core::event_codec::EventView;
use klambda_dispatch::Config;
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::replay::Request;
use std::collections::BTreeSet;

/// After this many rounds without progress, nothing more will happen. An idle round takes up to a second.
const ROUNDS_MAX: u64 = 150;
/// The maximum number of rounds per event until it is finished, to detect endless activity.
const ROUNDS_PER_EVENT: u64 = 20;

/// The number of parked lanes that operators handle before the engine continues. Lanes leave memory only then.
const LANES_AT_ONCE: usize = 100;

impl World {
    pub fn finale(&mut self) -> Verdict {
        // A failure at the last moment shows with the next write.
        self.flush()?;
        if self.host.engine.failure().is_some() {
            self.store_failed()?;
        }
        self.note(Entry::Calm)?;
        self.mix.calm();
        self.host.disk.set_capacity(None);
        self.host.disk.repair();
        // A restart would fix everything that is stuck only in memory, so half of the seeds continue without one.
        let restarts = self.rng.one_in(2);
        if restarts {
            self.restart_without_retention()?;
        }
        self.lift_limits()?;
        let mut standing = self.come_to_rest()?;
        self.attempts_are_shown()?;
        if !restarts && self.mix.has(Trouble::Retention) {
            self.retention_ends()?;
            self.restart_without_retention()?;
            standing = self.come_to_rest()?;
        }
        if self.rng.one_in(4) {
            self.damage_shows(2)?;
        }
        if self.rng.one_in(4) {
            memory::account_holds(self.rng.next())?;
        }
        // Behind each gap there can be another one.
        for _ in 0..1000 + self.producer.made {
            if self.tidy(standing)? {
                return self.balance();
            }
            standing = self.come_to_rest()?;
        }
        Err(Violation::new("liveness", "cleaning up never ends: there is always something left".into()))
    }

    /// Gives retention time to remove expired data, as long as it makes progress.
    fn retention_ends(&mut self) -> Verdict {
        const ROUNDS: u64 = 80;
        let mut least = (u64::MAX, 0);
        for round in 0.. {
            let bytes = self.host.engine.view_status().log_bytes;
            if bytes < least.0 {
                least = (bytes, round);
            }
            if round > least.1 + ROUNDS {
                break;
            }
            self.clock.time += 1000;
            self.go_on()?;
        }
        bounded::at_rest(&self.host.engine, &self.host.config)
    }

    /// Retention is no longer tested, and copying events forward repeatedly takes long.
    fn restart_without_retention(&mut self) -> Verdict {
        self.host.config =
            Config { retention_age_ms: u64::MAX, retention_bytes: 0, ..self.host.config.clone() };
        self.restart(false)
    }

    /// Removes the limits, so that no event is rejected any more.
    fn lift_limits(&mut self) -> Verdict {
        for (name, sub) in self.known.names.clone() {
            let known = self.outside.sub(sub);
            let settled = known.next_rules.is_none() && !known.life.draining;
            if settled && known.rules.rejects() {
                let rules = Rules { backlog: None, ..known.rules.clone() };
                self.put(&name, sub, rules, false)?;
            }
        }
        Ok(())
    }

    /// Runs rounds until nothing moves by itself. Returns the lanes that are not empty.
    fn come_to_rest(&mut self) -> Result<Standing, Violation> {
        let end = self.round + 1000 + (self.producer.made + self.host.engine.waiting()) * ROUNDS_PER_EVENT;
        let mut last = (self.round, self.counts.steps);
        let mut quiet = 0;
        while quiet < 2 {
            if self.round > end || self.round > last.0 + ROUNDS_MAX {
                let standing = liveness::standing(&self.host.engine)?;
                return match self.waits_behind_people(&standing) {
                    true => Ok(standing),
                    false => Err(self.never_rests(standing, self.round - last.0)),
                };
            }
            self.pass_idle_time();
            self.go_on()?;
            // A subscription that reads a long log continues immediately.
            let reads_on =
                self.host.engine.is_catching_up() && self.host.engine.wake_at() <= self.host.engine.now();
            if self.counts.steps > last.1 || reads_on {
                last = (self.round, self.counts.steps);
                quiet = 0;
            } else {
                quiet = if self.is_quiet() { quiet + 1 } else { 0 };
            }
        }
        // Listing all lanes takes time, so do it once, when the counts show that nothing moves.
        let standing = liveness::standing(&self.host.engine)?;
        match standing.moving.first() {
            Some(line) => Err(Violation::new(
                "liveness",
                format!("the counts show no moving lane, but there is one: {line}"),
            )),
            None => Ok(standing),
        }
    }

    /// True if replies wait for space in lanes that need manual action, and other lanes wait for the slots that these
    /// replies hold.
    fn waits_behind_people(&self, standing: &Standing) -> bool {
        let is_paused = self.known.names.values().any(|sub| self.outside.sub(*sub).rules.paused);
        let people = is_paused || !standing.parked.is_empty();
        let for_room = |line: &String| line.contains("room for the reply events");
        let for_a_slot = |line: &String| line.contains("a free slot");
        // A gap timer does not run while all slots are taken, or while its subscription lags and has an open call.
        let only_answers = self.only_answers_wait();
        let for_an_answer = |line: &String| only_answers && line.contains(": gap (");
        let waits = |line: &String| for_room(line) || for_a_slot(line) || for_an_answer(line);
        people && (standing.moving.iter().any(for_room) || only_answers) && standing.moving.iter().all(waits)
    }

    /// True if all open calls ended with replies that the engine holds for lack of space. The lanes of unordered
    /// subscriptions do not show this.
    fn only_answers_wait(&self) -> bool {
        let answers = self.stalled.iter().filter(|stalled| !stalled.replies.is_empty()).count();
        answers > 0 && answers == self.host.engine.open_requests()
    }

    fn never_rests(&self, standing: Standing, rounds: u64) -> Violation {
        let mut stuck = liveness::stuck(&self.outside, &self.host.engine, &standing, rounds);
        let replaying: Vec<u64> =
            (1..=self.watched.replays_made).filter(|id| self.is_replaying(*id)).collect();
        let job = replaying.first().and_then(|id| self.host.engine.replay(*id));
        stuck.text.push_str(&format!(
            "\n  at {}, unanswered: {:?}, replaying: {replaying:?} {job:?}, to send: {}",
            self.host.engine.now().rfc3339(),
            self.requests.unanswered.keys(),
            !self.producer.is_done(&self.mix),
        ));
        stuck
    }

    /// Advances the clock to the next event instead of waiting.
    fn pass_idle_time(&mut self) {
        let next = self.host.engine.wake_at().0.saturating_sub(self.host.engine.now().0);
        let ends = [self.network.next_end(), self.endpoints.next_end()];
        let network = ends.into_iter().flatten().min();
        let network = network.map_or(u64::MAX, |at| at.saturating_sub(self.clock.time));
        self.clock.time += next.max(20).min(network).min(1000);
    }

    fn is_quiet(&self) -> bool {
        let busy = self.host.engine.open_requests() > 0
            || !self.requests.unanswered.is_empty()
            || !self.producer.is_done(&self.mix)
            || self.network.open(self.host.life) + self.endpoints.open(self.host.life) > 0;
        if busy {
            return false;
        }
        // Parked and paused lanes need manual action before the rest can continue.
        let mut waits_for_people = false;
        for (name, sub) in &self.known.names {
            let rules = &self.outside.sub(*sub).rules;
            let Some(status) = self.host.engine.view_subscription_status(name) else { continue };
            let (waiting, lanes) = (status.waiting, &status.lanes);
            let moving = lanes.open + lanes.running + lanes.retrying + lanes.gap > 0
                || (!rules.ordering.is_ordered() && waiting > 0);
            if moving && !rules.paused {
                return false;
            }
            let waits = rules.paused || (rules.ordering.is_ordered() && lanes.parked + lanes.paused > 0);
            // The subscription continues to read by itself, unless its own lanes need manual action.
            if !waits && catching_up(&status, false) != (false, false) {
                return false;
            }
            waits_for_people |= waits;
        }
        for endpoint in &self.outside.endpoints {
            let Some(status) = self.host.engine.view_subscription_status(&endpoint.name) else { continue };
            let lanes = &status.lanes;
            if lanes.open + lanes.running + lanes.retrying > 0 {
                return false;
            }
            waits_for_people |= lanes.parked > 0;
        }
        waits_for_people || !(1..=self.watched.replays_made).any(|id| self.is_replaying(id))
    }

    fn is_replaying(&self, id: u64) -> bool {
        self.host.engine.replay(id).is_some_and(|job| job.state == klambda_dispatch::replay::State::Running)
    }

    /// Handles everything that needs manual action. Returns true if there was nothing to do.
    fn tidy(&mut self, standing: Standing) -> Result<bool, Violation> {
        let mut nothing = !self.producer.tries_again(self.round + 1);
        let paused: Vec<(String, SubNo)> =
            self.known.names.iter().map(|(name, sub)| (name.clone(), *sub)).collect();
        for (name, sub) in paused {
            if self.outside.sub(sub).rules.paused {
                nothing = false;
                self.set_paused(&name, sub, false)?;
            }
        }
        for (name, key, gap) in standing.parked.into_iter().take(LANES_AT_ONCE) {
            if self.endpoint_named(&name).is_some() {
                nothing = false;
                self.resume_parked(&name, &key)?;
                continue;
            }
            let Some(sub) = self.known.names.get(&name).copied() else { continue };
            // A lane that was paused under ordered rules stays listed, but no action applies to it.
            if !self.outside.sub(sub).rules.ordering.is_ordered() {
                continue;
            }
            nothing = false;
            let action = if gap { LaneAction::Skip } else { LaneAction::Resume };
            self.lane_action(&name, sub, &key, action)?;
        }
        if self.has_letters_to_replay() {
            nothing = false;
            let request = Request { selector: Selector::default(), rate_per_second: 0, parallelism: 8 };
            self.start_replay(request, None)?;
        }
        Ok(nothing)
    }

    /// True if there are dead letters that could get a place in a lane.
    fn has_letters_to_replay(&self) -> bool {
        self.known.names.iter().any(|(name, sub)| {
            let ordering = self.outside.sub(*sub).rules.ordering;
            let may_have_one = |event: EventNo| ordering.key(self.outside.made(event)).is_some();
            self.letters(name)
                .iter()
                .any(|letter| !ordering.is_ordered() || self.event_of(letter).is_some_and(may_have_one))
        })
    }

    fn balance(&mut self) -> Verdict {
        self.settle()?;
        if self.host.engine.waiting() + self.host.engine.unread() > 0 {
            let standing = liveness::standing(&self.host.engine)?;
            return Err(liveness::stuck(&self.outside, &self.host.engine, &standing, 0));
        }
        let letters: BTreeSet<(SubNo, EventNo)> = self
            .known
            .names
            .iter()
            .flat_map(|(name, sub)| self.letters(name).into_iter().map(|letter| (*sub, letter)))
            .filter_map(|(sub, letter)| Some((sub, self.event_of(&letter)?)))
            .collect();
        self.attempts_are_shown()?;
        self.feeds_are_complete()?;
        no_loss::at_end(&self.outside, &|sub, event| letters.contains(&(sub, event)))?;
        replay_order::at_end(&self.host.engine, self.watched.replays_made)?;
        bounded::at_end(&self.outside, &|name| {
            self.letters(name).iter().filter(|letter| !letter.holds_lane).count() as u64
        })?;
        self.damage_shows(3)
    }

    /// Checks intact copies of the folder, and `times` copies with a flipped bit.
    fn damage_shows(&mut self, times: u32) -> Verdict {
        const SENT_AGAIN: u64 = 40;
        let report = detection::folder_is_sound(&self.host.disk)?;
        let (made, producer, now) = (&self.outside.events, &self.producer, self.clock());
        let some = (0..SENT_AGAIN.min(made.len() as u64)).map(|_| self.rng.pick(made).to_event());
        let events = some.collect();
        let is_made = |view: &EventView<'_>| {
            let event = producer.find(view.attribute(HOME).is_some(), view.source(), view.id());
            event.is_some_and(|event| content(&made[event as usize], view) != Content::Other)
        };
        let known = Known { events, is_made: &is_made };
        detection::copy_works(&self.host.disk, &self.host.config, now, &known)?;
        for _ in 0..times {
            detection::damage_shows(&self.host.disk, &report, &self.host.config, now, &known, &mut self.rng)?;
        }
        Ok(())
    }

    /// Runs until everything is written and synced.
    fn settle(&mut self) -> Verdict {
        self.mix.calm();
        for _ in 0..4 {
            self.clock.time += 60;
            self.go_on()?;
        }
        Ok(())
    }
}
