//! `/api/v1/events`: the log by page, the log as it grows, and the state of one event. `accept` receives events.

pub mod accept;
mod newest;
mod page;
mod tail;

use crate::api::Api;
use crate::extract::Path;
use crate::namespace::{Namespace, Scope};
use crate::params::{LIMIT_DEFAULT, Params};
use crate::problem::Problem;
use crate::stream::wants_stream;
use axum::response::{IntoResponse, Response};
use http::{HeaderMap, Uri};
use klambda_core::fault::unknown as unknown_word;
use klambda_core::ids::{NamespaceId, Position, plain_number};
use klambda_dispatch::history::{Filter, Found, History, Item, Kinds, push};
use klambda_dispatch::views::{CloudEvent, Fate, Sighting, Time};
use klambda_store::address::LogAddress;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::value::RawValue;
use std::collections::HashMap;

pub async fn list(api: Api, scope: Scope, uri: Uri, headers: HeaderMap) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["after", "before", "order", "type", "limit"]);
    let kinds = params.text("type").map_or(Kinds::All, Kinds::parse);
    let after = params.number("after").map(Position);
    let limit = params.text("limit").is_some().then(|| params.limit());
    let before = params.number("before").map(Position);
    if is_newest_first(&params, &headers) {
        params.finish()?;
        let wanted = Wanted::read(&api, scope, kinds).await?;
        return newest::open(api, before, wanted, limit.unwrap_or(LIMIT_DEFAULT)).await;
    }
    if wants_stream(&headers) {
        let after = last_event_id(&headers, &params).or(after);
        params.finish()?;
        let wanted = Wanted::read(&api, scope, kinds).await?;
        let opener = api.opener(&headers);
        return tail::open(api, opener, after, wanted, limit).await;
    }
    params.finish()?;
    let wanted = Wanted::read(&api, scope, kinds).await?;
    page::open(api, after.unwrap_or_default(), wanted, limit.unwrap_or(LIMIT_DEFAULT)).await
}

fn is_newest_first(params: &Params, headers: &HeaderMap) -> bool {
    let order = params.parsed("order", |text| match text {
        "asc" => Ok(false),
        "desc" => Ok(true),
        other => Err(unknown_word("order", other, &["asc", "desc"])),
    });
    let newest_first = order.unwrap_or(false);
    if newest_first && wants_stream(headers) {
        params.fault("order", "cannot be desc in a stream");
    }
    match newest_first {
        true if params.text("after").is_some() => params.fault("after", "needs order=asc; use before"),
        false if params.text("before").is_some() => params.fault("before", "needs order=desc; use after"),
        _ => {}
    }
    newest_first
}

/// The filter of a list and its output format.
struct Wanted {
    filter: Filter,
    /// The names of namespaces, if the list covers all of them.
    names: Option<HashMap<NamespaceId, String>>,
}

impl Wanted {
    async fn read(api: &Api, scope: Scope, kinds: Kinds) -> Result<Wanted, Problem> {
        let (namespaces, names) = match scope {
            Scope::All => (None, Some(names(api).await?)),
            Scope::One(namespace) => (Some(vec![one(api, namespace).await?]), None),
            Scope::These(wanted) => {
                let names = names(api).await?;
                let ids = names.iter().filter(|(_, name)| wanted.contains(*name)).map(|(id, _)| *id);
                (Some(ids.collect()), Some(names))
            }
        };
        Ok(Wanted { filter: Filter { namespaces, kinds }, names })
    }

    /// For a list that continues: looks up new namespaces.
    async fn know(&mut self, api: &Api, items: &[Item]) -> Result<(), Problem> {
        let is_unknown =
            |names: &HashMap<_, _>| items.iter().any(|item| !names.contains_key(&item.namespace));
        if self.names.as_ref().is_some_and(is_unknown) {
            self.names = Some(names(api).await?);
        }
        Ok(())
    }

    fn write(&self, item: &Item, out: &mut Vec<u8>) {
        let Some(names) = &self.names else { return out.extend_from_slice(&item.json) };
        // Namespace names need no escaping. The name of a deleted namespace is unknown.
        let name = names.get(&item.namespace).map_or("null".to_owned(), |name| format!("\"{name}\""));
        out.extend_from_slice(format!("{{\"namespace\":{name},").as_bytes());
        out.extend_from_slice(&item.json[1..]);
    }
}

