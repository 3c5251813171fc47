//! Counts items by place (a number) in bounded memory.
//!
//! Up to a limit, every place has its own count. Beyond it, the two neighbouring ranges with the smallest combined
//! span are merged, so results are exact to a small part of the whole span.

use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Contains at most `MAX` ranges.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "BTreeMap<u64, Row>", into = "BTreeMap<u64, Row>")]
pub struct RangeCounts<const MAX: usize> {
    /// By first place. Ranges do not overlap, and none is empty.
    ranges: BTreeMap<u64, Range>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Range {
    last: u64,
    count: u32,
}

/// The stored form of a range: for a single place only its count.
#[derive(Clone, Copy, Serialize, Deserialize)]
#[serde(untagged)]
enum Row {
    Place(u32),
    Range(u64, u32),
}

impl<const MAX: usize> RangeCounts<MAX> {
    pub fn add(&mut self, place: u64) {
        if let Some((_, range)) = self.find(place) {
            range.count += 1;
            return;
        }
        self.ranges.insert(place, Range { last: place, count: 1 });
        if self.ranges.len() > MAX {
            self.merge();
        }
    }

    pub fn remove(&mut self, place: u64) {
        let Some((first, range)) = self.find(place) else { return };
        range.count -= 1;
        if range.count == 0 {
            self.ranges.remove(&first);
        }
    }

    fn find(&mut self, place: u64) -> Option<(u64, &mut Range)> {
        let (first, range) = self.ranges.range_mut(..=place).next_back()?;
        (place <= range.last).then_some((*first, range))
    }

    /// Merges the two neighbours that are shortest together.
    fn merge(&mut self) {
        let pairs = self.ranges.iter().zip(self.ranges.iter().skip(1));
        let shortest = pairs.min_by_key(|((first, _), (_, next))| next.last - *first);
        let Some((first, next)) = shortest.map(|((first, _), (next, _))| (*first, *next)) else { return };
        if let Some(next) = self.ranges.remove(&next)
            && let Some(range) = self.ranges.get_mut(&first)
        {
            *range = Range { last: next.last, count: range.count + next.count };
        }
    }

    /// No item is before this place.
    pub fn first(&self) -> Option<u64> {
        self.ranges.keys().next().copied()
    }

    /// At least one item is at this place or before it.
    pub fn first_at_most(&self) -> Option<u64> {
        self.ranges.values().next().map(|range| range.last)
    }

    /// True if an item may be between these places, inclusive.
    pub fn any_between(&self, from: u64, to: u64) -> bool {
        self.ranges.range(..=to).next_back().is_some_and(|(_, range)| range.last >= from)
    }

    /// The ranges that overlap with these places, inclusive: first and last place of each.
    pub fn between(&self, from: u64, to: u64) -> impl Iterator<Item = (u64, u64)> {
        let before = self.ranges.range(..from).next_back().filter(|(_, range)| range.last >= from);
        let within = (from <= to).then(|| self.ranges.range(from..=to)).into_iter().flatten();
        before.into_iter().chain(within).map(|(first, range)| (*first, range.last))
    }

    /// Approximate memory use.
    pub fn memory_bytes(&self) -> usize {
        2 * self.ranges.len() * (size_of::<u64>() + size_of::<Range>())
    }
}

impl<const MAX: usize> From<BTreeMap<u64, Row>> for RangeCounts<MAX> {
    fn from(rows: BTreeMap<u64, Row>) -> RangeCounts<MAX> {
        let mut spread = RangeCounts::<MAX>::default();
        for (first, row) in rows {
            let (last, count) = match row {
                Row::Place(count) => (first, count),
                Row::Range(length, count) => (first.saturating_add(length), count),
            };
            spread.ranges.insert(first, Range { last, count });
            if spread.ranges.len() > MAX {
                spread.merge();
            }
        }
        spread
    }
}

impl<const MAX: usize> From<RangeCounts<MAX>> for BTreeMap<u64, Row> {
    fn from(spread: RangeCounts<MAX>) -> BTreeMap<u64, Row> {
        let row = |(first, range): (u64, Range)| match range.last - first {
            0 => (first, Row::Place(range.count)),
            length => (first, Row::Range(length, range.count)),
        };
        spread.ranges.into_iter().map(row).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MAX: usize = 256;
    type Few = RangeCounts<MAX>;

    proptest! {
        /// Compares with a plain list of places.
        #[test]
        fn says_what_a_list_says_as_far_as_it_tells_places_apart(
            steps in prop::collection::vec((any::<bool>(), 0_u64..20_000), 0..3000),
        ) {
            let (mut spread, mut list) = (Few::default(), Vec::new());
            for (adds, place) in steps {
                if adds || list.is_empty() {
                    spread.add(place);
                    list.push(place);
                } else {
                    let gone = list.swap_remove(place as usize % list.len());
                    spread.remove(gone);
                }
                prop_assert!(spread.ranges.len() <= MAX);
            }
            let lowest = list.iter().min().copied();
            prop_assert_eq!(spread.first().is_some(), lowest.is_some());
            if let Some(lowest) = lowest {
                let (first, at_most) = (spread.first().unwrap(), spread.first_at_most().unwrap());
                prop_assert!(first <= lowest && lowest <= at_most && at_most - first <= 20_000 / 100);
            }
            for place in &list {
                prop_assert!(spread.any_between(*place, *place));
            }
            for (from, to) in [(0, 0), (5_000, 9_000), (0, 20_000)] {
                let expected: Vec<(u64, u64)> = spread.ranges.iter()
                    .map(|(first, range)| (*first, range.last))
                    .filter(|(first, last)| *first <= to && *last >= from)
                    .collect();
                prop_assert_eq!(spread.between(from, to).collect::<Vec<_>>(), expected);
            }
            let count: u32 = spread.ranges.values().map(|range| range.count).sum();
            prop_assert_eq!(count as usize, list.len());
            let json = serde_json::to_string(&spread).unwrap();
            prop_assert_eq!(serde_json::from_str::<Few>(&json).unwrap(), spread);
        }
    }

    #[test]
    fn few_places_are_exact_and_rows_of_before_are_read() {
        let mut spread: Few = serde_json::from_str(r#"{"7": 2, "9": 1}"#).unwrap();
        assert!(!spread.any_between(8, 8) && spread.any_between(8, 9) && spread.any_between(0, 7));
        spread.remove(7);
        assert_eq!(spread.first(), Some(7));
        spread.remove(7);
        assert_eq!((spread.first(), spread.first_at_most()), (Some(9), Some(9)));
        assert_eq!(serde_json::to_string(&spread).unwrap(), r#"{"9":1}"#);
    }
}
