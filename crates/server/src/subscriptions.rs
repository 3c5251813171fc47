//! `/api/v1/subscriptions`: subscriptions and their status.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::ingress;
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::redact::redact;
use crate::request_body;
use crate::routes::may_read_files;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_core::fault::{Fault, unknown};
use klambda_core::namespace;
use klambda_core::subscription::{Document, From, HeaderValue, MANAGED_PREFIX, Target};
use klambda_core::webhook;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::{Leftover, Put, Refused};
use klambda_dispatch::views::Subscription;
use serde_json::{Value, json};

pub async fn list(api: Api, who: Who, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, cursor) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let page = api.query(move |engine| {
        scope.must_be_there(engine)?;
        Ok::<_, Refused>(engine.view_subscriptions(&scope.within(), cursor.as_deref(), limit))
    });
    let mut page = page.await??;
    page.items.iter_mut().for_each(|item| redact_subscription(item, &who));
    Ok(Json(page).into_response())
}

pub async fn show(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let name = namespace.full_name(&name);
    let looked = move |engine: &mut Engine| Ok((view(engine, &name)?, engine.subscription_document(&name)));
    let (mut shown, document) =
        api.query(looked).await?.map_err(|refused: Refused| Problem::from(refused))?;
    shown.status.messages.extend(missing(&api, document).await?);
    redact_subscription(&mut shown, &who);
    Ok(Json(shown).into_response())
}

fn redact_subscription(shown: &mut Subscription, who: &Who) {
    let namespace = shown.metadata.namespace.clone();
    redact(&mut shown.spec, &namespace, who);
}

/// Files and variables that deliveries need and that do not exist. They may appear later, so nothing is rejected.
async fn missing(api: &Api, document: Option<Document>) -> Result<Vec<String>, Problem> {
    let Some(document) = document else { return Ok(Vec::new()) };
    api.blocking(move |_| missing_of(&document.spec.target)).await
}

fn missing_of(target: &Target) -> Vec<String> {
    let Target::Url(target) = target else { return Vec::new() };
    let headers = target.headers.iter().map(|(name, value)| {
        let wanted = match value {
            HeaderValue::Literal(_) => None,
            HeaderValue::File(path) => unreadable(path),
            HeaderValue::Env(name) => std::env::var_os(name)
                .is_none()
                .then(|| format!("the environment of the server has no {name}")),
        };
        (format!("headers.{name}"), wanted)
    });
    let tls = &target.tls;
    let files = [("caFile", &tls.ca_file), ("certFile", &tls.cert_file), ("keyFile", &tls.key_file)];
    let files =
        files.into_iter().map(|(name, path)| (format!("tls.{name}"), path.as_deref().and_then(unreadable)));
    let missing = headers.chain(files).filter_map(|(place, wanted)| Some((place, wanted?)));
    missing.map(|(place, wanted)| format!("target.{place}: {wanted}; deliveries fail without it")).collect()
}

fn unreadable(path: &str) -> Option<String> {
    std::fs::metadata(path).err().map(|error| format!("{path}: {error}"))
}

fn view(engine: &Engine, name: &str) -> Result<Subscription, Refused> {
    engine
        .view_subscription(name)
        .ok_or_else(|| Refused::NotFound(format!("subscription {:?} not found", namespace::split(name).1)))
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
    refuse_managed(&name)?;
    let body = request_body::parse(&body)?;
    let named = namespace.full_name(&name);
    let before = api.query(move |engine| engine.subscription_document(&named)).await?;
    refuse_endpoint(&name, before.as_ref())?;
    let document = read(&namespace, &name, body, before.as_ref())?;
    // An unchanged target makes the server read nothing new and send it nowhere else.
    if before.is_none_or(|before| before.spec.target != document.spec.target) {
        may_be_read(&api, &who, &document)?;
        may_be_called(&api, &document)?;
    }
    let missing = missing(&api, Some(document.clone())).await?;
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    if dry_run {
        return try_out(&api, document, discard, only_new).await;
    }
    if discard && !only_new {
        discard_parts(&api, &document).await?;
    }
    let done = api.command(move |engine| create_or_change(engine, document, discard, only_new)).await?;
    let (put, mut shown) = done?;
    shown.status.messages.extend(missing);
    Ok(match put {
        Put::Created => {
            let location = [(header::LOCATION, namespace.address(&format!("subscriptions/{name}")))];
            (StatusCode::CREATED, location, Json(shown)).into_response()
        }
        Put::Changed | Put::Unchanged | Put::Draining => Json(shown).into_response(),
    })
}

