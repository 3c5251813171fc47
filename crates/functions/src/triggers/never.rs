//! Detects filters that no event can match. Filters that are too large to analyze count as possible.

use klambda_core::event::SPEC_VERSION;
use klambda_core::filter::{Comparisons, Filter};

/// Maximum number of combinations to analyze.
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

/// The combinations in which a filter holds, or does not hold. `None` if there are too many.
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

/// Whether `claim`, which must hold, excludes `other`.
fn excludes(claim: &Claim<'_>, other: &Claim<'_>) -> bool {
    if claim.attribute != other.attribute || !claim.holds {
        return false;
    }
    match (claim.test, other.test) {
        (Test::Exact, _) => passes(claim.text, other.test, other.text) != other.holds,
        // A longer prefix implies each shorter one. Two different prefixes exclude each other.
        (Test::Prefix, Test::Prefix) | (Test::Suffix, Test::Suffix) => match other.holds {
            true => {
                !passes(claim.text, other.test, other.text) && !passes(other.text, claim.test, claim.text)
            }
            false => passes(claim.text, other.test, other.text),
        },
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::event::{Attribute, Event, Value};
    use klambda_core::filter::all_match;
    use proptest::prelude::*;

    fn filter() -> impl Strategy<Value = Filter> {
        let given = || prop::collection::vec(("a|b|type".prop_map(String::from), "[xy]{1,2}"), 1..3);
        let leaf = prop_oneof![
            given().prop_map(Filter::Exact),
            given().prop_map(Filter::Prefix),
            given().prop_map(Filter::Suffix),
        ];
        leaf.prop_recursive(3, 12, 3, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 1..3).prop_map(Filter::All),
                prop::collection::vec(inner.clone(), 1..3).prop_map(Filter::Any),
                inner.prop_map(|filter| Filter::Not(Box::new(filter))),
            ]
        })
    }

    fn event(kind: &str, a: Option<&str>, b: Option<&str>) -> Event {
        let attributes = [("a", a), ("b", b)].into_iter().filter_map(|(name, text)| {
            Some(Attribute { name: name.into(), value: Value::String(text?.into()) })
        });
        let attributes = attributes.collect();
        Event { id: "1".into(), source: "/s".into(), kind: kind.into(), attributes, data: None }
    }

    proptest! {
        /// A filter reported as never matching must match none of these events.
        #[test]
        fn never_is_certain(filters in prop::collection::vec(filter(), 1..4)) {
            if matches(&filters) {
                let texts = ["x", "y", "xx", "xy", "yx", "yy", "xyx", "yxy"];
                let some = || texts.iter().map(|text| Some(*text)).chain([None]);
                for kind in texts {
                    for (a, b) in some().flat_map(|a| some().map(move |b| (a, b))) {
                        prop_assert!(!all_match(&filters, &event(kind, a, b)), "{kind} {a:?} {b:?}");
                    }
                }
            }
        }
    }
}
