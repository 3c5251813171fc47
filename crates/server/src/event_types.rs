//! `/api/v1/event-types`: the catalogue of the events of a namespace, with a JSON Schema of their data.

pub mod catalogue;
pub mod check;
mod schemas;
pub mod stored;

use crate::api::{Api, blocking};
use crate::extract::{Json, Path};
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::{Fault, Problem};
use crate::request_body;
use crate::subscriptions::tried;
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use catalogue::Catalogue;
use http::{HeaderMap, StatusCode, Uri, header};
use klambda_core::event_type::{Document, KIND};
use klambda_core::schema::API_VERSION;
use klambda_dispatch::documents::{self, Expected, Write};
use klambda_dispatch::operate::{Put, Refused};
use klambda_dispatch::views::{EventTypeSpec, Page, Time};
use klambda_dispatch::{Engine, audit};
use klambda_event_schema::Schema;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::sync::Arc;
use stored::Stored;

/// A page of the list ends here, however many event types were asked for.
const PAGE_BYTES_MAX: usize = 1 << 20;

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EventType")]
pub struct View {
    api_version: &'static str,
    kind: &'static str,
    metadata: Metadata,
    #[schemars(with = "EventTypeSpec")]
    spec: Value,
}

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "EventTypeMetadata")]
struct Metadata {
    namespace: String,
    name: String,
    created_at: Time,
}

impl From<Stored> for View {
    fn from(Stored { created, document }: Stored) -> View {
        let spec = document.to_json()["spec"].take();
        let metadata =
            Metadata { namespace: document.namespace, name: document.name, created_at: Time(created) };
        View { api_version: API_VERSION, kind: KIND, metadata, spec }
    }
}

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["limit", "cursor"]);
    let (limit, after) = (params.limit(), params.owned("cursor"));
    params.finish()?;
    let types = Arc::clone(&api.intake.types);
    let page = api.query(move |engine| {
        scope.must_be_there(engine)?;
        let keys = types.keys(&scope.within(), after.as_deref(), limit + 1);
        Ok::<_, Problem>(page(engine, keys, limit)?)
    });
    Ok(Json(page.await??).into_response())
}

/// `keys`: one more than the limit, if there are more.
fn page(engine: &Engine, keys: Vec<String>, limit: usize) -> Result<Page<View>, documents::Error> {
    let (mut items, mut bytes, mut last) = (Vec::new(), 0, None);
    for key in &keys {
        if items.len() == limit || bytes >= PAGE_BYTES_MAX {
            return Ok(Page { items, next: last });
        }
        let Some(found) = engine.document(stored::KIND, key)? else { continue };
        bytes += found.content.len();
        items.extend(Stored::decode(&found.content).map(View::from));
        last = Some(key.clone());
    }
    Ok(Page { items, next: None })
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let found = api.query(move |engine| find(engine, &namespace, &name)).await??;
    Ok(Json(View::from(found)).into_response())
}

fn find(engine: &Engine, namespace: &str, name: &str) -> Result<Stored, Problem> {
    engine.namespace_id(namespace)?;
    let missing = || Refused::NotFound(format!("event type {name:?} not found"));
    Ok(before(engine, namespace, name)?.ok_or_else(missing)?)
}

/// The stored event type. A damaged one can only be replaced.
fn before(engine: &Engine, namespace: &str, name: &str) -> Result<Option<Stored>, Problem> {
    let found = engine.document(stored::KIND, &stored::key(namespace, name))?;
    Ok(found.and_then(|found| Stored::decode(&found.content)))
}

// ---- create and change ----------------------------------------------------------------------------------------

pub async fn create(api: Api, namespace: Namespace, uri: Uri, body: Bytes) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["dryRun"]);
    let dry_run = params.flag("dryRun");
    params.finish()?;
    let document = read(&[("namespace", &namespace)], request_body::parse(&body)?).await?;
    audit::named(&document.name);
    write(api, namespace, document, dry_run, OnlyNew::Create).await
}

pub async fn put(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
    headers: HeaderMap,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["dryRun"]);
    let dry_run = params.flag("dryRun");
    params.finish()?;
    let address = [("namespace", &*namespace), ("name", name.as_str())];
    let document = read(&address, request_body::parse(&body)?).await?;
    let star = headers.get(header::IF_NONE_MATCH).is_some_and(|value| value.as_bytes() == b"*");
    write(api, namespace, document, dry_run, if star { OnlyNew::Condition } else { OnlyNew::No }).await
}

/// Whether a write may change an event type that exists, and how it says that it may not.
#[derive(Clone, Copy, PartialEq, Eq)]
enum OnlyNew {
    No,
    /// `POST`.
    Create,
    /// `If-None-Match: *`.
    Condition,
}

