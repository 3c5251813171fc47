//! Content hashes: equal content has the same hash and is built once.

use crate::resource::{Metadata, Resource, Spec};
use serde::Serialize;
use serde_json::json;
use sha2::{Digest, Sha256};
use std::fmt::Write as _;

/// Half of a SHA-256 is enough to rule out collisions, and shorter to read.
const BYTES: usize = 16;

/// Changes when a rebuild is requested.
pub const REBUILD_ANNOTATION: &str = "lambda.knative.io/rebuild";

pub fn of_bytes(bytes: &[u8]) -> String {
    let digest = Sha256::digest(bytes);
    digest.iter().take(BYTES).fold(String::with_capacity(2 * BYTES), |mut text, byte| {
        let _ = write!(text, "{byte:02x}");
        text
    })
}

/// Hash of a value as JSON. The maps in our types are sorted or have a fixed order, so equal values have equal JSON.
pub fn of<T: Serialize>(value: &T) -> String {
    of_bytes(&serde_json::to_vec(value).unwrap_or_default())
}

/// The annotation with the content of a source folder that an apply found changed.
pub const FOLDER_ANNOTATION: &str = "lambda.knative.io/folder-content";

/// Hash of the inputs of a build as written. A change starts a new build.
pub fn inputs(resource: &Resource) -> String {
    let spec = &resource.spec;
    match resource.metadata.annotations.get(FOLDER_ANNOTATION) {
        None => of(&json!([spec.source, spec.runtime, spec.build, again(resource)])),
        Some(content) => of(&json!([spec.source, spec.runtime, spec.build, again(resource), content])),
    }
}

/// Differs for each requested rebuild, so that the same content is built again.
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

/// Hash of an artifact: its code, runtime and build settings. The build timeout, the credentials and the owner do not
/// count, so functions with the same code share an artifact.
pub fn artifact(resource: &Resource, source_digest: &str) -> String {
    let build = &resource.spec.build;
    let how = json!([build.registry, build.tag, build.insecure, build.allow_source_distributions]);
    of(&json!([source_digest, resource.spec.runtime, how, again(resource)]))
}

/// Digest of a source that needs no fetching.
pub fn known_digest(spec: &Spec) -> Option<String> {
    let source = spec.source.as_ref()?;
    (!source.kind.is_fetched()).then(|| of(source))
}

/// Hash of a revision: the version and the spec, without scaling and `paused`.
pub fn revision(resource: &Resource, version: &str) -> String {
    let spec = Spec { scaling: Default::default(), paused: false, ..resource.spec.clone() };
    of(&json!([version, spec]))
}

/// Hash of a version: an artifact with its environment and limits. A change of scaling makes no new version.
pub fn version(resource: &Resource, artifact: &str) -> String {
    let spec = &resource.spec;
    match spec.secret_files.is_empty() {
        true => of(&json!([artifact, spec.env, spec.resources])),
        false => of(&json!([artifact, spec.env, spec.resources, spec.secret_files])),
    }
}
