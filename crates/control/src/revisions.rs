//! Revisions: the versions of a function that served, each in a document of its own. The status of the function names
//! the kept ones, and both change in one step.

use crate::control::{Control, Shared};
use crate::writes::{Applied, Error, not_found};
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use klambda_dispatch::documents::{Expected, Write};
use klambda_functions::name::Name;
use klambda_functions::resource::{BuildOutcome, Resource, ResourceKind, RevisionRef, Status};
use klambda_functions::revision::Revision;
use klambda_functions::write::Change;
use std::sync::Arc;

/// The kind of the documents.
pub(crate) const DOCUMENTS: &str = "lambda.revision";
/// Maximum size of a page, except for its last revision.
const PAGE_BYTES: usize = 1 << 20;

/// A part of the revisions of a function.
#[derive(Debug, Default)]
pub struct Page {
    /// Oldest first. The flag says whether the revision serves.
    pub items: Vec<(Revision, bool)>,
    /// The last number of this page, if there are more.
    pub next: Option<u64>,
}

impl Control {
    /// Lists revisions with a number greater than `after`.
    pub async fn revisions(
        &self,
        kind: ResourceKind,
        name: &Name,
        after: u64,
        limit: usize,
    ) -> Result<Page, Error> {
        let resource = self.find(kind, name)?;
        let wanted: Vec<u64> = resource.status.revisions.iter().map(|kept| kept.number).collect();
        let wanted: Vec<u64> = wanted.into_iter().filter(|number| *number > after).collect();
        let serving = serving(&resource.status);
        let name = name.clone();
        let read = move |engine: &Engine| -> Result<Page, Error> {
            let (mut page, mut bytes) = (Page::default(), 0);
            for number in wanted {
                if page.items.len() >= limit || bytes > PAGE_BYTES {
                    page.next = page.items.last().map(|(revision, _)| revision.number);
                    break;
                }
                // It may have been removed meanwhile.
                let Some((revision, length)) = load(engine, &name, number)? else { continue };
                bytes += length;
                page.items.push((revision, Some(number) == serving));
            }
            Ok(page)
        };
        self.look(read).await?
    }

    /// Returns a kept revision.
    pub async fn revision(&self, kind: ResourceKind, name: &Name, number: u64) -> Result<Revision, Error> {
        let resource = self.find(kind, name)?;
        let unknown = || unknown(&resource, number);
        if !resource.status.revisions.iter().any(|kept| kept.number == number) {
            return Err(unknown());
        }
        let named = name.clone();
        let found = self.look(move |engine| load(engine, &named, number)).await??;
        found.map(|(revision, _)| revision).ok_or_else(unknown)
    }

    /// Writes the spec of a revision as a new generation that uses the artifact of the revision. Fetches and builds nothing.
    pub async fn rollback(&self, kind: ResourceKind, name: &Name, number: u64) -> Result<Applied, Error> {
        loop {
            let live = self.live(name).filter(|(resource, _)| resource.kind == kind);
            let live = live.ok_or_else(|| not_found(kind, name))?;
            if is_served(&live.0, number) {
                return Ok(Applied { resource: live.0, change: Change::Nothing });
            }
            let revision = self.revision(kind, name, number).await?;
            if revision.is_built() && !self.has_artifact(&revision.artifact).await {
                return Err(Error::ArtifactGone { number, artifact: revision.artifact });
            }
            let written = revision.restore(&live.0)?;
            if let Some(applied) = self.finish(Some(live), written).await? {
                return Ok(applied);
            }
        }
    }

    async fn has_artifact(&self, hash: &str) -> bool {
        let Some(platform) = self.platform().await.cloned() else { return false };
        let hash = hash.to_owned();
        tokio::task::spawn_blocking(move || platform.has_artifact(&hash)).await.unwrap_or(false)
    }
}

impl Shared {
    /// All functions and agents.
    pub(crate) fn all(&self) -> Vec<Arc<Resource>> {
        self.lock().functions.values().map(|entry| entry.resource.clone()).collect()
    }
}

