//! All routes of the server, with the required role and the handler of each. The router is built from this table, so only
//! these paths are served.

use crate::api::Gate;
use crate::auth::{Unknown, Who};
use crate::functions::{invoke, logs, revisions, watch};
use crate::namespace::{self, Scope};
use crate::problem::Problem;
use crate::router::EVENTS;
use crate::{
    audit, backup, cost, dead_letters, event_types, events, functions, lanes, metrics, namespaces, openapi,
    overview, replays, secrets, status, subscriptions, tokens, ui, webhooks, whoami,
};
use Need::{In, Known, List, Own, Public, Server, Somewhere};
use axum::Router;
use axum::extract::{DefaultBodyLimit, Request};
use axum::handler::Handler;
use axum::middleware::{Next, from_fn, from_fn_with_state};
use axum::response::{IntoResponse, Response};
use axum::routing::{self, MethodRouter};
use http::{Method, Uri};
use klambda_access::{Identity, Reach, Role};
use klambda_dispatch::audit::on_behalf;
use std::fmt;

pub struct Route {
    pub method: Method,
    pub path: &'static str,
    pub need: Need,
    way: Way,
}

/// The rights that a request needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// Nothing, not even a token.
    Public,
    /// A valid token of any role, because it says nothing about the data of this server.
    Known,
    /// A role in the namespace of the request.
    In(Role),
    /// The same, or a role for the webhook endpoint that the request names. A request that names none is for the endpoint
    /// of its token.
    Own(Role, Role),
    /// The same as `In`, for a list: of one namespace, or of all that the caller may read.
    List(Role),
    /// A role in all namespaces, because it affects the whole server.
    Server(Role),
    /// A role in at least one namespace. The response contains only what the caller may see.
    Somewhere(Role),
}

enum Way {
    /// Handled before routing.
    Direct,
    Routed(MethodRouter<Gate>),
    /// Rate-limited by client, and counted.
    Watched(MethodRouter<Gate>),
}

const VIEWER: Role = Role::Viewer;
const OPERATOR: Role = Role::Operator;
const DEVELOPER: Role = Role::Developer;
const ADMIN: Role = Role::Admin;
/// The role for sending events and calling functions.
pub const PRODUCER: Role = Role::Producer;

