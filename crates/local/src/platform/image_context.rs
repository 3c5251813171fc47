//! Everything that a builder of images needs for a function, in one folder.

use super::Options;
use super::source_of::source_of;
use super::work::{language, not_built, not_fetched};
use crate::source::{self, Source};
use klambda_build::{BaseImages, Request, write_image_context};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::Resource;
use std::path::Path;
use std::time::Duration;

/// Fetches the source into `into/code`, and adds the runtime and a Dockerfile. `into` must not exist; its parent must.
/// Returns the commit of a git source.
pub async fn image_context(
    resource: &Resource,
    options: &Options,
    into: &Path,
    images: &BaseImages,
) -> Result<Option<String>, Failure> {
    let Some(runtime) = &resource.spec.runtime else {
        return Err(Failure::new(Reason::BuildFailed, "The function has no runtime"));
    };
    let source = source_of(resource, options).map_err(|failure| *failure)?;
    if matches!(source, Source::Folder(_)) {
        return Err(Failure::new(Reason::FolderNotAllowed, "The source is a folder"));
    }
    let folder = |error: std::io::Error| {
        Failure::new(Reason::PlatformError, format!("Could not create {}: {error}", into.display()))
    };
    std::fs::create_dir(into).map_err(folder)?;
    let reach = options.outbound.reach(&resource.metadata.namespace);
    let limits = source::Limits { reach, ..options.fetch.clone() };
    let code = into.join("code");
    let fetched =
        source::fetch(&source, &code, &limits).await.map_err(|error| not_fetched(&error, &source))?;
    let inline = resource.spec.source.as_ref().and_then(|source| source.inline.as_ref());
    let request = Request {
        source: code,
        language: language(runtime.language),
        version: runtime.version.clone().unwrap_or_default(),
        handler: runtime.handler.clone(),
        dependencies: inline.and_then(|inline| inline.dependencies.clone()).unwrap_or_default(),
        source_distributions: resource.spec.build.allow_source_distributions,
        timeout: Duration::from_millis(resource.spec.build.timeout.ms),
        again: String::new(),
    };
    write_image_context(&request, into, images).map_err(|error| not_built(&error))?;
    Ok(fetched.revision.filter(|_| matches!(source, Source::Git(_))))
}
