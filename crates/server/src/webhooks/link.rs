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
use klambda_dispatch::views::Time;
use schemars::JsonSchema;
use serde::Serialize;
use std::sync::Arc;

const EXPIRES_MS: u64 = 3_600_000;
const EXPIRES_MS_MAX: u64 = 24 * 3_600_000;
/// Links of one endpoint that are valid at a time.
const LINKS_MAX: usize = 20;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "WebhookLink")]
pub struct Link {
    endpoint: String,
    /// The name of the token, to delete it earlier.
    name: String,
    role: &'static str,
    expires_at: Time,
    /// Shown only now.
    token: String,
    /// The deliveries of the endpoint.
    url: String,
    /// The page of the endpoint. The fragment holds the token, so that no server log contains it.
    page: String,
}

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
    let shown = Link {
        endpoint: name.clone(),
        name: token.name.clone(),
        role: token.grant.role.name(),
        expires_at: Time(expires),
        token: secret.reveal().to_owned(),
        url: address,
        page: format!("/ui#token={}", secret.reveal()),
    };
    let access = Arc::clone(&api.access);
    let created = move |engine: &mut Engine| {
        find(engine, &namespace, &name)?;
        let issued = access.issued()?;
        if issued.live(&prefix(&namespace, &name)) >= LINKS_MAX {
            return Err(Problem::limit_reached(format!(
                "{LINKS_MAX} links of this endpoint are valid, which is the limit; delete one of their tokens, or \
                 wait until one expires"
            )));
        }
        Ok::<_, Problem>(issued.create(engine, token)?)
    };
    api.command(created).await??;
    Ok((StatusCode::CREATED, [(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}

/// How the names of the tokens of an endpoint's links begin. Users cannot choose such a name, because it has dots.
fn prefix(namespace: &str, name: &str) -> String {
    format!("{PREFIX}{namespace}.{name}.link-")
}

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
        name: prefix(namespace, name) + &suffix,
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
