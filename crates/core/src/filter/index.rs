//! An index that finds the filters that may match an event, without evaluating all of them.
//!
//! Most subscriptions require something of an event: its `type` equals a text, its `source` has a prefix. The index
//! calls such a requirement a *sign* and lists each subscription under its signs. An event finds the subscriptions
//! whose signs it has. A subscription without signs is a candidate for every event.

use super::{Comparisons, Filter};
use crate::event::Event;
use std::collections::{BTreeMap, HashMap};

/// Up to this number of indexed names, the index tries each name on the event. Beyond that, it looks up the event's
/// own attributes.
const NAMES_TRIED: usize = 8;

/// Subscriptions by their signs. `T` identifies a subscription.
#[derive(Clone, Debug)]
pub struct Index<T> {
    by_name: BTreeMap<String, Signs<T>>,
    without: Vec<T>,
    /// The signs under which each subscription is listed; empty for those in `without`.
    listed: BTreeMap<T, Vec<Sign>>,
}

/// A requirement of a filter: an event that does not meet it cannot match.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Sign {
    name: String,
    test: Test,
    text: String,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Test {
    Exact,
    Prefix,
    Suffix,
}

/// The signs of one attribute, and the subscriptions listed under each.
#[derive(Clone, Debug)]
struct Signs<T> {
    exact: Texts<T>,
    /// By length, so that one lookup per known length is enough.
    prefix: BTreeMap<usize, Texts<T>>,
    suffix: BTreeMap<usize, Texts<T>>,
}

type Texts<T> = HashMap<Vec<u8>, Vec<T>>;

impl<T> Default for Index<T> {
    fn default() -> Index<T> {
        Index { by_name: BTreeMap::new(), without: Vec::new(), listed: BTreeMap::new() }
    }
}

impl<T> Default for Signs<T> {
    fn default() -> Signs<T> {
        Signs { exact: HashMap::new(), prefix: BTreeMap::new(), suffix: BTreeMap::new() }
    }
}

impl<T: Copy + Ord> Index<T> {
    /// Lists a subscription under the signs of its filters. Replaces its previous signs.
    pub fn put(&mut self, id: T, filters: &[Filter]) {
        self.remove(id);
        let signs = self.rarest(filters.iter()).unwrap_or_default();
        if signs.is_empty() {
            self.without.push(id);
        }
        for sign in &signs {
            self.by_name.entry(sign.name.clone()).or_default().texts_mut(sign).push(id);
        }
        self.listed.insert(id, signs);
    }

    pub fn is_empty(&self) -> bool {
        self.listed.is_empty()
    }

    pub fn remove(&mut self, id: T) {
        let Some(signs) = self.listed.remove(&id) else { return };
        if signs.is_empty() {
            self.without.retain(|other| *other != id);
        }
        for sign in &signs {
            let Some(of_name) = self.by_name.get_mut(&sign.name) else { continue };
            of_name.unlist(sign, id);
            if of_name.is_empty() {
                self.by_name.remove(&sign.name);
            }
        }
    }

    /// Adds the subscriptions whose filters may match the event, sorted and without duplicates. All others do not
    /// match.
    pub fn find(&self, event: &Event, found: &mut Vec<T>) {
        found.extend_from_slice(&self.without);
        if self.by_name.len() <= NAMES_TRIED {
            for (name, signs) in &self.by_name {
                if let Some(text) = event.attribute(name) {
                    signs.find(text.as_bytes(), found);
                }
            }
        } else {
            event.each_attribute(|name, text| {
                if let Some(signs) = self.by_name.get(name) {
                    signs.find(text.as_bytes(), found);
                }
            });
        }
        if found.len() > 1 {
            found.sort_unstable();
            found.dedup();
        }
    }