/// The answer to a dry run: what would change, and the document after the change.
pub fn tried(put: Put, document: Value) -> Response {
    let change = match put {
        Put::Created => "created",
        Put::Unchanged => "unchanged",
        Put::Changed | Put::Draining => "configured",
    };
    Json(json!({ "dryRun": true, "change": change, "document": document })).into_response()
}

/// Checks the change and makes none.
async fn try_out(api: &Api, document: Document, discard: bool, only_new: bool) -> Result<Response, Problem> {
    let after = document.to_json();
    let checked = move |engine: &mut Engine| {
        check_new(engine, &document, only_new)?;
        Ok::<_, Problem>(engine.check_put(&document, discard)?)
    };
    Ok(tried(api.query(checked).await??, after))
}

/// A caller that makes the server send its own files or variables must be an admin of all namespaces, unless the files
/// belong to the namespace.
fn may_be_read(api: &Api, who: &Who, document: &Document) -> Result<(), Problem> {
    let own = api.secrets.folder.as_ref().map(|folder| folder.join(&document.namespace));
    let is_own = |path: &str| own.as_ref().is_some_and(|own| is_inside(path.as_ref(), own));
    let Target::Url(target) = &document.spec.target else { return Ok(()) };
    let of_headers = target.headers.iter().filter_map(|(_, value)| match value {
        HeaderValue::Literal(_) => None,
        HeaderValue::Env(name) => Some(format!("the environment variable {name}")),
        HeaderValue::File(path) => (!is_own(path)).then(|| format!("the file {path}")),
    });
    let tls = &target.tls;
    let of_tls = [&tls.ca_file, &tls.cert_file, &tls.key_file].into_iter().flatten();
    let of_tls = of_tls.filter(|path| !is_own(path)).map(|path| format!("the file {path}"));
    match of_headers.chain(of_tls).next() {
        Some(what) => may_read_files(who, &what),
        None => Ok(()),
    }
}

/// Refuses a target that is certainly forbidden. A name is checked again at every connection.
fn may_be_called(api: &Api, document: &Document) -> Result<(), Problem> {
    let Target::Url(target) = &document.spec.target else { return Ok(()) };
    let checked = api.control.outbound().reach(&document.namespace).check_url(&target.url);
    checked.map_err(|why| invalid(vec![Fault::new("spec.target.url", why.to_string())]))
}

fn is_inside(path: &std::path::Path, folder: &std::path::Path) -> bool {
    let climbs = path.components().any(|part| matches!(part, std::path::Component::ParentDir));
    !climbs && path.strip_prefix(folder).is_ok_and(|rest| rest.components().next().is_some())
}

/// The subscription of a function changes only with the function. All other operations on it are allowed.
fn refuse_managed(name: &str) -> Result<(), Refused> {
    let Some(function) = name.strip_prefix(MANAGED_PREFIX) else { return Ok(()) };
    let owner = match function.split_once('.') {
        Some((namespace, name)) => format!("function {name} in namespace {namespace}"),
        None => "a function".to_owned(),
    };
    Err(Refused::Conflict(format!(
        "subscription {name:?} belongs to {owner}: change the triggers of the function instead"
    )))
}

/// The subscription of a webhook endpoint changes only with the endpoint. An older subscription may have such a name.
fn refuse_endpoint(name: &str, before: Option<&Document>) -> Result<(), Refused> {
    let Some(endpoint) = name.strip_prefix(webhook::PREFIX) else { return Ok(()) };
    if before.is_some_and(|before| before.spec.target.endpoint().is_none()) {
        return Ok(());
    }
    Err(Refused::Conflict(format!(
        "subscription {name:?} belongs to webhook endpoint {endpoint}: use klambda webhook, or \
         /api/v1/webhooks/endpoints/{endpoint}"
    )))
}

