//! The event types of all namespaces: their names in memory, their documents in the engine.
//!
//! They change in steps of the engine, and the table changes in the same step as the document. The locks are held for a
//! lookup or an insertion only.

use super::schemas::Schemas;
use super::stored;
use crate::problem::Problem;
use klambda_core::namespace::{SchemaCheck, Within};
use klambda_crash::Lock;
use klambda_dispatch::runner::Handle;
use klambda_dispatch::{Engine, Failure};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock, PoisonError, RwLock, RwLockReadGuard};
use tokio::sync::Semaphore;

/// Checks of requests that run at the same time. Each may occupy a core for a while.
const CHECKS_MAX: usize = 4;

pub struct Catalogue {
    table: RwLock<BTreeMap<String, OfNamespace>>,
    /// Namespaces that check events. While it is 0, accepting events costs one load.
    checking: AtomicUsize,
    pub(super) schemas: Lock<Schemas>,
    pub(super) handle: OnceLock<Handle>,
    pub(super) turns: Semaphore,
    pub violations: Lock<Violations>,
    types_max: usize,
}

#[derive(Default)]
struct OfNamespace {
    check: SchemaCheck,
    by_name: BTreeMap<String, Arc<Known>>,
    by_type: HashMap<String, Arc<Known>>,
}

/// An event type in memory.
#[derive(Debug)]
pub struct Known {
    pub name: String,
    pub event_type: String,
    pub version: u64,
    pub has_schema: bool,
}

impl Catalogue {
    /// `types_max`: of one namespace. `labels_max`: types with their own label in the metrics.
    pub fn new(types_max: usize, labels_max: usize) -> Catalogue {
        Catalogue {
            table: RwLock::default(),
            checking: AtomicUsize::new(0),
            schemas: Lock::default(),
            handle: OnceLock::new(),
            turns: Semaphore::new(CHECKS_MAX),
            violations: Lock::new(Violations { labels_max, counts: BTreeMap::new() }),
            types_max,
        }
    }

    pub fn load(&self, engine: &Engine) -> Result<(), Failure> {
        for (namespace, check) in engine.schema_checks() {
            self.set_check(namespace, check);
        }
        stored::each(engine, |key, version, found| match found {
            Some(found) => {
                let (namespace, name) = stored::split(key);
                self.note(namespace, name, Some(found.known(version)));
            }
            None => tracing::warn!(event_type = key, "Event type cannot be read; write it again"),
        })
    }

    /// From now on schemas can be read.
    pub fn start(&self, handle: Handle) {
        // A second start changes nothing, because there is one engine.
        let _ = self.handle.set(handle);
    }

    /// What a namespace does with events that do not match their schema.
    pub fn check_of(&self, namespace: &str) -> SchemaCheck {
        if self.checking.load(Ordering::Relaxed) == 0 {
            return SchemaCheck::Off;
        }
        self.table().get(namespace).map_or(SchemaCheck::Off, |of| of.check)
    }

    pub fn set_check(&self, namespace: &str, check: SchemaCheck) {
        self.change(|table| table.entry(namespace.to_owned()).or_default().check = check);
    }

    /// Forgets a deleted namespace.
    pub fn forget(&self, namespace: &str) {
        self.change(|table| drop(table.remove(namespace)));
        self.violations.lock().counts.retain(|(name, ..), _| name != namespace);
    }

    /// `None`: the event type is deleted.
    pub fn note(&self, namespace: &str, name: &str, known: Option<Known>) {
        self.change(|table| {
            let of = table.entry(namespace.to_owned()).or_default();
            if let Some(before) = of.by_name.remove(name) {
                of.by_type.remove(&before.event_type);
            }
            if let Some(known) = known.map(Arc::new) {
                of.by_type.insert(known.event_type.clone(), Arc::clone(&known));
                of.by_name.insert(name.to_owned(), known);
            }
        });
    }

    fn change(&self, change: impl FnOnce(&mut BTreeMap<String, OfNamespace>)) {
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        change(&mut table);
        let checking = table.values().filter(|of| !of.check.is_off()).count();
        self.checking.store(checking, Ordering::Relaxed);
    }

    fn table(&self) -> RwLockReadGuard<'_, BTreeMap<String, OfNamespace>> {
        self.table.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The event type of events of this type, if it has a schema.
    pub(super) fn with_schema(&self, namespace: &str, event_type: &str) -> Option<Arc<Known>> {
        let table = self.table();
        table.get(namespace)?.by_type.get(event_type).filter(|known| known.has_schema).cloned()
    }