    /// The signs with the fewest subscriptions so far. All the filters must match, so the signs of one filter are
    /// enough.
    fn rarest<'f>(&self, filters: impl Iterator<Item = &'f Filter>) -> Option<Vec<Sign>> {
        filters.filter_map(|filter| self.signs_of(filter)).min_by_key(|signs| self.crowd(signs))
    }

    /// `None` if the filter may match any event.
    fn signs_of(&self, filter: &Filter) -> Option<Vec<Sign>> {
        match filter {
            Filter::Exact(given) => self.rarest_of(given, Test::Exact),
            Filter::Prefix(given) => self.rarest_of(given, Test::Prefix),
            Filter::Suffix(given) => self.rarest_of(given, Test::Suffix),
            Filter::All(filters) => self.rarest(filters.iter()),
            Filter::Any(filters) => {
                let each: Option<Vec<Vec<Sign>>> =
                    filters.iter().map(|filter| self.signs_of(filter)).collect();
                each.map(|each| without_doubles(each.concat()))
            }
            Filter::Not(_) => None,
        }
    }

    fn rarest_of(&self, given: &Comparisons, test: Test) -> Option<Vec<Sign>> {
        let signs =
            given.iter().map(|(name, text)| vec![Sign { name: name.clone(), test, text: text.clone() }]);
        signs.min_by_key(|signs| self.crowd(signs))
    }

    /// The number of subscriptions that are already listed under these signs.
    fn crowd(&self, signs: &[Sign]) -> usize {
        let of = |sign: &Sign| self.by_name.get(&sign.name)?.texts(sign)?.get(sign.text.as_bytes());
        signs.iter().filter_map(of).map(Vec::len).sum()
    }
}

/// A subscription that requires the same sign twice is listed under it once.
fn without_doubles(mut signs: Vec<Sign>) -> Vec<Sign> {
    signs.sort_unstable();
    signs.dedup();
    signs
}

impl<T: Copy + Ord> Signs<T> {
    fn find(&self, text: &[u8], found: &mut Vec<T>) {
        let exact = self.exact.get(text);
        let prefix =
            self.prefix.range(..=text.len()).filter_map(|(length, texts)| texts.get(&text[..*length]));
        let suffix = self
            .suffix
            .range(..=text.len())
            .filter_map(|(length, texts)| texts.get(&text[text.len() - length..]));
        exact.into_iter().chain(prefix).chain(suffix).for_each(|ids| found.extend_from_slice(ids));
    }

    fn texts(&self, sign: &Sign) -> Option<&Texts<T>> {
        match sign.test {
            Test::Exact => Some(&self.exact),
            Test::Prefix => self.prefix.get(&sign.text.len()),
            Test::Suffix => self.suffix.get(&sign.text.len()),
        }
    }

    fn texts_mut(&mut self, sign: &Sign) -> &mut Vec<T> {
        let texts = match sign.test {
            Test::Exact => &mut self.exact,
            Test::Prefix => self.prefix.entry(sign.text.len()).or_default(),
            Test::Suffix => self.suffix.entry(sign.text.len()).or_default(),
        };
        texts.entry(sign.text.clone().into_bytes()).or_default()
    }

    fn unlist(&mut self, sign: &Sign, id: T) {
        let ids = self.texts_mut(sign);
        ids.retain(|other| *other != id);
        if !ids.is_empty() {
            return;
        }
        let (text, length) = (sign.text.as_bytes(), sign.text.len());
        match sign.test {
            Test::Exact => drop(self.exact.remove(text)),
            Test::Prefix => remove(&mut self.prefix, length, text),
            Test::Suffix => remove(&mut self.suffix, length, text),
        }
    }

    fn is_empty(&self) -> bool {
        self.exact.is_empty() && self.prefix.is_empty() && self.suffix.is_empty()
    }
}

