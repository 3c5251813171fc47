//! Deletion: to delete a dead letter removes exactly that one, or is refused and removes none.
//!
//! Semantics: 24.

use super::{Verdict, Violation};
use klambda_dispatch::dead_letters::DeadLetter;
use klambda_dispatch::operate::Refused;

const NAME: &str = "deletion";

/// Only a disk without room or one that fails is a reason to refuse: whatever is in flight is no dead letter then.
pub fn refusal(target: &DeadLetter, result: &Result<(), Refused>) -> Verdict {
    let Err(why @ (Refused::NotFound(_) | Refused::Conflict(_))) = result else { return Ok(()) };
    let text = format!("to delete position {}, which is there, was refused: {why}", target.entry.position);
    Err(Violation::new(NAME, text))
}

/// What was there before and is there after one was to be deleted. Nothing else happened in between.
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
        format!("to delete position {at} was {answer}: of {:?} there are {found:?} left", positions(before));
    Err(Violation::new(NAME, text))
}
