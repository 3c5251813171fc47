//! Removes what belonged to a deleted endpoint: its signing keys and its tokens.

use super::subscription_of;
use crate::api::Api;
use crate::auth::Access;
use crate::problem::Problem;
use crate::secrets::Error;
use crate::secrets::vault::Vault;
use klambda_core::webhook::PREFIX;
use klambda_dispatch::Engine;
use std::sync::Arc;
use std::time::Duration;

const LOOK_EVERY: Duration = Duration::from_secs(60);

pub fn remove(
    engine: &mut Engine,
    vault: &Vault,
    access: &Access,
    namespace: &str,
    name: &str,
) -> Result<(), Problem> {
    match vault.delete(engine, namespace, &format!("{PREFIX}{name}")) {
        Ok(()) | Err(Error::NotFound { .. }) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(access.issued()?.delete_of(engine, namespace, name)?)
}

/// Endpoints that drained after their deletion, or whose creation a crash interrupted, leave these behind.
pub async fn keep_tidy(api: Api) {
    loop {
        tokio::select! {
            () = api.shutdown.requested() => return,
            () = tokio::time::sleep(LOOK_EVERY) => {}
        }
        if let Err(problem) = tidy(&api).await {
            tracing::warn!(
                error = problem.detail(),
                "Could not remove the keys of deleted webhook endpoints; retrying"
            );
        }
    }
}

async fn tidy(api: &Api) -> Result<(), Problem> {
    let mut known = api.secrets.vault.endpoints();
    known.extend(api.access.issued()?.endpoints());
    let gone = api.query(move |engine| {
        known.retain(|(namespace, name)| engine.subscription_id(&subscription_of(namespace, name)).is_err());
        known
    });
    for (namespace, name) in gone.await? {
        let (vault, access) = (Arc::clone(&api.secrets.vault), Arc::clone(&api.access));
        let done = move |engine: &mut Engine| {
            // It may have been created again since.
            match engine.subscription_id(&subscription_of(&namespace, &name)) {
                Ok(_) => Ok(()),
                Err(_) => remove(engine, &vault, &access, &namespace, &name),
            }
        };
        api.command(done).await??;
    }
    Ok(())
}