/// The table of routes.
pub fn routes() -> Vec<Route> {
    let mut routes = vec![
        direct(Method::GET, "/healthz", Public),
        direct(Method::GET, "/health", Public),
        get("/readyz", Public, status::ready),
        get("/metrics", Server(VIEWER), metrics::show),
        get("/api/v1/openapi.json", Known, openapi::show),
        get("/api/v1/docs", Known, openapi::show_page),
        get("/", Public, ui::forward),
        get("/ui", Public, ui::page),
        get("/ui/{file}", Public, ui::file),
        get("/ui/session", Public, ui::session::show),
        post("/ui/session", Public, ui::session::create),
        delete("/ui/session", Public, ui::session::delete),
        get("/ui/sign-in", Public, ui::sign_in::start),
        get("/ui/callback", Public, ui::sign_in::callback),
        get("/api/v1/whoami", Known, whoami::show),
        get("/api/v1/overview", List(VIEWER), overview::show),
        get("/api/v1/status", Server(VIEWER), status::show),
        get("/api/v1/cost", Server(VIEWER), cost::show),
        post("/api/v1/backup", Server(ADMIN), backup::take),
        get("/api/v1/audit", List(DEVELOPER), audit::list),
        get("/api/v1/tokens", Somewhere(ADMIN), tokens::list),
        post("/api/v1/tokens", Somewhere(ADMIN), tokens::create),
        get("/api/v1/tokens/{name}", Somewhere(ADMIN), tokens::show),
        delete("/api/v1/tokens/{name}", Somewhere(ADMIN), tokens::delete),
        direct(Method::POST, EVENTS, In(PRODUCER)),
        get(EVENTS, List(VIEWER), events::list),
        get("/api/v1/events/{id}", In(VIEWER), events::show),
        get("/api/v1/namespaces", Somewhere(VIEWER), namespaces::list),
        get("/api/v1/namespaces/{name}", In(VIEWER), namespaces::show),
        put("/api/v1/namespaces/{name}", Server(ADMIN), namespaces::put),
        delete("/api/v1/namespaces/{name}", Server(ADMIN), namespaces::delete),
        get("/api/v1/subscriptions", List(VIEWER), subscriptions::list),
        get("/api/v1/subscriptions/{name}", In(VIEWER), subscriptions::show),
        put("/api/v1/subscriptions/{name}", In(DEVELOPER), subscriptions::put),
        delete("/api/v1/subscriptions/{name}", In(DEVELOPER), subscriptions::delete),
        post("/api/v1/subscriptions/{name}/{action}", In(OPERATOR), subscriptions::act),
        get("/api/v1/event-types", List(VIEWER), event_types::list),
        post("/api/v1/event-types", In(DEVELOPER), event_types::create),
        get("/api/v1/event-types/{name}", In(VIEWER), event_types::show),
        put("/api/v1/event-types/{name}", In(DEVELOPER), event_types::put),
        delete("/api/v1/event-types/{name}", In(DEVELOPER), event_types::delete),
        get("/api/v1/secrets", List(VIEWER), secrets::list),
        post("/api/v1/secrets/rekey", Server(ADMIN), secrets::rekey),
        get("/api/v1/secrets/{name}", In(VIEWER), secrets::show),
        put("/api/v1/secrets/{name}", In(DEVELOPER), secrets::put),
        patch("/api/v1/secrets/{name}", In(DEVELOPER), secrets::patch),
        delete("/api/v1/secrets/{name}", In(DEVELOPER), secrets::delete),
        get("/api/v1/webhooks/endpoints", List(VIEWER), webhooks::list),
        post("/api/v1/webhooks/endpoints", In(DEVELOPER), webhooks::create),
        get("/api/v1/webhooks/endpoints/{name}", In(VIEWER), webhooks::show),
        put("/api/v1/webhooks/endpoints/{name}", In(DEVELOPER), webhooks::put),
        delete("/api/v1/webhooks/endpoints/{name}", In(DEVELOPER), webhooks::delete),
        post(
            "/api/v1/webhooks/endpoints/{name}/rotate",
            Own(DEVELOPER, Role::EndpointAdmin),
            webhooks::rotate,
        ),
        get(
            "/api/v1/webhooks/endpoints/{name}/deliveries",
            Own(VIEWER, Role::Endpoint),
            webhooks::deliveries::list,
        ),
        post(
            "/api/v1/webhooks/endpoints/{name}/resend",
            Own(OPERATOR, Role::EndpointAdmin),
            webhooks::resend::create,
        ),
        post(
            "/api/v1/webhooks/endpoints/{name}/recover",
            Own(OPERATOR, Role::EndpointAdmin),
            webhooks::recover::create,
        ),
        get(
            "/api/v1/webhooks/endpoints/{name}/recover/{id}",
            Own(VIEWER, Role::EndpointAdmin),
            webhooks::recover::show,
        ),
        delete(
            "/api/v1/webhooks/endpoints/{name}/recover/{id}",
            Own(OPERATOR, Role::EndpointAdmin),
            webhooks::recover::stop,
        ),
        // A developer, because the link allows to rotate the secret.
        post("/api/v1/webhooks/endpoints/{name}/link", In(DEVELOPER), webhooks::link::create),
        post("/api/v1/webhooks/endpoints/{name}/test", In(OPERATOR), webhooks::test),
        post("/api/v1/webhooks/endpoints/{name}/{action}", In(OPERATOR), webhooks::act),
        get("/api/v1/webhooks/events", Own(VIEWER, Role::Endpoint), webhooks::feed::read),
        post("/api/v1/webhooks/ack", Own(OPERATOR, Role::Endpoint), webhooks::acknowledge::create),
        get("/api/v1/lanes", List(VIEWER), lanes::list),
        post("/api/v1/lanes/{action}", In(OPERATOR), lanes::act_on_query),
        get("/api/v1/lanes/{subscription}/{key}", In(VIEWER), lanes::show),
        post("/api/v1/lanes/{subscription}/{key}/{action}", In(OPERATOR), lanes::act),
        get("/api/v1/dlq", List(VIEWER), dead_letters::list),
        post("/api/v1/dlq/purge", In(OPERATOR), dead_letters::purge),
        get("/api/v1/dlq/replays", List(VIEWER), replays::list),
        post("/api/v1/dlq/replays", In(OPERATOR), replays::create),
        get("/api/v1/dlq/replays/{id}", In(VIEWER), replays::show),
        delete("/api/v1/dlq/replays/{id}", In(OPERATOR), replays::stop),
        get("/api/v1/dlq/{id}", In(VIEWER), dead_letters::show),
        delete("/api/v1/dlq/{id}", In(OPERATOR), dead_letters::delete),
        put("/api/v1/dlq/{id}/event", In(OPERATOR), dead_letters::edit::put),
    ];
    routes.extend(lambda([
        "/api/v1/lambda/functions",
        "/api/v1/lambda/functions/{name}",
        "/api/v1/lambda/functions/{name}/rebuild",
        "/api/v1/lambda/functions/{name}/revisions",
        "/api/v1/lambda/functions/{name}/rollback",
        "/api/v1/lambda/functions/{name}/logs",
        "/api/v1/lambda/functions/{name}/metrics",
        "/api/v1/lambda/functions/{name}/invoke",
    ]));
    routes.extend(lambda([
        "/api/v1/lambda/agents",
        "/api/v1/lambda/agents/{name}",
        "/api/v1/lambda/agents/{name}/rebuild",
        "/api/v1/lambda/agents/{name}/revisions",
        "/api/v1/lambda/agents/{name}/rollback",
        "/api/v1/lambda/agents/{name}/logs",
        "/api/v1/lambda/agents/{name}/metrics",
        "/api/v1/lambda/agents/{name}/invoke",
    ]));
    routes
}

