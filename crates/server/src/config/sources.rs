//! Reads the settings from file, environment and flags, and reports all errors together.

use super::settings::{SETTINGS, Setting};
use super::{Config, issuer};
use crate::guard::Guard;
use klambda_core::os_error::in_words;
use serde_json::Value;
use std::fmt::{self, Write};
use std::io;
use std::path::{Path, PathBuf};

/// The values of flags. `None` (or empty) leaves a setting to the other sources.
#[derive(Clone, Debug, Default)]
pub struct Overrides {
    pub listen: Option<String>,
    pub data: Option<PathBuf>,
    pub memory: Option<String>,
    pub token_file: Option<PathBuf>,
    pub tls_cert: Option<PathBuf>,
    pub tls_key: Option<PathBuf>,
    pub allow_hosts: Vec<String>,
    pub log_format: Option<String>,
    pub log_level: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read the configuration {}: {}", path.display(), in_words(source))]
    Unreadable { path: PathBuf, source: io::Error },
    #[error("the configuration {} is not valid YAML: {message}", path.display())]
    NoYaml { path: PathBuf, message: String },
    #[error("{}", Listed(.0))]
    Invalid(Vec<Wrong>),
}

/// An invalid setting, under the name that the user gave: a path, a variable or a flag.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wrong {
    pub name: String,
    pub message: String,
}

struct Listed<'a>(&'a [Wrong]);

impl fmt::Display for Listed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the configuration is not valid:")?;
        for Wrong { name, message } in self.0 {
            f.write_char(if self.0.len() == 1 { ' ' } else { '\n' })?;
            write!(f, "{name}: {message}")?;
        }
        Ok(())
    }
}

impl Config {
    /// Flags win over the environment, the environment over the file, the file over the default.
    pub fn from_sources(
        file: Option<&Path>,
        env: impl Iterator<Item = (String, String)>,
        overrides: Overrides,
    ) -> Result<Config, Error> {
        let mut reading = Reading { config: Config::default(), wrong: Vec::new() };
        if let Some(path) = file {
            reading.file(&tree(path)?, "");
        }
        reading.env(env);
        reading.flags(overrides);
        reading.check();
        if reading.wrong.is_empty() { Ok(reading.config) } else { Err(Error::Invalid(reading.wrong)) }
    }
}

fn tree(path: &Path) -> Result<Value, Error> {
    let text = std::fs::read_to_string(path)
        .map_err(|source| Error::Unreadable { path: path.to_owned(), source })?;
    // A file with only comments counts as empty.
    if text.lines().all(|line| line.trim().is_empty() || line.trim_start().starts_with('#')) {
        return Ok(Value::Null);
    }
    serde_saphyr::from_str(&text)
        .map_err(|error| Error::NoYaml { path: path.to_owned(), message: yaml_fault(&error) })
}

/// The error in a YAML text in one line, without the hints of the library for programmers.
pub fn yaml_fault(error: &serde_saphyr::Error) -> String {
    let error = error.without_snippet();
    if let serde_saphyr::Error::DuplicateMappingKey { key: Some(key), location } = error {
        return format!(
            "the key {key} appears twice, at line {}, column {}",
            location.line(),
            location.column()
        );
    }
    let text = error.render_with_formatter(&serde_saphyr::UserMessageFormatter);
    // The parser shows its own limits, for example of nodes behind aliases, as they are in its code.
    if text.contains("limits breached") {
        return "the document is too large or too deeply nested".to_owned();
    }
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}

struct Reading {
    config: Config,
    wrong: Vec<Wrong>,
}

impl Reading {
    fn file(&mut self, value: &Value, path: &str) {
        if let Some(setting) = Setting::named(path) {
            return self.set(setting, path.to_owned(), value);
        }
        if !is_section(path) {
            return self.unknown(path);
        }
        match value {
            Value::Object(members) => {
                for (key, value) in members {
                    let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
                    self.file(value, &path);
                }
            }
            Value::Null => {}
            _ => self.wrong(path_or_file(path), "must be a map of settings".to_owned()),
        }
    }

    fn env(&mut self, env: impl Iterator<Item = (String, String)>) {
        for (name, value) in env.filter(|(name, value)| name.starts_with("KLAMBDA_") && !value.is_empty()) {
            match SETTINGS.iter().find(|setting| setting.env() == name) {
                Some(setting) => self.set(setting, name, &Value::String(value)),
                None => self.slip(name),
            }
        }
    }

