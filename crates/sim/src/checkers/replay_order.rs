//! Replay order: replayed dead letters of a key are delivered in the order of the lane, one at a time. Live events
//! wait behind a replayed one. Nothing overtakes an event in flight. The counters of a job are correct: no order
//! violations, no duplicates, and every selected dead letter is accounted for.
//!
//! Covers the replay of late and failed events, the replay order, and parallel replays of ordered lanes.

use super::{Verdict, Violation};
use crate::history::{Entry, OrderStatus, Request};
use crate::outside::{Outside, State};
use crate::rules::Place;
use klambda_dispatch::Engine;
use klambda_dispatch::replay::State as JobState;

const NAME: &str = "replay order";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let pair = outside.sub(request.sub).pair(request.event);
    let again = pair.state == State::Dead { held: false } && pair.called.number.is_some();
    if again && matches!(request.place, Place::Lane { .. }) && request.flag != OrderStatus::Late {
        return Err(Violation::of_request(NAME, outside, request, "replayed without the late flag"));
    }
    Ok(())
}

/// A live event started its turn: no replayed dead letter of its lane may be waiting. `replayed`: the position of a
/// replayed dead letter in its lane, beside the queue.
pub fn waits_behind(outside: &Outside, request: &Request, replayed: Option<u64>) -> Verdict {
    let Some(position) = replayed else { return Ok(()) };
    let pair = outside.sub(request.sub).pair(request.event);
    let fresh = request.attempt == 1 && pair.called.starts == 0 && request.flag != OrderStatus::Late;
    if !fresh || pair.position == Some(position) {
        return Ok(());
    }
    let text = format!("a live event started while position {position} of its lane is being replayed");
    Err(Violation::of_request(NAME, outside, request, &text))
}

/// Checks all jobs when no work is left.
pub fn at_end(engine: &Engine, jobs: u64) -> Verdict {
    for id in 1..=jobs {
        let Some(job) = engine.replay(id) else { continue };
        if job.counts.order_violations + job.counts.duplicates > 0 {
            let text = format!(
                "job {id}: {} order violations, {} duplicates",
                job.counts.order_violations, job.counts.duplicates
            );
            return Err(Violation::new(NAME, text));
        }
        let accounted = job.counts.replayed + job.counts.failed + job.counts.skipped + job.counts.waiting;
        // A dead letter that cannot be delivered because its lane is parked waits in the lane. No job skips it.
        if job.skipped_reasons.contains_key("parked") {
            return Err(Violation::new(NAME, format!("job {id} skipped a dead letter beside a parked lane")));
        }
        if matches!(job.state, JobState::Succeeded | JobState::Failed) && job.counts.selected != accounted {
            return Err(Violation::new(
                NAME,
                format!("job {id}: only {accounted} of the selected dead letters are accounted for: {job:?}"),
            ));
        }
        if job.state == JobState::Running {
            return Err(Violation::new(
                NAME,
                format!("job {id} is still running although no work is left: {job:?}"),
            ));
        }
    }
    Ok(())
}
