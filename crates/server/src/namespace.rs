//! The namespace of a request. `/api/v1/namespaces/{ns}/…` and `?namespace=` name it. The router resolves it once, before
//! routing: resources see the short path without the parameter.

use crate::auth::Who;
use crate::problem::Problem;
use axum::extract::FromRequestParts;
use http::Uri;
use http::request::Parts;
use http::uri::PathAndQuery;
use klambda_access::Namespaces;
use klambda_core::namespace::Within;
use klambda_dispatch::Engine;
use klambda_dispatch::operate::Refused;
use klambda_functions::defaults;
use klambda_functions::name::{RULE, is_label};
use percent_encoding::percent_decode_str;
use std::borrow::Cow;
use std::collections::BTreeSet;
use std::convert::Infallible;
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

/// The namespace of a request. As an extractor it rejects `*`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Namespace(Cow<'static, str>);

/// One namespace, or all that the caller may read (`*`), for lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scope {
    One(Namespace),
    All,
    /// All namespaces, for a caller who has a role in these.
    These(Arc<BTreeSet<String>>),
}

/// Means all namespaces.
pub const ALL: &str = "*";
const API: &str = "/api/v1/";
const NAMESPACES: &str = "namespaces/";
const ALL_NAMESPACES: &str = "/api/v1/namespaces";
const PARAMETER: &str = "namespace";

impl Default for Namespace {
    fn default() -> Namespace {
        Namespace(Cow::Borrowed(defaults::NAMESPACE))
    }
}

impl Deref for Namespace {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for Namespace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Namespace {
    /// The full name of something in this namespace.
    pub fn full_name(&self, name: &str) -> String {
        klambda_core::namespace::full_name(self, name).into_owned()
    }

    /// The URL path of something in this namespace.
    pub fn address(&self, rest: &str) -> String {
        match &**self {
            defaults::NAMESPACE => format!("{API}{rest}"),
            namespace => format!("{API}{NAMESPACES}{namespace}/{rest}"),
        }
    }
}

impl Scope {
    /// The scope of a request without a namespace: the only namespace of its token, else the default one.
    pub fn unnamed(who: Option<&Who>) -> Scope {
        let home = who.and_then(|who| who.grant.home());
        Scope::One(home.map_or_else(Namespace::default, |home| Namespace(Cow::Owned(home.to_owned()))))
    }

    /// The namespaces in this scope.
    pub fn within(&self) -> Within {
        match self {
            Scope::One(one) => Within::one(one),
            Scope::All => Within::All,
            Scope::These(names) => Within::These(Arc::clone(names)),
        }
    }

    /// The meaning of `*` for this caller.
    fn all_for(who: Option<&Who>) -> Scope {
        match who.map(|who| &who.grant.namespaces) {
            Some(Namespaces::Named(names)) => Scope::These(Arc::new(names.clone())),
            // The token of an endpoint reads no list.
            Some(Namespaces::Endpoint { .. }) => Scope::These(Arc::default()),
            Some(Namespaces::All) | None => Scope::All,
        }
    }

    /// An unknown namespace is an error, not an empty list.
    pub fn must_be_there(&self, engine: &Engine) -> Result<(), Refused> {
        self.name().map_or(Ok(()), |name| engine.namespace_id(name).map(drop))
    }

    /// The full name of something that is named without its namespace.
    pub fn full_name(&self, name: &str) -> Result<String, Problem> {
        match self {
            Scope::One(one) => Ok(one.full_name(name)),
            Scope::All | Scope::These(_) => Err(for_lists_only()),
        }
    }

    /// `None` if the scope has several namespaces.
    pub fn name(&self) -> Option<&str> {
        match self {
            Scope::One(one) => Some(one),
            Scope::All | Scope::These(_) => None,
        }
    }

    pub fn one(self) -> Result<Namespace, Problem> {
        match self {
            Scope::One(one) => Ok(one),
            Scope::All | Scope::These(_) => Err(for_lists_only()),
        }
    }

    fn parse(text: &str) -> Result<Scope, Problem> {
        match &*decoded(text) {
            ALL => Ok(Scope::All),
            defaults::NAMESPACE => Ok(Scope::One(Namespace::default())),
            name if is_label(name) => Ok(Scope::One(Namespace(Cow::Owned(name.to_owned())))),
            name => Err(Problem::bad_request(format!("`{name}` is not a namespace: its name {RULE}"))),
        }
    }
}

/// A part of a URL as a person would write it.
pub fn decoded(text: &str) -> Cow<'_, str> {
    percent_decode_str(text).decode_utf8_lossy()
}

pub fn for_lists_only() -> Problem {
    Problem::bad_request("namespace `*` works only for lists: name one namespace")
}

/// For resources of the whole server.
pub fn must_not_be_named(named: Option<&Scope>, path: &str) -> Result<(), Problem> {
    let is_default = |scope: &Scope| scope.name() == Some(defaults::NAMESPACE);
    if named.is_none_or(is_default) || path.starts_with(ALL_NAMESPACES) {
        return Ok(());
    }
    Err(Problem::bad_request(format!("{} belongs to no namespace: remove the namespace", decoded(path))))
}

