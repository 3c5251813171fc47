//! The process ends, one way or another, and starts again; now and then it does not get far.

use crate::checkers::{Verdict, Violation, detection};
use crate::history::{Decision, Entry, SubNo};
use crate::mix::Trouble;
use crate::rng::Rng;
use crate::rules::Rules;
use crate::world::World;
use klambda_core::time::Millis;
use klambda_dispatch::views::Subscription;
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
    /// The process is killed, or the power goes.
    pub fn crash(&mut self) -> Verdict {
        let (cut, kill) = (self.mix.has(Trouble::PowerCut), self.mix.has(Trouble::Kill));
        let power = cut && (!kill || self.rng.one_in(2));
        self.restart(power)
    }

    /// The engine stopped by itself: it acknowledges nothing more, and a restart finds out what the disk kept.
    pub fn store_failed(&mut self) -> Verdict {
        self.must_be_silent()?;
        let why = self.engine.failure().unwrap_or_default().to_owned();
        if !self.is_harm(&why) {
            let text = format!("the engine stopped although nothing was done to its disk: {why}");
            return Err(Violation::new("liveness", text));
        }
        self.note(Entry::Failed { why })?;
        let power = self.mix.has(Trouble::PowerCut) && self.rng.one_in(2);
        self.restart(power)
    }

    /// Whether it complains of what was done to its disk. Once that is over, it has nothing to complain of.
    fn is_harm(&self, why: &str) -> bool {
        const OF_ERRORS: [&str; 2] = ["injected failure", "stopped after a failed write or sync"];
        let errors = self.mix.has(Trouble::DiskError) || self.mix.has(Trouble::CrashInRecovery);
        let full = self.mix.has(Trouble::FullDisk) && (why.contains("storage") || why.contains("space"));
        full || (errors && OF_ERRORS.iter().any(|text| why.contains(text)))
    }

    fn must_be_silent(&mut self) -> Verdict {
        // What was released before is right: it is heard.
        self.collect()?;
        self.engine.flush();
        let said = self.engine.take_answers().len() + self.engine.take_deliveries().len();
        match said {
            0 => Ok(()),
            _ => Err(Violation::new("no loss", "an engine whose store failed goes on answering".into())),
        }
    }

    pub fn restart(&mut self, power: bool) -> Verdict {
        // A file system that cannot write its names stops: only a power cut shows what is there.
        let power = power || self.disk.are_names_lost();
        self.look_at_drops()?;
        self.end_process(power)?;
        let mut tries = 0;
        let (engine, report) = loop {
            let cut_short = self.mix.has(Trouble::CrashInRecovery) && self.rng.one_in(3);
            if cut_short {
                let fault = self.faults.recovery(&self.disk, &mut self.rng);
                self.happened(fault)?;
            }
            match open(&self.disk, &self.config, self.clock(), &mut self.rng) {
                Ok(opened) => break opened,
                Err(failure) => self.not_opened(&failure, &mut tries)?,
            }
        };
        self.engine = engine;
        // As the runner does: a clock that was set back does not make time stand still.
        let behind = self.engine.now().since(self.clock());
        self.clock_error += i64::try_from(behind).unwrap_or(0);
        self.note(Entry::Opened { now: self.engine.now().0, cut: report.cut.map_or(0, |(_, bytes)| bytes) })?;
        self.see_subscriptions()?;
        if self.rng.one_in(40) {
            detection::folder_is_sound(&self.disk)?;
        }
        Ok(())
    }

    /// The process is asked to end: nothing more starts, open calls may end, and a checkpoint is made.
    pub fn stop_in_order(&mut self) -> Verdict {
        const ROUNDS: u64 = 600;
        self.engine.stop();
        self.note(Entry::Stopping)?;
        for _ in 0..ROUNDS {
            self.time += self.rng.between(1, self.mix.round_ms);
            for step in World::OWN_STEPS {
                self.step(step)?;
                if self.engine.failure().is_some() {
                    return self.store_failed();
                }
            }
            if self.engine.is_idle() && !self.engine.is_checkpointing() && self.unanswered.is_empty() {
                return self.restart(false);
            }
        }
        // A full or failing disk may keep it from a checkpoint, and answers may wait for room that nobody makes now.
        let harm = [Trouble::FullDisk, Trouble::DiskError, Trouble::CrashInRecovery];
        if self.stalled.is_empty() && !harm.iter().any(|trouble| self.mix.has(*trouble)) {
            let text = format!(
                "after {ROUNDS} rounds the process has not ended: {} requests are open, checkpoint: {}, unanswered: {:?}",
                self.engine.open_requests(),
                self.engine.is_checkpointing(),
                self.unanswered.keys(),
            );
            return Err(Violation::new("liveness", text));
        }
        self.restart(false)
    }

    fn end_process(&mut self, power: bool) -> Verdict {
        self.crashes += 1;
        self.life += 1;
        self.clock_error += std::mem::take(&mut self.clock_jump);
        self.note(Entry::Crashed { power })?;
        self.forget_process();
        for (_, events) in std::mem::take(&mut self.unanswered) {
            for event in events {
                self.producer.later(event, self.round + self.rng.between(1, 20));
            }
        }
        if power {
            let rng = &mut self.rng;
            self.disk.crash(&mut |n| rng.below(n));
        }
        Ok(())
    }

    /// Only what was done to the disk may keep it from opening, and only until that is over.
    fn not_opened(&mut self, failure: &Failure, tries: &mut u32) -> Verdict {
        *tries += 1;
        let text = failure.to_string();
        if !self.is_harm(&text) || *tries > 20 {
            return Err(Violation::new("no loss", format!("the folder does not open: {text}")));
        }
        self.note(Entry::NotOpened { why: text })?;
        self.disk.set_capacity(None);
        if self.disk.are_names_lost() || (self.mix.has(Trouble::PowerCut) && self.rng.one_in(2)) {
            self.crashes += 1;
            self.note(Entry::Crashed { power: true })?;
            let rng = &mut self.rng;
            self.disk.crash(&mut |n| rng.below(n));
        }
        Ok(())
    }

    // ---- subscriptions as they are shown ------------------------------------------------------------------

    /// After a start: which subscriptions there are, and by which rules.
    fn see_subscriptions(&mut self) -> Verdict {
        let all: Vec<(klambda_core::ids::SubscriptionId, SubNo)> =
            self.ids.iter().map(|(id, sub)| (*id, *sub)).collect();
        self.names.clear();
        for (id, sub) in all {
            let name = self.outside.sub(sub).rules.name.clone();
            let there = self.engine.subscription_id(&name).is_ok_and(|found| found == id);
            if there {
                self.names.insert(name, sub);
            }
            if there != self.outside.sub(sub).there {
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
        let Some(view) = self.engine.view_subscription(&name) else { return Ok(()) };
        let (phase, json) = (view.status.phase, serde_json::to_value(&view).unwrap_or_default());
        let (drains, reads) = catching_up(&view, self.outside.sub(sub).may_lag);
        let shown = &json["spec"];
        let paused = shown["paused"] == true;
        let is_it =
            |rules: &&Rules| Rules { paused, ..(*rules).clone() }.document().to_json()["spec"] == *shown;
        let Some(found) = self.rules_given.get(&sub).and_then(|all| all.iter().rev().find(is_it)) else {
            return Err(Violation::new(
                "no invention",
                format!("{name} has rules that nobody gave it: {shown}"),
            ));
        };
        let found = Rules { paused, ..found.clone() };
        let known = &mut self.outside.subs[sub as usize];
        known.draining = phase == "draining";
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
        known.catching_up = drains || reads;
        known.read_history |= known.catching_up;
        Ok(())
    }

    /// Changes that come about by themselves: a subscription has caught up, or has drained and is gone.
    pub fn look_at_subscriptions(&mut self) -> Verdict {
        let waiting = |sub: &SubNo| {
            let sub = self.outside.sub(*sub);
            sub.catching_up || sub.next_rules.is_some() || sub.draining
        };
        let changing: Vec<SubNo> = self.names.values().copied().filter(waiting).collect();
        for sub in changing {
            let name = self.outside.sub(sub).rules.name.clone();
            let Some(view) = self.engine.view_subscription(&name) else {
                self.names.remove(&name);
                self.note(Entry::Decided(Decision::Removed { sub }))?;
                continue;
            };
            let (drains, reads) = catching_up(&view, self.outside.sub(sub).may_lag);
            // New rules hold once what was there has drained, while it still reads what came since.
            let rules_begin = self.outside.sub(sub).next_rules.is_some() && !drains;
            let is_live = view.status.phase != "draining" && !drains && !reads;
            if rules_begin || is_live {
                self.note(Entry::Switched { sub, reads })?;
            }
        }
        Ok(())
    }
}

/// Whether new ordering rules wait for what is there to drain, and whether it reads the log; a pause hides neither.
/// Whether one that lags is behind at the moment makes no difference to what is known of it.
pub fn catching_up(view: &Subscription, may_lag: bool) -> (bool, bool) {
    let says = |text: &str| view.status.messages.iter().any(|message| message.contains(text));
    (says("its new ordering rules begin"), says("it reads the log") || (!may_lag && says("it is behind")))
}
