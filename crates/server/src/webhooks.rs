//! `/api/v1/webhooks/endpoints`: external systems that receive events in order per workflow.
//!
//! An endpoint is a subscription named `webhook.<name>`, with its signing keys in the secret of the same name. Both change
//! in one step of the engine. A signing secret and a token are shown once, when they are created.

pub mod acknowledge;
mod action;
pub mod deliveries;
mod document;
pub mod feed;
mod keys;
pub mod link;
pub mod recover;
pub mod resend;
mod tidy;
pub mod trial;
pub mod turns;

pub use action::act;
pub use tidy::keep_tidy;
pub use trial::test;

use crate::api::Api;
use crate::auth::{Access, Who};
use crate::extract::{Json, Path};
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body;
use crate::secrets::Put as SecretPut;
use crate::secrets::vault::Vault;
use crate::subscriptions::{self, check_new, leftover, tried};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use keys::NewKey;
use klambda_access::{Grant, Namespaces, Role, Secret, Token};
use klambda_core::namespace::full_name;
use klambda_core::quantity::parse_duration_ms;
use klambda_core::time::Millis;
use klambda_core::webhook::{Document, Needed, PREFIX, Signature, needed};
use klambda_dispatch::operate::{Leftover, Put, Refused};
use klambda_dispatch::views::Endpoint;
use klambda_dispatch::{Engine, audit};
use klambda_secrets::Change;
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use std::sync::Arc;

const ENDPOINTS: &str = "/api/v1/webhooks/endpoints/";
/// How long the previous secret signs after a rotation.
const OVERLAP_MS: u64 = 86_400_000;
const OVERLAP_MS_MAX: u64 = 30 * 86_400_000;

/// The endpoint that a request names, in its path or in its query.
pub fn named(uri: &Uri) -> Option<String> {
    match uri.path().strip_prefix(ENDPOINTS) {
        Some(rest) => {
            let segment = rest.split('/').next().unwrap_or_default();
            Some(percent_decode_str(segment).decode_utf8_lossy().into_owned())
        }
        None => Params::read(uri, &["endpoint"]).owned("endpoint"),
    }
}

/// The full name of the subscription of an endpoint.
fn subscription_of(namespace: &str, name: &str) -> String {
    full_name(namespace, &format!("{PREFIX}{name}")).into_owned()
}

fn not_found(name: &str) -> Refused {
    Refused::NotFound(format!("webhook endpoint {name:?} not found"))
}

/// The full name of an endpoint's subscription. An error if there is none.
fn find(engine: &Engine, namespace: &str, name: &str) -> Result<String, Refused> {
    let subscription = subscription_of(namespace, name);
    engine.endpoint_document(&subscription).ok_or_else(|| not_found(name))?;
    Ok(subscription)
}

fn view(engine: &Engine, namespace: &str, name: &str) -> Result<Endpoint, Refused> {
    engine.view_endpoint(&subscription_of(namespace, name)).ok_or_else(|| not_found(name))
}

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, cursor) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let page = api.query(move |engine| {
        scope.must_be_there(engine)?;
        Ok::<_, Refused>(engine.view_endpoints(&scope.within(), cursor.as_deref(), limit))
    });
    Ok(Json(page.await??).into_response())
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let look = move |engine: &mut Engine| {
        let shown = engine.view_endpoint_fully(&subscription_of(&namespace, &name))?;
        shown.ok_or_else(|| not_found(&name))
    };
    let mut shown = api.query(look).await??;
    add_messages(&api.secrets.vault, &mut shown);
    Ok(Json(shown).into_response())
}

/// Reports secrets that calls need and that do not exist.
fn add_messages(vault: &Vault, shown: &mut Endpoint) {
    let namespace = &shown.metadata.namespace;
    if vault.metadata(namespace, &format!("{PREFIX}{}", shown.metadata.name)).is_none() {
        let message = "the signing secret is missing, so no call is made; use klambda webhook rotate";
        shown.status.messages.push(message.to_owned());
    }
    for Needed { path, secret, key } in needed(&shown.spec) {
        let known = vault.metadata(namespace, secret);
        if known.is_none_or(|known| !known.keys.contains_key(key)) {
            let message = format!("{path}: secret {secret} has no key {key}; no call is made without it");
            shown.status.messages.push(message);
        }
    }
}

// ---- create and change ----------------------------------------------------------------------------------------

/// `POST` with a flat body: the name beside the members of the specification.
pub async fn create(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let document = document::flat(&namespace, request_body::parse(&body)?)?;
    document::may_be_called(&api, &document, "url")?;
    audit::named(&document.name);
    let name = document.name.clone();
    let subscription = subscription_of(&namespace, &name);
    if api.query(move |engine| engine.subscription_id(&subscription).is_ok()).await? {
        return Err(exists(&name));
    }
    let write = Write { document, before: None, discard: false, only_new: true };
    write.run(api, &who).await
}