fn read(
    namespace: &str,
    name: &str,
    mut body: Value,
    before: Option<&Document>,
) -> Result<Document, Problem> {
    let misplaced = request_body::place(&mut body, &[("namespace", namespace), ("name", name)]);
    let parsed = Document::given(&body, before);
    let mut faults = parsed.as_ref().err().cloned().unwrap_or_default();
    faults.extend(misplaced);
    if parsed.as_ref().is_ok_and(|document| document.spec.target.function().is_some()) {
        let message = "use the triggers of the function instead, or set target.url";
        faults.push(Fault::new("spec.target.function", message));
    }
    if parsed.as_ref().is_ok_and(|document| document.spec.target.endpoint().is_some()) {
        faults.push(Fault::new("spec.target.endpoint", "use a WebhookEndpoint instead, or set target.url"));
    }
    match parsed {
        Ok(document) if faults.is_empty() => Ok(document),
        _ => Err(invalid(faults)),
    }
}

/// Discards in parts, so that other requests run in between.
pub async fn discard_parts(api: &Api, document: &Document) -> Result<(), Problem> {
    let mut next = Some(String::new());
    while let Some(from) = next {
        let document = document.clone();
        next = api.query(move |engine| engine.discard_part(&document, &from)).await??;
    }
    Ok(())
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("the subscription has {} errors", many.len()),
    };
    Problem::invalid_subscription(detail).faults(faults)
}

fn create_or_change(
    engine: &mut Engine,
    document: Document,
    discard: bool,
    only_new: bool,
) -> Result<(Put, Subscription), Problem> {
    check_new(engine, &document, only_new)?;
    let name = document.full_name().into_owned();
    let put = engine.put_subscription(document, discard)?;
    Ok((put, view(engine, &name)?))
}

/// The rules for subscriptions that do not exist yet.
pub fn check_new(engine: &Engine, document: &Document, only_new: bool) -> Result<(), Problem> {
    let name = document.full_name();
    let is_new = engine.subscription_id(&name).is_err();
    if let From::Time(time) = document.spec.from
        && is_new
        && time > engine.now()
    {
        let message = format!("{} is in the future; use latest to start with new events", time.rfc3339());
        return Err(invalid(vec![Fault::new("spec.from", message)]));
    }
    if only_new && !is_new {
        return Err(Problem::exists(format!("subscription {name:?} already exists")));
    }
    Ok(())
}

pub async fn delete(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let leftover = leftover(&uri)?;
    refuse_managed(&name)?;
    let full_name = namespace.full_name(&name);
    let before = api.query(move |engine| engine.subscription_document(&full_name)).await?;
    refuse_endpoint(&name, before.as_ref())?;
    let name = namespace.full_name(&name);
    let (gone, shown) = api.command(move |engine| remove(engine, &name, leftover)).await??;
    let status = if gone { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(shown)).into_response())
}

/// What a deletion does with pending events.
pub fn leftover(uri: &Uri) -> Result<Leftover, Problem> {
    let params = Params::read(uri, &["drain", "discard"]);
    let leftover = match (params.flag("drain"), params.flag("discard")) {
        (false, false) => Leftover::Refuse,
        (true, false) => Leftover::Drain,
        (false, true) => Leftover::Discard,
        (true, true) => {
            params.fault("drain", "cannot be combined with discard");
            Leftover::Refuse
        }
    };
    params.finish()?;
    Ok(leftover)
}

/// Whether it is deleted, and its state before or now.
fn remove(engine: &mut Engine, name: &str, leftover: Leftover) -> Result<(bool, Subscription), Refused> {
    let before = view(engine, name)?;
    let gone = engine.delete_subscription(name, leftover)?;
    Ok(if gone { (true, before) } else { (false, view(engine, name)?) })
}

pub async fn act(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path((name, action)): Path<(String, String)>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let pause = match action.as_str() {
        "pause" => true,
        "resume" => false,
        other => return Err(Problem::not_found(unknown("action", other, &["pause", "resume"]))),
    };
    ingress::may_act_on(&who, &namespace, &name)?;
    let name = namespace.full_name(&name);
    let done = move |engine: &mut Engine| {
        engine.pause_subscription(&name, pause)?;
        view(engine, &name)
    };
    Ok(Json(api.command(done).await??).into_response())
}

#[cfg(test)]
mod tests {
    use super::is_inside;
    use std::path::Path;

    #[test]
    fn a_file_of_the_namespace_is_inside_its_folder() {
        let inside = |path: &str| is_inside(Path::new(path), Path::new("/secrets/shop"));
        assert!(inside("/secrets/shop/partner/token"));
        for outside in [
            "/secrets/shop",
            "/secrets/shopping/token",
            "/secrets/other/token",
            "/secrets/shop/../other/token",
            "token",
        ] {
            assert!(!inside(outside), "{outside}");
        }
    }
}
