//! Deletion: to delete a dead letter removes exactly that one, or is refused and removes none.
//!
//! Semantics: 24.

use super::{Verdict, Violation};
use klambda_dispatch::dead_letters::DeadLetter;

const NAME: &str = "deletion";

/// What was there before and is there after one was to be deleted. Nothing else happened in between.
pub fn of_one(target: &DeadLetter, is_done: bool, before: &[DeadLetter], after: &[DeadLetter]) -> Verdict {
    let positions = |letters: &[DeadLetter]| -> Vec<u64> {
        letters.iter().map(|letter| letter.entry.position.0).collect()
    };
    let mut expected = positions(before);
    expected.retain(|position| !is_done || *position != target.entry.position.0);
    let found = positions(after);
    if found == expected {
        return Ok(());
    }
    let (at, answer) = (target.entry.position, if is_done { "done" } else { "refused" });
    let text =
        format!("to delete position {at} was {answer}: of {:?} there are {found:?} left", positions(before));
    Err(Violation::new(NAME, text))
}