/// Removes the namespace from a URL and returns it. Cheap if there is none.
pub fn take(uri: &mut Uri) -> Result<Option<Scope>, Problem> {
    let (in_path, rest) = match split(uri.path()) {
        Some((namespace, "")) => (Some(Scope::parse(namespace)?), None),
        Some((namespace, rest)) => (Some(Scope::parse(namespace)?), Some(rest)),
        None => (None, None),
    };
    let (in_query, query) = match uri.query() {
        Some(query) => taken_out(query)?,
        None => (None, None),
    };
    if rest.is_some() || query.is_some() {
        let path = rest.map_or_else(|| uri.path().to_owned(), |rest| format!("{API}{rest}"));
        let query = query.or_else(|| uri.query().map(str::to_owned)).filter(|query| !query.is_empty());
        *uri = address(match query {
            Some(query) => format!("{path}?{query}"),
            None => path,
        })?;
    }
    match (in_path, in_query) {
        (Some(path), Some(query)) if path != query => {
            Err(Problem::bad_request("the path and the parameter namespace name different namespaces"))
        }
        (path, query) => Ok(path.or(query)),
    }
}

/// Namespace and rest of a path. The rest is empty for the namespace itself. Namespaces are not nested.
fn split(path: &str) -> Option<(&str, &str)> {
    let named = path.strip_prefix(API)?.strip_prefix(NAMESPACES)?;
    let Some((namespace, rest)) = named.split_once('/') else { return Some((named, "")) };
    let is_below = !rest.is_empty() && rest != "namespaces" && !rest.starts_with(NAMESPACES);
    is_below.then_some((namespace, rest))
}

/// The namespace in a query, and the query without it, if it was there.
fn taken_out(query: &str) -> Result<(Option<Scope>, Option<String>), Problem> {
    let is_namespace = |pair: &&str| {
        let name = pair.split_once('=').map_or(*pair, |(name, _)| name);
        percent_decode_str(name).eq(PARAMETER.bytes())
    };
    let mut given = query.split('&').filter(is_namespace);
    let Some(first) = given.next() else { return Ok((None, None)) };
    if given.next().is_some() {
        return Err(Problem::bad_request("query parameter `namespace` is set twice"));
    }
    let scope = Scope::parse(first.split_once('=').map_or("", |(_, value)| value))?;
    let rest: Vec<&str> = query.split('&').filter(|pair| !is_namespace(pair)).collect();
    Ok((Some(scope), Some(rest.join("&"))))
}

fn address(text: String) -> Result<Uri, Problem> {
    let parsed = PathAndQuery::try_from(text).map(Uri::from);
    parsed.map_err(|error| Problem::bad_request(format!("invalid URL: {error}")))
}

impl<S: Send + Sync> FromRequestParts<S> for Scope {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Scope, Infallible> {
        let who = parts.extensions.get();
        Ok(match parts.extensions.get::<Scope>() {
            Some(Scope::All) => Scope::all_for(who),
            Some(named) => named.clone(),
            None => Scope::unnamed(who),
        })
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Namespace {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Namespace, Problem> {
        let Ok(scope) = Scope::from_request_parts(parts, state).await;
        scope.one()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rest of a URL, and its namespace.
    fn seen(address: &str) -> Result<String, String> {
        let mut uri: Uri = address.parse().unwrap();
        let scope = take(&mut uri).map_err(|problem| problem.detail().to_owned())?;
        let scope = scope.unwrap_or_else(|| Scope::unnamed(None));
        let namespace = scope.one().map_or_else(|_| ALL.to_owned(), |one| one.to_string());
        Ok(format!("{uri} in {namespace}"))
    }

    #[test]
    fn the_namespace_is_taken_out_of_the_address() {
        for (address, expected) in [
            ("/api/v1/lanes", "/api/v1/lanes in default"),
            ("/api/v1/lanes?limit=1", "/api/v1/lanes?limit=1 in default"),
            ("/api/v1/lanes?namespace=shop", "/api/v1/lanes in shop"),
            ("/api/v1/lanes?a=%2F&namespace=shop&b", "/api/v1/lanes?a=%2F&b in shop"),
            ("/api/v1/lanes?name%73pace=%2A", "/api/v1/lanes in *"),
            ("/api/v1/namespaces/shop/lanes/o/a%2Fb?x=1", "/api/v1/lanes/o/a%2Fb?x=1 in shop"),
            ("/api/v1/namespaces/shop/lanes?namespace=shop", "/api/v1/lanes in shop"),
            ("/api/v1/namespaces/*/lanes", "/api/v1/lanes in *"),
            ("/api/v1/namespaces", "/api/v1/namespaces in default"),
            ("/api/v1/namespaces/shop", "/api/v1/namespaces/shop in shop"),
            ("/api/v1/namespaces/shop/", "/api/v1/namespaces/shop/ in default"),
            ("/api/v1/namespaces/a/namespaces/b", "/api/v1/namespaces/a/namespaces/b in default"),
            ("http://h:1/api/v1/lanes", "http://h:1/api/v1/lanes in default"),
        ] {
            assert_eq!(seen(address).as_deref(), Ok(expected), "{address}");
        }
    }

    #[test]
    fn what_is_no_namespace_or_two_of_them_is_refused() {
        for address in [
            "/api/v1/lanes?namespace",
            "/api/v1/lanes?namespace=",
            "/api/v1/lanes?namespace=Shop",
            "/api/v1/lanes?namespace=%ff",
            "/api/v1/lanes?namespace=a&namespace=a",
            "/api/v1/namespaces//lanes",
            "/api/v1/namespaces/a.b/lanes",
            "/api/v1/namespaces/a/lanes?namespace=b",
            "/api/v1/namespaces/a/lanes?namespace=*",
        ] {
            assert!(seen(address).is_err(), "{address}");
        }
    }
}
