//! The source that a resource names, with the credentials to read it.

use super::Options;
use super::secrets;
use crate::source::{self, Source};
use klambda_functions::failure::{Failure, Reason};
use klambda_functions::resource::{self, Resource, SourceType};
use std::path::PathBuf;

fn inline_language(language: resource::Language) -> source::Language {
    match language {
        resource::Language::Nodejs => source::Language::NodeJs,
        resource::Language::Python => source::Language::Python,
        resource::Language::Go => source::Language::Go,
    }
}

pub fn source_of(resource: &Resource, options: &Options) -> Result<Source, Box<Failure>> {
    let nothing = || Box::new(Failure::new(Reason::SourceMissing, "The function has no source"));
    let given = resource.spec.source.as_ref().ok_or_else(nothing)?;
    let namespace = resource.metadata.namespace.as_str();
    Ok(match given.kind {
        SourceType::Inline => {
            let (inline, runtime) =
                given.inline.as_ref().zip(resource.spec.runtime.as_ref()).ok_or_else(nothing)?;
            Source::Inline(source::Inline {
                language: inline_language(runtime.language),
                handler: runtime.handler.clone(),
                code: inline.code.clone(),
                // The build installs the dependencies.
                dependencies: String::new(),
            })
        }
        SourceType::Git => {
            let git = given.git.as_ref().ok_or_else(nothing)?;
            Source::Git(source::Git {
                url: git.url.clone(),
                reference: git.reference.clone().unwrap_or_default(),
                path: git.path.clone().unwrap_or_default(),
                credentials: secrets::for_git(options, namespace, git.secret_ref.as_ref())?,
            })
        }
        SourceType::Minio => {
            let minio = given.minio.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::Minio,
                bucket: minio.bucket.clone(),
                key: minio.key.clone(),
                endpoint: Some(endpoint(&minio.endpoint)),
                region: None,
                credentials: secrets::for_buckets(options, namespace, minio.secret_ref.as_ref())?,
            })
        }
        SourceType::S3 => {
            let s3 = given.s3.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::S3,
                bucket: s3.bucket.clone(),
                key: s3.key.clone(),
                endpoint: s3.endpoint.clone(),
                region: Some(s3.region.clone()),
                credentials: secrets::for_buckets(options, namespace, s3.secret_ref.as_ref())?,
            })
        }
        SourceType::Gcs => {
            let gcs = given.gcs.as_ref().ok_or_else(nothing)?;
            Source::Object(source::Object {
                store: source::Store::Gcs,
                bucket: gcs.bucket.clone(),
                key: gcs.key.clone(),
                endpoint: None,
                region: None,
                credentials: secrets::for_google(options, namespace, gcs.secret_ref.as_ref())?,
            })
        }
        SourceType::Folder => {
            let folder = given.folder.as_ref().ok_or_else(nothing)?;
            Source::Folder(PathBuf::from(&folder.path))
        }
        SourceType::Image | SourceType::Url => return Err(nothing()),
    })
}

/// MinIO addresses may be written without a scheme.
fn endpoint(text: &str) -> String {
    if text.contains("://") { text.to_owned() } else { format!("http://{text}") }
}
