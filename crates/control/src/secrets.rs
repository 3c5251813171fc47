//! Functions and the secrets that they use.

use crate::control::Shared;
use crate::state::{State, Stored};
use klambda_functions::name::Name;
use klambda_functions::resource::Resource;
use std::collections::BTreeMap;

impl Shared {
    /// Call this in the step of the engine that writes or deletes a secret. Functions that use it are planned next.
    pub fn secret_changed(&self, namespace: &str, name: &str) {
        self.stored(Stored::Secret { namespace: namespace.to_owned(), name: name.to_owned() });
        self.changed.notify_one();
    }

    /// The functions and agents that use a secret, as `function/NAME` or `agent/NAME`.
    pub fn secret_users(&self, namespace: &str, secret: &str) -> Vec<String> {
        let state = self.lock();
        let users = state.functions.values().filter(|entry| uses(&entry.resource, namespace, secret));
        users.map(|entry| title(&entry.resource)).collect()
    }

    /// The same for all secrets, by namespace and name.
    pub fn users_of_secrets(&self) -> BTreeMap<(String, String), Vec<String>> {
        let state = self.lock();
        let mut users: BTreeMap<(String, String), Vec<String>> = BTreeMap::new();
        for resource in state.functions.values().map(|entry| &entry.resource) {
            for secret in resource.spec.secrets() {
                let secret = (resource.metadata.namespace.clone(), secret.to_owned());
                users.entry(secret).or_default().push(title(resource));
            }
        }
        users
    }
}

impl State {
    pub fn enqueue_users(&mut self, namespace: &str, secret: &str) {
        let users = self.functions.iter().filter(|(_, entry)| uses(&entry.resource, namespace, secret));
        let users: Vec<Name> = users.map(|(name, _)| name.clone()).collect();
        for name in &users {
            self.enqueue(name);
        }
    }
}

fn uses(resource: &Resource, namespace: &str, secret: &str) -> bool {
    resource.metadata.namespace == namespace && resource.spec.secrets().contains(secret)
}

fn title(resource: &Resource) -> String {
    format!("{}/{}", resource.kind.word(), resource.metadata.name)
}
