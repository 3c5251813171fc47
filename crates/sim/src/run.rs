//! Runs one seed, from the first round to the last check.

use crate::checkers::Violation;
use crate::history::Entry;
use crate::mix::Knobs;
use crate::world::World;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// The result of a seed.
pub struct RunOutcome {
    pub knobs: Knobs,
    pub events: u64,
    pub crashes: u64,
    pub requests: u64,
    pub hash: u64,
    pub violation: Option<Failed>,
}

pub struct Failed {
    pub violation: Violation,
    /// The relevant entries of the history, as text.
    pub lines: Vec<String>,
}

const LINES_MAX: usize = 120;

pub fn run(knobs: Knobs) -> RunOutcome {
    run_and_show(knobs, &mut |_| {})
}

/// Like `run`, and passes the whole history to `show` at the end.
pub fn run_and_show(knobs: Knobs, show: &mut dyn FnMut(&Entry)) -> RunOutcome {
    let mut world = World::new(knobs);
    let result = catch_unwind(AssertUnwindSafe(|| live(&mut world))).unwrap_or_else(|panic| {
        let said = panic.downcast_ref::<String>().map(String::as_str);
        let said =
            said.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("the panic has no message");
        Err(Violation::new("no panic", said.to_owned()))
    });
    world.history.entries().iter().for_each(show);
    let requests =
        world.history.entries().iter().filter(|entry| matches!(entry, Entry::Started(_))).count() as u64;
    RunOutcome {
        knobs,
        events: world.counts.accepted,
        crashes: world.counts.crashes,
        requests,
        hash: world.history.hash(),
        violation: result.err().map(|violation| Failed { lines: lines(&world, &violation), violation }),
    }
}

fn live(world: &mut World) -> Result<(), Violation> {
    while world.producer.made < world.mix.events {
        world.go_on()?;
    }
    for _ in 0..20 {
        world.go_on()?;
    }
    world.finale()
}

/// The last entries that concern the event and the lane of a violation.
fn lines(world: &World, violation: &Violation) -> Vec<String> {
    let lane = violation.lane.as_ref().map(|(sub, key)| (*sub, key.as_str()));
    let entries = world.history.entries();
    let about = |entry: &&Entry| entry.concerns(violation.event, lane);
    let mut lines: Vec<String> = entries.iter().filter(about).map(|entry| entry.to_string()).collect();
    let cut = lines.len().saturating_sub(LINES_MAX);
    lines.drain(..cut);
    lines
}
