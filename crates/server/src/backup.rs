//! `POST /api/v1/backup`: a consistent copy of the data folder, taken while everything goes on.

use crate::api::Api;
use crate::params::Params;
use crate::problem::Problem;
use crate::stream::{BlockingWriter, ByteStream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{Uri, header};
use std::time::Duration;

pub async fn take(api: Api, uri: Uri) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let permit = api.backups.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached("a backup is under way already").retry_after(Duration::from_secs(10))
    })?;
    let snapshot = api.query(|engine| engine.snapshot()).await?;
    let (pieces, stream) = ByteStream::new();
    tokio::task::spawn_blocking(move || {
        let _permit = permit;
        if let Err(error) = snapshot.write_tar(BlockingWriter::new(pieces.clone())) {
            tracing::warn!(%error, "A backup was not finished.");
            // Breaks the connection off: half a copy must not look like one.
            let _ = pieces.blocking_send(Err(error));
        }
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"klambda-backup.tar\""),
    ];
    Ok((headers, Body::new(stream)).into_response())
}
