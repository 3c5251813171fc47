//! Bounded: memory, files, queues and open requests stay within the configured limits, regardless of the backlog.
//!
//! Covers buffers, slots, dead letters, backlogs, and the memory of idle keys.

use super::{Verdict, Violation};
use crate::history::Entry;
use crate::outside::{Outside, Sub};
use crate::rules::{OnFull, Rules};
use klambda_dispatch::dead_letters::DeadLetter;
use klambda_dispatch::{Config, Engine};

const NAME: &str = "bounded";

pub struct Bounds {
    pub concurrency: u32,
    /// The limit that follows from the configured memory.
    pub lanes_max: usize,
    /// The limit for lanes that have nothing to do.
    pub idle_lanes_max: usize,
}

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let sub = outside.sub(request.sub);
    let limit = sub.next_rules.as_ref().map_or(0, |rules| rules.concurrency).max(sub.concurrency_before);
    let limit = limit.max(sub.rules.concurrency);
    if sub.open >= limit {
        let text = format!("{} requests are already open, the limit is {limit}", sub.open);
        return Err(Violation::of_request(NAME, outside, request, &text));
    }
    Ok(())
}

/// Runs at the end of each round.
pub fn round(outside: &Outside, engine: &Engine, bounds: &Bounds) -> Verdict {
    let open: u32 = outside.subs.iter().map(|sub| sub.open).sum();
    if open > bounds.concurrency {
        return Err(Violation::new(
            NAME,
            format!("{open} requests are open, the limit is {}", bounds.concurrency),
        ));
    }
    let lanes = engine.lanes_in_memory();
    if lanes > bounds.lanes_max {
        return Err(Violation::new(
            NAME,
            format!("{lanes} lanes are in memory, the limit is {}", bounds.lanes_max),
        ));
    }
    if lanes > bounds.idle_lanes_max && engine.idle_lanes_in_memory() > bounds.idle_lanes_max {
        let idle = engine.idle_lanes_in_memory();
        let text = format!("{idle} idle lanes are in memory, the limit is {}", bounds.idle_lanes_max);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

/// Runs occasionally, because counting takes time.
pub fn now_and_then(outside: &Outside, engine: &Engine, disk_fails: bool) -> Verdict {
    // The index of a table, a frame and the changes since the last checkpoint come on top of the shared memory. A
    // failed checkpoint is repeated after a second, and many changes accumulate in that time.
    let memory = engine.view_status().memory;
    let limit = memory.limit_bytes * 2 + if disk_fails { 2 << 20 } else { 1 << 20 };
    if memory.used_bytes > limit {
        let (lanes, calls) = (engine.lanes_in_memory(), engine.open_requests());
        let text = format!(
            "{} bytes of memory are used, {} are configured; {lanes} lanes in memory, {calls} open calls; {:?}",
            memory.used_bytes,
            memory.limit_bytes,
            engine.memory_parts()
        );
        return Err(Violation::new(NAME, text));
    }
    outside.subs.iter().filter(|sub| sub.life.there).try_for_each(|sub| backlog(sub, engine))
}

/// The pending events stay within the backlog limit, unless some of them were not accepted under this limit.
fn backlog(sub: &Sub, engine: &Engine) -> Verdict {
    let Some((limit, on_full)) = sub.rules.backlog else { return Ok(()) };
    let came_otherwise =
        sub.changes > 0 || sub.replays > 0 || sub.life.read_history || sub.next_rules.is_some();
    if came_otherwise {
        return Ok(());
    }
    let Some(status) = engine.view_subscription_status(&sub.rules.name) else { return Ok(()) };
    // A subscription that lags reads up to twice its limit when nothing moves. Unread events are in no lane.
    let unread = status.unread.map_or(0, |unread| unread.events);
    let (waiting, limit) = match on_full {
        OnFull::Lag => (status.waiting - unread, 2 * limit),
        OnFull::Reject | OnFull::Drop => (status.waiting, limit),
    };
    // Replies are accepted over the limit when all running calls wait for space themselves.
    let limit = limit + sub.replies;
    if waiting > limit {
        let text = format!("{}: {waiting} events are pending, the limit is {limit}", sub.rules.name);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

/// A dead letter has been visible for this long after it should have expired.
pub fn expires(rules: &Rules, letter: &DeadLetter, seen_for_ms: u64) -> Verdict {
    // The engine checks every second and removes some hundred of them each time.
    const PATIENCE_MS: u64 = 10_000;
    if seen_for_ms < PATIENCE_MS {
        return Ok(());
    }
    let text = format!(
        "{}: dead letter {} still exists although it failed at {} and its TTL is {} ms",
        rules.name,
        letter.event_id,
        letter.failed.rfc3339(),
        rules.letters.ttl_ms
    );
    Err(Violation::new(NAME, text))
}

/// Runs when nothing is in flight. `letters`: the number of dead letters of a subscription that do not park a lane.
pub fn at_end(outside: &Outside, letters: &dyn Fn(&str) -> u64) -> Verdict {
    for sub in outside.subs.iter().filter(|sub| sub.life.there) {
        let count = letters(&sub.rules.name);
        if count > sub.rules.letters.max {
            let text =
                format!("{}: {count} dead letters, the limit is {}", sub.rules.name, sub.rules.letters.max);
            return Err(Violation::new(NAME, text));
        }
    }
    Ok(())
}

/// Runs when nothing moves and some time has passed. The log consists of what retention allows, the copied events,
/// and the segments that are active or not yet covered by a checkpoint.
pub fn at_rest(engine: &Engine, config: &Config) -> Verdict {
    const SEGMENTS: u64 = 4;
    let status = engine.view_status();
    // An upper bound: a record of the simulation is far shorter.
    let kept = (status.waiting + status.dead_letters) * 2048;
    let limit = config.retention_bytes + kept + SEGMENTS * config.log.segment_bytes;
    if config.retention_bytes > 0 && status.log_bytes > limit {
        let text = format!(
            "the log has {} bytes, the retention limit is {}: {status:?}",
            status.log_bytes, config.retention_bytes
        );
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}
