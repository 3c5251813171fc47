//! All settings of the server with their defaults. Sources in order of precedence: flags, `KLAMBDA_*`, one YAML file, the
//! default.
//!
//! `klambda config` prints [`DEFAULT_FILE`]. A test checks that it equals [`Config::default`].

mod issuer;
mod settings;
mod sources;

pub(crate) use issuer::is_safe;
pub use issuer::{Auth, Jwt, Oidc};
pub use klambda_core::kinds::Strategy;
pub use settings::names;
pub use sources::{Error, Overrides, yaml_fault};

use klambda_outbound::{self as outbound, Allow, Ports};
use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

/// The default configuration with comments.
pub const DEFAULT_FILE: &str = include_str!("default_config.yaml");

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Config {
    pub listen: SocketAddr,
    pub data: PathBuf,
    /// Bytes for index and buffers.
    pub memory: u64,
    pub token_file: Option<PathBuf>,
    pub auth: Auth,
    pub tls: Tls,
    pub allow_hosts: Vec<String>,
    /// Threads for producers and deliveries, half for each and at least one. 0 means one per core.
    pub threads: usize,
    pub log: Log,
    pub limits: Limits,
    pub retention: Retention,
    pub store: Store,
    pub idempotency: Idempotency,
    pub delivery: Delivery,
    pub functions: Functions,
    pub secrets: Secrets,
    pub outbound: Outbound,
    pub cost: Cost,
    pub replay: Replay,
}

#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Tls {
    pub cert: Option<PathBuf>,
    pub key: Option<PathBuf>,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Log {
    pub format: LogFormat,
    pub level: String,
    /// One line for each request.
    pub access: bool,
}

/// Prices and limits in dollars.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Cost {
    pub build: f64,
    pub function_month: f64,
    pub replica_hour: f64,
    /// Per GiB.
    pub storage_month: f64,
    pub server_month: f64,
    pub monthly_budget: f64,
    pub function_day_limit: f64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub enum LogFormat {
    Pretty,
    Json,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Limits {
    pub body_bytes: usize,
    pub batch_events: usize,
    pub event_bytes: usize,
    pub attributes: usize,
    pub attribute_bytes: usize,
    pub header_bytes: usize,
    pub connections: usize,
    pub header_timeout: Duration,
    pub body_timeout: Duration,
    pub idle_timeout: Duration,
    /// Concurrent deliveries of all subscriptions.
    pub concurrency: usize,
    pub subscriptions: usize,
    pub tokens: usize,
    pub secrets: usize,
    /// Of one namespace.
    pub event_types: usize,
    pub namespaces: usize,
    /// Bytes held for clients: half for requests, a quarter each for deliveries and responses.
    pub held_bytes: usize,
    /// Event types with their own label in the metrics.
    pub metric_types: usize,
    /// Attempts listed for each webhook endpoint.
    pub webhook_deliveries: usize,
    /// Functions with their own label in the metrics.
    pub metric_functions: usize,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Retention {
    pub age: Duration,
    /// 0 means no limit.
    pub bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Store {
    pub segment_bytes: u64,
    /// Reserved for acknowledgements and decisions, so that a server with a full disk can still drain.
    pub reserve_bytes: u64,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Idempotency {
    pub max_marks: u64,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Delivery {
    pub breaker: Breaker,
    pub shutdown_timeout: Duration,
    pub connect_timeout: Duration,
    pub pool_idle: Duration,
}

#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Breaker {
    pub consecutive: u32,
    pub ratio: f64,
    pub minimum_calls: u32,
    pub window: Duration,
    pub half_open_after: Duration,
}

/// Limits of all functions and agents together.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Functions {
    pub secrets: Option<PathBuf>,
    pub isolation: Isolation,
    pub max: usize,
    pub builds: usize,
    pub replicas: usize,
    pub tries: u32,
    pub tries_within: Duration,
    pub fetch_timeout: Duration,
    pub start_timeout: Duration,
    pub drain: Duration,
    pub revisions: usize,
    pub cache_bytes: u64,
    pub cache_age: Duration,
    pub log_bytes: u64,
    pub log_age: Duration,
    pub rate_limits: RateLimits,
}

/// Stored secrets. The encryption key itself is never part of the configuration.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Secrets {
    /// `secrets.key` in the data folder if it is not set.
    pub key_file: Option<PathBuf>,
}

/// Limits on the addresses that users make the server call.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Outbound {
    pub guard: Switch,
    #[cfg_attr(test, serde(serialize_with = "tests::count"))]
    pub allow: Vec<Allow>,
    #[cfg_attr(test, serde(serialize_with = "tests::count"))]
    pub ports: Vec<Ports>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub enum Switch {
    /// Off on loopback without tokens, and on otherwise.
    #[default]
    Auto,
    On,
    Off,
}

/// The required isolation between the server and the code of functions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub enum Isolation {
    /// Functions run as the user of the server.
    None,
    /// This server cannot isolate functions, so it refuses to run code.
    Required,
}

/// Requests per second of one client.
#[derive(Clone, Debug, Default, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct RateLimits {
    pub writes: RateLimit,
    pub reads: RateLimit,
    pub deletes: RateLimit,
    pub total: RateLimit,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub enum RateLimit {
    /// The default limit if other machines can connect, no limit on loopback.
    #[default]
    Auto,
    Off,
    PerSecond(u32),
}

/// How dead letters of each event type are replayed. Types that are not listed are `ordered`.
#[derive(Clone, Debug, PartialEq)]
#[cfg_attr(test, derive(serde::Serialize), serde(rename_all = "camelCase"))]
pub struct Replay {
    pub strategies: BTreeMap<String, Strategy>,
}

/// The server would be reachable from other machines without authentication.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Exposure {
    #[error(
        "{0} is reachable from other machines: set a token file with --token-file (and a certificate with \
         --tls-cert and --tls-key), or listen on 127.0.0.1"
    )]
    NoToken(SocketAddr),
}