    /// Keys of documents, from the one after `after` on.
    pub fn keys(&self, within: &Within, after: Option<&str>, limit: usize) -> Vec<String> {
        let table = self.table();
        let wanted = table.iter().filter(|(namespace, _)| within.has(namespace));
        let keys = wanted
            .flat_map(|(namespace, of)| of.by_name.keys().map(move |name| stored::key(namespace, name)));
        keys.filter(|key| after.is_none_or(|after| stored::split(key) > stored::split(after)))
            .take(limit)
            .collect()
    }

    /// One event type of a namespace, if it has any.
    pub fn any_of(&self, namespace: &str) -> Option<String> {
        self.table().get(namespace)?.by_name.keys().next().cloned()
    }

    /// Refuses one more event type than the limit, and a second one for the same type.
    pub fn must_fit(&self, namespace: &str, name: &str, event_type: &str) -> Result<(), Problem> {
        let table = self.table();
        let Some(of) = table.get(namespace) else { return Ok(()) };
        if !of.by_name.contains_key(name) && of.by_name.len() >= self.types_max {
            return Err(Problem::limit_reached(format!(
                "namespace {namespace} has {} event types already (limits.eventTypes): delete those that are not used",
                of.by_name.len()
            )));
        }
        match of.by_type.get(event_type).filter(|other| other.name != name) {
            Some(other) => Err(Problem::conflict(format!(
                "event type {:?} describes events of type {event_type} already",
                other.name
            ))),
            None => Ok(()),
        }
    }
}

/// Counts events that did not match, by namespace, type and result.
pub struct Violations {
    labels_max: usize,
    pub counts: BTreeMap<(String, String, &'static str), u64>,
}

impl Violations {
    pub fn count(&mut self, namespace: &str, event_type: &str, result: &'static str) {
        let is_known = self.counts.keys().any(|(of, kind, _)| of == namespace && kind == event_type);
        // Two results for each type.
        let has_room = self.counts.len() < self.labels_max.saturating_mul(2);
        let label = if is_known || has_room { event_type } else { "other" };
        *self.counts.entry((namespace.to_owned(), label.to_owned(), result)).or_default() += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(name: &str, event_type: &str) -> Option<Known> {
        let (name, event_type) = (name.to_owned(), event_type.to_owned());
        Some(Known { name, event_type, version: 1, has_schema: true })
    }

    #[test]
    fn a_type_is_described_once_in_each_namespace_and_found_until_it_changes() {
        let types = Catalogue::new(2, 10);
        types.note("a", "order", known("order", "Order"));
        types.must_fit("b", "other", "Order").expect("another namespace");
        types.must_fit("a", "order", "Order").expect("the same event type");
        assert!(types.must_fit("a", "other", "Order").is_err());
        types.note("a", "order", known("order", "Order.v2"));
        assert!(types.with_schema("a", "Order").is_none() && types.with_schema("a", "Order.v2").is_some());
        types.note("a", "b", known("b", "b"));
        assert!(types.must_fit("a", "c", "c").expect_err("full").detail().contains("limits.eventTypes"));
        types.note("a-b", "x", known("x", "x"));
        let keys = |after| types.keys(&Within::All, after, 10);
        assert_eq!(keys(None), ["a/b", "a/order", "a-b/x"]);
        assert_eq!(keys(Some("a/b")), ["a/order", "a-b/x"]);
        assert_eq!(keys(Some("a/order")), ["a-b/x"], "namespaces are compared as a whole");
        types.note("a", "order", None);
        assert_eq!(types.keys(&Within::one("a"), None, 10), ["a/b"]);
        types.forget("a");
        assert_eq!(types.any_of("a"), None);
    }

    #[test]
    fn a_check_of_one_namespace_is_off_in_others() {
        let types = Catalogue::new(2, 10);
        types.set_check("a", SchemaCheck::Flag);
        assert_eq!((types.check_of("a"), types.check_of("b")), (SchemaCheck::Flag, SchemaCheck::Off));
        types.set_check("a", SchemaCheck::Off);
        assert_eq!(types.checking.load(Ordering::Relaxed), 0);
    }

    #[test]
    fn labels_are_bounded() {
        let mut violations = Violations { labels_max: 2, counts: BTreeMap::new() };
        for n in 0..100 {
            violations.count("a", &format!("t{n}"), "flagged");
        }
        violations.count("a", "t1", "rejected");
        assert_eq!(violations.counts.len(), 6);
        assert_eq!(violations.counts[&("a".into(), "other".into(), "flagged")], 96);
    }
}