async fn write(
    api: Api,
    namespace: Namespace,
    document: Document,
    dry_run: bool,
    only_new: OnlyNew,
) -> Result<Response, Problem> {
    let types = Arc::clone(&api.intake.types);
    if dry_run {
        let after = document.to_json();
        let checked = move |engine: &mut Engine| check_put(engine, &types, &document, only_new);
        return Ok(tried(api.query(checked).await??.0, after));
    }
    let location = namespace.address(&format!("event-types/{}", document.name));
    let done = move |engine: &mut Engine| store(engine, &types, document, only_new);
    let (put, shown) = api.command(done).await??;
    Ok(match put {
        Put::Created => (StatusCode::CREATED, [(header::LOCATION, location)], Json(shown)).into_response(),
        Put::Changed | Put::Unchanged | Put::Draining => Json(shown).into_response(),
    })
}

/// What a write would do, and the event type before it. Changes nothing.
fn check_put(
    engine: &Engine,
    types: &Catalogue,
    document: &Document,
    only_new: OnlyNew,
) -> Result<(Put, Option<Stored>), Problem> {
    let Document { namespace, name, .. } = document;
    engine.namespace_id(namespace)?;
    let before = before(engine, namespace, name)?;
    let exists = || format!("event type {name:?} already exists");
    match (&before, only_new) {
        (Some(_), OnlyNew::Condition) => return Err(Problem::exists(exists())),
        (Some(_), OnlyNew::Create) => {
            return Err(Problem::conflict(format!("{}; use `klambda apply` to change it", exists())));
        }
        // As they are shown, because a document may leave out its type.
        (Some(before), OnlyNew::No) if before.document.to_json() == document.to_json() => {
            return Ok((Put::Unchanged, None));
        }
        _ => {}
    }
    types.must_fit(namespace, name, document.event_type())?;
    let put = if before.is_some() { Put::Changed } else { Put::Created };
    Ok((put, before))
}

fn store(
    engine: &mut Engine,
    types: &Catalogue,
    document: Document,
    only_new: OnlyNew,
) -> Result<(Put, View), Problem> {
    let (put, before) = check_put(engine, types, &document, only_new)?;
    if put == Put::Unchanged {
        return Ok((put, find(engine, &document.namespace, &document.name)?.into()));
    }
    let created = before.map_or(engine.now(), |before| before.created);
    let stored = Stored { created, document };
    let Document { namespace, name, .. } = &stored.document;
    let version = put_document(engine, namespace, name, Some(stored.encode()))?;
    types.note(namespace, name, Some(stored.known(version)));
    Ok((put, stored.into()))
}

fn put_document(
    engine: &mut Engine,
    namespace: &str,
    name: &str,
    content: Option<Vec<u8>>,
) -> Result<u64, documents::Error> {
    let (kind, key) = (stored::KIND.to_owned(), stored::key(namespace, name));
    engine.put_documents(&[Write { kind, key, content, expected: Expected::Any }], &[])
}

pub async fn delete(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(name): Path<String>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    let types = Arc::clone(&api.intake.types);
    let done = move |engine: &mut Engine| {
        let shown = find(engine, &namespace, &name)?;
        put_document(engine, &namespace, &name, None)?;
        types.note(&namespace, &name, None);
        Ok::<_, Problem>(View::from(shown))
    };
    Ok(Json(api.command(done).await??).into_response())
}

// ---- the document ---------------------------------------------------------------------------------------------

async fn read(address: &[(&str, &str)], mut body: Value) -> Result<Document, Problem> {
    let mut faults = request_body::place(&mut body, address);
    let parsed = Document::parse(&body);
    faults.splice(0..0, parsed.as_ref().err().into_iter().flatten().cloned());
    match parsed {
        // A large schema takes a while to compile.
        Ok(document) if faults.is_empty() => blocking(move || compiled(document)).await?.map_err(invalid),
        _ => Err(invalid(faults)),
    }
}

/// The schema must compile, and the example must match it.
fn compiled(document: Document) -> Result<Document, Vec<Fault>> {
    let Some(schema) = &document.spec.schema else { return Ok(document) };
    let schema = Schema::compile(schema)
        .map_err(|fault| vec![Fault::new(format!("spec.schema{}", fault.path), fault.message)])?;
    let checked = document.spec.example.as_ref().map_or(Ok(()), |example| schema.check_value(example));
    match checked {
        Ok(()) => Ok(document),
        Err(violation) => {
            let path = format!("spec.example{}", violation.pointer);
            let message = format!("does not match the schema ({}): {}", violation.rule, violation.message);
            Err(vec![Fault::new(path, message)])
        }
    }
}

fn invalid(faults: Vec<Fault>) -> Problem {
    let detail = match faults.as_slice() {
        [one] => one.to_string(),
        many => format!("the event type has {} errors", many.len()),
    };
    Problem::invalid_event_type(detail).faults(faults)
}

impl From<documents::Error> for Problem {
    fn from(error: documents::Error) -> Problem {
        let detail = error.to_string();
        match error {
            documents::Error::Refused(refused) => refused.into(),
            documents::Error::Conflict { .. } => Problem::conflict(detail),
            documents::Error::Invalid(_) => Problem::too_large(detail),
        }
    }
}
