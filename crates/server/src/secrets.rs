//! `/api/v1/secrets`: values that functions use and that no answer shows.

mod body;
pub mod check;
mod rekey;
pub mod vault;
mod writes;

use crate::api::{Api, blocking, go_on};
use crate::extract::{Json, Path};
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
pub use body::Asked;
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_core::time::Millis;
use klambda_core::webhook::PREFIX;
use klambda_dispatch::documents::{self, Expected, Write};
use klambda_dispatch::views::{Page, Time};
use klambda_secrets::{Change, Known, NAME_RULE, RESERVED, Reader as _, is_name};
use rekey::RekeyError;
pub use rekey::Report;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::json;
use std::sync::Arc;
use tokio::sync::oneshot;
use vault::Vault;
pub use writes::{Error, Put};

pub use vault::OpenError;

/// The document that says when the key was last changed.
const REKEYED: &str = "secret.rekey";
const EXPORTED: &str = "secret.exported";

pub async fn list(api: Api, uri: Uri, scope: Scope) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, after) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let asked = scope.clone();
    api.query(move |engine| asked.must_be_there(engine)).await??;
    let (found, more) = api.secrets.vault.list(&scope.within(), after.as_deref(), limit);
    let next = found.last().filter(|_| more).map(|(key, _)| key.clone());
    let mut users = api.control.users_of_secrets();
    let item = |(key, known): &(String, Arc<Known>)| {
        let (namespace, name) = vault::split(key);
        let users = users.remove(&(namespace.to_owned(), name.to_owned())).unwrap_or_default();
        view(&api.secrets.vault, namespace, name, known, users)
    };
    Ok(Json(Page { items: found.iter().map(item).collect(), next }).into_response())
}

pub async fn show(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    refuse_signing(&name)?;
    Ok(Json(shown(&api, &namespace, &name)?).into_response())
}

/// Only the endpoint itself uses its signing keys.
fn refuse_signing(name: &str) -> Result<(), Problem> {
    if !vault::is_signing(name) {
        return Ok(());
    }
    let endpoint = name.strip_prefix(PREFIX).unwrap_or(name);
    Err(Problem::conflict(format!(
        "secret {name} holds the signing keys of webhook endpoint {endpoint}: use klambda webhook rotate {endpoint}"
    )))
}

pub async fn put(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    write(api, namespace, name, Asked::read(&body, true)?, only_new).await
}

pub async fn patch(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    write(api, namespace, name, Asked::read(&body, false)?, false).await
}

async fn write(
    api: Api,
    namespace: Namespace,
    name: String,
    asked: Asked,
    only_new: bool,
) -> Result<Response, Problem> {
    check_name(&name)?;
    refuse_signing(&name)?;
    let stored = api.secrets.vault.fetch(&namespace, &name).await.ok().flatten();
    if !only_new && stored.is_some_and(|stored| asked.is_met_by(&stored)) {
        return Ok(written(shown(&api, &namespace, &name)?, "unchanged").into_response());
    }
    let asked = Arc::new(asked);
    let put = loop {
        match write_once(&api, &namespace, &name, Arc::clone(&asked), only_new).await? {
            Put::Outdated => {}
            done => break done,
        }
    };
    let answer = shown(&api, &namespace, &name)?;
    if put != Put::Created {
        return Ok(written(answer, "configured").into_response());
    }
    let location = [(header::LOCATION, namespace.address(&format!("secrets/{name}")))];
    Ok((StatusCode::CREATED, location, written(answer, "created")).into_response())
}

fn written(answer: View, change: &'static str) -> Json<View> {
    Json(View { change: Some(change), ..answer })
}

