//! Requests about builds. They are kept in annotations, so they survive until they are done.

use crate::hash::{self, FOLDER_ANNOTATION, REBUILD_ANNOTATION};
use crate::resource::{Resource, SourceType};
use crate::write::{Change, Written};

/// Stops all builds until a rebuild is requested.
pub const STOPPED_ANNOTATION: &str = "lambda.knative.io/builds-stopped";
/// Names the inputs whose build is cancelled.
pub const CANCELLED_ANNOTATION: &str = "lambda.knative.io/build-cancelled";

/// Requests a new build, even of content that was built before. `id` distinguishes requests.
pub fn rebuild(resource: &mut Resource, id: &str) {
    let annotations = &mut resource.metadata.annotations;
    annotations.insert(REBUILD_ANNOTATION.to_owned(), id.to_owned());
    annotations.remove(STOPPED_ANNOTATION);
    annotations.remove(CANCELLED_ANNOTATION);
}

/// Stops the running build and starts no other until [`rebuild`] is called.
pub fn stop_builds(resource: &mut Resource) {
    let inputs = hash::inputs(resource);
    resource.metadata.annotations.insert(STOPPED_ANNOTATION.to_owned(), inputs);
}

/// Cancels the running build. The next change of the spec builds again.
pub fn cancel_build(resource: &mut Resource) {
    let inputs = hash::inputs(resource);
    resource.metadata.annotations.insert(CANCELLED_ANNOTATION.to_owned(), inputs);
}

pub fn are_builds_stopped(resource: &Resource) -> bool {
    resource.metadata.annotations.contains_key(STOPPED_ANNOTATION)
}

pub fn is_build_cancelled(resource: &Resource, inputs: &str) -> bool {
    resource.metadata.annotations.get(CANCELLED_ANNOTATION).is_some_and(|named| named == inputs)
}

pub fn is_from_folder(resource: &Resource) -> bool {
    resource.spec.source.as_ref().is_some_and(|source| source.kind == SourceType::Folder)
}

/// Makes a new generation if the source folder has other content than the fetched source. `digest` is `None` if the
/// folder is unreadable.
pub fn note_folder(written: Written, digest: Option<&str>) -> Written {
    let Written { mut resource, mut change } = written;
    let build = resource.status.build_status.as_ref().filter(|build| build.inputs == hash::inputs(&resource));
    let fetched = build.and_then(|build| build.source_digest.as_deref());
    let digest = digest.unwrap_or("unreadable");
    let asked = resource.metadata.annotations.get(FOLDER_ANNOTATION);
    // Until the content is fetched, the annotation names the requested content.
    let known = fetched.or(asked.and_then(|asked| asked.split_once('.').map(|(content, _)| content)));
    if known == Some(digest) {
        return Written { resource, change };
    }
    if change != Change::Spec {
        resource.metadata.generation += 1;
        change = Change::Spec;
    }
    let content = format!("{digest}.{}", resource.metadata.generation);
    resource.metadata.annotations.insert(FOLDER_ANNOTATION.to_owned(), content);
    Written { resource, change }
}