fn exists(name: &str) -> Problem {
    Problem::conflict(format!("webhook endpoint {name:?} already exists; use `klambda apply` to change it"))
}

pub async fn put(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["discard", "dryRun"]);
    let (discard, dry_run) = (params.flag("discard"), params.flag("dryRun"));
    params.finish()?;
    let document = document::manifest(&namespace, &name, request_body::parse(&body)?)?;
    let subscription = subscription_of(&namespace, &name);
    let before = api.query(move |engine| engine.endpoint_document(&subscription)).await?;
    if before.as_ref().is_none_or(|before| before.spec.url != document.spec.url) {
        document::may_be_called(&api, &document, "spec.url")?;
    }
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    if dry_run {
        return try_out(&api, document, discard, only_new).await;
    }
    if discard && !only_new {
        subscriptions::discard_parts(&api, &document.subscription()).await?;
    }
    let before = before.map(|before| before.spec.signature);
    Write { document, before, discard, only_new }.run(api, &who).await
}

/// Checks the change and makes none.
async fn try_out(api: &Api, document: Document, discard: bool, only_new: bool) -> Result<Response, Problem> {
    let after = document.to_json();
    let checked = move |engine: &mut Engine| {
        let subscription = document.subscription();
        check_new(engine, &subscription, only_new)?;
        Ok::<_, Problem>(engine.check_put(&subscription, discard)?)
    };
    Ok(tried(api.query(checked).await??, after))
}

/// A write of an endpoint.
struct Write {
    document: Document,
    /// How the endpoint signs before the write. `None` if it does not exist.
    before: Option<Signature>,
    discard: bool,
    only_new: bool,
}

impl Write {
    async fn run(self, api: Api, who: &Who) -> Result<Response, Problem> {
        let (namespace, name) = (self.document.namespace.clone(), self.document.name.clone());
        let signature = self.document.spec.signature;
        // Keys of one kind cannot sign for the other.
        let key = match self.before == Some(signature) {
            true => None,
            false => Some(NewKey::random(signature)?),
        };
        let change = match &key {
            Some(key) => Some(key.seal(&api, &namespace, &name).await?),
            None => None,
        };
        let token = match self.before.is_none() && !api.access.is_open() {
            true => Some(new_token(&self.document, who, api.clock.now())?),
            false => None,
        };
        let (vault, access) = (Arc::clone(&api.secrets.vault), Arc::clone(&api.access));
        let stored = token.as_ref().map(|(_, token)| token.clone());
        let steps = Steps { vault, access, change, token: stored };
        let (put, mut shown) = api.command(move |engine| steps.store(engine, self)).await??;
        add_messages(&api.secrets.vault, &mut shown);
        let secret = token.map(|(secret, _)| secret);
        Ok(answer(put, shown, key.as_ref(), secret.as_ref()))
    }
}

/// What a write stores besides the document.
struct Steps {
    vault: Arc<Vault>,
    access: Arc<Access>,
    change: Option<Change>,
    token: Option<Token>,
}

impl Steps {
    /// Everything that could be refused is checked before the first change.
    fn store(self, engine: &mut Engine, write: Write) -> Result<(Put, Endpoint), Problem> {
        let (namespace, name) = (write.document.namespace.clone(), write.document.name.clone());
        let subscription = write.document.subscription();
        check_new(engine, &subscription, write.only_new)?;
        let now = engine.endpoint_document(&subscription.full_name());
        if now.map(|now| now.spec.signature) != write.before {
            return Err(Problem::conflict(format!(
                "webhook endpoint {name:?} changed at the same time; try again"
            )));
        }
        engine.check_put(&subscription, write.discard)?;
        if self.token.is_some() {
            self.access.issued()?.must_have_room()?;
        }
        if let Some(change) = self.change {
            put_keys(&self.vault, engine, &namespace, &name, change)?;
        }
        let put = engine.put_subscription(subscription, write.discard);
        if put.is_err() && write.before.is_none() {
            self.vault.delete(engine, &namespace, &format!("{PREFIX}{name}"))?;
        }
        let put = put?;
        if let Some(token) = self.token {
            // A deleted endpoint of the same name may have left some.
            self.access.issued()?.delete_of(engine, &namespace, &name)?;
            self.access.issued()?.create(engine, token)?;
        }
        Ok((put, view(engine, &namespace, &name)?))
    }
}

fn put_keys(
    vault: &Vault,
    engine: &mut Engine,
    namespace: &str,
    name: &str,
    change: Change,
) -> Result<(), Problem> {
    match vault.put(engine, namespace, &format!("{PREFIX}{name}"), change)? {
        SecretPut::Created | SecretPut::Changed => Ok(()),
        SecretPut::Outdated => {
            Err(Problem::conflict("the encryption key of secrets changed at the same time; try again"))
        }
    }
}

