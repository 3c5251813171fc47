//! `/api/v1/lanes`: the keys of ordered subscriptions, why they wait, and actions on them.

use crate::api::Api;
use crate::auth::Who;
use crate::extract::{Json, Path};
use crate::ingress;
use crate::namespace::{Namespace, Scope};
use crate::params::Params;
use crate::problem::Problem;
use crate::request_body::{self, Faults, Members};
use axum::response::{IntoResponse, Response};
use bytes::Bytes;
use http::Uri;
use klambda_core::fault::unknown;
use klambda_core::ids::Sequence;
use klambda_core::key::SEQUENCE_MAX;
use klambda_core::lane::State;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::{LaneAction, Refused};
use klambda_dispatch::views::{Lane, LaneQuery, Ranking, Sort};
use schemars::JsonSchema;
use serde::Serialize;

#[derive(Serialize, JsonSchema)]
#[schemars(rename = "LanePage")]
pub struct List {
    items: Vec<Lane>,
    next: Option<String>,
    /// For a sorted list: not all lanes were compared.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    partial: bool,
}

/// Maximum number of short queries to the engine for one page. A page may end early; `next` shows it.
const LOOKS_MAX: usize = 40;

pub async fn list(api: Api, scope: Scope, uri: Uri) -> Result<Response, Problem> {
    let (query, sort) = match read(&uri, &scope)? {
        LaneRequest::One { subscription, key } => return shown(&api, subscription, key).await,
        LaneRequest::Many(query, sort) => (query, sort),
    };
    let name = query.subscription.clone();
    let is_there = move |engine: &mut Engine| {
        scope.must_be_there(engine)?;
        name.map_or(Ok(()), |name| engine.subscription_id(&name).map(drop))
    };
    api.query(is_there).await??;
    let list = match sort {
        Some(sort) => ranked(&api, Ranking::new(sort, &query), query.limit).await?,
        None => by_key(&api, query).await?,
    };
    Ok(Json(list).into_response())
}

enum LaneRequest {
    /// `?subscription=&key=`: for keys that do not fit into a path.
    One {
        subscription: String,
        key: String,
    },
    Many(LaneQuery, Option<Sort>),
}

fn read(uri: &Uri, scope: &Scope) -> Result<LaneRequest, Problem> {
    let params = Params::read(uri, &["subscription", "key", "state", "sort", "limit", "cursor"]);
    let subscription = params.text("subscription").map(|name| scope.full_name(name)).transpose()?;
    if let Some(key) = params.owned("key") {
        return one(&params, subscription, key);
    }
    let state = params.parsed("state", state);
    let sort = params.parsed("sort", sort);
    let limit = params.limit();
    let after = params.parsed("cursor", |text| {
        let (name, key) = text.split_once('~').ok_or("is not a cursor of this list")?;
        Ok((name.to_owned(), key.to_owned()))
    });
    if sort.is_some() && params.text("cursor").is_some() {
        params.fault("cursor", "a sorted list has only one page with the first 100 lanes");
    }
    params.finish()?;
    Ok(LaneRequest::Many(LaneQuery { within: scope.within(), subscription, state, after, limit }, sort))
}

fn one(params: &Params, subscription: Option<String>, key: String) -> Result<LaneRequest, Problem> {
    for name in ["state", "sort", "limit", "cursor"] {
        if params.text(name).is_some() {
            params.fault(name, "cannot be combined with key, which selects one lane");
        }
    }
    if subscription.is_none() {
        params.fault("subscription", "is missing: key selects a lane of a subscription");
    }
    params.finish()?;
    Ok(LaneRequest::One { subscription: subscription.unwrap_or_default(), key })
}

fn state(text: &str) -> Result<State, String> {
    let names = State::ALL.map(State::name);
    let state = State::ALL.into_iter().find(|state| state.name() == text);
    state.ok_or_else(|| unknown("state", text, &names))
}

fn sort(text: &str) -> Result<Sort, String> {
    match text {
        "depth" => Ok(Sort::Depth),
        "age" => Ok(Sort::Age),
        "rate" => Ok(Sort::Rate),
        other => Err(unknown("order", other, &["depth", "age", "rate"])),
    }
}

async fn by_key(api: &Api, query: LaneQuery) -> Result<List, Problem> {
    let (limit, mut after) = (query.limit, query.after.clone());
    let mut items = Vec::new();
    for _ in 0..LOOKS_MAX {
        let query = LaneQuery { after, limit: limit - items.len(), ..query.clone() };
        let page = api.query(move |engine| engine.view_lanes(&query)).await??;
        items.extend(page.items);
        after = page.after;
        if after.is_none() || items.len() == limit {
            break;
        }
    }
    let items = resolve(api, items).await?;
    Ok(List { items, next: after.map(|(name, key)| format!("{name}~{key}")), partial: false })
}

