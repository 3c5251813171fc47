//! Triggers: they bring the events of brokers to the dispatcher, which orders, retries and keeps dead letters.
//!
//! The RabbitMQ broker ignores `filters` and delivers everything, and refuses to change `filter`. So there every type gets a
//! Trigger with `filter.attributes`, and the name of a Trigger changes with its filter. The dispatcher filters again by the
//! Subscription, and drops duplicates by their id. So a Trigger may deliver too much, but never too little.
//!
//! Every Trigger has its own `delivery` with a dead-letter sink: the RabbitMQ broker drops failed events of a Trigger that
//! has a `delivery` without a sink, and inherits nothing from the Broker.

use super::Owned;
use crate::child::Child;
use crate::config::Config;
use crate::kinds::Kind;
use crate::names;
use crate::snapshot::{Snapshot, annotation};
use klambda_core::filter::{self, Filter};
use klambda_functions::resource::{Resource, Trigger};
use serde_json::{Map, Value, json};
use std::collections::{BTreeMap, BTreeSet};

const CLASS: &str = "eventing.knative.dev/broker.class";
const RABBITMQ: &str = "RabbitMQBroker";
/// More exact filters than this are one Trigger without a filter.
const EXACT_MAX: usize = 32;

/// The brokers that a function names.
pub fn brokers(resource: &Resource) -> BTreeSet<&str> {
    resource.spec.triggers.iter().map(|trigger| trigger.broker.as_str()).collect()
}

/// Brokers belong to a namespace, not to a function, so nobody owns them. Existing ones stay as they are.
pub(super) fn missing_brokers(resource: &Resource, snapshot: &Snapshot, config: &Config) -> Vec<Child> {
    let Some(class) = &config.broker_class else { return Vec::new() };
    let missing = brokers(resource).into_iter().filter(|broker| snapshot.broker(broker).is_none());
    let metadata = json!({
        "labels": { names::MANAGED_BY: names::MANAGER },
        "annotations": { CLASS: class },
    });
    let broker = |name| {
        Child::new(
            Kind::Broker,
            &resource.metadata.namespace,
            name,
            json!({ "metadata": metadata, "spec": {} }),
        )
    };
    missing.map(broker).collect()
}

/// The Triggers of a function, for comparison with those that exist.
pub fn triggers(resource: &Resource, snapshot: &Snapshot, config: &Config) -> Vec<Child> {
    triggers_of(&Owned { resource, api_version: "" }, snapshot, config)
}

pub(super) fn triggers_of(owned: &Owned<'_>, snapshot: &Snapshot, config: &Config) -> Vec<Child> {
    // By name: equal triggers are one.
    let mut children = BTreeMap::new();
    for trigger in &owned.resource.spec.triggers {
        for filter in filters_for(trigger, snapshot, config) {
            let child = child(owned, trigger, filter, config);
            children.insert(child.name.clone(), child);
        }
    }
    children.into_values().collect()
}

fn child(owned: &Owned<'_>, trigger: &Trigger, filter: Map<String, Value>, config: &Config) -> Child {
    let name = names::with_hash(owned.name(), &json!([trigger.broker, filter]));
    let uri = config.events_url(owned.namespace());
    let mut spec = Value::Object(filter);
    spec["broker"] = trigger.broker.clone().into();
    spec["subscriber"] = json!({ "uri": uri });
    spec["delivery"] = json!({
        "retry": 5,
        "backoffPolicy": "exponential",
        "backoffDelay": "PT1S",
        "timeout": "PT30S",
        "deadLetterSink": { "uri": uri },
    });
    owned.child(Kind::Trigger, &name, json!({}), json!({ "spec": spec }))
}

/// The filter members of each Trigger that this trigger needs.
fn filters_for(trigger: &Trigger, snapshot: &Snapshot, config: &Config) -> Vec<Map<String, Value>> {
    let filters = filters(trigger);
    if is_rabbitmq(&trigger.broker, snapshot, config) {
        return match exact(&filters) {
            Some(each) => each.into_iter().map(attributes).collect(),
            None => vec![Map::new()],
        };
    }
    match filters.is_empty() {
        true => vec![Map::new()],
        false => {
            let filters = filters.iter().map(Filter::to_json).collect();
            vec![Map::from_iter([("filters".to_owned(), filters)])]
        }
    }
}

fn is_rabbitmq(broker: &str, snapshot: &Snapshot, config: &Config) -> bool {
    match snapshot.broker(broker) {
        Some(live) => annotation(live, CLASS) == Some(RABBITMQ),
        None => config.broker_class.as_deref() == Some(RABBITMQ),
    }
}

fn filters(trigger: &Trigger) -> Vec<Filter> {
    if let Some(filters) = &trigger.filters {
        return filter::parse_all(&Value::Array(filters.to_vec()), "", &mut Vec::new());
    }
    let Some(exact) = &trigger.filter else { return Vec::new() };
    let named = [("type", &exact.kind), ("source", &exact.source)];
    let pairs = named.into_iter().filter_map(|(name, text)| Some((name.to_owned(), text.clone()?)));
    vec![Filter::Exact(pairs.collect())]
}

type Attributes = BTreeMap<String, String>;

fn attributes(exact: Attributes) -> Map<String, Value> {
    match exact.is_empty() {
        true => Map::new(),
        false => Map::from_iter([("filter".to_owned(), json!({ "attributes": exact }))]),
    }
}

/// Sets of attributes of which an event has to equal one, for filters that are made of equalities only. `None` if there is
/// anything else, because only the dispatcher can evaluate that.
fn exact(filters: &[Filter]) -> Option<Vec<Attributes>> {
    let mut sets: Vec<Attributes> = vec![Attributes::new()];
    for filter in filters {
        let more: Vec<Attributes> = match filter {
            Filter::Exact(pairs) => vec![pairs.iter().cloned().collect()],
            Filter::All(inner) => exact(inner)?,
            Filter::Any(inner) => {
                let each: Option<Vec<_>> =
                    inner.iter().map(|filter| exact(std::slice::from_ref(filter))).collect();
                each?.into_iter().flatten().collect()
            }
            Filter::Prefix(_) | Filter::Suffix(_) | Filter::Not(_) => return None,
        };
        sets = combine(&sets, &more);
        if sets.len() > EXACT_MAX {
            return None;
        }
    }
    Some(sets)
}

/// Every combination whose attributes do not contradict each other.
fn combine(sets: &[Attributes], more: &[Attributes]) -> Vec<Attributes> {
    let agree = |one: &Attributes, other: &Attributes| {
        other.iter().all(|(name, value)| one.get(name).is_none_or(|known| known == value))
    };
    let pairs = sets.iter().flat_map(|one| more.iter().map(move |other| (one, other)));
    let joined = pairs.filter(|(one, other)| agree(one, other));
    joined
        .map(|(one, other)| {
            one.iter().chain(other).map(|(name, value)| (name.clone(), value.clone())).collect()
        })
        .collect()
}
