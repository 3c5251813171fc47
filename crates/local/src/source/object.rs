//! Archives in buckets: S3, MinIO, Google Cloud Storage.

use super::{Credentials, Error, Fetch, Fetched, Object, Store, archive};
use futures_util::StreamExt;
use klambda_outbound::client::forbidden;
use object_store::aws::AmazonS3Builder;
use object_store::gcp::GoogleCloudStorageBuilder;
use object_store::path::Path as Key;
use object_store::{ObjectStore, ObjectStoreExt, RetryConfig};
use std::io::Write;
use std::time::Duration;
use tempfile::NamedTempFile;

mod connector;

use connector::Connector;

pub async fn download(object: &Object, fetch: &Fetch<'_>) -> Result<Fetched, Error> {
    let limits = fetch.limits;
    let connector = Connector::new(&limits.reach).map_err(|error| Error::Unreachable(error.to_string()))?;
    let store = store(object, connector)?;
    let key = Key::parse(&object.key).map_err(|error| Error::BadReference(error.to_string()))?;
    let result = store.get(&key).await.map_err(|error| refused(object, error))?;
    let too_large = || Error::TooLarge(format!("the archive is larger than {} bytes", limits.transfer_bytes));
    if result.meta.size > limits.transfer_bytes {
        return Err(too_large());
    }
    let revision = result.meta.e_tag.clone();
    let mut file = NamedTempFile::new_in(fetch.beside())?;
    let (mut pieces, mut bytes) = (result.into_stream(), 0);
    while let Some(piece) = pieces.next().await {
        let piece = piece.map_err(|error| refused(object, error))?;
        bytes += piece.len() as u64;
        if bytes > limits.transfer_bytes {
            return Err(too_large());
        }
        file.write_all(&piece)?;
    }
    file.flush()?;
    let (into, limits, deadline) = (fetch.into.to_path_buf(), limits.clone(), fetch.deadline);
    let unpacked = fetch.blocking(move || archive::unpack_by(file.path(), &into, &limits, deadline));
    let fetched = unpacked.await?;
    Ok(Fetched { revision, ..fetched })
}

fn store(object: &Object, connector: Connector) -> Result<Box<dyn ObjectStore>, Error> {
    let built = match object.store {
        Store::S3 | Store::Minio => {
            s3(object, connector)?.build().map(|store| Box::new(store) as Box<dyn ObjectStore>)
        }
        Store::Gcs => gcs(object, connector).build().map(|store| Box::new(store) as Box<dyn ObjectStore>),
    };
    built.map_err(|error| Error::BadReference(error.to_string()))
}

fn s3(object: &Object, connector: Connector) -> Result<AmazonS3Builder, Error> {
    let mut builder = AmazonS3Builder::new()
        .with_bucket_name(&object.bucket)
        .with_region(object.region.as_deref().unwrap_or("us-east-1"))
        .with_http_connector(connector)
        .with_retry(retry());
    match (&object.endpoint, object.store) {
        (Some(endpoint), _) => builder = builder.with_endpoint(endpoint),
        (None, Store::Minio) => return Err(Error::BadReference("a minio source needs an endpoint".into())),
        (None, _) => {}
    }
    Ok(match &object.credentials {
        Credentials::AccessKey { id, secret, session_token } => {
            let builder = builder.with_access_key_id(id).with_secret_access_key(secret);
            match session_token {
                Some(token) => builder.with_token(token),
                None => builder,
            }
        }
        // Without a key, read only public objects: never use the identity of the machine for a function.
        _ => builder.with_skip_signature(true),
    })
}

fn gcs(object: &Object, connector: Connector) -> GoogleCloudStorageBuilder {
    let builder = GoogleCloudStorageBuilder::new()
        .with_bucket_name(&object.bucket)
        .with_http_connector(connector)
        .with_retry(retry());
    let builder = match &object.endpoint {
        Some(endpoint) => builder.with_base_url(endpoint),
        None => builder,
    };
    match &object.credentials {
        Credentials::ServiceAccount { json } => builder.with_service_account_key(json),
        _ => builder.with_skip_signature(true),
    }
}

/// The caller retries the whole fetch.
fn retry() -> RetryConfig {
    RetryConfig { max_retries: 1, retry_timeout: Duration::from_secs(10), ..RetryConfig::default() }
}

fn refused(object: &Object, error: object_store::Error) -> Error {
    let place = format!("{}/{}", object.bucket, object.key);
    if let Some(forbidden) = forbidden(&error) {
        return Error::Forbidden(forbidden.clone());
    }
    match error {
        object_store::Error::NotFound { .. } => {
            Error::NotFound(format!("{place}; check bucket, key, region and endpoint"))
        }
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Error::Refused(format!("{place}; check the secret and the permissions of its key"))
        }
        error => Error::Unreachable(format!("{place}: {error}")),
    }
}
