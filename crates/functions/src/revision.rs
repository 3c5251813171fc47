//! A revision: a version of a function that served, with everything that is needed to serve it again.

use crate::hash;
use crate::plan::job_name;
use crate::resource::{BuildOutcome, BuildStatus, Resource, RevisionRef, Spec};
use crate::scalar::Time;
use crate::write::{Change, LAST_APPLIED, Refused, Written};
use klambda_core::time::Millis;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub struct Revision {
    pub number: u64,
    pub generation: u64,
    pub version: String,
    pub spec: Spec,
    /// The manifest that was applied last. A rollback restores it, so that the next `apply` merges with the right one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_applied: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub source_digest: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub commit: Option<String>,
    /// The content hash of the artifact.
    pub artifact: String,
    /// The image or the URL, if the source is not built.
    #[serde(rename = "imageURI", skip_serializing_if = "Option::is_none")]
    pub image_uri: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub applied_by: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub created_at: Option<Time>,
}

fn is_built(spec: &Spec) -> bool {
    spec.source.as_ref().is_some_and(|source| source.kind.is_built())
}

impl Revision {
    /// Makes a revision of the current resource.
    pub fn of(resource: &Resource, known: &RevisionRef, now: Millis) -> Revision {
        let status = &resource.status;
        let build = status.build_status.as_deref();
        Revision {
            number: known.number,
            generation: known.generation,
            version: known.version.clone(),
            spec: resource.spec.clone(),
            last_applied: resource.metadata.annotations.get(LAST_APPLIED).cloned(),
            source_digest: build.and_then(|build| build.source_digest.clone()),
            commit: build.and_then(|build| build.commit.clone()),
            artifact: known.artifact.clone(),
            image_uri: build.filter(|_| !is_built(&resource.spec)).and_then(|build| build.image_uri.clone()),
            applied_by: status.applied_by.clone(),
            created_at: Some(Time(now)),
        }
    }

    pub fn to_stored(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("all of its maps have text for keys, so all of it is JSON")
    }

    pub fn from_stored(bytes: &[u8]) -> Result<Revision, serde_json::Error> {
        serde_json::from_slice(bytes)
    }

    /// Whether it needs a built artifact.
    pub fn is_built(&self) -> bool {
        is_built(&self.spec)
    }

    /// The representation in the API.
    pub fn to_json(&self, is_serving: bool) -> Value {
        json!({
            "number": self.number,
            "generation": self.generation,
            "serving": is_serving,
            "createdAt": self.created_at,
            "appliedBy": self.applied_by,
            "version": self.version,
            "artifact": self.artifact,
            "imageURI": self.image_uri,
            "sourceDigest": self.source_digest,
            "commit": self.commit,
            "spec": self.spec,
        })
    }

    /// Restores the spec as a new generation that uses the artifact of this revision.
    pub fn restore(&self, live: &Resource) -> Result<Written, Refused> {
        if live.is_deleting() {
            return Err(Refused::Deleting);
        }
        let mut resource = live.clone();
        // Scaling and `paused` are no part of a revision: a rollback must not pause or resume the function.
        let Spec { scaling, paused, .. } = resource.spec;
        resource.spec = Spec { scaling, paused, ..self.spec.clone() };
        resource.metadata.generation += 1;
        if let Some(applied) = &self.last_applied {
            resource.metadata.annotations.insert(LAST_APPLIED.to_owned(), applied.clone());
        }
        let inputs = hash::inputs(&resource);
        resource.status.restored = Some(Box::new(BuildStatus {
            job_name: job_name(&resource, &inputs),
            inputs,
            source_digest: self.source_digest.clone(),
            commit: self.commit.clone(),
            hash: Some(self.artifact.clone()),
            image_uri: self.image_uri.clone(),
            outcome: Some(BuildOutcome::Completed),
            ..BuildStatus::default()
        }));
        Ok(Written { resource, change: Change::Spec })
    }
}
