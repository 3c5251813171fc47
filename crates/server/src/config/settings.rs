//! The table of settings: name, target field and parser of each.

use super::{Config, Isolation, LogFormat, RateLimit, Switch};
use crate::telemetry;
use klambda_core::kinds::Strategy;
use klambda_core::quantity;
use klambda_outbound::{Allow, Ports};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fmt::Display;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::str::FromStr;
use std::time::Duration;

/// Name and environment variable of every setting, in the order of the default file.
pub fn names() -> impl Iterator<Item = (&'static str, String)> {
    SETTINGS.iter().map(|setting| (setting.name, setting.env()))
}

pub(super) struct Setting {
    /// The path in the file, such as `limits.bodyBytes`.
    pub(super) name: &'static str,
    place: for<'a> fn(&'a mut Config) -> Place<'a>,
}

/// The target field of a value and its type. Numbers carry their minimum.
enum Place<'a> {
    Address(&'a mut SocketAddr),
    Path(&'a mut PathBuf),
    PathOption(&'a mut Option<PathBuf>),
    Text(&'a mut String),
    TextOption(&'a mut Option<String>),
    Names(&'a mut Vec<String>),
    Format(&'a mut LogFormat),
    Level(&'a mut String),
    Bytes(&'a mut u64, u64),
    Size(&'a mut usize, u64),
    Count(&'a mut usize, usize),
    /// With a minimum and a maximum.
    CountUpTo(&'a mut usize, usize, usize),
    Calls(&'a mut u32, u32),
    Rate(&'a mut RateLimit),
    Isolation(&'a mut Isolation),
    Switch(&'a mut Switch),
    Allow(&'a mut Vec<Allow>),
    Ports(&'a mut Vec<Ports>),
    Number(&'a mut u64, u64),
    Ratio(&'a mut f64),
    Price(&'a mut f64),
    Flag(&'a mut bool),
    Time(&'a mut Duration, Duration),
    Strategies(&'a mut BTreeMap<String, Strategy>),
}

const fn setting(name: &'static str, place: for<'a> fn(&'a mut Config) -> Place<'a>) -> Setting {
    Setting { name, place }
}

const MS: Duration = Duration::from_millis(1);
const NONE: Duration = Duration::ZERO;

pub(super) static SETTINGS: &[Setting] = &[
    setting("listen", |c| Place::Address(&mut c.listen)),
    setting("data", |c| Place::Path(&mut c.data)),
    setting("memory", |c| Place::Bytes(&mut c.memory, 16 << 20)),
    setting("tokenFile", |c| Place::PathOption(&mut c.token_file)),
    setting("auth.jwt.issuer", |c| Place::TextOption(&mut c.auth.jwt.issuer)),
    setting("auth.jwt.audience", |c| Place::TextOption(&mut c.auth.jwt.audience)),
    setting("auth.jwt.jwksFile", |c| Place::PathOption(&mut c.auth.jwt.jwks_file)),
    setting("auth.jwt.jwksUrl", |c| Place::TextOption(&mut c.auth.jwt.jwks_url)),
    setting("auth.jwt.refresh", |c| Place::Time(&mut c.auth.jwt.refresh, Duration::from_secs(10))),
    setting("auth.jwt.roleClaim", |c| Place::Text(&mut c.auth.jwt.role_claim)),
    setting("auth.jwt.namespacesClaim", |c| Place::Text(&mut c.auth.jwt.namespaces_claim)),
    setting("auth.oidc.clientId", |c| Place::TextOption(&mut c.auth.oidc.client_id)),
    setting("auth.oidc.clientSecretFile", |c| Place::PathOption(&mut c.auth.oidc.client_secret_file)),
    setting("auth.oidc.publicUrl", |c| Place::TextOption(&mut c.auth.oidc.public_url)),
    setting("auth.oidc.scopes", |c| Place::Names(&mut c.auth.oidc.scopes)),
    setting("tls.cert", |c| Place::PathOption(&mut c.tls.cert)),
    setting("tls.key", |c| Place::PathOption(&mut c.tls.key)),
    setting("allowHosts", |c| Place::Names(&mut c.allow_hosts)),
    setting("threads", |c| Place::Count(&mut c.threads, 0)),
    setting("log.format", |c| Place::Format(&mut c.log.format)),
    setting("log.level", |c| Place::Level(&mut c.log.level)),
    setting("log.access", |c| Place::Flag(&mut c.log.access)),
    setting("limits.bodyBytes", |c| Place::Size(&mut c.limits.body_bytes, 1 << 10)),
    setting("limits.batchEvents", |c| Place::Count(&mut c.limits.batch_events, 1)),
    setting("limits.eventBytes", |c| Place::Size(&mut c.limits.event_bytes, 1 << 10)),
    setting("limits.attributes", |c| Place::Count(&mut c.limits.attributes, 4)),
    setting("limits.attributeBytes", |c| Place::Size(&mut c.limits.attribute_bytes, 64)),
    setting("limits.headerBytes", |c| Place::Size(&mut c.limits.header_bytes, 8 << 10)),
    setting("limits.connections", |c| Place::Count(&mut c.limits.connections, 1)),
    setting("limits.headerTimeout", |c| Place::Time(&mut c.limits.header_timeout, MS)),
    setting("limits.bodyTimeout", |c| Place::Time(&mut c.limits.body_timeout, MS)),
    setting("limits.idleTimeout", |c| Place::Time(&mut c.limits.idle_timeout, MS)),
    setting("limits.concurrency", |c| Place::Count(&mut c.limits.concurrency, 1)),
    setting("limits.subscriptions", |c| Place::Count(&mut c.limits.subscriptions, 1)),
    setting("limits.tokens", |c| Place::Count(&mut c.limits.tokens, 1)),
    setting("limits.secrets", |c| Place::Count(&mut c.limits.secrets, 1)),
    setting("limits.eventTypes", |c| Place::Count(&mut c.limits.event_types, 1)),
    setting("limits.namespaces", |c| Place::Count(&mut c.limits.namespaces, 1)),
    setting("limits.heldBytes", |c| Place::Size(&mut c.limits.held_bytes, 1 << 20)),
    setting("limits.metricTypes", |c| Place::Count(&mut c.limits.metric_types, 0)),
    setting("limits.webhookDeliveries", |c| Place::Count(&mut c.limits.webhook_deliveries, 0)),
    setting("limits.metricFunctions", |c| Place::Count(&mut c.limits.metric_functions, 0)),
    setting("retention.age", |c| Place::Time(&mut c.retention.age, MS)),
    setting("retention.bytes", |c| Place::Bytes(&mut c.retention.bytes, 0)),
    setting("store.segmentBytes", |c| Place::Bytes(&mut c.store.segment_bytes, 1 << 20)),
    setting("store.reserveBytes", |c| Place::Bytes(&mut c.store.reserve_bytes, 1 << 20)),
    setting("idempotency.maxMarks", |c| Place::Number(&mut c.idempotency.max_marks, 1)),
    setting("delivery.shutdownTimeout", |c| Place::Time(&mut c.delivery.shutdown_timeout, NONE)),
    setting("delivery.connectTimeout", |c| Place::Time(&mut c.delivery.connect_timeout, MS)),
    setting("delivery.poolIdle", |c| Place::Time(&mut c.delivery.pool_idle, NONE)),
    setting("delivery.breaker.consecutive", |c| Place::Calls(&mut c.delivery.breaker.consecutive, 1)),
    setting("delivery.breaker.ratio", |c| Place::Ratio(&mut c.delivery.breaker.ratio)),
    setting("delivery.breaker.minimumCalls", |c| Place::Calls(&mut c.delivery.breaker.minimum_calls, 1)),
    setting("delivery.breaker.window", |c| Place::Time(&mut c.delivery.breaker.window, MS)),
    setting("delivery.breaker.halfOpenAfter", |c| Place::Time(&mut c.delivery.breaker.half_open_after, MS)),
    setting("functions.secrets", |c| Place::PathOption(&mut c.functions.secrets)),
    setting("functions.isolation", |c| Place::Isolation(&mut c.functions.isolation)),
    setting("functions.max", |c| Place::Count(&mut c.functions.max, 1)),
    setting("functions.builds", |c| Place::Count(&mut c.functions.builds, 1)),
    setting("functions.replicas", |c| Place::Count(&mut c.functions.replicas, 1)),
    setting("functions.tries", |c| Place::Calls(&mut c.functions.tries, 1)),
    setting("functions.triesWithin", |c| Place::Time(&mut c.functions.tries_within, NONE)),
    setting("functions.fetchTimeout", |c| Place::Time(&mut c.functions.fetch_timeout, MS)),
    setting("functions.startTimeout", |c| Place::Time(&mut c.functions.start_timeout, MS)),
    setting("functions.drain", |c| Place::Time(&mut c.functions.drain, NONE)),
    setting("functions.revisions", |c| Place::CountUpTo(&mut c.functions.revisions, 1, 50)),
    setting("functions.cacheBytes", |c| Place::Bytes(&mut c.functions.cache_bytes, 0)),
    setting("functions.cacheAge", |c| Place::Time(&mut c.functions.cache_age, MS)),
    setting("functions.logBytes", |c| Place::Bytes(&mut c.functions.log_bytes, 1 << 20)),
    setting("functions.logAge", |c| Place::Time(&mut c.functions.log_age, Duration::from_secs(1))),
    setting("functions.rateLimits.writes", |c| Place::Rate(&mut c.functions.rate_limits.writes)),
    setting("functions.rateLimits.reads", |c| Place::Rate(&mut c.functions.rate_limits.reads)),
    setting("functions.rateLimits.deletes", |c| Place::Rate(&mut c.functions.rate_limits.deletes)),
    setting("functions.rateLimits.total", |c| Place::Rate(&mut c.functions.rate_limits.total)),
    setting("secrets.keyFile", |c| Place::PathOption(&mut c.secrets.key_file)),
    setting("outbound.guard", |c| Place::Switch(&mut c.outbound.guard)),
    setting("outbound.allow", |c| Place::Allow(&mut c.outbound.allow)),
    setting("outbound.ports", |c| Place::Ports(&mut c.outbound.ports)),
    setting("cost.build", |c| Place::Price(&mut c.cost.build)),
    setting("cost.functionMonth", |c| Place::Price(&mut c.cost.function_month)),
    setting("cost.replicaHour", |c| Place::Price(&mut c.cost.replica_hour)),
    setting("cost.storageMonth", |c| Place::Price(&mut c.cost.storage_month)),
    setting("cost.serverMonth", |c| Place::Price(&mut c.cost.server_month)),
    setting("cost.monthlyBudget", |c| Place::Price(&mut c.cost.monthly_budget)),
    setting("cost.functionDayLimit", |c| Place::Price(&mut c.cost.function_day_limit)),
    setting("replay.strategies", |c| Place::Strategies(&mut c.replay.strategies)),
];

impl Setting {
    pub(super) fn named(name: &str) -> Option<&'static Setting> {
        SETTINGS.iter().find(|setting| setting.name == name)
    }

    /// The variable for `limits.bodyBytes` is `KLAMBDA_LIMITS_BODY_BYTES`.
    pub(super) fn env(&self) -> String {
        let mut env = String::from("KLAMBDA_");
        for c in self.name.chars() {
            match c {
                '.' => env.push('_'),
                c if c.is_ascii_uppercase() => env.extend(['_', c]),
                c => env.push(c.to_ascii_uppercase()),
            }
        }
        env
    }

    /// Sets a value, or returns what was expected. An empty value (`key:`) changes nothing.
    pub(super) fn set(&self, config: &mut Config, value: &Value) -> Result<(), String> {
        if value.is_null() {
            return Ok(());
        }
        match (self.place)(config) {
            Place::Address(place) => put(place, address(text(value)?)),
            Place::Path(place) => put(place, path(value)),
            Place::PathOption(place) => put(place, path(value).map(Some)),
            Place::Text(place) => put(place, words(value)),
            Place::TextOption(place) => put(place, words(value).map(Some)),
            Place::Names(place) => put(place, list(value)),
            Place::Format(place) => put(place, format(text(value)?)),
            Place::Level(place) => put(place, level(text(value)?)),
            Place::Bytes(place, least) => put(place, bytes(value, least)),
            Place::Size(place, least) => put(
                place,
                bytes(value, least).and_then(|size| usize::try_from(size).map_err(|e| e.to_string())),
            ),
            Place::Count(place, least) => put(place, number(value, least)),
            Place::CountUpTo(place, least, most) => {
                put(place, number(value, least).and_then(|count| at_most(count, most)))
            }
            Place::Calls(place, least) => put(place, number(value, least)),
            Place::Rate(place) => put(place, rate(value)),
            Place::Isolation(place) => put(place, isolation(text(value)?)),
            Place::Switch(place) => put(place, switch(value)),
            Place::Allow(place) => put(place, allow(value)),
            Place::Ports(place) => put(place, ports(value)),
            Place::Number(place, least) => put(place, number(value, least)),
            Place::Ratio(place) => put(place, ratio(value)),
            Place::Price(place) => put(place, price(value)),
            Place::Flag(place) => put(place, flag(value)),
            Place::Time(place, least) => put(place, time(value, least)),
            Place::Strategies(place) => {
                place.extend(strategies(value)?);
                Ok(())
            }
        }
    }
}

fn put<T>(place: &mut T, value: Result<T, String>) -> Result<(), String> {
    *place = value?;
    Ok(())
}

fn at_most(count: usize, most: usize) -> Result<usize, String> {
    if count > most { Err(format!("should be at most {most}, not {count}")) } else { Ok(count) }
}

fn text(value: &Value) -> Result<&str, String> {
    value.as_str().ok_or_else(|| format!("must be a string, not {value}"))
}

fn address(text: &str) -> Result<SocketAddr, String> {
    if let Some(port) = text.strip_prefix("localhost:").and_then(|port| port.parse().ok()) {
        return Ok(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    }
    text.parse()
        .map_err(|_| format!("`{text}` is not an address with a port, such as 127.0.0.1:8080 or [::1]:8080"))
}

fn path(value: &Value) -> Result<PathBuf, String> {
    match text(value)? {
        "" => Err("must be a path".to_owned()),
        path => Ok(path.into()),
    }
}

fn words(value: &Value) -> Result<String, String> {
    match text(value)? {
        "" => Err("must not be empty".to_owned()),
        text => Ok(text.to_owned()),
    }
}

/// A list, or a comma-separated string as in the environment.
fn list(value: &Value) -> Result<Vec<String>, String> {
    match value {
        Value::Array(items) => items.iter().map(|item| text(item).map(str::to_owned)).collect(),
        Value::String(text) => Ok(parts(text).map(str::to_owned).collect()),
        other => Err(format!("must be a list of names, not {other}")),
    }
}

fn parts(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|part| !part.is_empty())
}

fn format(text: &str) -> Result<LogFormat, String> {
    match text {
        "pretty" => Ok(LogFormat::Pretty),
        "json" => Ok(LogFormat::Json),
        other => Err(format!("`{other}` must be pretty or json")),
    }
}

fn level(text: &str) -> Result<String, String> {
    telemetry::check_level(text).map(|()| text.to_owned())
}

fn bytes(value: &Value, least: u64) -> Result<u64, String> {
    let bytes = match value {
        Value::String(text) => quantity::parse_bytes(text)?,
        other => {
            other.as_u64().ok_or_else(|| format!("{other} is not a size: use bytes, or 512Ki, 16Mi, 10Gi"))?
        }
    };
    at_least(bytes, least, quantity::format_bytes)
}

fn number<T: FromStr + PartialOrd + Display + Copy>(value: &Value, least: T) -> Result<T, String> {
    let text = match value {
        Value::Number(number) => number.to_string(),
        other => text(other)?.to_owned(),
    };
    let number = text.parse().map_err(|_| format!("`{text}` is not an integer in range"))?;
    at_least(number, least, |least: T| least.to_string())
}

/// Many users write a bare `off` in YAML, which some parsers read as false.
fn rate(value: &Value) -> Result<RateLimit, String> {
    match value {
        Value::String(text) if text == "auto" => Ok(RateLimit::Auto),
        Value::String(text) if text == "off" => Ok(RateLimit::Off),
        Value::Bool(false) => Ok(RateLimit::Off),
        other => number(other, 1)
            .map(RateLimit::PerSecond)
            .map_err(|_| format!("{other} must be auto, off or a number of at least 1")),
    }
}

fn isolation(text: &str) -> Result<Isolation, String> {
    match text {
        "none" => Ok(Isolation::None),
        "required" => Ok(Isolation::Required),
        other => Err(format!("`{other}` must be none or required")),
    }
}

/// Some parsers of YAML read a bare `on` and `off` as booleans.
fn switch(value: &Value) -> Result<Switch, String> {
    match value {
        Value::Bool(true) => Ok(Switch::On),
        Value::Bool(false) => Ok(Switch::Off),
        other => match text(other)? {
            "auto" => Ok(Switch::Auto),
            "on" => Ok(Switch::On),
            "off" => Ok(Switch::Off),
            other => Err(format!("`{other}` must be auto, on or off")),
        },
    }
}

/// A list of `{cidr, namespaces}`, or comma-separated `cidr` and `cidr=namespace` as in the environment.
fn allow(value: &Value) -> Result<Vec<Allow>, String> {
    match value {
        Value::Array(items) => items.iter().map(allow_entry).collect(),
        Value::String(text) => parts(text)
            .map(|part| {
                let (cidr, namespace) =
                    part.split_once('=').map_or((part, None), |(cidr, name)| (cidr, Some(name)));
                let namespaces = namespace.iter().map(|name| (*name).to_owned()).collect();
                Ok(Allow { network: cidr.parse()?, namespaces })
            })
            .collect(),
        other => {
            Err(format!("must be a list such as [{{cidr: 10.0.0.0/8, namespaces: [shop]}}], not {other}"))
        }
    }
}

fn allow_entry(value: &Value) -> Result<Allow, String> {
    let Some(members) = value.as_object() else {
        return Err(format!("{value} must be a map such as {{cidr: 10.0.0.0/8, namespaces: [shop]}}"));
    };
    if let Some(name) = members.keys().find(|name| !matches!(name.as_str(), "cidr" | "namespaces")) {
        return Err(format!("unknown field {name}: an entry has cidr and namespaces"));
    }
    let cidr = members.get("cidr").ok_or("an entry has no cidr, such as cidr: 10.0.0.0/8")?;
    let namespaces = members.get("namespaces").map_or(Ok(Vec::new()), |value| match list(value)? {
        // Without this, a list that became empty would allow more.
        empty if empty.is_empty() => Err("namespaces is empty: remove it to allow all namespaces".to_owned()),
        named => Ok(named),
    })?;
    Ok(Allow { network: text(cidr)?.parse()?, namespaces })
}

/// A list of ports and ranges, or the same separated by commas.
fn ports(value: &Value) -> Result<Vec<Ports>, String> {
    match value {
        Value::Array(items) => items
            .iter()
            .map(|item| item.as_str().map_or_else(|| item.to_string(), str::to_owned).parse())
            .collect(),
        Value::Number(port) => Ok(vec![port.to_string().parse()?]),
        Value::String(text) => parts(text).map(str::parse).collect(),
        other => Err(format!("must be a list of ports such as [443, 8000-8999], not {other}")),
    }
}

fn price(value: &Value) -> Result<f64, String> {
    let price = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    price
        .filter(|price: &f64| price.is_finite() && *price >= 0.0)
        .ok_or_else(|| format!("{value} must be a number of dollars, at least 0"))
}

fn flag(value: &Value) -> Result<bool, String> {
    match value {
        Value::Bool(flag) => Ok(*flag),
        Value::String(text) if text == "true" => Ok(true),
        Value::String(text) if text == "false" => Ok(false),
        other => Err(format!("{other} must be true or false")),
    }
}

fn ratio(value: &Value) -> Result<f64, String> {
    let ratio = match value {
        Value::String(text) => text.parse().ok(),
        other => other.as_f64(),
    };
    ratio
        .filter(|ratio| *ratio > 0.0 && *ratio <= 1.0)
        .ok_or_else(|| format!("{value} must be greater than 0 and at most 1"))
}

fn time(value: &Value, least: Duration) -> Result<Duration, String> {
    let ms = match value {
        Value::String(text) => quantity::parse_duration_ms(text)?,
        other if other.as_u64() == Some(0) => 0,
        other => return Err(format!("{other} has no unit: use 500ms, 30s, 5m, 24h or 7d")),
    };
    at_least(Duration::from_millis(ms), least, |least| quantity::format_duration_ms(least.as_millis() as u64))
}

fn at_least<T: PartialOrd + Copy>(value: T, least: T, show: impl Fn(T) -> String) -> Result<T, String> {
    if value >= least { Ok(value) } else { Err(format!("must be at least {}", show(least))) }
}

/// A map from type to strategy, or comma-separated `type=strategy` as in the environment.
fn strategies(value: &Value) -> Result<BTreeMap<String, Strategy>, String> {
    match value {
        Value::Object(members) => {
            members.iter().map(|(name, value)| Ok((name.clone(), strategy(name, text(value)?)?))).collect()
        }
        Value::String(text) => parts(text)
            .map(|part| {
                let (name, value) =
                    part.split_once('=').ok_or_else(|| format!("`{part}` is not type=strategy"))?;
                Ok((name.to_owned(), strategy(name, value)?))
            })
            .collect(),
        other => Err(format!("must map event types to strategies, not {other}")),
    }
}

fn strategy(name: &str, text: &str) -> Result<Strategy, String> {
    match text {
        "ordered" => Ok(Strategy::Ordered),
        "parallel" => Ok(Strategy::Parallel),
        "manual" => Ok(Strategy::Manual),
        "discard" => Ok(Strategy::Discard),
        other => Err(format!("{name}: `{other}` must be ordered, parallel, manual or discard")),
    }
}

/// Safe strategies for the 17 lifecycle types.
pub(super) fn default_strategies() -> BTreeMap<String, Strategy> {
    klambda_core::kinds::TABLE.iter().map(|(name, strategy, _)| ((*name).to_owned(), *strategy)).collect()
}