fn remove<T>(by_length: &mut BTreeMap<usize, Texts<T>>, length: usize, text: &[u8]) {
    let Some(texts) = by_length.get_mut(&length) else { return };
    texts.remove(text);
    if texts.is_empty() {
        by_length.remove(&length);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Attribute, Value};
    use crate::filter::{all_match, parse_all, tests::filter_json};
    use proptest::prelude::*;

    fn event(kind: &str, attributes: BTreeMap<String, String>) -> Event {
        let attribute = |(name, text)| Attribute { name, value: Value::String(text) };
        let attributes = attributes.into_iter().map(attribute).collect();
        Event { id: "1".into(), source: "/s".into(), kind: kind.into(), attributes, data: None }
    }

    fn filters(json: serde_json::Value) -> Vec<Filter> {
        parse_all(&json, "f", &mut Vec::new())
    }

    fn found(index: &Index<u32>, event: &Event) -> Vec<u32> {
        let mut found = Vec::new();
        index.find(event, &mut found);
        found
    }

    proptest! {
        /// Every subscription that matches is found, in order, after any sequence of additions and removals.
        #[test]
        fn nobody_who_matches_is_missed(
            steps in prop::collection::vec((0u32..8, prop::option::of(prop::collection::vec(filter_json(), 0..3))), 1..30),
            bag in prop::collection::btree_map("[abc]", "[xy]{1,3}", 0..3),
            more_names in any::<bool>(),
        ) {
            let mut index = Index::default();
            let mut listed = BTreeMap::new();
            for (id, given) in steps {
                match given {
                    Some(given) => {
                        let parsed = filters(serde_json::Value::Array(given));
                        index.put(id, &parsed);
                        listed.insert(id, parsed);
                    }
                    None => {
                        index.remove(id);
                        listed.remove(&id);
                    }
                }
            }
            let event = event("t", bag);
            let matching = |found: Vec<u32>| -> Vec<u32> {
                found.into_iter().filter(|id| all_match(&listed[id], &event)).collect()
            };
            let expected = matching(listed.keys().copied().collect());
            prop_assert_eq!(matching(found(&index, &event)), expected.clone());
            if more_names {
                for n in 0..NAMES_TRIED {
                    index.put(100 + n as u32, &filters(serde_json::json!([{"exact": {format!("n{n}"): "x"}}])));
                }
                prop_assert_eq!(matching(found(&index, &event)), expected);
            }
            listed.keys().copied().collect::<Vec<_>>().into_iter().for_each(|id| index.remove(id));
            (0..NAMES_TRIED).for_each(|n| index.remove(100 + n as u32));
            prop_assert!(index.by_name.is_empty() && index.without.is_empty() && index.listed.is_empty());
        }
    }

    #[test]
    fn an_event_asks_only_those_that_name_something_it_has() {
        let mut index = Index::default();
        for n in 0..1000 {
            let by = match n % 4 {
                0 => serde_json::json!([{"exact": {"type": format!("t{n}")}}]),
                1 => serde_json::json!([{"prefix": {"type": format!("t{n}.")}}]),
                2 => {
                    serde_json::json!([{"any": [{"exact": {"type": format!("t{n}")}}, {"suffix": {"type": format!(".t{n}")}}]}])
                }
                _ => {
                    serde_json::json!([{"exact": {"type": "order"}}, {"exact": {"subject": format!("s{n}")}}])
                }
            };
            index.put(n, &filters(by));
        }
        assert_eq!(found(&index, &event("t0", BTreeMap::new())), [0]);
        assert_eq!(found(&index, &event("t1.x.t2", BTreeMap::new())), [1, 2]);
        assert_eq!(found(&index, &event("t2", BTreeMap::new())), [2]);
        let of_subject = event("order", BTreeMap::from([("subject".into(), "s7".into())]));
        // When the first subscription of the fourth kind was added, no other was listed under its `type`, so it is
        // listed there. The others are listed under their subject.
        assert_eq!(found(&index, &of_subject), [3, 7]);
        index.put(8, &filters(serde_json::json!([{"not": {"exact": {"type": "t0"}}}])));
        assert_eq!(found(&index, &event("t0", BTreeMap::new())), [0, 8]);
    }
}