impl Config {
    /// The guard of calls to addresses that users choose. `is_open`: no token is required.
    pub fn guard(&self, is_open: bool) -> outbound::Guard {
        let is_private = is_open && self.listen.ip().to_canonical().is_loopback();
        let Outbound { guard, allow, ports } = self.outbound.clone();
        match guard {
            Switch::Off => outbound::Guard::off(),
            Switch::Auto if is_private => outbound::Guard::off(),
            Switch::Auto | Switch::On => outbound::Guard::on(outbound::Settings { allow, ports }),
        }
    }

    /// The names of this server in addition to its addresses: those that are allowed, and the one of its public URL.
    pub fn own_hosts(&self) -> Vec<String> {
        let public = self.auth.oidc.public_url.as_ref().and_then(|url| url.parse::<http::Uri>().ok());
        let public = public.and_then(|url| url.authority().map(|name| name.as_str().to_owned()));
        self.allow_hosts.iter().cloned().chain(public).collect()
    }

    /// Checks whether it is safe to listen on the configured address. `Ok` may contain a warning for the user.
    pub fn exposure(&self) -> Result<Option<String>, Exposure> {
        if self.listen.ip().to_canonical().is_loopback() {
            return Ok(None);
        }
        if self.token_file.is_none() && self.auth.jwt.issuer.is_none() {
            return Err(Exposure::NoToken(self.listen));
        }
        let unencrypted = self.tls.cert.is_none();
        Ok(unencrypted.then(|| {
            format!(
                "{} is served without TLS, so others on the network can read tokens and events; set --tls-cert and --tls-key",
                self.listen
            )
        }))
    }
}

const KI: usize = 1 << 10;
const MI: usize = 1 << 20;

