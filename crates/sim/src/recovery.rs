//! The process ends in some way and restarts. Sometimes a restart fails.

use crate::checkers::{Verdict, Violation, detection};
use crate::history::{Decision, Entry, SubNo};
use crate::mix::Trouble;
use crate::rng::Rng;
use crate::rules::Rules;
use crate::world::World;
use klambda_core::time::Millis;
use klambda_dispatch::views::SubscriptionStatus;
use klambda_dispatch::{Config, Engine, Failure};
use klambda_store::faulty_disk::MemoryDisk;
use klambda_store::recovery::Report;
use std::sync::Arc;

pub fn open(
    disk: &MemoryDisk,
    config: &Config,
    now: Millis,
    rng: &mut Rng,
) -> Result<(Engine, Report), Failure> {
    let mut seed = [0; 16];
    seed[..8].copy_from_slice(&rng.next().to_le_bytes());
    Engine::open(Arc::new(disk.clone()), config.clone(), now, seed)
}

impl World {
    /// Kills the process or cuts the power.
    pub fn crash(&mut self) -> Verdict {
        let (cut, kill) = (self.mix.has(Trouble::PowerCut), self.mix.has(Trouble::Kill));
        let power = cut && (!kill || self.rng.one_in(2));
        self.restart(power)
    }

    /// The engine stopped by itself. It must not acknowledge anything else. A restart shows what the disk kept.
    pub fn store_failed(&mut self) -> Verdict {
        self.must_be_silent()?;
        let why = self.host.engine.failure().unwrap_or_default().to_owned();
        if !self.is_harm(&why) {
            let text = format!("the engine stopped without a disk fault: {why}");
            return Err(Violation::new("liveness", text));
        }
        self.note(Entry::Failed { why })?;
        let power = self.mix.has(Trouble::PowerCut) && self.rng.one_in(2);
        self.restart(power)
    }

    /// True if the message refers to an injected disk fault. After the faults end, there must be no such message.
    fn is_harm(&self, why: &str) -> bool {
        const OF_ERRORS: [&str; 2] = ["injected failure", "stopped after a failed write or sync"];
        let errors = self.mix.has(Trouble::DiskError) || self.mix.has(Trouble::CrashInRecovery);
        let full = self.mix.has(Trouble::FullDisk) && (why.contains("storage") || why.contains("space"));
        full || (errors && OF_ERRORS.iter().any(|text| why.contains(text)))
    }

    fn must_be_silent(&mut self) -> Verdict {
        // Results that were released before the failure are valid and are collected.
        self.collect()?;
        self.host.engine.flush();
        let said = self.host.engine.take_completions().len() + self.host.engine.take_deliveries().len();
        match said {
            0 => Ok(()),
            _ => Err(Violation::new("no loss", "an engine with a failed store continues to respond".into())),
        }
    }

    pub fn restart(&mut self, power: bool) -> Verdict {
        // A file system that cannot sync its names stops. Only a power cut shows what the disk kept.
        let power = power || self.host.disk.are_names_lost();
        self.look_at_drops()?;
        self.end_process(power)?;
        let mut tries = 0;
        let (engine, report) = loop {
            let cut_short = self.mix.has(Trouble::CrashInRecovery) && self.rng.one_in(3);
            if cut_short {
                let fault = self.faults.recovery(&self.host.disk, &mut self.rng);
                self.happened(fault)?;
            }
            match open(&self.host.disk, &self.host.config, self.clock(), &mut self.rng) {
                Ok(opened) => break opened,
                Err(failure) => self.not_opened(&failure, &mut tries)?,
            }
        };
        self.host.engine = engine;
        // Like the runner: after the clock was set back, time does not stand still.
        let behind = self.host.engine.now().since(self.clock());
        self.clock.error += i64::try_from(behind).unwrap_or(0);
        self.note(Entry::Opened {
            now: self.host.engine.now().0,
            cut: report.cut.map_or(0, |(_, bytes)| bytes),
        })?;
        self.see_subscriptions()?;
        if self.rng.one_in(40) {
            detection::folder_is_sound(&self.host.disk)?;
        }
        Ok(())
    }

    /// An orderly shutdown: nothing new starts, open calls may end, and a checkpoint is written.
    pub fn stop_in_order(&mut self) -> Verdict {
        const ROUNDS: u64 = 600;
        self.host.engine.stop();
        self.note(Entry::Stopping)?;
        for _ in 0..ROUNDS {
            self.clock.time += self.rng.between(1, self.mix.round_ms);
            for step in World::OWN_STEPS {
                self.step(step)?;
                if self.host.engine.failure().is_some() {
                    return self.store_failed();
                }
            }
            if self.host.engine.is_idle()
                && !self.host.engine.is_checkpointing()
                && self.requests.unanswered.is_empty()
            {
                return self.restart(false);
            }
        }
        // A full or failing disk may prevent the checkpoint, and replies may wait for space that nobody frees now.
        let harm = [Trouble::FullDisk, Trouble::DiskError, Trouble::CrashInRecovery];
        if self.stalled.is_empty() && !harm.iter().any(|trouble| self.mix.has(*trouble)) {
            let text = format!(
                "after {ROUNDS} rounds the process has not ended: {} open requests, checkpoint: {}, unanswered: {:?}",
                self.host.engine.open_requests(),
                self.host.engine.is_checkpointing(),
                self.requests.unanswered.keys(),
            );
            return Err(Violation::new("liveness", text));
        }
        self.restart(false)
    }