async fn names(api: &Api) -> Result<HashMap<NamespaceId, String>, Problem> {
    api.query(|engine| engine.namespace_names()).await
}

async fn one(api: &Api, namespace: Namespace) -> Result<NamespaceId, Problem> {
    Ok(api.query(move |engine| engine.namespace_id(&namespace)).await??)
}

/// Where a client that lost its connection resumes.
fn last_event_id(headers: &HeaderMap, params: &Params) -> Option<Position> {
    let value = headers.get("last-event-id")?;
    let position = value.to_str().ok().and_then(|text| plain_number(text.trim())).map(Position);
    if position.is_none() {
        params.fault("Last-Event-ID", "must be a position");
    }
    position
}

// ---- one event ------------------------------------------------------------------------------------------------

#[derive(Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(rename = "TracedEvent")]
pub struct Traced {
    #[schemars(with = "CloudEvent")]
    event: Box<RawValue>,
    position: u64,
    accepted_at: Time,
    fates: Vec<Fate>,
}

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path(id): Path<String>,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["source"]);
    params.finish()?;
    let namespace = one(&api, namespace).await?;
    let _turn = api.turns.shows.acquire().await;
    let found = match params.owned("source") {
        Some(source) => by_marks(&api, namespace, &source, &id).await?,
        None => Vec::new(),
    };
    let found =
        if found.is_empty() { search(&api, namespace, &id, params.owned("source")).await? } else { found };
    let Some(newest) = found.last() else { return Err(unknown(&id, params.text("source"))) };
    let written: Vec<(LogAddress, Position)> = found.iter().map(|found| (found.at, found.position)).collect();
    let (source, event_id) = (newest.source.clone(), id.clone());
    let fates = api.query(move |engine| engine.fates(namespace, &source, &event_id, &written)).await??;
    let fates = api.blocking(move |history| resolved(fates, history)).await?;
    let traced = Traced {
        event: json(&newest.event)?,
        position: newest.position.0,
        accepted_at: Time(newest.accepted),
        fates,
    };
    Ok(crate::extract::Json(traced).into_response())
}

fn resolved(mut fates: Vec<Fate>, history: &History) -> Vec<Fate> {
    fates.iter_mut().for_each(|fate| fate.resolve(history.reader()));
    fates
}

async fn by_marks(api: &Api, namespace: NamespaceId, source: &str, id: &str) -> Result<Vec<Found>, Problem> {
    let (source, id) = (source.to_owned(), id.to_owned());
    let sightings = api.query(move |engine| engine.sightings(namespace, &source, &id)).await??;
    // A mark can outlive its event. Events that retention has removed are skipped.
    let read = move |history: &History| {
        let at = |sighting: Sighting| history.at(sighting.at, sighting.located).ok().flatten();
        let mut found = Vec::new();
        for newer in sightings.into_iter().filter_map(at) {
            push(&mut found, newer);
        }
        found
    };
    api.blocking(read).await
}

async fn search(
    api: &Api,
    namespace: NamespaceId,
    id: &str,
    source: Option<String>,
) -> Result<Vec<Found>, Problem> {
    let wanted = id.to_owned();
    let given = source.is_some();
    let found = api.blocking(move |history| history.search(namespace, &wanted, source.as_deref())).await??;
    let mut sources: Vec<&str> = found.iter().map(|found| found.source.as_str()).collect();
    sources.sort_unstable();
    sources.dedup();
    if !given && sources.len() > 1 {
        let detail = format!("several sources have an event {id:?}: select one with ?source=");
        return Err(Problem::bad_request(detail).with("sources", sources));
    }
    if !given && let Some(source) = sources.first() {
        // Marks cover more than the newest part of the log.
        return by_marks(api, namespace, source, id)
            .await
            .map(|marked| if marked.is_empty() { found } else { marked });
    }
    Ok(found)
}

fn unknown(id: &str, source: Option<&str>) -> Problem {
    Problem::not_found(match source {
        Some(source) => format!("event {id:?} of source {source:?} not found"),
        None => format!(
            "event {id:?} not found in the newest part of the log; to find an older one, name its source with ?source="
        ),
    })
}

fn json(event: &[u8]) -> Result<Box<RawValue>, Problem> {
    klambda_dispatch::views::event_json(event)
        .map_err(|error| Problem::internal(format!("could not read the event: {error}")))
}
