//! `POST …/link`: access for the people behind an endpoint, for a short time. The token has the role endpoint-admin, so
//! they can look at deliveries, send events again and rotate the secret, of this endpoint and nothing else.

use super::{PREFIX, find};
use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::namespace::Namespace;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::{StatusCode, Uri, header};
use klambda_access::{Grant, Namespaces, Role, Secret, Token};
use klambda_core::quantity::parse_duration_ms;
use klambda_core::time::Millis;
use klambda_dispatch::Engine;
use serde_json::json;
use std::sync::Arc;

const EXPIRES_MS: u64 = 3_600_000;
const EXPIRES_MS_MAX: u64 = 24 * 3_600_000;

pub async fn create(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["expires"]);
    let expires_ms = params.parsed("expires", |text| match parse_duration_ms(text) {
        Ok(ms @ 1..=EXPIRES_MS_MAX) => Ok(ms),
        _ => Err(format!("`{text}` must be a duration of at most 24h")),
    });
    params.finish()?;
    if api.access.is_open() {
        return Err(Problem::conflict(
            "this server requires no tokens, so every client may do everything: start it with a token \
             file (--token-file) first",
        ));
    }
    let now = api.clock.now();
    let expires = Millis(now.0 + expires_ms.unwrap_or(EXPIRES_MS));
    let secret = Secret::new(crate::tokens::random()?);
    let token = token(&namespace, &name, &who, &secret, now, expires)?;
    let address = namespace.address(&format!("webhooks/endpoints/{name}/deliveries"));
    let shown = json!({
        "endpoint": name,
        "name": token.name,
        "role": token.grant.role.name(),
        "expiresAt": expires.rfc3339(),
        "token": secret.reveal(),
        "url": address,
    });
    let access = Arc::clone(&api.access);
    let created = move |engine: &mut Engine| {
        find(engine, &namespace, &name)?;
        Ok::<_, Problem>(access.issued()?.create(engine, token)?)
    };
    api.command(created).await??;
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

/// Users cannot choose this name, because it has dots.
fn token(
    namespace: &str,
    name: &str,
    who: &Who,
    secret: &Secret,
    now: Millis,
    expires: Millis,
) -> Result<Token, Problem> {
    let random = crate::tokens::random()?;
    let suffix: String = random.iter().take(6).map(|byte| format!("{byte:02x}")).collect();
    Ok(Token {
        name: format!("{PREFIX}{namespace}.{name}.link-{suffix}"),
        grant: Grant {
            role: Role::EndpointAdmin,
            namespaces: Namespaces::Endpoint { namespace: namespace.to_owned(), name: name.to_owned() },
        },
        hash: secret.hash(),
        created: now,
        created_by: who.name.to_string(),
        expires: Some(expires),
        last_used: None,
    })
}