/// Functions and agents: the same resources under two paths.
fn lambda([all, one, rebuild, history, rollback, log, numbers, invoke]: [&'static str; 8]) -> [Route; 12] {
    [
        get(all, List(VIEWER), functions::list).watched(),
        post(all, In(DEVELOPER), functions::create).watched(),
        get(one, In(VIEWER), functions::show).watched(),
        put(one, In(DEVELOPER), functions::put).watched(),
        patch(one, In(DEVELOPER), functions::patch).watched(),
        delete(one, In(DEVELOPER), functions::delete).watched(),
        post(rebuild, In(DEVELOPER), functions::rebuild).watched(),
        get(history, In(VIEWER), revisions::list).watched(),
        post(rollback, In(DEVELOPER), revisions::rollback).watched(),
        get(log, In(VIEWER), logs::show).watched(),
        get(numbers, In(VIEWER), functions::metrics::show).watched(),
        // Invocations are not rate-limited or counted here. Most take the fast path.
        post(invoke, In(PRODUCER), invoke::call),
    ]
}

/// A route that is handled before routing.
fn direct(method: Method, path: &'static str, need: Need) -> Route {
    Route { method, path, need, way: Way::Direct }
}

macro_rules! rows {
    ($($name:ident $method:ident;)+) => {$(
        fn $name<H: Handler<T, Gate>, T: 'static>(path: &'static str, need: Need, handler: H) -> Route {
            Route { method: Method::$method, path, need, way: Way::Routed(routing::$name(handler)) }
        }
    )+};
}

rows! {
    get GET;
    post POST;
    put PUT;
    patch PATCH;
    delete DELETE;
}

impl Route {
    pub fn is_rate_limited(&self) -> bool {
        matches!(self.way, Way::Watched(_))
    }

