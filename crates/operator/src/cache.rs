//! The last known state of every watched object.

use crate::kinds::Kind;
use crate::names;
use crate::snapshot::{self, Snapshot};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Identifies a function or agent.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Key {
    pub kind: Kind,
    pub namespace: String,
    pub name: String,
}

type Name = (String, String);
type Objects = BTreeMap<Name, Arc<Value>>;

#[derive(Default)]
pub struct Cache {
    objects: Mutex<HashMap<Kind, Objects>>,
    installed: Mutex<Arc<BTreeSet<String>>>,
}

fn name_of(object: &Value) -> Name {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default().to_owned();
    (text("namespace"), text("name"))
}

/// API servers number versions in the order of changes.
fn version(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"].as_str().and_then(|text| text.parse().ok()).unwrap_or(u64::MAX)
}

impl Cache {
    fn lock(&self) -> MutexGuard<'_, HashMap<Kind, Objects>> {
        self.objects.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores an object, unless a newer one is known: answers of requests and watches cross each other.
    pub fn put(&self, kind: Kind, object: Arc<Value>) {
        let mut objects = self.lock();
        let known = objects.entry(kind).or_default();
        let name = name_of(&object);
        if known.get(&name).is_none_or(|known| version(known) <= version(&object)) {
            known.insert(name, object);
        }
    }

    pub fn remove(&self, kind: Kind, object: &Value) {
        if let Some(known) = self.lock().get_mut(&kind) {
            known.remove(&name_of(object));
        }
    }

    /// Replaces all objects of a kind, in one namespace or in all, after a list. Returns those that are gone.
    pub fn replace(&self, kind: Kind, namespace: Option<&str>, listed: Vec<Arc<Value>>) -> Vec<Arc<Value>> {
        let fresh: Objects = listed.into_iter().map(|object| (name_of(&object), object)).collect();
        let mut objects = self.lock();
        let known = objects.entry(kind).or_default();
        let is_gone = |name: &Name| namespace.is_none_or(|only| name.0 == only) && !fresh.contains_key(name);
        let gone: Vec<Name> = known.keys().filter(|name| is_gone(name)).cloned().collect();
        let gone = gone.iter().filter_map(|name| known.remove(name)).collect();
        known.extend(fresh);
        gone
    }

    pub fn get(&self, key: &Key) -> Option<Arc<Value>> {
        self.find(key.kind, &key.namespace, &key.name)
    }

    pub fn find(&self, kind: Kind, namespace: &str, name: &str) -> Option<Arc<Value>> {
        self.lock().get(&kind)?.get(&(namespace.to_owned(), name.to_owned())).cloned()
    }

    pub fn count(&self, kind: Kind) -> usize {
        self.lock().get(&kind).map_or(0, BTreeMap::len)
    }

    /// All functions and agents.
    pub fn keys(&self) -> Vec<Key> {
        let objects = self.lock();
        let of = |kind: Kind| {
            objects.get(&kind).into_iter().flat_map(BTreeMap::keys).map(move |name| (kind, name))
        };
        let keys = Kind::PRIMARY.into_iter().flat_map(of);
        keys.map(|(kind, (namespace, name))| Key { kind, namespace: namespace.clone(), name: name.clone() })
            .collect()
    }

    /// The functions and agents of this name. More than one is a conflict.
    pub fn named(&self, namespace: &str, name: &str) -> Vec<(Kind, Arc<Value>)> {
        let found = |kind| Some((kind, self.find(kind, namespace, name)?));
        Kind::PRIMARY.into_iter().filter_map(found).collect()
    }

    pub fn install(&self, definitions: BTreeSet<String>) {
        *self.installed.lock().unwrap_or_else(PoisonError::into_inner) = Arc::new(definitions);
    }

