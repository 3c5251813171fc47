//! `POST /api/v1/backup`: a consistent copy of the data folder, taken while everything goes on.

use crate::api::{Api, blocking, go_on};
use crate::params::Params;
use crate::problem::Problem;
use crate::stream::{BlockingWriter, ByteStream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_crash::Point;
use std::io;
use std::time::Duration;

pub async fn take(api: Api, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let opener = api.opener(&headers);
    let permit = api.turns.backups.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached("a backup is under way already").retry_after(Duration::from_secs(10))
    })?;
    let snapshot = api.query(|engine| engine.snapshot()).await?;
    let (pieces, stream) = ByteStream::new(&api.held.answers);
    go_on(async move {
        let _permit = permit;
        let writer = BlockingWriter::new(pieces.clone());
        let copied = blocking(move || {
            Point::Backup.pass();
            snapshot.write_tar(writer)
        });
        let copied = tokio::select! {
            copied = copied => copied,
            () = opener.revoked() => Ok(Err(io::Error::other("its token was revoked"))),
        };
        let error = match copied {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(problem) => io::Error::other(problem.detail().to_owned()),
        };
        tracing::warn!(%error, "A backup was not finished.");
        // Breaks the connection off: half a copy must not look like one.
        pieces.fail(error).await;
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"klambda-backup.tar\""),
    ];
    Ok((headers, Body::new(stream)).into_response())
}
