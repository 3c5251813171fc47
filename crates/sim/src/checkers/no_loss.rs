//! No loss: every accepted event is delivered, or waits, or is a dead letter, or was purged, skipped or dropped by a
//! recorded decision or limit. A producer is told `skipped` only of what is known. A start after anything but damage
//! opens the folder.
//!
//! Semantics: 1 (accepted means synced), 2 and 3 (what is skipped is known), 4 and 10 (the watermark), 6 and 8 (what has
//! no key or sequence becomes a dead letter), 27 (retention removes nothing that waits), 28 (limits are counted).

use super::{Verdict, Violation};
use crate::event::EventNo;
use crate::history::{Entry, Said, SubNo};
use crate::outside::{Outside, State, Taken};
use crate::rules::{Place, Rules};
use klambda_dispatch::{Engine, Judged, Rejection, Status};

const NAME: &str = "no loss";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Answered { token, event, answer: Said::Skipped { by_watermark } } = entry else {
        return Ok(());
    };
    for before in outside.before(*token, *event) {
        let sub = outside.sub(before.sub);
        if before.forgotten_for_sure && !by_watermark && !before.may_be_long_past {
            let (id, name) = (&outside.made(*event).id, &sub.rules.name);
            let text = format!("event {id} was skipped although its window in subscription {name} is over");
            return Err(Violation::of_event(NAME, *event, text));
        }
        if before.taken == Taken::No && !before.may_be_long_past {
            let (id, name) = (&outside.made(*event).id, &sub.rules.name);
            let text = format!("event {id} was skipped although subscription {name} does not know it");
            return Err(Violation::of_event(NAME, *event, text));
        }
    }
    Ok(())
}

/// Whoever was turned away cost nobody anything: no event made room for a request of which none was taken. If the store
/// stopped over it, nobody knows.
pub fn made_room(dropped: u64, judged: &[Judged]) -> Verdict {
    let turned_away = |status: &Status| matches!(status, Status::Rejected(why) if !matches!(why, Rejection::Unavailable { .. }));
    if dropped == 0 || !judged.iter().all(|judged| turned_away(&judged.status)) {
        return Ok(());
    }
    let text = format!("{dropped} events were dropped for a request that was turned away: {:?}", judged[0]);
    Err(Violation::new(NAME, text))
}

/// A full subscription that lags turns nobody away. `rules`: all that any subscription was ever given. The one that is
/// named may be gone by now.
pub fn turned_away<'a>(mut rules: impl Iterator<Item = &'a Rules>, why: &Rejection) -> Verdict {
    let Rejection::Backlog { subscription, limit, .. } = why else { return Ok(()) };
    if rules.any(|rules| rules.name == *subscription && (rules.rejects() || rules.drops())) {
        return Ok(());
    }
    let text =
        format!("an event was turned away for all because {subscription} is full ({limit}), which lags");
    Err(Violation::new(NAME, text))
}

/// Nothing is damaged here, and the disk's errors are no damage: whatever was accepted can be read back.
pub fn readable(engine: &Engine) -> Verdict {
    match engine.metrics().damaged {
        0 => Ok(()),
        n => Err(Violation::new(NAME, format!("{n} events or stretches of log cannot be read back"))),
    }
}

/// When all lanes are empty: what was accepted is delivered, decided about, or among the dead letters.
pub fn at_end(outside: &Outside, letters: &dyn Fn(SubNo, EventNo) -> bool) -> Verdict {
    for (n, sub) in outside.subs.iter().enumerate().filter(|(_, sub)| sub.there) {
        let mut missing = Vec::new();
        for (event, pair) in sub.pairs.iter().enumerate() {
            let event = event as EventNo;
            let ended =
                matches!(pair.state, State::Acked | State::AckedMaybe | State::Gone | State::GoneMaybe);
            if pair.owed && !ended && !letters(n as SubNo, event) && !pair.may_be_long_past {
                missing.push(event);
            }
        }
        if missing.len() as u64 > sub.dropped {
            return Err(lost(outside, n as SubNo, &missing));
        }
    }
    Ok(())
}

fn lost(outside: &Outside, n: SubNo, missing: &[EventNo]) -> Violation {
    let sub = outside.sub(n);
    let event = missing[0];
    let shown: Vec<&str> = missing.iter().take(20).map(|event| outside.made(*event).id.as_str()).collect();
    let text = format!(
        "subscription {}: {} accepted events are nowhere ({} were dropped by limits): {}, the first is {:?}",
        sub.rules.name,
        missing.len(),
        sub.dropped,
        shown.join(" "),
        sub.pair(event),
    );
    let lane = match sub.rules.ordering.place(outside.made(event)) {
        Place::Lane { key, .. } => Some((n, key)),
        _ => None,
    };
    Violation { lane, ..Violation::of_event(NAME, event, text) }
}