    pub fn installed(&self) -> Arc<BTreeSet<String>> {
        self.installed.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Everything that belongs to the function with this uid.
    pub fn snapshot(&self, namespace: &str, name: &str, uid: &str) -> Snapshot {
        let installed = self.installed();
        let objects = self.lock();
        let all = |kind: Kind| {
            let start = (namespace.to_owned(), String::new());
            let in_namespace =
                objects.get(&kind).into_iter().flat_map(move |known| known.range(start.clone()..));
            in_namespace.take_while(|((of, _), _)| of == namespace).map(|(_, object)| object.clone())
        };
        let is_own = |object: &Arc<Value>| owned_by(object, uid);
        let is_labelled = |object: &Arc<Value>| object["metadata"]["labels"][names::FUNCTION] == name;
        let own = |kind| all(kind).filter(is_own).collect::<Vec<_>>();
        let jobs = own(Kind::Job);
        let is_of_job = |pod: &Arc<Value>| {
            jobs.iter().any(|job| pod["metadata"]["labels"][names::BUILD] == snapshot::name(job))
        };
        let pods = all(Kind::Pod).filter(is_of_job).collect();
        let service = own(Kind::Service).into_iter().find(|service| snapshot::name(service) == name);
        let revisions = match service {
            Some(_) => all(Kind::Revision).filter(is_labelled).collect(),
            None => Vec::new(),
        };
        let policies = crate::desired::mesh::KINDS.into_iter().flat_map(own).collect();
        let account = (namespace.to_owned(), names::BUILD_ACCOUNT.to_owned());
        Snapshot {
            pods,
            config_maps: own(Kind::ConfigMap),
            revisions,
            subscription: own(Kind::Subscription).into_iter().next(),
            triggers: own(Kind::Trigger),
            policies,
            brokers: all(Kind::Broker).collect(),
            has_build_account: objects
                .get(&Kind::ServiceAccount)
                .is_some_and(|known| known.contains_key(&account)),
            installed,
            service,
            jobs,
        }
    }
}

fn owned_by(object: &Value, uid: &str) -> bool {
    let owners = object["metadata"]["ownerReferences"].as_array().into_iter().flatten();
    owners.into_iter().any(|owner| owner["uid"] == uid)
}

/// The functions that an object may belong to.
pub fn owners(kind: Kind, object: &Value) -> Vec<Key> {
    let (namespace, name) = name_of(object);
    if kind.is_primary() {
        return vec![Key { kind, namespace, name }];
    }
    let Some(function) = object["metadata"]["labels"][names::FUNCTION].as_str() else { return Vec::new() };
    let key = |kind| Key { kind, namespace: namespace.clone(), name: function.to_owned() };
    Kind::PRIMARY.map(key).to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn object(name: &str, version: u64, owner: &str) -> Arc<Value> {
        Arc::new(
            json!({ "metadata": { "namespace": "n", "name": name, "resourceVersion": version.to_string(),
            "labels": { names::FUNCTION: "f" }, "ownerReferences": [{ "uid": owner }] } }),
        )
    }

    #[test]
    fn an_older_version_never_replaces_a_newer_one() {
        let cache = Cache::default();
        cache.put(Kind::Job, object("j", 7, "u"));
        cache.put(Kind::Job, object("j", 5, "u"));
        assert_eq!(version(&cache.find(Kind::Job, "n", "j").expect("known")), 7);
        let gone = cache.replace(Kind::Job, None, vec![object("k", 8, "u")]);
        assert_eq!(snapshot::name(&gone[0]), "j");
    }

    #[test]
    fn only_objects_of_this_very_function_are_in_its_snapshot() {
        let cache = Cache::default();
        cache.put(Kind::Job, object("mine", 1, "u"));
        cache.put(Kind::Job, object("others", 1, "v"));
        cache.put(Kind::Service, object("f", 1, "v"));
        let snapshot = cache.snapshot("n", "f", "u");
        assert_eq!(snapshot.jobs.len(), 1);
        assert!(snapshot.service.is_none());
        assert_eq!(owners(Kind::Job, &snapshot.jobs[0]).len(), 3);
    }
}