    fn end_process(&mut self, power: bool) -> Verdict {
        self.counts.crashes += 1;
        self.host.life += 1;
        self.clock.error += std::mem::take(&mut self.clock.jump);
        self.note(Entry::Crashed { power })?;
        self.forget_process();
        for (_, events) in std::mem::take(&mut self.requests.unanswered) {
            for event in events {
                self.producer.later(event, self.round + self.rng.between(1, 20));
            }
        }
        if power {
            let rng = &mut self.rng;
            self.host.disk.crash(&mut |n| rng.below(n));
        }
        Ok(())
    }

    /// Only a disk fault may prevent the folder from opening, and only until the fault ends.
    fn not_opened(&mut self, failure: &Failure, tries: &mut u32) -> Verdict {
        *tries += 1;
        let text = failure.to_string();
        if !self.is_harm(&text) || *tries > 20 {
            return Err(Violation::new("no loss", format!("the folder does not open: {text}")));
        }
        self.note(Entry::NotOpened { why: text })?;
        self.host.disk.set_capacity(None);
        if self.host.disk.are_names_lost() || (self.mix.has(Trouble::PowerCut) && self.rng.one_in(2)) {
            self.counts.crashes += 1;
            self.note(Entry::Crashed { power: true })?;
            let rng = &mut self.rng;
            self.host.disk.crash(&mut |n| rng.below(n));
        }
        Ok(())
    }

    // ---- subscriptions as shown to users ------------------------------------------------------------------

    /// After a restart: observes which subscriptions exist and their rules.
    fn see_subscriptions(&mut self) -> Verdict {
        let all: Vec<(klambda_core::ids::SubscriptionId, SubNo)> =
            self.known.ids.iter().map(|(id, sub)| (*id, *sub)).collect();
        self.known.names.clear();
        for (id, sub) in all {
            let name = self.outside.sub(sub).rules.name.clone();
            let there = self.host.engine.subscription_id(&name).is_ok_and(|found| found == id);
            if there {
                self.known.names.insert(name, sub);
            }
            if there != self.outside.sub(sub).life.there {
                self.note(Entry::Seen { sub, there })?;
            }
            if there {
                self.see_rules(sub)?;
            }
        }
        Ok(())
    }

    fn see_rules(&mut self, sub: SubNo) -> Verdict {
        let name = self.outside.sub(sub).rules.name.clone();
        let Some(view) = self.host.engine.view_subscription(&name) else { return Ok(()) };
        let (phase, json) = (view.status.phase, serde_json::to_value(&view).unwrap_or_default());
        let (drains, reads) = catching_up(&view.status, self.outside.sub(sub).limits.may_lag);
        let shown = &json["spec"];
        let paused = shown["paused"] == true;
        let is_it =
            |rules: &&Rules| Rules { paused, ..(*rules).clone() }.document().to_json()["spec"] == *shown;
        let Some(found) = self.known.rules_given.get(&sub).and_then(|all| all.iter().rev().find(is_it))
        else {
            return Err(Violation::new(
                "no invention",
                format!("{name} has rules that it was never given: {shown}"),
            ));
        };
        let found = Rules { paused, ..found.clone() };
        let known = &mut self.outside.subs[sub as usize];
        known.life.draining = phase == "draining";
        known.window_is(found.window_ms);
        if drains {
            known.rules = found.ordered_as(&known.rules);
            known.next_rules = Some(found);
        } else {
            let switched = known.rules.ordering != found.ordering;
            known.next_rules = None;
            known.rules = found;
            if switched {
                known.new_epoch(&self.outside.events);
            }
        }
        self.outside.sub_mut(sub).rules.paused = paused;
        let known = self.outside.sub_mut(sub);
        known.life.catching_up = drains || reads;
        known.life.read_history |= known.life.catching_up;
        Ok(())
    }

    /// Observes changes that happen by themselves: a subscription has caught up, or was drained and removed.
    pub fn look_at_subscriptions(&mut self) -> Verdict {
        let waiting = |sub: &SubNo| {
            let sub = self.outside.sub(*sub);
            sub.life.catching_up || sub.next_rules.is_some() || sub.life.draining
        };
        let changing: Vec<SubNo> = self.known.names.values().copied().filter(waiting).collect();
        for sub in changing {
            let name = self.outside.sub(sub).rules.name.clone();
            let Some(status) = self.host.engine.view_subscription_status(&name) else {
                self.known.names.remove(&name);
                self.note(Entry::Decided(Decision::Removed { sub }))?;
                continue;
            };
            let (drains, reads) = catching_up(&status, self.outside.sub(sub).limits.may_lag);
            // New rules take effect when the old events are drained, while the subscription still reads newer ones.
            let rules_begin = self.outside.sub(sub).next_rules.is_some() && !drains;
            let is_live = status.phase != "draining" && !drains && !reads;
            if rules_begin || is_live {
                self.note(Entry::Switched { sub, reads })?;
            }
        }
        Ok(())
    }
}

/// Returns whether new ordering rules wait for the pending events to drain, and whether the subscription reads the
/// log. A pause hides neither. Whether a subscription that may lag is currently behind makes no difference.
pub fn catching_up(status: &SubscriptionStatus, may_lag: bool) -> (bool, bool) {
    let says = |text: &str| status.messages.iter().any(|message| message.contains(text));
    (says("new ordering rules take effect"), says("reading the log") || (!may_lag && says("behind: ")))
}
