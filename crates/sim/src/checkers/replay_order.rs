//! Replay order: dead letters of a key that are replayed go out in the lane's order, one at a time; live events wait
//! behind one that is on its way; nothing overtakes what is in flight. And a job counts right: no order violation, no
//! duplicate, everything it selected accounted for.
//!
//! Semantics: 22, 23 (late and failed events replayed), 25 (replay order), 26 (in an ordered lane, parallel means
//! ordered).

use super::{Verdict, Violation};
use crate::history::{Entry, OrderStatus, Request, SubNo};
use crate::outside::{Outside, State};
use crate::rules::Place;
use klambda_dispatch::Engine;
use klambda_dispatch::replay::State as JobState;

const NAME: &str = "replay order";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Started(request) = entry else { return Ok(()) };
    let pair = outside.sub(request.sub).pair(request.event);
    let again = pair.state == State::Dead { held: false } && pair.number.is_some();
    if again && matches!(request.place, Place::Lane { .. }) && request.flag != OrderStatus::Late {
        return Err(Violation::of_request(NAME, outside, request, "replayed and not flagged late"));
    }
    Ok(())
}

/// A live event began its turn: no dead letter that is replayed in its lane may wait. `open` is what jobs have in
/// lanes, beside the queue.
pub fn waits_behind(outside: &Outside, request: &Request, open: &[(SubNo, u64, String)]) -> Verdict {
    let Place::Lane { key, .. } = &request.place else { return Ok(()) };
    let pair = outside.sub(request.sub).pair(request.event);
    let fresh = request.attempt == 1 && pair.starts == 0 && request.flag != OrderStatus::Late;
    let replayed = open.iter().find(|(sub, _, lane)| *sub == request.sub && lane == key);
    match replayed {
        Some((_, position, _)) if fresh && pair.position != Some(*position) => {
            let text =
                format!("a live event started although position {position} is being replayed in its lane");
            Err(Violation::of_request(NAME, outside, request, &text))
        }
        _ => Ok(()),
    }
}

/// All jobs, when nothing is under way any more.
pub fn at_end(engine: &Engine, jobs: u64) -> Verdict {
    for id in 1..=jobs {
        let Some(job) = engine.replay(id) else { continue };
        if job.order_violations + job.duplicates > 0 {
            let text =
                format!("job {id}: {} order violations, {} duplicates", job.order_violations, job.duplicates);
            return Err(Violation::new(NAME, text));
        }
        let accounted = job.replayed + job.failed + job.skipped + job.waiting;
        // What cannot go out now because its lane is parked waits in it: no job passes over that.
        if job.skipped_reasons.contains_key("parked") {
            return Err(Violation::new(
                NAME,
                format!("job {id} passed over a dead letter beside a parked lane"),
            ));
        }
        if matches!(job.state, JobState::Succeeded | JobState::Failed) && job.selected != accounted {
            return Err(Violation::new(
                NAME,
                format!("job {id}: {accounted} of what it selected are accounted for: {job:?}"),
            ));
        }
        if job.state == JobState::Running {
            return Err(Violation::new(
                NAME,
                format!("job {id} still runs although nothing is left to do: {job:?}"),
            ));
        }
    }
    Ok(())
}
