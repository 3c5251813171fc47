//! No loss: every accepted event is delivered, pending or a dead letter, or was purged, skipped or dropped by a
//! recorded decision or limit. A producer gets `skipped` only for known events. The folder opens after anything
//! except damage.
//!
//! Covers acceptance, known events, the watermark, events without key or sequence, retention and limits.

use super::{Verdict, Violation};
use crate::event::EventNo;
use crate::history::{Entry, Said, SubNo};
use crate::outside::{Outside, State, Taken};
use crate::rules::{Place, Rules};
use klambda_dispatch::{Engine, EventResult, Rejection, Status};

const NAME: &str = "no loss";

pub fn look(outside: &Outside, entry: &Entry) -> Verdict {
    let Entry::Answered { token, event, answer: Said::Skipped { by_watermark } } = entry else {
        return Ok(());
    };
    for before in outside.before(*token, *event) {
        let sub = outside.sub(before.sub);
        if before.forgotten_for_sure && !by_watermark && !before.may_be_long_past {
            let (id, name) = (&outside.made(*event).id, &sub.rules.name);
            let text =
                format!("event {id} was skipped although its id window in subscription {name} has expired");
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

/// A rejected request must not cost other events: none may be dropped for a request of which nothing was accepted. If
/// the store stopped, the result is unknown.
pub fn made_room(dropped: u64, judged: &[EventResult]) -> Verdict {
    let turned_away = |status: &Status| matches!(status, Status::Rejected(why) if !matches!(why, Rejection::Unavailable { .. }));
    if dropped == 0 || !judged.iter().all(|judged| turned_away(&judged.status)) {
        return Ok(());
    }
    let text = format!("{dropped} events were dropped for a rejected request: {:?}", judged[0]);
    Err(Violation::new(NAME, text))
}

/// A full subscription that lags must not reject events. `rules`: all rules that any subscription ever had, because
/// the one named here may have been deleted since.
pub fn turned_away<'a>(mut rules: impl Iterator<Item = &'a Rules>, why: &Rejection) -> Verdict {
    let Rejection::Backlog { subscription, limit, .. } = why else { return Ok(()) };
    if rules.any(|rules| rules.name == *subscription && (rules.rejects() || rules.drops())) {
        return Ok(());
    }
    let text = format!("an event was rejected because {subscription} is full ({limit}), although it lags");
    Err(Violation::new(NAME, text))
}

/// Nothing is damaged here, and I/O errors are not damage, so every accepted event must be readable.
pub fn readable(engine: &Engine) -> Verdict {
    match engine.metrics().damaged {
        0 => Ok(()),
        n => Err(Violation::new(NAME, format!("{n} events or parts of the log are unreadable"))),
    }
}

/// Runs when all lanes are empty: every accepted event is delivered, decided about, or a dead letter.
pub fn at_end(outside: &Outside, letters: &dyn Fn(SubNo, EventNo) -> bool) -> Verdict {
    for (n, sub) in outside.subs.iter().enumerate().filter(|(_, sub)| sub.life.there) {
        let mut missing = Vec::new();
        for (event, pair) in sub.pairs.iter().enumerate() {
            let event = event as EventNo;
            let ended =
                matches!(pair.state, State::Acked | State::AckedMaybe | State::Gone | State::GoneMaybe);
            if pair.owed && !ended && !letters(n as SubNo, event) && !pair.doubts.may_be_long_past {
                missing.push(event);
            }
        }
        if missing.len() as u64 > sub.limits.dropped {
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
        "subscription {}: {} accepted events are missing ({} were dropped by limits): {}, the first is {:?}",
        sub.rules.name,
        missing.len(),
        sub.limits.dropped,
        shown.join(" "),
        sub.pair(event),
    );
    let lane = match sub.rules.ordering.place(outside.made(event)) {
        Place::Lane { key, .. } => Some((n, key)),
        _ => None,
    };
    Violation { lane, ..Violation::of_event(NAME, event, text) }
}
