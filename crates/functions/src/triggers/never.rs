//! Filters that no event can match. Told only when certain: what is too large to look through counts as possible.

use klambda_core::event::SPEC_VERSION;
use klambda_core::filter::{Comparisons, Filter};

/// Ways in which filters may hold, looked through at most.
const WAYS_MAX: usize = 512;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Test {
    Exact,
    Prefix,
    Suffix,
}

#[derive(Clone, Copy, Debug)]
struct Claim<'f> {
    attribute: &'f str,
    test: Test,
    text: &'f str,
    holds: bool,
}

/// Claims that hold together.
type Way<'f> = Vec<Claim<'f>>;

pub(super) fn matches(filters: &[Filter]) -> bool {
    let ways = every(filters.iter().map(|filter| ways(filter, true)));
    ways.is_some_and(|ways| ways.iter().all(contradicts))
}

/// The ways in which a filter holds, or does not; `None` where they are too many.
fn ways(filter: &Filter, holds: bool) -> Option<Vec<Way<'_>>> {
    match (filter, holds) {
        (Filter::Exact(given), _) => Some(compared(given, Test::Exact, holds)),
        (Filter::Prefix(given), _) => Some(compared(given, Test::Prefix, holds)),
        (Filter::Suffix(given), _) => Some(compared(given, Test::Suffix, holds)),
        (Filter::All(filters), true) | (Filter::Any(filters), false) => {
            every(filters.iter().map(|filter| ways(filter, holds)))
        }
        (Filter::Any(filters), true) | (Filter::All(filters), false) => {
            either(filters.iter().map(|filter| ways(filter, holds)))
        }
        (Filter::Not(inner), _) => ways(inner, !holds),
    }
}

fn compared(given: &Comparisons, test: Test, holds: bool) -> Vec<Way<'_>> {
    let claims = given.iter().map(|(attribute, text)| Claim { attribute, test, text, holds });
    match holds {
        true => vec![claims.collect()],
        false => claims.map(|claim| vec![claim]).collect(),
    }
}

fn either<'f>(parts: impl Iterator<Item = Option<Vec<Way<'f>>>>) -> Option<Vec<Way<'f>>> {
    let mut all = Vec::new();
    for part in parts {
        all.extend(part?);
    }
    (all.len() <= WAYS_MAX).then_some(all)
}

fn every<'f>(parts: impl Iterator<Item = Option<Vec<Way<'f>>>>) -> Option<Vec<Way<'f>>> {
    let mut all: Vec<Way<'f>> = vec![Vec::new()];
    for part in parts {
        let part = part?;
        if all.len() * part.len() > WAYS_MAX {
            return None;
        }
        all = all.iter().flat_map(|way| part.iter().map(|more| [&way[..], &more[..]].concat())).collect();
    }
    Some(all)
}

fn contradicts(way: &Way<'_>) -> bool {
    let pairs = |claim: &Claim<'_>| way.iter().any(|other| excludes(claim, other));
    way.iter().any(|claim| pairs(claim) || is_impossible(claim))
}

fn is_impossible(claim: &Claim<'_>) -> bool {
    claim.attribute == "specversion" && passes(SPEC_VERSION, claim.test, claim.text) != claim.holds
}

fn passes(text: &str, test: Test, expected: &str) -> bool {
    match test {
        Test::Exact => text == expected,
        Test::Prefix => text.starts_with(expected),
        Test::Suffix => text.ends_with(expected),
    }
}

/// Whether `claim`, which must hold, rules `other` out.
fn excludes(claim: &Claim<'_>, other: &Claim<'_>) -> bool {
    if claim.attribute != other.attribute || !claim.holds {
        return false;
    }
    match (claim.test, other.test) {
        (Test::Exact, _) => passes(claim.text, other.test, other.text) != other.holds,
        // A longer beginning implies each shorter one; two that differ cannot both be.
        (Test::Prefix, Test::Prefix) | (Test::Suffix, Test::Suffix) => match other.holds {
            true => {
                !passes(claim.text, other.test, other.text) && !passes(other.text, claim.test, claim.text)
            }
            false => passes(claim.text, other.test, other.text),
        },
        _ => false,
    }
}
