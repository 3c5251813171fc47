//! `/api/v1/subscriptions`: who gets which events, and how that goes.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::ingress;
use crate::members;
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_core::fault::{Fault, unknown};
use klambda_core::subscription::{Document, From, HeaderValue, MANAGED_PREFIX, Target};
use klambda_dispatch::Engine;
use klambda_dispatch::operate::{Leftover, Put, Refused};
use klambda_dispatch::views::Subscription;
use serde_json::Value;

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, cursor) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let page = api.query(move |engine| {
        check(engine, &scope)?;
        Ok::<_, Refused>(engine.view_subscriptions(scope.name(), cursor.as_deref(), limit))
    });
    let page = page.await??;
    Ok(Json(page).into_response())
}

/// A namespace that is not there is a slip, not an empty list.
pub fn check(engine: &Engine, scope: &Scope) -> Result<(), Refused> {
    scope.name().map_or(Ok(()), |name| engine.namespace_id(name).map(drop))
}

pub async fn show(
    api: Api,
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
    Ok(Json(shown).into_response())
}

/// What deliveries will want and is not there; it may still come, so nothing is refused for it.
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
            HeaderValue::Env(name) => {
                std::env::var_os(name).is_none().then(|| format!("the server's environment has no {name}"))
            }
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
        .ok_or_else(|| Refused::NotFound(format!("there is no subscription {name:?}")))
}

pub async fn put(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["discard"]);
    let discard = params.flag("discard");
    params.finish()?;
    refuse_managed(&name)?;
    let body = members::parse(&body)?;
    let named = namespace.full_name(&name);
    let before = api.query(move |engine| engine.subscription_document(&named)).await?;
    let document = read(&namespace, &name, body, before.as_ref())?;
    let missing = missing(&api, Some(document.clone())).await?;
    let only_new = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
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

/// What the server keeps for a function changes and goes with the function. Everything else may be done to it.
fn refuse_managed(name: &str) -> Result<(), Refused> {
    let Some(function) = name.strip_prefix(MANAGED_PREFIX) else { return Ok(()) };
    let owner = match function.split_once('.') {
        Some((namespace, name)) => format!("function {name} in namespace {namespace}"),
        None => "a function".to_owned(),
    };
    Err(Refused::Conflict(format!(
        "subscription {name:?} belongs to {owner}: change or delete the triggers of the function instead"
    )))
}

fn read(
    namespace: &str,
    name: &str,
    mut body: Value,
    before: Option<&Document>,
) -> Result<Document, Problem> {
    if let Some(metadata) = body["metadata"].as_object_mut() {
        metadata.entry("namespace").or_insert_with(|| namespace.into());
    }
    let parsed = Document::given(&body, before);
    let mut faults = parsed.as_ref().err().cloned().unwrap_or_default();
    for (member, expected) in [("namespace", namespace), ("name", name)] {
        if let Some(named) = body["metadata"][member].as_str().filter(|named| *named != expected) {
            let message = format!("is `{named}`, but the request is for `{expected}`");
            faults.push(Fault::new(format!("metadata.{member}"), message));
        }
    }
    if parsed.as_ref().is_ok_and(|document| document.spec.target.function().is_some()) {
        let message = "a subscription of a function is made by the function's own triggers; name target.url";
        faults.push(Fault::new("spec.target.function", message));
    }
    match parsed {
        Ok(document) if faults.is_empty() => Ok(document),
        _ => Err(invalid(faults)),
    }
}

/// What is discarded goes in parts, so that others get their turn in between.
async fn discard_parts(api: &Api, document: &Document) -> Result<(), Problem> {
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
        many => format!("{} things are wrong with the subscription", many.len()),
    };
    Problem::invalid_subscription(detail).faults(faults)
}

fn create_or_change(
    engine: &mut Engine,
    document: Document,
    discard: bool,
    only_new: bool,
) -> Result<(Put, Subscription), Problem> {
    let name = document.full_name().into_owned();
    let is_new = engine.subscription_id(&name).is_err();
    if let From::Time(time) = document.spec.from
        && is_new
        && time > engine.now()
    {
        let message = format!("{} is in the future; latest begins with what comes next", time.rfc3339());
        return Err(invalid(vec![Fault::new("spec.from", message)]));
    }
    if only_new && !is_new {
        return Err(Problem::exists(format!("there is a subscription {name:?} already")));
    }
    let put = engine.put_subscription(document, discard)?;
    Ok((put, view(engine, &name)?))
}

pub async fn delete(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["drain", "discard"]);
    let leftover = match (params.flag("drain"), params.flag("discard")) {
        (false, false) => Leftover::Refuse,
        (true, false) => Leftover::Drain,
        (false, true) => Leftover::Discard,
        (true, true) => {
            params.fault("drain", "cannot be asked for together with discard");
            Leftover::Refuse
        }
    };
    params.finish()?;
    refuse_managed(&name)?;
    let name = namespace.full_name(&name);
    let (gone, shown) = api.command(move |engine| remove(engine, &name, leftover)).await??;
    let status = if gone { StatusCode::OK } else { StatusCode::ACCEPTED };
    Ok((status, Json(shown)).into_response())
}

/// Whether it is gone, and how it was or is.
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