    /// Other programs use variables with this prefix too (our own client, and those that a cluster sets in every pod for a
    /// service called klambda), so only likely typing errors are reported.
    fn slip(&mut self, name: String) {
        let near = SETTINGS.iter().map(Setting::env).find(|env| strsim::damerau_levenshtein(env, &name) <= 2);
        if let Some(near) = near {
            self.wrong(name, format!("unknown setting; did you mean {near}?"));
        }
    }

    fn flags(&mut self, flags: Overrides) {
        let path = |path: Option<PathBuf>| path.map(|path| path.to_string_lossy().into_owned());
        for (flag, name, value) in [
            ("--listen", "listen", flags.listen),
            ("--data", "data", path(flags.data)),
            ("--memory", "memory", flags.memory),
            ("--token-file", "tokenFile", path(flags.token_file)),
            ("--tls-cert", "tls.cert", path(flags.tls_cert)),
            ("--tls-key", "tls.key", path(flags.tls_key)),
            ("--log-format", "log.format", flags.log_format),
            ("--log-level", "log.level", flags.log_level),
        ] {
            let setting = Setting::named(name).expect("every flag is a setting");
            if let Some(value) = value {
                self.set(setting, flag.to_owned(), &Value::String(value));
            }
        }
        if !flags.allow_hosts.is_empty() {
            self.config.allow_hosts = flags.allow_hosts;
        }
    }

    /// Checks combinations of settings.
    fn check(&mut self) {
        let limits = &self.config.limits;
        let tls = &self.config.tls;
        let mut found = Vec::new();
        if limits.event_bytes > limits.body_bytes {
            found.push((
                "limits.eventBytes",
                "is greater than limits.bodyBytes, so such an event could never be accepted",
            ));
        }
        if limits.body_bytes > limits.held_bytes / 4 {
            found.push((
                "limits.bodyBytes",
                "is greater than a quarter of limits.heldBytes, so one such body would block all other requests",
            ));
        }
        if self.config.store.segment_bytes < limits.body_bytes as u64 {
            found.push((
                "store.segmentBytes",
                "is less than limits.bodyBytes, but a segment must hold a whole body",
            ));
        }
        if self.config.store.reserve_bytes > self.config.store.segment_bytes / 2 {
            found.push((
                "store.reserveBytes",
                "is greater than half of store.segmentBytes, so a new segment would have no room for events",
            ));
        }
        if tls.cert.is_some() != tls.key.is_some() {
            found.push(("tls", "set both a certificate and its key (--tls-cert and --tls-key)"));
        }
        found.extend(issuer::faults(&self.config.auth));
        self.wrong.extend(
            found.into_iter().map(|(name, message)| Wrong { name: name.into(), message: message.into() }),
        );
        if let Err(hosts) = Guard::new(self.config.listen, &self.config.own_hosts()) {
            self.wrong("allowHosts".to_owned(), format!("not a host, or host:port: {}", hosts.join(", ")));
        }
    }

    fn set(&mut self, setting: &Setting, name: String, value: &Value) {
        if let Err(message) = setting.set(&mut self.config, value) {
            self.wrong(name, message);
        }
    }

    fn unknown(&mut self, path: &str) {
        let message = match closest(path) {
            Some(near) => format!("unknown setting; did you mean {near}?"),
            None => "unknown setting; `klambda config` lists all settings".to_owned(),
        };
        self.wrong(path.to_owned(), message);
    }

    fn wrong(&mut self, name: String, message: String) {
        self.wrong.push(Wrong { name, message });
    }
}

fn path_or_file(path: &str) -> String {
    if path.is_empty() { "the file".to_owned() } else { path.to_owned() }
}

fn is_section(path: &str) -> bool {
    path.is_empty() || sections().any(|section| section == path)
}

fn sections() -> impl Iterator<Item = &'static str> {
    SETTINGS.iter().flat_map(|setting| setting.name.match_indices('.').map(|(end, _)| &setting.name[..end]))
}

/// The setting or section with the most similar name in any section: `bodyByte` finds `limits.bodyBytes`.
fn closest(path: &str) -> Option<&'static str> {
    let leaf =
        |path: &str| path.rsplit('.').next().unwrap_or_default().replace(['_', '-'], "").to_ascii_lowercase();
    let wanted = leaf(path);
    let distance = |name: &str| {
        let by_leaf = strsim::damerau_levenshtein(&leaf(name), &wanted);
        // Among equals, prefer the same section.
        (by_leaf, strsim::damerau_levenshtein(name, path))
    };
    let near =
        SETTINGS.iter().map(|setting| setting.name).chain(sections()).min_by_key(|name| distance(name))?;
    (distance(near).0 <= wanted.len().div_ceil(3).min(3)).then_some(near)
}