    fn watched(self) -> Route {
        match self.way {
            Way::Routed(handler) => Route { way: Way::Watched(handler), ..self },
            way => Route { way, ..self },
        }
    }
}

/// Builds the router. It expects [`Who`] and [`Scope`] on each request.
pub fn router(gate: Gate) -> Router {
    let (mut routed, mut watched) = (Router::new(), Router::new());
    for Route { path, need, way, .. } in routes() {
        let check = from_fn(move |request, next| check(path, need, request, next));
        match way {
            Way::Direct => {}
            Way::Routed(handler) => routed = routed.route(path, handler.route_layer(check)),
            Way::Watched(handler) => watched = watched.route(path, handler.route_layer(check)),
        }
    }
    let watched = watched.route_layer(from_fn_with_state(gate.clone(), watch::pass));
    // Every body was read before, under the limit of the configuration. axum's own limit would answer in plain text.
    routed.merge(watched).layer(DefaultBodyLimit::disable()).with_state(gate)
}

/// Checks whether the request is allowed. If so, handles it and adds an audit entry for its changes.
async fn check(path: &'static str, need: Need, request: Request, next: Next) -> Response {
    let (mut parts, body) = request.into_parts();
    let judged = need.judge(parts.extensions.get(), parts.extensions.get(), &parts.uri);
    if let Err(problem) = judged {
        return problem.into_response();
    }
    let entry = audit::entry(&mut parts, path, need).await;
    let answer = next.run(Request::from_parts(parts, body));
    match entry {
        Some(entry) => on_behalf(entry, answer).await,
        None => answer.await,
    }
}

impl Need {
    fn judge(self, who: Option<&Who>, named: Option<&Scope>, uri: &Uri) -> Result<(), Problem> {
        if self == Public {
            return Ok(());
        }
        let who = who.ok_or(Unknown::NoToken)?;
        let scope = named.cloned().unwrap_or_else(|| Scope::unnamed(Some(who)));
        match (self, &scope) {
            (Public, _) => Ok(()),
            (Known, _) => namespace::must_not_be_named(named, uri.path()),
            (In(_) | Own(..), Scope::All | Scope::These(_)) => Err(namespace::for_lists_only()),
            (Own(role, own), Scope::One(namespace)) => demand_own(who, role, own, namespace, uri),
            (In(role) | List(role), Scope::One(namespace)) => demand(who, role, Reach::In(namespace)),
            // A list contains only what the caller may read.
            (List(role), Scope::All | Scope::These(_)) => demand(who, role, Reach::Somewhere),
            (Server(role), _) => {
                demand(who, role, Reach::Everywhere)?;
                namespace::must_not_be_named(named, uri.path())
            }
            (Somewhere(role), _) => {
                demand(who, role, Reach::Somewhere)?;
                namespace::must_not_be_named(named, uri.path())
            }
        }
    }
}

/// The files belong to the server, so a role in one namespace is not enough.
pub fn may_read_files(who: &Identity, what: &str) -> Result<(), Problem> {
    if who.allows(Role::Admin, Reach::Everywhere) {
        return Ok(());
    }
    Err(Problem::forbidden(format!(
        "this makes the server read {what}, which requires the role admin in all namespaces; {} is {}",
        who.name, who.grant
    )))
}

/// Rejects callers without the role. Does not reveal whether the namespace exists.
pub fn demand(who: &Identity, role: Role, reach: Reach<'_>) -> Result<(), Problem> {
    if who.allows(role, reach) {
        return Ok(());
    }
    let (name, grant) = (&who.name, &who.grant);
    Err(Problem::forbidden(format!("this requires the role {role} in {reach}; {name} is {grant}")))
}

/// A role in the namespace, or a role for the endpoint that the request names.
fn demand_own(who: &Identity, role: Role, own: Role, namespace: &str, uri: &Uri) -> Result<(), Problem> {
    let named = webhooks::named(uri);
    let name = named.as_deref().or(who.grant.endpoint()).unwrap_or_default();
    if who.grant.endpoint().is_some() && who.allows(own, Reach::Endpoint { namespace, name }) {
        return Ok(());
    }
    demand(who, role, Reach::In(namespace))
}

