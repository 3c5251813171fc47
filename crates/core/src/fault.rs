//! Faults in input from outside, each with its location and a message that helps the author to fix it.

use serde::{Deserialize, Serialize};
use std::fmt;

/// One fault in input from outside. Parsers collect all faults before they reject the input.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fault {
    /// The location, such as `spec.retry.backoff` or `[3].source`; empty for the input as a whole.
    pub path: String,
    pub message: String,
}

impl Fault {
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Fault {
        Fault { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => f.write_str(&self.message),
            path => write!(f, "{path}: {}", self.message),
        }
    }
}

/// "unknown field `kye`: did you mean `key`?", or the list of known words if none of them is similar.
pub fn unknown(what: &str, word: &str, known: &[&str]) -> String {
    let word = excerpt(word);
    match closest(&word, known) {
        Some(near) => format!("unknown {what} `{word}`: did you mean `{near}`?"),
        None => format!("unknown {what} `{word}`: expected one of {}", known.join(", ")),
    }
}

/// The beginning of a text from outside, short enough for a message.
pub(crate) fn excerpt(text: &str) -> String {
    match text.char_indices().nth(60) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn closest<'k>(word: &str, known: &[&'k str]) -> Option<&'k str> {
    let folded = fold(word);
    let near = known.iter().map(|candidate| (distance(&folded, &fold(candidate)), *candidate)).min()?;
    (near.0 <= folded.chars().count().div_ceil(3).min(3)).then_some(near.1)
}

/// `max_events`, `max-events` and `maxEvents` count as the same word.
fn fold(word: &str) -> String {
    word.chars().filter(|c| !matches!(c, '_' | '-')).flat_map(char::to_lowercase).collect()
}

/// The Levenshtein distance, with one row of memory.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, x) in a.chars().enumerate() {
        let mut diagonal = std::mem::replace(&mut row[0], i + 1);
        for (j, y) in b.iter().enumerate() {
            let substituted = diagonal + usize::from(x != *y);
            diagonal = row[j + 1];
            row[j + 1] = substituted.min(row[j] + 1).min(diagonal + 1);
        }
    }
    row[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn near_words_are_suggested_and_far_ones_listed() {
        assert_eq!(
            unknown("field", "max_events", &["maxEvents", "ttl"]),
            "unknown field `max_events`: did you mean `maxEvents`?"
        );
        assert_eq!(
            unknown("field", "tll", &["maxEvents", "ttl"]),
            "unknown field `tll`: did you mean `ttl`?"
        );
        assert_eq!(
            unknown("field", "colour", &["maxEvents", "ttl"]),
            "unknown field `colour`: expected one of maxEvents, ttl"
        );
    }
}