/// Whether the revision serves and the spec is still that of the revision. After a rebuild that failed, a rollback is not
/// needless: it clears the failure.
fn is_served(resource: &Resource, number: u64) -> bool {
    let outcome = resource.status.build_status.as_ref().and_then(|build| build.outcome);
    if outcome.is_some_and(|outcome| outcome != BuildOutcome::Completed) {
        return false;
    }
    let generation = resource.status.service_status.as_ref().map(|service| service.generation);
    serving(&resource.status) == Some(number) && generation == Some(resource.metadata.generation)
}

/// The number of the revision that serves.
fn serving(status: &Status) -> Option<u64> {
    status.service_status.as_ref().filter(|service| service.ready).and_then(|service| service.revision)
}

fn unknown(resource: &Resource, number: u64) -> Error {
    let known = resource.status.revisions.iter().map(|kept| kept.number).collect();
    Error::NoRevision { kind: resource.kind, name: resource.metadata.name.clone(), number, known }
}

fn load(engine: &Engine, name: &Name, number: u64) -> Result<Option<(Revision, usize)>, Error> {
    let stored = engine.document(DOCUMENTS, &key(name, number));
    let Some(stored) = stored.map_err(|failure| Error::Store(failure.into()))? else { return Ok(None) };
    let length = stored.content.len();
    let revision = Revision::from_stored(&stored.content).map_err(|error| Error::Damaged {
        name: name.to_string(),
        number,
        why: error.to_string(),
    })?;
    Ok(Some((revision, length)))
}

fn key(name: &Name, number: u64) -> String {
    format!("{name}/{number:020}")
}

/// Whether a document is a revision of the function of this key.
pub(crate) fn is_of(write: &Write, function: &str) -> bool {
    let of = write.key.strip_prefix(function).is_some_and(|rest| rest.starts_with('/'));
    write.kind == DOCUMENTS && of
}

/// The writes that store new revisions and remove expired ones. `after` is `None` if the function is removed.
pub(crate) fn writes(name: &Name, before: &Status, after: Option<&Resource>, now: Millis) -> Vec<Write> {
    let kept: Vec<&RevisionRef> = after.iter().flat_map(|after| after.status.all_revisions()).collect();
    let goes = |known: &&RevisionRef| !kept.iter().any(|kept| kept.number == known.number);
    let gone = before.all_revisions().filter(goes).map(|known| write(name, known.number, None));
    let is_new = |kept: &&&RevisionRef| !before.all_revisions().any(|known| known == **kept);
    let new = kept.iter().filter(is_new).zip(std::iter::repeat(after));
    let new = new.filter_map(|(kept, after)| {
        Some(write(name, kept.number, Some(Revision::of(after?, kept, now).to_stored())))
    });
    gone.chain(new).collect()
}

fn write(name: &Name, number: u64, content: Option<Vec<u8>>) -> Write {
    Write { kind: DOCUMENTS.into(), key: key(name, number), content, expected: Expected::Any }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn resource(numbers: &[u64], candidate: Option<u64>) -> Resource {
        let of = |number: u64| RevisionRef { number, ..RevisionRef::default() };
        let mut resource = Resource::default();
        resource.status.revisions = numbers.iter().copied().map(of).collect();
        resource.status.candidate = candidate.map(|number| Box::new(of(number)));
        resource
    }

    #[test]
    fn a_document_is_written_once_and_goes_with_its_revision() {
        let name = Name::new("default", "f");
        let changed = |before: &Resource, after: Option<&Resource>| {
            let writes = writes(&name, &before.status, after, Millis(1));
            let number =
                |write: &Write| write.key.rsplit('/').next().and_then(|text| text.parse::<u64>().ok());
            writes.iter().map(|write| (number(write), write.content.is_some())).collect::<Vec<_>>()
        };
        let (none, deployed) = (resource(&[], None), resource(&[], Some(1)));
        assert_eq!(changed(&none, Some(&deployed)), [(Some(1), true)]);
        assert_eq!(changed(&deployed, Some(&resource(&[1], None))), []);
        assert_eq!(
            changed(&resource(&[1, 2], None), Some(&resource(&[2, 3], None))),
            [(Some(1), false), (Some(3), true)]
        );
        assert_eq!(changed(&resource(&[1, 2], Some(3)), None).len(), 3);
    }

    #[test]
    fn documents_are_known_by_their_function() {
        let of = |key: &str| is_of(&write(&Name::from_text(key), 1, None), "default/f");
        assert!(of("default/f") && !of("default/ff") && !of("other/f"));
    }
}