/// The token of an endpoint, for its receiver. Users cannot choose this name, because it has dots.
fn new_token(document: &Document, who: &Who, now: Millis) -> Result<(Secret, Token), Problem> {
    let Document { namespace, name, .. } = document;
    let secret = Secret::new(crate::tokens::random()?);
    let token = Token {
        name: format!("{PREFIX}{namespace}.{name}"),
        grant: Grant {
            role: Role::Endpoint,
            namespaces: Namespaces::Endpoint { namespace: namespace.clone(), name: name.clone() },
        },
        hash: secret.hash(),
        created: now,
        created_by: who.name.to_string(),
        expires: None,
        last_used: None,
    };
    Ok((secret, token))
}

/// The endpoint, with the keys and the token that are shown only now.
fn answer(put: Put, shown: Endpoint, key: Option<&NewKey>, token: Option<&Secret>) -> Response {
    let name = &shown.metadata.name;
    let path = match shown.metadata.namespace.as_str() {
        klambda_core::namespace::DEFAULT => format!("{ENDPOINTS}{name}"),
        namespace => format!("/api/v1/namespaces/{namespace}/webhooks/endpoints/{name}"),
    };
    let mut body = json!(shown);
    if let Some(key) = key {
        key.show(&mut body);
    }
    if let Some(token) = token {
        body["token"] = token.reveal().into();
    }
    let no_store = [(header::CACHE_CONTROL, "no-store")];
    match put {
        Put::Created => {
            (StatusCode::CREATED, [(header::LOCATION, path)], no_store, Json(body)).into_response()
        }
        Put::Changed | Put::Unchanged | Put::Draining => (no_store, Json(body)).into_response(),
    }
}

// ---- delete ---------------------------------------------------------------------------------------------------

pub async fn delete(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let leftover = leftover(&uri)?;
    let (vault, access) = (Arc::clone(&api.secrets.vault), Arc::clone(&api.access));
    let done = move |engine: &mut Engine| remove(engine, &vault, &access, &namespace, &name, leftover);
    let (gone, shown) = api.command(done).await??;
    let status = if gone { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(shown)).into_response())
}

/// Whether it is deleted, and its state before or now. While events drain, calls still need the signing keys.
fn remove(
    engine: &mut Engine,
    vault: &Vault,
    access: &Access,
    namespace: &str,
    name: &str,
    leftover: Leftover,
) -> Result<(bool, Endpoint), Problem> {
    let before = view(engine, namespace, name)?;
    let subscription = find(engine, namespace, name)?;
    if !engine.delete_subscription(&subscription, leftover)? {
        return Ok((false, view(engine, namespace, name)?));
    }
    tidy::remove(engine, vault, access, namespace, name)?;
    Ok((true, before))
}

// ---- rotate ---------------------------------------------------------------------------------------------------

/// A new signing key. The previous one signs too for a while, so that receivers can switch at any time.
pub async fn rotate(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["overlap"]);
    let overlap_ms = params.parsed("overlap", |text| match parse_duration_ms(text) {
        Ok(ms @ 0..=OVERLAP_MS_MAX) => Ok(ms),
        _ => Err(format!("`{text}` must be a duration from 0s to 30d")),
    });
    params.finish()?;
    let subscription = subscription_of(&namespace, &name);
    let document = api.query(move |engine| engine.endpoint_document(&subscription)).await?;
    let document = document.ok_or_else(|| not_found(&name))?;
    let signature = document.spec.signature;
    let until = Millis(api.clock.now().0 + overlap_ms.unwrap_or(OVERLAP_MS));
    let key = NewKey::random(signature)?;
    let rotated = keys::Rotated::read(&api.secrets.vault, &document, &key, until).await?;
    let previous_until = rotated.previous_until().map(Millis::rfc3339);
    let version = rotated.version;
    let change = rotated.seal(&api).await?;
    let vault = Arc::clone(&api.secrets.vault);
    let done = move |engine: &mut Engine| {
        let shown = view(engine, &namespace, &name)?;
        let now = vault.metadata(&namespace, &format!("{PREFIX}{name}")).map(|known| known.version);
        let is_same =
            engine.endpoint_document(&subscription_of(&namespace, &name)).as_ref() == Some(&document);
        if now != version || !is_same {
            return Err(Problem::conflict(format!(
                "webhook endpoint {name:?} changed at the same time; try again"
            )));
        }
        put_keys(&vault, engine, &namespace, &name, change)?;
        Ok(shown)
    };
    let mut shown = api.command(done).await??;
    add_messages(&api.secrets.vault, &mut shown);
    let mut body: Value = json!(shown);
    key.show(&mut body);
    body["previousUntil"] = json!(previous_until);
    Ok(([(header::CACHE_CONTROL, "no-store")], Json(body)).into_response())
}
