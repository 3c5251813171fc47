//! Bounded: memory, files, queues and open requests stay within what is configured, whatever waits.
//!
//! Semantics: 13 (buffers), 15 (slots), 27 (dead letters), 28 (backlogs), 31 (nothing per idle key).

use super::{Verdict, Violation};
use crate::history::Entry;
use crate::outside::{Outside, Sub};
use crate::rules::{OnFull, Rules};
use klambda_dispatch::dead_letters::DeadLetter;
use klambda_dispatch::{Config, Engine};

const NAME: &str = "bounded";

pub struct Bounds {
    pub concurrency: u32,
    /// By the memory that is configured.
    pub lanes_max: usize,
    /// Of those that have nothing to do.
    pub idle_lanes_max: usize,
}

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let sub = outside.sub(request.sub);
    let limit = sub.next_rules.as_ref().map_or(0, |rules| rules.concurrency).max(sub.concurrency_before);
    let limit = limit.max(sub.rules.concurrency);
    if sub.open >= limit {
        let text = format!("{} requests are open already, {limit} may be", sub.open);
        return Err(Violation::of_request(NAME, outside, request, &text));
    }
    Ok(())
}

/// At the end of a round.
pub fn round(outside: &Outside, engine: &Engine, bounds: &Bounds) -> Verdict {
    let open: u32 = outside.subs.iter().map(|sub| sub.open).sum();
    if open > bounds.concurrency {
        return Err(Violation::new(NAME, format!("{open} requests are open, {} may be", bounds.concurrency)));
    }
    let lanes = engine.lanes_in_memory();
    if lanes > bounds.lanes_max {
        return Err(Violation::new(
            NAME,
            format!("{lanes} lanes are in memory, {} may be", bounds.lanes_max),
        ));
    }
    if lanes > bounds.idle_lanes_max && engine.idle_lanes_in_memory() > bounds.idle_lanes_max {
        let idle = engine.idle_lanes_in_memory();
        let text =
            format!("{idle} lanes are in memory and have nothing to do, {} may be", bounds.idle_lanes_max);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

/// Now and then: what takes a while to count.
pub fn now_and_then(outside: &Outside, engine: &Engine, disk_fails: bool) -> Verdict {
    // A table's index, a frame and what changed since the last checkpoint come on top of what is shared out. A checkpoint
    // that failed is made again after a second, in which much happens here.
    let memory = engine.view_status().memory;
    let limit = memory.limit_bytes * 2 + if disk_fails { 2 << 20 } else { 1 << 20 };
    if memory.used_bytes > limit {
        let (lanes, calls) = (engine.lanes_in_memory(), engine.open_requests());
        let text = format!(
            "{} bytes of memory are used, {} are configured; {lanes} lanes are in memory, {calls} calls are open",
            memory.used_bytes, memory.limit_bytes
        );
        return Err(Violation::new(NAME, text));
    }
    outside.subs.iter().filter(|sub| sub.there).try_for_each(|sub| backlog(sub, engine))
}

/// What waits stays within the backlog, unless it came another way than by being accepted under this limit.
fn backlog(sub: &Sub, engine: &Engine) -> Verdict {
    let Some((limit, on_full)) = sub.rules.backlog else { return Ok(()) };
    let came_otherwise = sub.changes > 0 || sub.replays > 0 || sub.read_history || sub.next_rules.is_some();
    let Some(view) = engine.view_subscription(&sub.rules.name).filter(|_| !came_otherwise) else {
        return Ok(());
    };
    // One that lags reads on to twice its limit where nothing moves; what is unread is in no lane.
    let unread = view.status.unread.map_or(0, |unread| unread.events);
    let (waiting, limit) = match on_full {
        OnFull::Lag => (view.status.waiting - unread, 2 * limit),
        OnFull::Reject | OnFull::Drop => (view.status.waiting, limit),
    };
    // Answers are taken over the limit where all that is under way waits for room itself.
    let limit = limit + sub.replies;
    if waiting > limit {
        let text = format!("{}: {waiting} events wait, {limit} may", sub.rules.name);
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}

/// A dead letter was seen past its time for so long.
pub fn expires(rules: &Rules, letter: &DeadLetter, seen_for_ms: u64) -> Verdict {
    // A look every second takes some hundred of them.
    const PATIENCE_MS: u64 = 10_000;
    if seen_for_ms < PATIENCE_MS {
        return Ok(());
    }
    let Rules { name, letters_ttl_ms, .. } = rules;
    let text = format!(
        "{name}: dead letter {} is there although it failed at {} and is kept for {letters_ttl_ms} ms",
        letter.event_id,
        letter.failed.rfc3339()
    );
    Err(Violation::new(NAME, text))
}

/// When nothing is in flight: `letters` of a subscription that hold no lane are within its limit.
pub fn at_end(outside: &Outside, letters: &dyn Fn(&str) -> u64) -> Verdict {
    for sub in outside.subs.iter().filter(|sub| sub.there) {
        let count = letters(&sub.rules.name);
        if count > sub.rules.letters_max {
            let text = format!("{}: {count} dead letters, {} may be", sub.rules.name, sub.rules.letters_max);
            return Err(Violation::new(NAME, text));
        }
    }
    Ok(())
}

/// When nothing moves and time has passed: of the log there is what retention allows, what is copied forward, and the
/// segments that are written or not yet left behind by a checkpoint.
pub fn at_rest(engine: &Engine, config: &Config) -> Verdict {
    const SEGMENTS: u64 = 4;
    let status = engine.view_status();
    // A record of the simulation is far shorter.
    let kept = (status.waiting + status.dead_letters) * 2048;
    let limit = config.retention_bytes + kept + SEGMENTS * config.log.segment_bytes;
    if config.retention_bytes > 0 && status.log_bytes > limit {
        let text = format!(
            "the log has {} bytes, {} are to be kept: {status:?}",
            status.log_bytes, config.retention_bytes
        );
        return Err(Violation::new(NAME, text));
    }
    Ok(())
}
