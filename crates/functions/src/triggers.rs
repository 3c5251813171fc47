//! Converts the triggers and delivery settings of a function to one subscription of the engine.

mod never;

use crate::resource::{Resource, Spec, Trigger};
use klambda_core::fault::Fault;
use klambda_core::filter::{self, Filter};
use klambda_core::subscription::{API_VERSION, Document, KIND};
use serde_json::{Map, Value, json};

/// The fields that functions share with subscriptions, under the same names.
const SHARED: [&str; 9] = [
    "from",
    "ordering",
    "orderingPolicy",
    "retry",
    "idempotency",
    "sequenceTtl",
    "backlog",
    "deadLetters",
    "paused",
];
const CONCURRENCY_MAX: u64 = 65_536;

/// The subscription document, or `None` if the function has no triggers. A function that runs at a URL is called there, not
/// through a replica.
pub fn subscription(resource: &Resource, elsewhere: Option<&str>) -> Option<Value> {
    let filters = filters(&resource.spec)?;
    let mut spec = shared(&resource.spec);
    spec.insert("filters".into(), filters.iter().map(Filter::to_json).collect());
    spec.insert("target".into(), target(resource, elsewhere));
    Some(document(&resource.metadata.namespace, &resource.subscription_name(), spec))
}

fn target(resource: &Resource, elsewhere: Option<&str>) -> Value {
    let names = &resource.metadata;
    match elsewhere {
        Some(url) => json!({ "url": url }),
        None => json!({ "function": { "namespace": names.namespace, "name": names.name } }),
    }
}

fn document(namespace: &str, name: &str, spec: Map<String, Value>) -> Value {
    let metadata = json!({ "namespace": namespace, "name": name });
    json!({ "apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec })
}

fn shared(spec: &Spec) -> Map<String, Value> {
    let mut fields = Map::new();
    if let Ok(Value::Object(mut written)) = serde_json::to_value(spec) {
        fields.extend(SHARED.iter().filter_map(|name| written.remove_entry(*name)));
    }
    let scaling = &spec.scaling;
    let replicas_take = u64::from(scaling.max_replicas) * u64::from(scaling.target_concurrency);
    let concurrency = spec.concurrency.map_or(replicas_take.clamp(1, CONCURRENCY_MAX), u64::from);
    fields.insert("concurrency".into(), concurrency.into());
    fields
}

/// An event matches if any trigger matches. A trigger without filters matches everything.
pub fn filters(spec: &Spec) -> Option<Vec<Filter>> {
    let mut each: Vec<Vec<Filter>> =
        spec.triggers.iter().map(|trigger| of_trigger(trigger, "", &mut Vec::new())).collect();
    match each.len() {
        0 => None,
        1 => each.pop(),
        _ if each.iter().any(Vec::is_empty) => Some(Vec::new()),
        _ => Some(vec![Filter::Any(each.into_iter().map(all_of).collect())]),
    }
}

fn all_of(mut filters: Vec<Filter>) -> Filter {
    match (filters.len(), filters.pop()) {
        (1, Some(only)) => only,
        (_, last) => {
            filters.extend(last);
            Filter::All(filters)
        }
    }
}

fn of_trigger(trigger: &Trigger, path: &str, faults: &mut Vec<Fault>) -> Vec<Filter> {
    if let Some(filters) = &trigger.filters {
        return filter::parse_all(&Value::Array(filters.to_vec()), &format!("{path}.filters"), faults);
    }
    let Some(exact) = &trigger.filter else { return Vec::new() };
    let named = [("type", &exact.kind), ("source", &exact.source)];
    let comparisons = named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?)));
    vec![Filter::Exact(comparisons.collect())]
}

/// `written` is the spec as the user wrote it: the parser of subscriptions must see the given fields, not the defaults.
pub(crate) fn check(spec: &Spec, written: &Value, faults: &mut Vec<Fault>) {
    for (index, trigger) in spec.triggers.iter().enumerate() {
        let path = format!("spec.triggers[{index}]");
        check_trigger(trigger, &path, faults);
        of_trigger(trigger, &path, faults);
    }
    let mut fields: Map<String, Value> =
        SHARED.iter().map(|name| ((*name).to_owned(), written[*name].clone())).collect();
    fields.insert("target".into(), json!({ "url": "http://127.0.0.1/" }));
    if let Err(told) = Document::parse(&document("default", "function", fields)) {
        faults.extend(told);
    }
}

