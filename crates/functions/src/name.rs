//! Names of functions: validation, and names derived for documents without one.

pub use klambda_core::namespace::{LABEL_RULE as RULE, is_label};

use crate::hash;
use crate::resource::{Resource, ResourceKind, Source, Spec};
use klambda_core::namespace::full_name;
use klambda_core::subscription::MANAGED_PREFIX;
use std::fmt;
use std::sync::Arc;

pub const LENGTH_MAX: usize = 63;

/// Derives a name from the object key, the repository, the folder or the image; otherwise makes one from `random`.
pub fn derive(kind: ResourceKind, spec: &Spec, random: u64) -> String {
    let found = spec.source.as_ref().and_then(told_by).map(|text| to_label(&text));
    found.filter(|name| is_label(name)).unwrap_or_else(|| {
        let digits = hash::of_bytes(&random.to_be_bytes());
        format!("{}-{}", kind.word(), &digits[..10])
    })
}

fn told_by(source: &Source) -> Option<String> {
    let key = source.minio.as_ref().map(|minio| &minio.key).or(source.s3.as_ref().map(|s3| &s3.key));
    if let Some(key) = key.or(source.gcs.as_ref().map(|gcs| &gcs.key)) {
        return last_part(key).map(without_extension);
    }
    if let Some(git) = &source.git {
        let inside = git.path.as_deref().and_then(last_part).filter(|part| part.bytes().any(|b| b != b'.'));
        let url = git.url.trim_end_matches('/');
        return inside.or_else(|| last_part(url.strip_suffix(".git").unwrap_or(url)));
    }
    if let Some(folder) = &source.folder {
        return last_part(&folder.path);
    }
    let image = source.image.as_ref()?;
    let name = image.uri.rsplit('/').next()?;
    Some(name.split(['@', ':']).next().unwrap_or_default().to_owned())
}

fn last_part(path: &str) -> Option<String> {
    path.split(['/', ':', '\\']).rev().find(|part| !part.is_empty() && *part != ".").map(str::to_owned)
}

fn without_extension(file: String) -> String {
    let known = [".tar.gz", ".tgz", ".zip", ".tar"];
    let stem = known.iter().find_map(|ending| file.strip_suffix(ending));
    stem.map(str::to_owned).unwrap_or(file)
}

/// Converts a text to a label: other characters become `-`.
fn to_label(text: &str) -> String {
    let mut label = String::with_capacity(text.len().min(LENGTH_MAX));
    for c in text.chars().map(|c| c.to_ascii_lowercase()) {
        let kept = if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
        if label.len() < LENGTH_MAX && !(kept == '-' && (label.is_empty() || label.ends_with('-'))) {
            label.push(kept);
        }
    }
    label.trim_end_matches('-').to_owned()
}

/// `namespace/name`. Functions and agents share one set of names, because each has a subscription with that name.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Name(Arc<str>);

impl Name {
    pub fn new(namespace: &str, name: &str) -> Name {
        Name(format!("{namespace}/{name}").into())
    }

    pub fn of(resource: &Resource) -> Name {
        Name::new(&resource.metadata.namespace, &resource.metadata.name)
    }

    /// Parses the text form that documents and the fleet use.
    pub fn from_text(text: &str) -> Name {
        Name(text.into())
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    pub fn namespace(&self) -> &str {
        self.0.split_once('/').map_or("", |(namespace, _)| namespace)
    }

    pub fn name(&self) -> &str {
        self.0.split_once('/').map_or(&*self.0, |(_, name)| name)
    }

    /// The full name of the subscription for its triggers.
    pub fn subscription(&self) -> String {
        let name = format!("{MANAGED_PREFIX}{}.{}", self.namespace(), self.name());
        full_name(self.namespace(), &name).into_owned()
    }
}

impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::borrow::Borrow<str> for Name {
    fn borrow(&self) -> &str {
        &self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_are_derived_from_the_source() {
        let derived = |source: serde_json::Value| {
            let spec: Spec = serde_json::from_value(json!({ "source": source })).expect("spec");
            derive(ResourceKind::LambdaFunction, &spec, 7)
        };
        let cases = [
            (json!({ "minio": { "key": "functions/my-function.zip" } }), "my-function"),
            (json!({ "s3": { "key": "My Orders_v2.tar.gz" } }), "my-orders-v2"),
            (json!({ "git": { "url": "https://example.com/team/shop.git" } }), "shop"),
            (json!({ "git": { "url": "git@example.com:shop.git", "path": "fn/pay" } }), "pay"),
            (json!({ "git": { "url": "https://example.com/team/shop/", "path": "." } }), "shop"),
            (json!({ "folder": { "path": "/srv/hello/" } }), "hello"),
            (json!({ "image": { "uri": "ghcr.io/team/agent:1.2" } }), "agent"),
            (json!({ "image": { "uri": "localhost:5001/agent@sha256:ab" } }), "agent"),
        ];
        for (source, name) in cases {
            assert_eq!(derived(source.clone()), name, "{source}");
        }
        let made = derived(json!({ "type": "inline", "inline": { "code": "x" } }));
        assert!(made.starts_with("function-") && is_label(&made), "{made}");
        assert_eq!(made, derived(json!({ "minio": { "key": "///" } })));
    }

    #[test]
    fn labels_are_checked() {
        for good in ["a", "a-b", "0", &"a".repeat(63)] {
            assert!(is_label(good), "{good}");
        }
        for bad in ["", "-a", "a-", "A", "a.b", "a_b", "ä", &"a".repeat(64)] {
            assert!(!is_label(bad), "{bad}");
        }
    }
}
