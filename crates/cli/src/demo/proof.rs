//! Checks the demo from outside: compares the events that were sent with the file that the function wrote. It uses nothing
//! that the server reports about itself.

use super::script::{ATTEMPTS, ORDERS, POISON, Step};
use serde::Deserialize;
use std::path::Path;

/// A line that the function wrote.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub struct Entry {
    pub id: String,
    pub key: String,
    pub sequence: u64,
    pub outcome: Outcome,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Outcome {
    Handled,
    Failed,
}

/// A sent event, and whether the server accepted it or skipped it as a duplicate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sent {
    pub step: Step,
    pub accepted: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Claim {
    pub text: String,
    pub holds: bool,
}

/// The complete lines so far. A line that is still being written is left out.
pub fn read(journal: &Path) -> Vec<Entry> {
    let text = std::fs::read_to_string(journal).unwrap_or_default();
    let whole = text.rsplit_once('\n').map_or("", |(whole, _)| whole);
    whole.lines().filter_map(|line| serde_json::from_str(line).ok()).collect()
}

pub fn claims(sent: &[Sent], journal: &[Entry]) -> Vec<Claim> {
    let handled: Vec<&Entry> = journal.iter().filter(|entry| entry.outcome == Outcome::Handled).collect();
    let times = |step: Step| handled.iter().filter(|entry| entry.id == step.id()).count();
    let steps: Vec<Step> = Step::all().collect();
    let lost = steps.iter().filter(|step| times(**step) == 0).count();
    let repeated = steps.iter().filter(|step| times(**step) > 1).count();
    let disordered = ORDERS.iter().filter(|order| !is_in_order(&handled, order)).count();
    let skipped = sent.iter().filter(|sent| !sent.accepted).count();
    let twice = sent.len() - steps.len();
    vec![
        claim(
            lost == 0,
            format!("nothing lost: {} events sent, {} handled", steps.len(), steps.len() - lost),
        ),
        claim(repeated == 0, format!("each handled once: {repeated} repeated")),
        claim(disordered == 0, format!("in order within {} keys: {disordered} out of order", ORDERS.len())),
        claim(skipped == twice, format!("duplicates skipped: {skipped} of {twice}")),
        poison(journal),
    ]
}

fn claim(holds: bool, text: String) -> Claim {
    Claim { text, holds }
}

fn is_in_order(handled: &[&Entry], key: &str) -> bool {
    let sequences: Vec<u64> =
        handled.iter().filter(|entry| entry.key == key).map(|entry| entry.sequence).collect();
    sequences.is_sorted()
}

/// The event failed in every attempt before the fix, succeeded afterwards, and no event of its key overtook it.
fn poison(journal: &[Entry]) -> Claim {
    let of_it: Vec<&Entry> = journal.iter().filter(|entry| entry.key == ORDERS[POISON.order]).collect();
    let failed = of_it.iter().filter(|entry| entry.outcome == Outcome::Failed);
    let (tries, others) = failed.clone().partition::<Vec<&&Entry>, _>(|entry| entry.id == POISON.id());
    let handled = of_it.iter().position(|entry| entry.id == POISON.id() && entry.outcome == Outcome::Handled);
    let passed =
        of_it.iter().take(handled.unwrap_or(of_it.len())).filter(|entry| entry.sequence > POISON.sequence);
    let passed = passed.count();
    let holds = tries.len() as u64 == ATTEMPTS && others.is_empty() && handled.is_some() && passed == 0;
    claim(
        holds,
        format!("the failing event failed {} times, then kept its place: {passed} overtook it", tries.len()),
    )
}

#[cfg(test)]
mod tests {
    use super::super::script::{MISSING, TWICE, arrivals};
    use super::*;

    fn entry(step: Step, outcome: Outcome) -> Entry {
        Entry { id: step.id(), key: ORDERS[step.order].to_owned(), sequence: step.sequence, outcome }
    }

    fn good() -> (Vec<Sent>, Vec<Entry>) {
        let mut seen_twice = false;
        let sent = arrivals().chain([MISSING]).map(|step| {
            let again = step == TWICE && std::mem::replace(&mut seen_twice, true);
            Sent { step, accepted: step != TWICE || again }
        });
        let failed = (0..ATTEMPTS).map(|_| entry(POISON, Outcome::Failed));
        let handled = Step::all().map(|step| entry(step, Outcome::Handled));
        let journal: Vec<Entry> = handled.collect();
        let at = journal.iter().position(|entry| entry.id == POISON.id()).expect("there");
        let (before, after) = journal.split_at(at);
        (sent.collect(), before.iter().cloned().chain(failed).chain(after.iter().cloned()).collect())
    }

    fn broken(spoil: impl FnOnce(&mut Vec<Sent>, &mut Vec<Entry>)) -> Vec<usize> {
        let (mut sent, mut journal) = good();
        spoil(&mut sent, &mut journal);
        let claims = claims(&sent, &journal);
        claims.iter().enumerate().filter(|(_, claim)| !claim.holds).map(|(at, _)| at).collect()
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let at = |journal: &[Entry], step: Step| {
            journal.iter().position(|entry| entry.id == step.id()).expect("there")
        };
        assert_eq!(broken(|_, _| {}), [0; 0]);
        assert_eq!(broken(|_, journal| drop(journal.pop())), [0]);
        assert_eq!(broken(|_, journal| journal.push(journal[journal.len() - 1].clone())), [1]);
        assert_eq!(broken(|_, journal| journal.swap(0, 1)), [2]);
        assert_eq!(broken(|sent, _| sent.iter_mut().for_each(|sent| sent.accepted = true)), [3]);
        let passed = |_: &mut Vec<Sent>, journal: &mut Vec<Entry>| {
            let (poison, next) = (at(journal, POISON), Step { order: 2, sequence: 4 });
            let next = at(journal, next);
            let moved = journal.remove(next);
            journal.insert(poison, moved);
        };
        assert_eq!(broken(passed), [2, 4]);
        let untried = |_: &mut Vec<Sent>, journal: &mut Vec<Entry>| {
            journal.retain(|entry| entry.outcome == Outcome::Handled);
        };
        assert_eq!(broken(untried), [4]);
    }
}