async fn ranked(api: &Api, mut ranking: Ranking, limit: usize) -> Result<List, Problem> {
    loop {
        let (more, back) = api
            .query(move |engine| {
                let more = engine.rank_lanes(&mut ranking);
                (more, ranking)
            })
            .await?;
        ranking = back;
        if !more? {
            break;
        }
    }
    let partial = ranking.is_partial();
    let mut items = ranking.into_lanes();
    items.truncate(limit);
    Ok(List { items: resolve(api, items).await?, next: None, partial })
}

/// Reads the parts of a view that are only in the log.
async fn resolve(api: &Api, mut lanes: Vec<Lane>) -> Result<Vec<Lane>, Problem> {
    api.blocking(move |history| {
        lanes.iter_mut().for_each(|lane| lane.resolve(history.reader()));
        lanes
    })
    .await
}

// ---- one lane -------------------------------------------------------------------------------------------------

pub async fn show(
    api: Api,
    namespace: Namespace,
    uri: Uri,
    Path((subscription, key)): Path<(String, String)>,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    shown(&api, namespace.full_name(&subscription), key).await
}

async fn shown(api: &Api, subscription: String, key: String) -> Result<Response, Problem> {
    let lane = api.query(move |engine| view(engine, &subscription, &key)).await??;
    answer(api, lane).await
}

fn view(engine: &Engine, name: &str, key: &str) -> Result<Lane, Refused> {
    engine.subscription_id(name)?;
    let lane = engine.view_lane(name, key)?;
    lane.ok_or_else(|| Refused::NotFound(format!("subscription {name:?} has no lane {key:?}")))
}

async fn answer(api: &Api, lane: Lane) -> Result<Response, Problem> {
    let lanes = resolve(api, vec![lane]).await?;
    Ok(Json(lanes.into_iter().next()).into_response())
}

// ---- actions --------------------------------------------------------------------------------------------------

pub async fn act(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path((subscription, key, action)): Path<(String, String, String)>,
    body: Bytes,
) -> Result<Response, Problem> {
    Params::none(&uri)?;
    ingress::may_act_on(&who, &namespace, &subscription)?;
    acted(&api, namespace.full_name(&subscription), key, &action, &body).await
}

/// `POST /api/v1/lanes/{action}?subscription=&key=`.
pub async fn act_on_query(
    api: Api,
    who: Who,
    namespace: Namespace,
    uri: Uri,
    Path(action): Path<String>,
    body: Bytes,
) -> Result<Response, Problem> {
    let params = Params::read(&uri, &["subscription", "key"]);
    for name in ["subscription", "key"] {
        if params.text(name).is_none() {
            params.fault(name, "is missing");
        }
    }
    params.finish()?;
    let subscription = params.text("subscription").unwrap_or_default();
    ingress::may_act_on(&who, &namespace, subscription)?;
    let subscription = namespace.full_name(subscription);
    acted(&api, subscription, params.owned("key").unwrap_or_default(), &action, &body).await
}

async fn acted(
    api: &Api,
    subscription: String,
    key: String,
    action: &str,
    body: &Bytes,
) -> Result<Response, Problem> {
    let action = read_action(action, body)?;
    if action == LaneAction::Purge {
        purge_parts(api, &subscription, &key).await?;
    }
    let done = move |engine: &mut Engine| {
        engine.act_on_lane(&subscription, &key, action)?;
        view(engine, &subscription, &key)
    };
    let lane = api.command(done).await??;
    answer(api, lane).await
}

/// Purges many events in parts, except the last, so that other requests run in between. Purged events stay purged, even if
/// a later part is rejected or the client disconnects.
async fn purge_parts(api: &Api, subscription: &str, key: &str) -> Result<(), Problem> {
    loop {
        let (subscription, key) = (subscription.to_owned(), key.to_owned());
        if !api.query(move |engine| engine.purge_lane_part(&subscription, &key)).await?? {
            return Ok(());
        }
    }
}

fn read_action(action: &str, body: &Bytes) -> Result<LaneAction, Problem> {
    let body = request_body::parse(body)?;
    let faults = Faults::default();
    let read = match action {
        "resume" => LaneAction::Resume,
        "skip" => LaneAction::Skip,
        "purge" => LaneAction::Purge,
        "pause" => LaneAction::Pause,
        "reset" => {
            let members = Members::of(&body, &["expected"], &faults);
            if !members.has("expected") {
                members.fault("expected", "is missing: the next expected sequence");
            }
            let expected = members.number("expected", 0..=SEQUENCE_MAX).unwrap_or_default();
            faults.finish(Problem::invalid_body)?;
            return Ok(LaneAction::Reset { expected: Sequence(expected) });
        }
        other => {
            let known = ["resume", "skip", "purge", "pause", "reset"];
            return Err(Problem::not_found(unknown("action", other, &known)));
        }
    };
    Members::of(&body, &[], &faults);
    faults.finish(Problem::invalid_body)?;
    Ok(read)
}