/// Seals on a thread that may wait, then stores.
async fn write_once(
    api: &Api,
    namespace: &str,
    name: &str,
    asked: Arc<Asked>,
    only_new: bool,
) -> Result<Put, Problem> {
    let (vault, control) = (Arc::clone(&api.secrets.vault), api.control.clone());
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let change = seal(api, &namespace, &name, asked).await?;
    let stored = api.command(move |engine| {
        if only_new && vault.known(&namespace, &name).is_some() {
            return Err(Error::Exists { namespace, name });
        }
        let put = vault.put(engine, &namespace, &name, change)?;
        control.secret_changed(&namespace, &name);
        Ok::<_, Error>(put)
    });
    Ok(stored.await??)
}

/// Seals on a thread that may wait.
pub async fn seal(api: &Api, namespace: &str, name: &str, asked: Arc<Asked>) -> Result<Change, Problem> {
    let vault = Arc::clone(&api.secrets.vault);
    let (namespace, name) = (namespace.to_owned(), name.to_owned());
    let sealing = blocking(move || {
        let ring = vault.ring_to_seal()?;
        let Some(first) = ring.first() else { return Ok(None) };
        Ok::<_, Error>(Some(asked.seal(first, &namespace, &name)?))
    });
    sealing.await??.ok_or_else(|| Problem::internal("there is no key to seal with"))
}

pub async fn delete(
    api: Api,
    uri: Uri,
    namespace: Namespace,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["force"]);
    let force = params.flag("force");
    params.finish()?;
    refuse_signing(&name)?;
    let answer = shown(&api, &namespace, &name)?;
    let users = api.control.secret_users(&namespace, &name);
    if !users.is_empty() && !force {
        return Err(in_use(&name, users));
    }
    let (vault, control) = (Arc::clone(&api.secrets.vault), api.control.clone());
    let deleted = api.command(move |engine| {
        vault.delete(engine, &namespace, &name)?;
        control.secret_changed(&namespace, &name);
        Ok::<_, Error>(())
    });
    deleted.await??;
    Ok(Json(answer).into_response())
}

fn in_use(name: &str, users: Vec<String>) -> Problem {
    let detail = match users.as_slice() {
        [user] => format!(
            "{user} uses secret {name}: change the function first, or use `klambda secret delete --force`"
        ),
        users => format!(
            "{} functions use secret {name}, {} among them: change them first, or use `klambda secret delete --force`",
            users.len(),
            users.first().map_or("", String::as_str)
        ),
    };
    Problem::conflict(detail).with("usedBy", users)
}

/// Answers when all secrets are sealed with the new key. The work continues if the client goes away.
pub async fn rekey(api: Api, uri: Uri) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let permit = api.secrets.vault.begin_rekey()?;
    let vault = Arc::clone(&api.secrets.vault);
    blocking(move || vault.add_key()).await??;
    note(&api, REKEYED).await?;
    let (done, answer) = oneshot::channel();
    let (vault, handle) = (Arc::clone(&api.secrets.vault), api.handle.clone());
    go_on(async move {
        let _permit = permit;
        let finished = vault.finish_rekey(&handle).await;
        if let Err(error) = &finished {
            tracing::warn!(%error, "Could not encrypt all secrets with the new key; the next start continues");
        }
        let _ = done.send(finished);
    });
    let report = answer.await.map_err(|_| api.stopped())??;
    tracing::info!(key = report.key, secrets = report.resealed, "Secrets encrypted with a new key");
    Ok(Json(report).into_response())
}

/// A backup takes the keys along.
pub async fn note_export(api: &Api) -> Result<(), Problem> {
    note(api, EXPORTED).await
}

/// A document, so that there is a change for the audit log.
async fn note(api: &Api, what: &str) -> Result<(), Problem> {
    let ring = api.secrets.vault.ring();
    let key = ring.first().map(|key| key.id().to_owned());
    let content = json!({ "key": key, "at": api.clock.now().0 }).to_string().into_bytes();
    let (kind, name) = (what.to_owned(), "last".to_owned());
    let write = Write { kind, key: name, content: Some(content), expected: Expected::Any };
    let stored = api.command(move |engine| engine.put_documents(&[write], &[])).await?;
    stored.map_err(Error::from)?;
    Ok(())
}

