//! Content addresses: what has the same one is the same thing, and is made once.

use crate::resource::{Metadata, Resource, Spec};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Half of SHA-256 is more than enough to never meet twice by chance, and half as long to read.
const BYTES: usize = 16;

/// Changes when somebody asks to build again.
pub const REBUILD_ANNOTATION: &str = "lambda.knative.io/rebuild";

pub fn of_bytes(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(BYTES).fold(String::with_capacity(2 * BYTES), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Of a value as JSON. Maps of our types are sorted or have a fixed order, so the same value has the same text.
pub fn of<T: Serialize>(value: &T) -> String {
    of_bytes(&serde_json::to_vec(value).unwrap_or_default())
}

/// What a build starts from, as written: anything here that changes begins a new build.
pub fn inputs(resource: &Resource) -> String {
    let spec = &resource.spec;
    of(&json!([spec.source, spec.runtime, spec.build, again(resource)]))
}

/// What tells a build that was asked for again from one that is simply there already.
fn again(resource: &Resource) -> Option<String> {
    let asked = resource.metadata.annotations.get(REBUILD_ANNOTATION).cloned();
    match resource.spec.build.force_rebuild {
        true => {
            let Metadata { uid, generation, .. } = &resource.metadata;
            Some(format!("{}.{uid}.{generation}", asked.unwrap_or_default()))
        }
        false => asked,
    }
}

/// The artifact: its code, its runtime and how it is built. Neither the time it may take nor who may fetch it counts, nor
/// whose it is: two functions with the same code share it.
pub fn artifact(resource: &Resource, source_digest: &str) -> String {
    let build = &resource.spec.build;
    let how = json!([build.registry, build.tag, build.insecure, build.allow_source_distributions]);
    of(&json!([source_digest, resource.spec.runtime, how, again(resource)]))
}

/// The content of a source that is known without fetching it.
pub fn known_digest(spec: &Spec) -> Option<String> {
    let source = spec.source.as_ref()?;
    (!source.kind.is_fetched()).then(|| of(source))
}

/// A version of the function: an artifact with its environment and limits. A change of scaling makes no new one.
pub fn version(resource: &Resource, artifact: &str) -> String {
    let spec = &resource.spec;
    of(&json!([artifact, spec.env, spec.resources]))
}