const fn secs(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

impl Default for Config {
    fn default() -> Config {
        Config {
            listen: SocketAddr::from(([127, 0, 0, 1], 8080)),
            data: PathBuf::from("./data"),
            memory: 128 << 20,
            token_file: None,
            auth: Auth::default(),
            tls: Tls::default(),
            allow_hosts: Vec::new(),
            threads: 0,
            log: Log { format: LogFormat::Pretty, level: "info".to_owned(), access: false },
            limits: Limits::default(),
            retention: Retention { age: secs(7 * 24 * 3600), bytes: 0 },
            store: Store { segment_bytes: 64 << 20, reserve_bytes: 8 << 20 },
            idempotency: Idempotency { max_marks: 20_000_000 },
            delivery: Delivery::default(),
            functions: Functions::default(),
            secrets: Secrets::default(),
            outbound: Outbound::default(),
            cost: Cost::default(),
            replay: Replay { strategies: settings::default_strategies() },
        }
    }
}

impl Default for Cost {
    fn default() -> Cost {
        Cost {
            build: 0.05,
            function_month: 0.1,
            replica_hour: 0.0,
            storage_month: 0.1,
            server_month: 15.0,
            monthly_budget: 0.0,
            function_day_limit: 0.0,
        }
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits {
            body_bytes: 8 * MI,
            batch_events: 1000,
            event_bytes: MI,
            attributes: 64,
            attribute_bytes: 4096,
            header_bytes: 64 * KI,
            connections: 10_000,
            header_timeout: secs(10),
            body_timeout: secs(30),
            idle_timeout: secs(75),
            concurrency: 4096,
            subscriptions: 10_000,
            tokens: 10_000,
            secrets: 1_000,
            event_types: 1_000,
            namespaces: 1_000,
            held_bytes: 96 * MI,
            metric_types: 100,
            webhook_deliveries: 10_000,
            metric_functions: 100,
        }
    }
}

impl Default for Delivery {
    fn default() -> Delivery {
        Delivery {
            breaker: Breaker {
                consecutive: 3,
                ratio: 0.5,
                minimum_calls: 20,
                window: secs(10),
                half_open_after: secs(30),
            },
            shutdown_timeout: secs(30),
            connect_timeout: secs(5),
            pool_idle: secs(90),
        }
    }
}

impl Default for Functions {
    fn default() -> Functions {
        Functions {
            secrets: None,
            isolation: Isolation::None,
            max: 10_000,
            builds: 2,
            replicas: 500,
            tries: 3,
            tries_within: secs(20),
            fetch_timeout: secs(120),
            start_timeout: secs(60),
            drain: secs(30),
            revisions: 10,
            cache_bytes: 10 << 30,
            cache_age: secs(30 * 86_400),
            log_bytes: 16 << 20,
            log_age: secs(7 * 86_400),
            rate_limits: RateLimits::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::Value;
    use std::collections::BTreeSet;

    /// Only the names of settings are compared, not their values.
    pub fn count<T, S: serde::Serializer>(list: &[T], serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_u64(list.len() as u64)
    }

    #[test]
    fn the_guard_is_off_only_on_loopback_without_tokens() {
        let mut config = Config::default();
        assert!(!config.guard(true).is_on());
        assert!(config.guard(false).is_on(), "a token is required");
        config.listen = "0.0.0.0:8080".parse().unwrap();
        assert!(config.guard(true).is_on(), "others can connect");
        config.outbound.guard = Switch::Off;
        assert!(!config.guard(false).is_on());
        config = Config::default();
        config.outbound.guard = Switch::On;
        assert!(config.guard(true).is_on());
    }

    #[test]
    fn the_default_file_is_the_default() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), DEFAULT_FILE).unwrap();
        let parsed =
            Config::from_sources(Some(file.path()), std::iter::empty(), Overrides::default()).unwrap();
        assert_eq!(parsed, Config::default());
        // Missing keys would still come from the default, so compare the keys too.
        let tree: Value = serde_saphyr::from_str(DEFAULT_FILE).unwrap();
        assert_eq!(leaves(&tree), leaves(&serde_json::to_value(Config::default()).unwrap()));
    }

    /// The paths of all settings in a tree. A map that is itself a setting (the strategies) counts with its entries.
    fn leaves(tree: &Value) -> BTreeSet<String> {
        fn walk(value: &Value, path: &str, found: &mut BTreeSet<String>) {
            match value {
                Value::Object(members)
                    if !names().any(|(name, _)| name == path) || path == "replay.strategies" =>
                {
                    for (key, value) in members {
                        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                        walk(value, &path, found);
                    }
                }
                _ => {
                    found.insert(path.to_owned());
                }
            }
        }
        let mut found = BTreeSet::new();
        walk(tree, "", &mut found);
        found
    }

    #[test]
    fn the_default_file_explains_every_setting() {
        for (name, env) in names() {
            let key = name.rsplit('.').next().unwrap();
            let line =
                DEFAULT_FILE.lines().position(|line| line.trim_start().starts_with(&format!("{key}:")));
            let line = line.unwrap_or_else(|| panic!("{name} ({env}) is not in the file"));
            let before = DEFAULT_FILE.lines().nth(line.wrapping_sub(1)).unwrap_or_default();
            let here = DEFAULT_FILE.lines().nth(line).unwrap();
            assert!(here.contains(" # ") || before.trim_start().starts_with('#'), "{name} has no comment");
        }
    }

    #[test]
    fn strangers_need_a_token() {
        let mut config = Config::default();
        assert_eq!(config.exposure(), Ok(None));
        config.listen = "[::1]:8080".parse().unwrap();
        assert_eq!(config.exposure(), Ok(None));
        config.listen = "0.0.0.0:8080".parse().unwrap();
        let refused = config.exposure().unwrap_err().to_string();
        assert!(refused.contains("--token-file") && refused.contains("--tls-cert"), "{refused}");
        assert!(!refused.contains('\n'));
        config.auth.jwt.issuer = Some("https://issuer.example".to_owned());
        assert!(config.exposure().is_ok(), "an issuer allows other addresses");
        config.auth.jwt.issuer = None;
        config.token_file = Some("token".into());
        assert!(config.exposure().unwrap().unwrap().contains("--tls-key"));
        config.tls = Tls { cert: Some("c".into()), key: Some("k".into()) };
        assert_eq!(config.exposure(), Ok(None));
    }
}
