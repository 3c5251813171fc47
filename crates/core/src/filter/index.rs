//! Which filters may match an event, without asking all of them.
//!
//! Most subscriptions name something that an event must have: its `type` is this, its `source` begins with that. Each is
//! listed under such *signs*, so that an event finds those whose signs it shows. A subscription without a sign is always
//! asked.

use super::{Comparisons, Filter};
use crate::event::Event;
use std::collections::{BTreeMap, HashMap};

/// How many attribute names are tried one by one. Beyond that an event's own attributes are looked up instead.
const NAMES_TRIED: usize = 8;

/// Subscriptions by what they ask of an event. `T` names one of them.
#[derive(Clone, Debug)]
pub struct Index<T> {
    by_name: BTreeMap<String, Signs<T>>,
    without: Vec<T>,
    /// Under which signs each is listed; none for those without.
    listed: BTreeMap<T, Vec<Sign>>,
}

/// Part of what a filter asks: an event without it cannot match.
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

/// The signs of one attribute, and who is listed under each.
#[derive(Clone, Debug)]
struct Signs<T> {
    exact: Texts<T>,
    /// By length, so that a text is looked up once for each length there is.
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
    /// Lists it under the signs of its filters, in place of what it was listed under before.
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

    /// Adds those whose filters may match the event, in order, each once. Whoever is not among them does not match.
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

    /// The signs under which the fewest are listed so far. All these filters must match, so those of one are enough.
    fn rarest<'f>(&self, filters: impl Iterator<Item = &'f Filter>) -> Option<Vec<Sign>> {
        filters.filter_map(|filter| self.signs_of(filter)).min_by_key(|signs| self.crowd(signs))
    }

    /// None of a filter that may match whatever an event has.
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

    /// How many are asked of an event that shows these signs.
    fn crowd(&self, signs: &[Sign]) -> usize {
        let of = |sign: &Sign| self.by_name.get(&sign.name)?.texts(sign)?.get(sign.text.as_bytes());
        signs.iter().filter_map(of).map(Vec::len).sum()
    }
}

/// A subscription that names a sign twice is listed under it once.
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
        /// Whoever matches is found, in order, whatever was listed and taken away before.
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
        // The first of the fourth kind found `type` free and is listed under it; the others are not.
        assert_eq!(found(&index, &of_subject), [3, 7]);
        index.put(8, &filters(serde_json::json!([{"not": {"exact": {"type": "t0"}}}])));
        assert_eq!(found(&index, &event("t0", BTreeMap::new())), [0, 8]);
    }
}