#[cfg(test)]
pub(super) mod tests {
    use super::super::{Isolation, LogFormat, Strategy, Switch};
    use super::*;
    use std::time::Duration;

    pub fn read(yaml: &str, env: &[(&str, &str)], flags: Overrides) -> Result<Config, Error> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), yaml).unwrap();
        let env = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        Config::from_sources(Some(file.path()), env, flags)
    }

    pub fn wrong(yaml: &str, env: &[(&str, &str)]) -> Vec<(String, String)> {
        match read(yaml, env, Overrides::default()) {
            Err(Error::Invalid(wrong)) => {
                wrong.into_iter().map(|wrong| (wrong.name, wrong.message)).collect()
            }
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn flags_over_environment_over_file_over_default() {
        let yaml =
            "listen: 127.0.0.1:1\ndata: /file\nmemory: 64Mi\nlimits: {bodyTimeout: 5s, connections: 7}\n";
        let env = [
            ("KLAMBDA_LISTEN", "127.0.0.1:2"),
            ("KLAMBDA_DATA", "/env"),
            ("KLAMBDA_LIMITS_CONNECTIONS", "8"),
        ];
        let flags = Overrides { listen: Some("localhost:3".into()), ..Overrides::default() };
        let config = read(yaml, &env, flags).unwrap();
        assert_eq!(config.listen.to_string(), "127.0.0.1:3");
        assert_eq!(config.data, Path::new("/env"));
        assert_eq!(config.memory, 64 << 20);
        assert_eq!(config.limits.body_timeout, Duration::from_secs(5));
        assert_eq!(config.limits.connections, 8);
        assert_eq!(config.limits.event_bytes, 1 << 20);
    }

    #[test]
    fn the_environment_holds_every_kind_of_setting() {
        let env = [
            ("KLAMBDA_LOG_FORMAT", "json"),
            ("KLAMBDA_ALLOW_HOSTS", "a.example, b.example:8443"),
            ("KLAMBDA_DELIVERY_BREAKER_HALF_OPEN_AFTER", "1m"),
            ("KLAMBDA_DELIVERY_BREAKER_RATIO", "0.25"),
            ("KLAMBDA_RETENTION_BYTES", "10Gi"),
            ("KLAMBDA_REPLAY_STRATEGIES", "order.placed=parallel,lambda.health.check=manual"),
            ("KLAMBDA_TOKEN_FILE", ""),
            ("KLAMBDA_SERVER", "http://localhost:8080"),
            ("KLAMBDA_SERVICE_HOST", "10.0.0.1"),
        ];
        let config = read("", &env, Overrides::default()).unwrap();
        assert_eq!(config.log.format, LogFormat::Json);
        assert_eq!(config.allow_hosts, ["a.example", "b.example:8443"]);
        assert_eq!(config.delivery.breaker.half_open_after, Duration::from_secs(60));
        assert_eq!(config.delivery.breaker.ratio, 0.25);
        assert_eq!(config.retention.bytes, 10 << 30);
        assert_eq!(config.replay.strategies["order.placed"], Strategy::Parallel);
        assert_eq!(config.replay.strategies["lambda.health.check"], Strategy::Manual);
        assert_eq!(config.replay.strategies["lambda.build.started"], Strategy::Ordered, "the rest stays");
        assert_eq!(config.token_file, None);
    }

    #[test]
    fn isolation_is_none_or_required() {
        let required = [("KLAMBDA_FUNCTIONS_ISOLATION", "required")];
        let config = read("functions: {isolation: none}", &required, Overrides::default()).unwrap();
        assert_eq!(config.functions.isolation, Isolation::Required);
        let found = wrong("functions: {isolation: full}", &[]);
        assert_eq!(found[0].1, "`full` must be none or required");
    }

    #[test]
    fn the_outbound_guard_reads_files_and_variables() {
        let yaml = "outbound:\n  guard: on\n  allow:\n  - {cidr: 10.0.0.0/8, namespaces: [shop, bank]}\n  - cidr: fd00::/8\n  \
                    ports: [443, 8000-8999]\n";
        let config = read(yaml, &[], Overrides::default()).unwrap().outbound;
        assert_eq!(config.guard, Switch::On);
        assert_eq!(config.allow[0].namespaces, ["shop", "bank"]);
        assert_eq!(
            (config.allow[1].network.to_string().as_str(), config.allow[1].namespaces.len()),
            ("fd00::/8", 0)
        );
        assert_eq!((config.ports[0].last, config.ports[1].first), (443, 8000));
        let env = [
            ("KLAMBDA_OUTBOUND_GUARD", "off"),
            ("KLAMBDA_OUTBOUND_ALLOW", "10.0.0.0/8=shop, 127.0.0.1"),
            ("KLAMBDA_OUTBOUND_PORTS", "443,80-81"),
        ];
        let config = read(yaml, &env, Overrides::default()).unwrap().outbound;
        assert_eq!((config.guard, config.allow.len(), config.ports.len()), (Switch::Off, 2, 2));
        assert_eq!((config.allow[0].namespaces.len(), config.allow[1].namespaces.len()), (1, 0));
        for (yaml, part) in [
            ("outbound: {guard: sometimes}", "must be auto, on or off"),
            ("outbound: {allow: 7}", "must be a list"),
            ("outbound: {allow: [10.0.0.0/8]}", "must be a map"),
            ("outbound: {allow: [{namespaces: [a]}]}", "no cidr"),
            ("outbound: {allow: [{cidr: 10.0.0.1/8}]}", "did you mean 10.0.0.0/8?"),
            ("outbound: {allow: [{cidr: 10.0.0.0/8, namespace: a}]}", "unknown field namespace"),
            ("outbound: {allow: [{cidr: 10.0.0.0/8, namespaces: []}]}", "is empty"),
            ("outbound: {ports: [0]}", "not a port"),
            ("outbound: {ports: [9-1]}", "not a port"),
        ] {
            let found = wrong(yaml, &[]);
            assert!(found.iter().any(|(_, message)| message.contains(part)), "{yaml}: {found:?}");
        }
    }

    #[test]
    fn all_that_is_wrong_is_named_at_once() {
        let yaml = "limits: {bodyByte: 1Mi, headerTimeout: 10, connections: 0}\nbodyBytes: 1Mi\nmemmory: 1Gi\n\
                    log: {level: inof}\nstore: 5\nretention: {age: soon}\nreplay: {strategies: {a.b: sideways}}\n\
                    tls: {cert: c.pem}\nallowHosts: ['a b']\nzzzzzzzz: 1\n";
        let found = wrong(yaml, &[("KLAMBDA_LIMITS_BODY_BYTE", "1"), ("KLAMBDA_MEMORY", "lots")]);
        let said = |name: &str, part: &str| {
            let hit = found.iter().any(|(at, message)| at == name && message.contains(part));
            assert!(hit, "{name}: {part} not in {found:#?}");
        };
        said("limits.bodyByte", "did you mean limits.bodyBytes?");
        said("bodyBytes", "did you mean limits.bodyBytes?");
        said("memmory", "did you mean memory?");
        said("limits.headerTimeout", "has no unit");
        said("limits.connections", "at least 1");
        said("log.level", "inof");
        said("store", "must be a map of settings");
        said("retention.age", "soon");
        said("replay.strategies", "sideways");
        said("tls", "--tls-key");
        said("allowHosts", "a b");
        said("zzzzzzzz", "klambda config");
        said("KLAMBDA_LIMITS_BODY_BYTE", "KLAMBDA_LIMITS_BODY_BYTES");
        said("KLAMBDA_MEMORY", "lots");
        assert_eq!(found.len(), 14, "{found:#?}");
    }

    #[test]
    fn limits_that_contradict_each_other_are_refused() {
        let found = wrong("limits: {bodyBytes: 1Mi, eventBytes: 2Mi, heldBytes: 2Mi}", &[]);
        assert_eq!(
            found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(),
            ["limits.eventBytes", "limits.bodyBytes"]
        );
        // Events would wait for room that a new segment does not have.
        let found = wrong("limits: {bodyBytes: 1Mi}\nstore: {segmentBytes: 1Mi, reserveBytes: 1Mi}", &[]);
        assert_eq!(found.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>(), ["store.reserveBytes"]);
    }

    #[test]
    fn files_that_are_none() {
        for text in ["a: [", "data: a\ndata: b\n", "a: b: c\n"] {
            let error = read(text, &[], Overrides::default()).expect_err(text);
            assert!(matches!(error, Error::NoYaml { .. }), "{error}");
            let error = error.to_string();
            assert!(!error.contains('\n') && !error.contains("Options"), "{error}");
        }
        assert!(matches!(wrong("[1, 2]", &[])[0].0.as_str(), "the file"));
        assert_eq!(read("# nothing yet\n", &[], Overrides::default()).unwrap(), Config::default());
        let missing =
            Config::from_sources(Some(Path::new("/nowhere.yaml")), std::iter::empty(), Overrides::default());
        assert!(missing.unwrap_err().to_string().contains("/nowhere.yaml"));
    }
}
