//! What people ask of builds beside the spec. A request is kept in annotations, so it survives until it is met.

use crate::hash::{self, REBUILD_ANNOTATION};
use crate::resource::Resource;

/// Holds back every build until one is asked for.
pub const STOPPED_ANNOTATION: &str = "lambda.knative.io/builds-stopped";
/// Names the inputs whose build is not to go on.
pub const CANCELLED_ANNOTATION: &str = "lambda.knative.io/build-cancelled";

/// Build again, even content that was built before. `id` tells one request from the next.
pub fn rebuild(resource: &mut Resource, id: &str) {
    let annotations = &mut resource.metadata.annotations;
    annotations.insert(REBUILD_ANNOTATION.to_owned(), id.to_owned());
    annotations.remove(STOPPED_ANNOTATION);
    annotations.remove(CANCELLED_ANNOTATION);
}

/// Ends the build that runs and begins no other until [`rebuild`] is asked for.
pub fn stop_builds(resource: &mut Resource) {
    let inputs = hash::inputs(resource);
    resource.metadata.annotations.insert(STOPPED_ANNOTATION.to_owned(), inputs);
}

/// Ends the build that runs. The next change of the spec builds as always.
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