impl fmt::Display for Need {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Public => f.write_str("nothing"),
            Known => f.write_str("any token"),
            In(role) | List(role) => write!(f, "`{role}`"),
            Own(role, own) => write!(f, "`{role}`, or `{own}` of the endpoint"),
            Server(role) => write!(f, "`{role}` of `*`"),
            Somewhere(role) => write!(f, "`{role}` of any namespace"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_access::{Grant, Namespaces};
    use std::sync::Arc;

    fn who(role: Role, namespaces: &str) -> Who {
        let namespaces = match namespaces {
            "*" => Namespaces::All,
            named => Namespaces::Named(named.split(',').map(str::to_owned).collect()),
        };
        Who::Own(Arc::new(Identity { name: "somebody".into(), grant: Grant { role, namespaces } }))
    }

    /// The status of a request with this need.
    fn status(need: Need, who: &Who, address: &str) -> u16 {
        let mut uri = address.parse().unwrap();
        let scope = namespace::take(&mut uri).unwrap();
        need.judge(Some(who), scope.as_ref(), &uri).map_or_else(|refused| refused.status().as_u16(), |()| 200)
    }

    #[test]
    fn a_role_is_needed_where_the_request_goes() {
        let (operator, everywhere) = (who(Role::Operator, "shop"), who(Role::Viewer, "*"));
        for (need, who, address, expected) in [
            (In(OPERATOR), &operator, "/api/v1/namespaces/shop/lanes/skip", 200),
            (In(OPERATOR), &operator, "/api/v1/lanes/skip?namespace=*", 400),
            (In(OPERATOR), &operator, "/api/v1/lanes/skip", 200),
            (In(OPERATOR), &operator, "/api/v1/lanes/skip?namespace=default", 403),
            (In(DEVELOPER), &operator, "/api/v1/lanes/skip?namespace=shop", 403),
            (In(OPERATOR), &everywhere, "/api/v1/lanes/skip", 403),
            (List(VIEWER), &operator, "/api/v1/lanes?namespace=*", 200),
            (List(DEVELOPER), &operator, "/api/v1/lanes?namespace=*", 403),
            (List(VIEWER), &everywhere, "/api/v1/lanes?namespace=*", 200),
            (Server(VIEWER), &operator, "/api/v1/status", 403),
            (Server(VIEWER), &operator, "/api/v1/status?namespace=shop", 403),
            (Server(VIEWER), &everywhere, "/api/v1/status", 200),
            (Server(VIEWER), &everywhere, "/api/v1/status?namespace=shop", 400),
            (Somewhere(VIEWER), &operator, "/api/v1/namespaces", 200),
            (Somewhere(ADMIN), &operator, "/api/v1/tokens", 403),
            (In(VIEWER), &operator, "/api/v1/namespaces/shop", 200),
            (In(VIEWER), &operator, "/api/v1/namespaces/other", 403),
            (Server(ADMIN), &who_admin(), "/api/v1/namespaces/other", 200),
        ] {
            assert_eq!(status(need, who, address), expected, "{need:?} for {who:?} at {address}");
        }
        assert_eq!(In(VIEWER).judge(None, None, &Uri::default()).unwrap_err().status().as_u16(), 401);
        assert!(Public.judge(None, None, &Uri::default()).is_ok());
    }

    fn who_admin() -> Who {
        who(Role::Admin, "*")
    }

    #[test]
    fn a_refusal_says_what_is_needed_and_what_is_there() {
        let refused = demand(&who(Role::Viewer, "a,b"), Role::Operator, Reach::In("shop")).unwrap_err();
        assert_eq!(
            refused.detail(),
            "this requires the role operator in namespace shop; somebody is viewer in namespace a, b"
        );
    }
}
