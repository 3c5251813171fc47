//! Which secrets a function uses, and what a platform reports about them.

use crate::hash;
use crate::resource::{KeyRef, Spec};
use std::collections::BTreeSet;

/// The state of a function's secrets, as texts that change when the secrets do. A platform that does not track secrets
/// leaves both empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Revisions {
    /// Of those that a version runs with. A change of this text is a new version, made of the same artifact.
    pub run: String,
    /// Of those that fetching the source needs. A change of this text is a reason to try a refused fetch again.
    pub source: String,
}

/// Between the hash of a version and the hash of its secrets.
const SEPARATOR: char = '-';

/// The version without its secrets: the same code, environment and limits.
pub fn base(version: &str) -> &str {
    version.split_once(SEPARATOR).map_or(version, |(base, _)| base)
}

impl Revisions {
    /// The name of a version that runs with these secrets.
    pub fn version(&self, version: String) -> String {
        match self.run.is_empty() {
            true => version,
            false => format!("{version}{SEPARATOR}{}", hash::of(&self.run)),
        }
    }

    /// A number for the secrets of the source; never zero.
    pub(crate) fn source_number(&self) -> u64 {
        let text = hash::of(&self.source);
        u64::from_str_radix(text.get(..16).unwrap_or_default(), 16).unwrap_or_default().max(1)
    }
}

impl Spec {
    /// The keys of secrets that environment variables hold.
    pub fn secret_key_refs(&self) -> impl Iterator<Item = &KeyRef> {
        self.env.iter().filter_map(|variable| variable.value_from.as_ref()?.secret_key_ref.as_ref())
    }

    /// Secrets that a version runs with.
    pub fn run_secrets(&self) -> BTreeSet<&str> {
        let variables = self.secret_key_refs().map(|reference| reference.name.as_str());
        variables.chain(self.secret_files.iter().map(|files| files.secret.as_str())).collect()
    }

    /// Secrets that fetching the source needs.
    pub fn source_secrets(&self) -> BTreeSet<&str> {
        let references = self.source.iter().flat_map(|source| source.secret_refs());
        references.map(|(_, secret)| secret.name.as_str()).collect()
    }

    /// All secrets that the function names.
    pub fn secrets(&self) -> BTreeSet<&str> {
        let mut secrets = self.run_secrets();
        secrets.extend(self.source_secrets());
        secrets.extend(self.build.image_pull_secret.as_deref());
        secrets
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::resource::{Form, Resource, ResourceKind};
    use serde_json::json;

    #[test]
    fn all_places_that_name_a_secret_count() {
        let document = json!({"metadata": {"name": "f"}, "spec": {
            "source": {"type": "git", "git": {"url": "https://e.example/r.git", "secretRef": {"name": "git"}}},
            "runtime": {"language": "go"},
            "build": {"imagePullSecret": "pull"},
            "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "db", "key": "k"}}},
                    {"name": "B", "valueFrom": {"configMapKeyRef": {"name": "map", "key": "k"}}}],
            "secretFiles": [{"secret": "tls"}]}});
        let spec = Resource::parse(&document, Form::Body(ResourceKind::LambdaFunction)).unwrap().spec;
        assert_eq!(spec.run_secrets().into_iter().collect::<Vec<_>>(), ["db", "tls"]);
        assert_eq!(spec.source_secrets().into_iter().collect::<Vec<_>>(), ["git"]);
        assert_eq!(spec.secrets().into_iter().collect::<Vec<_>>(), ["db", "git", "pull", "tls"]);
    }

    #[test]
    fn only_a_change_of_secrets_changes_the_version() {
        let with = |run: &str| Revisions { run: run.into(), source: String::new() }.version("v".into());
        assert_eq!(with(""), "v");
        assert_ne!(with("db=1@1"), "v");
        assert_ne!(with("db=1@1"), with("db=2@5"));
        assert_eq!(with("db=1@1"), with("db=1@1"));
    }
}
