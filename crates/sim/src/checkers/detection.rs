//! Detection: damage is refused and reported with its location; damage in the last commit group is truncated and
//! counted. An intact folder passes `check`, whose ledger shares no code with the engine. The counts of `check` match
//! those of the engine.
//!
//! Covers damage, and order and double acknowledgements as the ledger sees them.

use super::{Verdict, Violation};
use crate::rng::Rng;
use klambda_core::event::Event;
use klambda_core::event_codec::EventView;
use klambda_core::lane::State;
use klambda_core::outcome::CallOutcome;
use klambda_core::time::Millis;
use klambda_dispatch::check::{self, Report};
use klambda_dispatch::dead_letters::Selector;
use klambda_dispatch::operate::LaneAction;
use klambda_dispatch::replay::Request;
use klambda_dispatch::views::LaneQuery;
use klambda_dispatch::{Config, Engine, Sender, Token};
use klambda_store::disk::Disk;
use klambda_store::faulty_disk::MemoryDisk;
use std::sync::Arc;

const NAME: &str = "detection";

fn report(disk: &MemoryDisk) -> Result<Report, String> {
    let copy = disk.clone_image();
    // Pending injected failures are not damage of the folder.
    copy.repair();
    check::check(Arc::new(copy), &mut |_| {}).map_err(|error| error.to_string())
}

/// The folder passes the check.
pub fn folder_is_sound(disk: &MemoryDisk) -> Result<Report, Violation> {
    let report = report(disk).map_err(|error| Violation::new(NAME, format!("check: {error}")))?;
    if report.is_ok() {
        return Ok(report);
    }
    let first: Vec<String> =
        report.problems.listed.iter().take(3).map(|problem| problem.text.clone()).collect();
    Err(Violation::new(NAME, format!("check finds {} problems: {}", report.problems.count, first.join("; "))))
}

/// Flips one bit somewhere in a copy of the folder. The damage must be refused with its location, truncated at the
/// end, or have no effect. If the copy opens, this sends the `known` events again and reads everything back: damage
/// of an event may affect only that event, and only events that were made may be delivered.
pub fn damage_shows(
    disk: &MemoryDisk,
    whole: &Report,
    config: &Config,
    now: Millis,
    known: &Known<'_>,
    rng: &mut Rng,
) -> Verdict {
    let copy = disk.clone_image();
    let names = copy.list().map_err(|error| Violation::new(NAME, error.to_string()))?;
    let name = rng.pick(&names).clone();
    let length = copy.open(&name).and_then(|file| file.len()).unwrap_or(0);
    if length == 0 {
        return Ok(());
    }
    let byte = rng.below(length);
    copy.repair();
    copy.flip_bit(&name, byte * 8 + rng.below(8));
    let checked = report(&copy);
    let named = checked.as_ref().map_or(true, |report| !report.is_ok() || report.cut.is_some());
    let opened = Engine::open(Arc::new(copy.clone_image()), config.clone(), now, [0; 16]);
    let silent = match &opened {
        Err(_) => false,
        Ok((_, recovered)) => recovered.cut.is_none() && !named && !same(whole, checked.as_ref().ok()),
    };
    if silent || (opened.is_err() && !named) {
        let text = format!(
            "flipped a bit of byte {byte} of {name}: check returns {checked:?}, open returns {:?}",
            opened.err()
        );
        return Err(Violation::new(NAME, text));
    }
    let Ok((engine, _)) = opened else { return Ok(()) };
    let driven = Driver { engine, now }.drive(known);
    // The content of a damaged table is unknown. The engine must stop and name it instead of guessing.
    let is_table = name.starts_with("marks-") || name.starts_with("rows-");
    match driven {
        Err(why) if !(is_table && why.contains(&format!("{name} is damaged"))) => {
            let text = format!("flipped a bit of byte {byte} of {name}, and the folder opened: {why}");
            Err(Violation::new(NAME, text))
        }
        _ => Ok(()),
    }
}

/// An intact copy of the folder is usable.
pub fn copy_works(disk: &MemoryDisk, config: &Config, now: Millis, known: &Known<'_>) -> Verdict {
    let copy = disk.clone_image();
    copy.repair();
    let broken = |why: String| Violation::new("liveness", format!("an intact copy of the folder: {why}"));
    let opened = Engine::open(Arc::new(copy), config.clone(), now, [0; 16]);
    let (engine, _) = opened.map_err(|failure| broken(failure.to_string()))?;
    Driver { engine, now }.drive(known).map_err(broken)
}

/// The events sent to the folder, and a predicate that recognizes them.
pub struct Known<'a> {
    pub events: Vec<Event>,
    pub is_made: &'a dyn Fn(&EventView<'_>) -> bool,
}

/// Works with a folder that may be damaged.
struct Driver {
    engine: Engine,
    now: Millis,
}

impl Driver {
    const ROUNDS: u64 = 24;

    fn drive(&mut self, known: &Known<'_>) -> Result<(), String> {
        for round in 0..Driver::ROUNDS {
            match round {
                0 => self.resume_lanes()?,
                2 => {
                    let events = known.events.iter().cloned().map(Ok).collect();
                    self.engine.accept(Token(1), &Sender::default(), events);
                }
                4 => {
                    let request =
                        Request { selector: Selector::default(), rate_per_second: 0, parallelism: 8 };
                    let _refused = self.engine.create_replay(request);
                }
                8 => self.engine.request_checkpoint(),
                _ => {}
            }
            self.round(known)?;
            if let Some(failure) = self.engine.failure() {
                return Err(format!("in round {round} the whole engine stops: {failure}"));
            }
        }
        Ok(())
    }

    fn resume_lanes(&mut self) -> Result<(), String> {
        let query = LaneQuery {
            within: Default::default(),
            subscription: None,
            state: Some(State::Parked),
            after: None,
            limit: 20,
        };
        // The list may fail and report the damage instead.
        let Ok(page) = self.engine.view_lanes(&query) else { return Ok(()) };
        for lane in page.items {
            let _refused = self.engine.act_on_lane(&lane.subscription_name(), &lane.key, LaneAction::Resume);
        }
        Ok(())
    }

    fn round(&mut self, known: &Known<'_>) -> Result<(), String> {
        self.now = self.now + 100;
        self.engine.tick(self.now);
        self.engine.flush();
        self.engine.run_jobs();
        self.engine.take_completions();
        for delivery in self.engine.take_deliveries() {
            let view = EventView::decode(&delivery.record[delivery.event.clone()]);
            if !view.is_ok_and(|view| (known.is_made)(&view)) {
                return Err("the engine delivers an event that was never made".into());
            }
            let done = CallOutcome::Status { code: 200, retry_after_ms: None, detail: String::new() };
            self.engine.outcome(delivery.ticket, done);
        }
        Ok(())
    }
}

fn same(whole: &Report, damaged: Option<&Report>) -> bool {
    damaged.is_some_and(|damaged| {
        let counts = |r: &Report| (r.events, r.delivered, r.waiting, r.dead_letters, r.records);
        counts(whole) == counts(damaged)
    })
}
