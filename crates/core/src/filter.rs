//! The filter dialects of the CloudEvents Subscriptions API, as Knative Triggers use them.

mod index;

pub use self::index::Index;
pub use crate::event::Attributes;
use crate::fault::{Fault, unknown};
use crate::schema::written_as;
use serde::{Deserialize, Serialize};
use serde_json::Value;

const DEPTH_MAX: usize = 16;
const NODES_MAX: usize = 1000;
pub(crate) const ATTRIBUTE_RULE: &str = "attribute names may contain only the letters a-z and digits";
const DIALECTS: [&str; 6] = ["exact", "prefix", "suffix", "all", "any", "not"];

/// Attribute names, each with the text to compare with. All comparisons must succeed.
pub type Comparisons = Vec<(String, String)>;

/// Use [`parse_all`] to read filters from outside: it enforces the limits on their size.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Filter {
    Exact(#[serde(with = "comparisons")] Comparisons),
    Prefix(#[serde(with = "comparisons")] Comparisons),
    Suffix(#[serde(with = "comparisons")] Comparisons),
    All(Vec<Filter>),
    Any(Vec<Filter>),
    Not(Box<Filter>),
}

impl Filter {
    /// A comparison with an attribute that the event does not have is false.
    pub fn matches(&self, event: &impl Attributes) -> bool {
        match self {
            Filter::Exact(given) => hold(given, event, |text, expected| text == expected),
            Filter::Prefix(given) => hold(given, event, |text, expected| text.starts_with(expected)),
            Filter::Suffix(given) => hold(given, event, |text, expected| text.ends_with(expected)),
            Filter::All(filters) => filters.iter().all(|filter| filter.matches(event)),
            Filter::Any(filters) => filters.iter().any(|filter| filter.matches(event)),
            Filter::Not(filter) => !filter.matches(event),
        }
    }

    pub fn to_json(&self) -> Value {
        serde_json::to_value(self).expect("the maps in a filter have string keys")
    }
}

/// True if every filter of a subscription matches. A subscription without filters matches every event.
pub fn all_match(filters: &[Filter], event: &impl Attributes) -> bool {
    filters.iter().all(|filter| filter.matches(event))
}

/// Parses the `filters` of a subscription.
pub fn parse_all(value: &Value, path: &str, faults: &mut Vec<Fault>) -> Vec<Filter> {
    if value.is_null() {
        return Vec::new();
    }
    let before = faults.len();
    let mut parser = Parser { faults, nodes: 0 };
    let filters = parser.list(value, path, 1).unwrap_or_default();
    if parser.nodes > NODES_MAX {
        parser.faults.truncate(before);
        parser.fault(path, format!("more than {NODES_MAX} filters"));
    }
    filters
}

fn hold(given: &Comparisons, event: &impl Attributes, test: impl Fn(&str, &str) -> bool) -> bool {
    given.iter().all(|(name, expected)| event.attribute(name).is_some_and(|text| test(&text, expected)))
}

// A structural schema cannot be recursive, so it accepts any object here. [`parse_all`] checks the content.
written_as!([] Filter, "Filter", { "type": "object", "x-kubernetes-preserve-unknown-fields": true });

/// Serializes the comparisons as an object.
mod comparisons {
    use super::Comparisons;
    use serde::{Deserialize, Deserializer, Serializer};
    use std::collections::BTreeMap;

    pub(super) fn serialize<S: Serializer>(given: &Comparisons, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(given.iter().map(|(name, text)| (name, text)))
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Comparisons, D::Error> {
        BTreeMap::deserialize(deserializer).map(|given| given.into_iter().collect())
    }
}

struct Parser<'f> {
    faults: &'f mut Vec<Fault>,
    nodes: usize,
}

impl Parser<'_> {
    fn fault(&mut self, path: &str, message: impl Into<String>) {
        self.faults.push(Fault::new(path, message));
    }

    fn list(&mut self, value: &Value, path: &str, depth: usize) -> Option<Vec<Filter>> {
        let Value::Array(items) = value else {
            self.fault(path, "must be a list of filters");
            return None;
        };
        let parsed =
            items.iter().enumerate().map(|(index, item)| self.one(item, &format!("{path}[{index}]"), depth));
        // Parses every item before collecting, so that all faults are reported.
        parsed.collect::<Vec<_>>().into_iter().collect()
    }

    fn one(&mut self, value: &Value, path: &str, depth: usize) -> Option<Filter> {
        self.nodes += 1;
        if self.nodes > NODES_MAX {
            return None;
        }
        if depth > DEPTH_MAX {
            self.fault(path, format!("filters may be nested at most {DEPTH_MAX} levels deep"));
            return None;
        }
        let dialect =
            value.as_object().filter(|object| object.len() == 1).and_then(|object| object.iter().next());
        let Some((dialect, body)) = dialect else {
            self.fault(path, format!("must be an object with exactly one of: {}", DIALECTS.join(", ")));
            return None;
        };
        self.dialect(dialect, body, &format!("{path}.{dialect}"), depth)
    }

    fn dialect(&mut self, dialect: &str, body: &Value, path: &str, depth: usize) -> Option<Filter> {
        match dialect {
            "exact" => self.comparisons(body, path).map(Filter::Exact),
            "prefix" => self.comparisons(body, path).map(Filter::Prefix),
            "suffix" => self.comparisons(body, path).map(Filter::Suffix),
            "all" => self.nested(body, path, depth).map(Filter::All),
            "any" => self.nested(body, path, depth).map(Filter::Any),
            "not" => self.one(body, path, depth + 1).map(|filter| Filter::Not(Box::new(filter))),
            "sql" | "cesql" => {
                self.fault(
                    path,
                    format!("the SQL dialect is not supported; use one of: {}", DIALECTS.join(", ")),
                );
                None
            }
            other => {
                self.fault(path, unknown("filter dialect", other, &DIALECTS));
                None
            }
        }
    }

    fn nested(&mut self, body: &Value, path: &str, depth: usize) -> Option<Vec<Filter>> {
        let filters = self.list(body, path, depth + 1)?;
        if filters.is_empty() {
            self.fault(path, "must contain at least one filter");
        }
        Some(filters)
    }

    fn comparisons(&mut self, body: &Value, path: &str) -> Option<Comparisons> {
        let Some(object) = body.as_object().filter(|object| !object.is_empty()) else {
            self.fault(path, "must be an object that maps attribute names to strings");
            return None;
        };
        let parsed =
            object.iter().map(|(name, value)| self.comparison(name, value, &format!("{path}.{name}")));
        parsed.collect::<Vec<_>>().into_iter().collect()
    }

    fn comparison(&mut self, name: &str, value: &Value, path: &str) -> Option<(String, String)> {
        if !is_attribute_name(name) {
            self.fault(path, ATTRIBUTE_RULE);
        }
        match value {
            Value::String(text) if !text.is_empty() => Some((name.to_owned(), text.clone())),
            Value::String(_) => {
                self.fault(path, "must not be empty");
                None
            }
            _ => {
                self.fault(path, "must be a string");
                None
            }
        }
    }
}

pub(crate) fn is_attribute_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::Event;
    use proptest::prelude::*;
    use serde_json::json;
    use std::borrow::Cow;
    use std::collections::BTreeMap;

    struct Bag(BTreeMap<String, String>);

    impl Attributes for Bag {
        fn attribute(&self, name: &str) -> Option<Cow<'_, str>> {
            self.0.get(name).map(|text| Cow::Borrowed(text.as_str()))
        }
    }

    /// A reference implementation that evaluates the JSON directly.
    fn model(filter: &Value, bag: &BTreeMap<String, String>) -> bool {
        let (dialect, body) =
            filter.as_object().and_then(|object| object.iter().next()).expect("one dialect");
        let every = |test: fn(&str, &str) -> bool| {
            body.as_object().expect("object").iter().all(|(name, expected)| {
                bag.get(name).is_some_and(|text| test(text, expected.as_str().expect("text")))
            })
        };
        let nested = || body.as_array().expect("array").iter().map(|inner| model(inner, bag));
        match dialect.as_str() {
            "exact" => every(|text, expected| text == expected),
            "prefix" => every(|text, expected| text.starts_with(expected)),
            "suffix" => every(|text, expected| text.ends_with(expected)),
            "all" => nested().all(|held| held),
            "any" => nested().any(|held| held),
            "not" => !model(body, bag),
            other => panic!("{other}"),
        }
    }

    pub(super) fn filter_json() -> impl Strategy<Value = Value> {
        let given = prop::collection::btree_map("[ab]", "[xy]{1,2}", 1..3);
        let leaf = ("exact|prefix|suffix", given).prop_map(|(dialect, given)| json!({ dialect: given }));
        leaf.prop_recursive(4, 24, 3, |inner| {
            prop_oneof![
                ("all|any", prop::collection::vec(inner.clone(), 1..4))
                    .prop_map(|(d, list)| json!({ d: list })),
                inner.prop_map(|filter| json!({ "not": filter })),
            ]
        })
    }

    proptest! {
        #[test]
        fn filters_mean_what_the_specification_says(
            filters in prop::collection::vec(filter_json(), 0..3),
            bag in prop::collection::btree_map("[abc]", "[xy]{0,3}", 0..3),
        ) {
            let mut faults = Vec::new();
            let document = Value::Array(filters.clone());
            let parsed = parse_all(&document, "spec.filters", &mut faults);
            prop_assert_eq!(&faults, &[]);
            prop_assert_eq!(serde_json::to_value(&parsed).expect("JSON"), document.clone());
            prop_assert_eq!(&serde_json::from_value::<Vec<Filter>>(document).expect("filters"), &parsed);
            let expected = filters.iter().all(|filter| model(filter, &bag));
            prop_assert_eq!(all_match(&parsed, &Bag(bag)), expected);
        }
    }

    fn faults_of(value: Value) -> Vec<String> {
        let mut faults = Vec::new();
        parse_all(&value, "f", &mut faults);
        faults.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn as_many_filters_as_are_allowed_and_one_more() {
        let of = |count: usize| Value::Array(vec![json!({ "exact": { "type": "a" } }); count]);
        let mut faults = Vec::new();
        assert_eq!(parse_all(&of(NODES_MAX), "f", &mut faults).len(), NODES_MAX);
        assert!(faults.is_empty());
        assert!(!faults_of(of(NODES_MAX + 1)).is_empty());
    }

    #[test]
    fn faults_are_told_with_their_place() {
        let told = faults_of(json!([
            {"prefx": {"type": "a"}},
            {"exact": {"type": ""}},
            {"any": [{"suffix": {"Type": "a"}}, 7]},
            {"sql": "type = 'a'"},
            {"exact": {"type": "a"}, "prefix": {"type": "a"}},
            {"all": []},
            {"exact": {"n": 1}},
        ]));
        let expected = [
            "f[0].prefx: unknown filter dialect `prefx`: did you mean `prefix`?",
            "f[1].exact.type: must not be empty",
            "f[2].any[0].suffix.Type: attribute names may contain only the letters a-z and digits",
            "f[2].any[1]: must be an object with exactly one of: exact, prefix, suffix, all, any, not",
            "f[3].sql: the SQL dialect is not supported; use one of: exact, prefix, suffix, all, any, not",
            "f[4]: must be an object with exactly one of: exact, prefix, suffix, all, any, not",
            "f[5].all: must contain at least one filter",
            "f[6].exact.n: must be a string",
        ];
        assert_eq!(told, expected);
    }

    #[test]
    fn size_and_depth_are_bounded() {
        let many = vec![json!({"exact": {"a": "x"}}); NODES_MAX + 1];
        assert_eq!(faults_of(Value::Array(many)), ["f: more than 1000 filters"]);
        let deep = (0..DEPTH_MAX).fold(json!({"exact": {"a": "x"}}), |inner, _| json!({ "not": inner }));
        assert_eq!(faults_of(json!([deep])).len(), 1);
    }

    #[test]
    fn required_attributes_are_seen() {
        let event =
            Event { id: "1".into(), source: "/s".into(), kind: "t.x".into(), attributes: vec![], data: None };
        let prefix = |name: &str, text: &str| Filter::Prefix(vec![(name.into(), text.into())]);
        assert!(prefix("type", "t.").matches(&event));
        assert!(prefix("specversion", "1").matches(&event));
        assert!(!prefix("subject", "t").matches(&event));
    }
}