fn check_trigger(trigger: &Trigger, path: &str, faults: &mut Vec<Fault>) {
    if trigger.broker.is_empty() {
        faults.push(Fault::new(format!("{path}.broker"), "must not be empty"));
    }
    if trigger.filter.is_some() && trigger.filters.is_some() {
        faults.push(Fault::new(path, "set either filter or filters, not both"));
    }
    let Some(exact) = &trigger.filter else { return };
    if exact.kind.is_none() && exact.source.is_none() {
        faults.push(Fault::new(format!("{path}.filter"), "set type, source or both"));
    }
    for (name, text) in [("type", &exact.kind), ("source", &exact.source)] {
        if text.as_ref().is_some_and(String::is_empty) {
            faults.push(Fault::new(format!("{path}.filter.{name}"), "must not be empty"));
        }
    }
}

/// The indexes of triggers whose filters contradict each other, so that no event can match.
pub fn that_match_nothing(spec: &Spec) -> Vec<usize> {
    let each = spec.triggers.iter().enumerate();
    each.filter(|(_, trigger)| never::matches(&of_trigger(trigger, "", &mut Vec::new())))
        .map(|(index, _)| index)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(value: Value) -> Spec {
        serde_json::from_value(value).expect("spec")
    }

    #[test]
    fn triggers_become_one_subscription() {
        let mut resource = Resource { spec: spec(json!({})), ..Resource::default() };
        assert_eq!(subscription(&resource, None), None);
        resource.metadata.name = "pay".into();
        resource.spec = spec(json!({
            "triggers": [{ "filter": { "type": "order.placed" } }, { "filters": [{ "prefix": { "type": "pay." } }, { "not": { "exact": { "source": "/test" } } }] }],
            "ordering": "ordered", "orderingPolicy": { "key": { "attribute": "subject" } }, "retry": { "attempts": "unlimited" },
        }));
        let document = subscription(&resource, None).expect("triggered");
        assert_eq!(document["metadata"]["name"], "lambda.default.pay");
        let any = json!([{ "any": [
            { "exact": { "type": "order.placed" } },
            { "all": [{ "prefix": { "type": "pay." } }, { "not": { "exact": { "source": "/test" } } }] },
        ] }]);
        assert_eq!(document["spec"]["filters"], any);
        assert_eq!(document["spec"]["concurrency"], 500);
        assert_eq!(document["spec"]["target"]["function"]["name"], "pay");
        resource.spec.triggers.push(Trigger::default());
        assert_eq!(filters(&resource.spec), Some(Vec::new()));
    }

    #[test]
    fn contradictions_are_seen() {
        let nothing = |filters: Value| {
            !that_match_nothing(&spec(json!({ "triggers": [{ "filters": filters }] }))).is_empty()
        };
        for contradiction in [
            json!([{ "exact": { "type": "a" } }, { "exact": { "type": "b" } }]),
            json!([{ "exact": { "type": "a" } }, { "prefix": { "type": "b" } }]),
            json!([{ "prefix": { "type": "a." } }, { "prefix": { "type": "b." } }]),
            json!([{ "suffix": { "type": "x" } }, { "suffix": { "type": "y" } }]),
            json!([{ "prefix": { "type": "a.b" } }, { "not": { "prefix": { "type": "a" } } }]),
            json!([{ "all": [{ "exact": { "type": "a" } }, { "any": [{ "exact": { "type": "b" } }, { "suffix": { "type": "c" } }] }] }]),
            json!([{ "exact": { "type": "a" } }, { "not": { "any": [{ "prefix": { "type": "a" } }, { "exact": { "source": "s" } }] } }]),
            json!([{ "exact": { "specversion": "0.3" } }]),
        ] {
            assert!(nothing(contradiction.clone()), "{contradiction}");
        }
        for possible in [
            json!([]),
            json!([{ "exact": { "type": "ab" } }, { "prefix": { "type": "a" } }, { "suffix": { "type": "b" } }]),
            json!([{ "any": [{ "exact": { "type": "a" } }, { "exact": { "type": "b" } }] }, { "exact": { "type": "b" } }]),
            json!([{ "not": { "exact": { "type": "a", "source": "s" } } }, { "exact": { "type": "a" } }]),
            json!([{ "prefix": { "type": "a" } }, { "prefix": { "type": "ab" } }, { "not": { "exact": { "type": "ab" } } }]),
        ] {
            assert!(!nothing(possible.clone()), "{possible}");
        }
    }
}
