//! The mark of a data folder that has had a token file, an issuer or a token: it requires tokens from then on, however the
//! server is started. The mark is a document of the engine, so backups contain it. Nothing removes it.

use klambda_dispatch::documents::{Expected, Write};
use klambda_dispatch::runner::Handle;
use klambda_dispatch::{Engine, Failure};

const KIND: &str = "authentication";
const KEY: &str = "required";

pub fn is_set(engine: &Engine) -> Result<bool, Failure> {
    Ok(engine.document(KIND, KEY)?.is_some())
}

/// Returns when the mark is durable. If the disk is full, the server starts without it, and the next start tries again.
pub async fn set(handle: &Handle) {
    let mark = Write {
        kind: KIND.to_owned(),
        key: KEY.to_owned(),
        content: Some(Vec::new()),
        expected: Expected::Any,
    };
    let cause = match handle.put_documents(vec![mark], Vec::new()).await {
        Ok(Ok(_)) => return,
        Ok(Err(error)) => error.to_string(),
        Err(stopped) => stopped.to_string(),
    };
    tracing::warn!(%cause, "Could not record that this data folder requires tokens; the next start tries again");
}
