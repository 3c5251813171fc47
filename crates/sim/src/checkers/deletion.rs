//! Deletion: deleting a dead letter removes exactly that dead letter, or is refused and removes none.

use super::{Verdict, Violation};
use klambda_dispatch::dead_letters::DeadLetter;
use klambda_dispatch::operate::Refused;

const NAME: &str = "deletion";

/// Only a full or failing disk is a valid reason to refuse: an event in flight is not a dead letter.
pub fn refusal(target: &DeadLetter, result: &Result<(), Refused>) -> Verdict {
    let Err(why @ (Refused::NotFound(_) | Refused::Conflict(_))) = result else { return Ok(()) };
    let text = format!("deleting position {}, which exists, was refused: {why}", target.entry.position);
    Err(Violation::new(NAME, text))
}

/// Compares the dead letters before and after a deletion. Nothing else happened in between.
pub fn of_one(
    target: &DeadLetter,
    result: &Result<(), Refused>,
    before: &[DeadLetter],
    after: &[DeadLetter],
) -> Verdict {
    let at = target.entry.position;
    let positions = |letters: &[DeadLetter]| -> Vec<u64> {
        letters.iter().map(|letter| letter.entry.position.0).collect()
    };
    let mut expected = positions(before);
    expected.retain(|position| result.is_err() || *position != at.0);
    let found = positions(after);
    if found == expected {
        return Ok(());
    }
    let answer = if result.is_ok() { "done" } else { "refused" };
    let text =
        format!("deleting position {at} was {answer}: before {:?}, after {found:?}", positions(before));
    Err(Violation::new(NAME, text))
}
