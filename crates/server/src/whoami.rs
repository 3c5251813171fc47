//! `/api/v1/whoami`: the caller and its role, so that a client can show only what the caller may do.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::Json;
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use http::{Uri, header};
use klambda_access::Namespaces;
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Whoami {
    /// The name in the audit log.
    name: String,
    role: &'static str,
    /// `None` for all namespaces.
    namespaces: Option<Vec<String>>,
    /// The webhook endpoint, for a token that reaches only this endpoint.
    #[serde(skip_serializing_if = "Option::is_none")]
    endpoint: Option<String>,
    /// Whether the server requires tokens.
    requires_token: bool,
    version: &'static str,
}

pub async fn show(api: Api, who: Who, uri: Uri) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let grant = &who.grant;
    let namespaces = match &grant.namespaces {
        Namespaces::All => None,
        Namespaces::Named(names) => Some(names.iter().cloned().collect()),
        Namespaces::Endpoint { namespace, .. } => Some(vec![namespace.clone()]),
    };
    let shown = Whoami {
        name: who.name.to_string(),
        role: grant.role.name(),
        namespaces,
        endpoint: grant.endpoint().map(str::to_owned),
        requires_token: !api.access.is_open(),
        version: env!("CARGO_PKG_VERSION"),
    };
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(shown)).into_response())
}