/// Continues a change of keys that a crash interrupted.
pub async fn resume_rekey(api: Api) {
    if !api.secrets.vault.is_rekey_open() {
        return;
    }
    let Ok(_permit) = api.secrets.vault.begin_rekey() else { return };
    match Arc::clone(&api.secrets.vault).finish_rekey(&api.handle).await {
        Ok(report) => {
            tracing::info!(secrets = report.resealed, "Interrupted change of the key of secrets finished")
        }
        Err(error) => {
            tracing::warn!(%error, "Could not encrypt all secrets with the new key; the next start continues")
        }
    }
}

fn check_name(name: &str) -> Result<(), Problem> {
    if is_name(name) && name != RESERVED {
        return Ok(());
    }
    let message = format!("`{name}` is not a name for a secret: it {NAME_RULE}, and is not {RESERVED}");
    Err(Problem::invalid_body(message.clone()).fault("name", message))
}

fn shown(api: &Api, namespace: &str, name: &str) -> Result<View, Problem> {
    let missing = || Error::NotFound { namespace: namespace.to_owned(), name: name.to_owned() };
    let known = api.secrets.vault.known(namespace, name).ok_or_else(missing)?;
    Ok(view(&api.secrets.vault, namespace, name, &known, api.control.secret_users(namespace, name)))
}

/// A secret without its values.
#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "Secret")]
pub struct View {
    name: String,
    namespace: String,
    version: u64,
    updated_at: Time,
    keys: Vec<Key>,
    /// The functions that use it.
    used_by: Vec<String>,
    /// The keys whose values cannot be decrypted.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    unreadable: Vec<String>,
    /// The result of a write.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[schemars(extend("enum" = ["created", "configured", "unchanged", null]))]
    change: Option<&'static str>,
}

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "SecretKey")]
pub struct Key {
    name: String,
    bytes: usize,
}

fn view(vault: &Vault, namespace: &str, name: &str, known: &Known, users: Vec<String>) -> View {
    let keys = known.keys.iter().map(|(key, known)| Key { name: key.clone(), bytes: known.bytes });
    let ring = vault.ring();
    View {
        name: name.to_owned(),
        namespace: namespace.to_owned(),
        version: known.version,
        updated_at: Time(Millis(known.updated_at.0)),
        keys: keys.collect(),
        used_by: users,
        unreadable: known.unreadable(&ring).map(str::to_owned).collect(),
        change: None,
    }
}

impl From<Error> for Problem {
    fn from(error: Error) -> Problem {
        let detail = error.to_string();
        match error {
            Error::NotFound { .. } => Problem::not_found(detail),
            Error::Limit(_) => Problem::limit_reached(detail),
            Error::Invalid(klambda_secrets::Refused::TooLarge(_)) => Problem::too_large(detail),
            Error::Invalid(_) => Problem::invalid_body(detail),
            Error::Damaged { .. } | Error::KeyGone { .. } => Problem::conflict(detail),
            Error::Exists { .. } => Problem::exists(detail),
            Error::Namespace(refused) => refused.into(),
            Error::Store(documents::Error::Refused(refused)) => refused.into(),
            Error::Store(documents::Error::Conflict { .. }) => Problem::conflict(detail),
            Error::Store(documents::Error::Invalid(_)) => Problem::too_large(detail),
            Error::KeyFile(_) | Error::NoRandomness(_) => Problem::internal(detail),
        }
    }
}

impl From<RekeyError> for Problem {
    fn from(error: RekeyError) -> Problem {
        match error {
            RekeyError::UnderWay | RekeyError::OneInVariable | RekeyError::TooManyKeys => {
                Problem::conflict(error.to_string())
            }
            RekeyError::Vault(error) => error.into(),
            RekeyError::Stopped(_) => Problem::shutting_down(error.to_string()),
        }
    }
}
