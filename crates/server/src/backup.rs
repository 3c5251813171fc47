//! `POST /api/v1/backup`: a consistent copy of the data folder, taken while the server runs.

mod files;

use crate::api::{Api, blocking, go_on};
use crate::params::Params;
use crate::problem::Problem;
use crate::secrets::{self, vault::KEY_FILE};
use crate::stream::{BlockingWriter, ByteStream};
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri, header};
use klambda_crash::Point;
use std::io;
use std::time::Duration;

pub async fn take(api: Api, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["withKey"]);
    let with_key = params.flag("withKey");
    params.finish()?;
    let opener = api.opener(&headers);
    let permit = api.turns.backups.clone().try_acquire_owned().map_err(|_| {
        Problem::limit_reached("a backup is already running").retry_after(Duration::from_secs(10))
    })?;
    // Keys may be changing: those from before and after the snapshot together open everything in it.
    let keys = api.secrets.vault.ring();
    let (mut snapshot, archive) = {
        // The snapshot and the artifacts that its documents name are of one instant.
        let still = api.control.still().await;
        let snapshot = api.query(|engine| engine.snapshot()).await?;
        (snapshot, still.archive().await)
    };
    let keys = api.secrets.vault.ring().joined(&keys);
    if with_key && !keys.is_empty() {
        secrets::note_export(&api).await?;
        snapshot.add_file(KEY_FILE, keys.to_text().as_bytes().to_vec());
    }
    let (chunks, stream) = ByteStream::new(&api.connections.held.answers);
    go_on(async move {
        let _permit = permit;
        let writer = BlockingWriter::new(chunks.clone());
        let copied = blocking(move || {
            Point::Backup.pass();
            snapshot.write_tar_after(writer, |tar| files::append(tar, &archive.files()))
        });
        let copied = tokio::select! {
            copied = copied => copied,
            () = opener.revoked() => Ok(Err(io::Error::other("the token was revoked"))),
        };
        let error = match copied {
            Ok(Ok(())) => return,
            Ok(Err(error)) => error,
            Err(problem) => io::Error::other(problem.detail().to_owned()),
        };
        tracing::warn!(%error, "Backup failed");
        // Abort the connection, so that a partial backup does not look complete.
        chunks.fail(error).await;
    });
    let headers = [
        (header::CONTENT_TYPE, "application/x-tar"),
        (header::CONTENT_DISPOSITION, "attachment; filename=\"klambda-backup.tar\""),
    ];
    Ok((headers, Body::new(stream)).into_response())
}
