//! Where traces go and which are recorded: the settings of the server, and the variables of OpenTelemetry, which have
//! priority.

use klambda_core::trace::Sampler;
use percent_encoding::percent_decode_str;
use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

/// The settings of the server.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    pub endpoint: Option<String>,
    pub protocol: Option<Protocol>,
    /// The share of traces that begin here, from 0 to 1.
    pub sample_rate: f64,
    /// Attributes of the resource, each `name=value`.
    pub attributes: Vec<String>,
    /// The number of spans that wait at most.
    pub queue: usize,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Protocol {
    Grpc,
    Http,
}

impl Protocol {
    pub const NAMES: &str = "grpc or http/protobuf";

    pub fn named(name: &str) -> Option<Protocol> {
        match name {
            "grpc" => Some(Protocol::Grpc),
            "http/protobuf" => Some(Protocol::Http),
            _ => None,
        }
    }
}

/// Everything that an export needs.
#[derive(Clone, Debug, PartialEq)]
pub struct Target {
    /// The whole URL.
    pub endpoint: String,
    pub protocol: Protocol,
    pub timeout: Duration,
    pub tls: Tls,
    pub sampler: Sampler,
    pub resource: BTreeMap<String, String>,
    pub queue: usize,
    /// Spans of one request.
    pub batch: usize,
    /// A span waits at most this long.
    pub delay: Duration,
}

/// Files with certificates.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tls {
    ca: Option<PathBuf>,
    certificate: Option<PathBuf>,
    key: Option<PathBuf>,
}

/// How this server identifies itself to the collector, in PEM.
pub struct ClientIdentity {
    pub certificate: Vec<u8>,
    pub key: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{variable}: `{value}` must be {expected}")]
    Variable { variable: &'static str, value: String, expected: &'static str },
    #[error("traces.endpoint: {0}")]
    Endpoint(String),
    #[error("traces.attributes: `{0}` must be name=value")]
    Attribute(String),
    #[error("could not prepare the export of traces: {0}")]
    Exporter(String),
    #[error("could not read {}: {source}", path.display())]
    File { path: PathBuf, source: io::Error },
    #[error("could not start the export of traces: {0}")]
    Thread(io::Error),
    #[error("no random numbers: {0}")]
    Randomness(getrandom::Error),
}

impl Tls {
    pub fn ca(&self) -> Result<Option<Vec<u8>>, Error> {
        self.ca.as_ref().map(read).transpose()
    }

    pub fn client(&self) -> Result<Option<ClientIdentity>, Error> {
        match (&self.certificate, &self.key) {
            (Some(certificate), Some(key)) => {
                Ok(Some(ClientIdentity { certificate: read(certificate)?, key: read(key)? }))
            }
            _ => Ok(None),
        }
    }
}

fn read(path: &PathBuf) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::File { path: path.clone(), source })
}

const SERVICE: &str = "knative-lambda-operator";
const TIMEOUT_MS: u64 = 10_000;
const DELAY_MS: u64 = 5_000;
const BATCH: usize = 512;
/// The port of collectors for gRPC.
const GRPC_PORT: u16 = 4317;
const HTTP_PATH: &str = "/v1/traces";

impl Settings {
    /// `None` if no traces are exported. `variable` reads the environment.
    pub fn target(&self, variable: impl Fn(&str) -> Option<String>) -> Result<Option<Target>, Error> {
        let variable = |name: &str| variable(name).filter(|value| !value.trim().is_empty());
        let env = Environment(&variable);
        if env.is_disabled()? {
            return Ok(None);
        }
        let Some((url, is_whole)) = env.endpoint().or_else(|| Some((self.endpoint.clone()?, false))) else {
            return Ok(None);
        };
        let url = url_of(&url)?;
        let protocol = env.protocol()?.or(self.protocol);
        let protocol = protocol.unwrap_or(match url.port_u16() {
            Some(GRPC_PORT) => Protocol::Grpc,
            _ => Protocol::Http,
        });
        Ok(Some(Target {
            endpoint: endpoint(&url, protocol, is_whole),
            protocol,
            timeout: Duration::from_millis(env.signal("TIMEOUT", TIMEOUT_MS)?),
            tls: env.tls(),
            sampler: env.sampler(self.sample_rate)?,
            resource: self.resource(&env)?,
            queue: env.number("OTEL_BSP_MAX_QUEUE_SIZE", self.queue as u64)? as usize,
            batch: env.number("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", BATCH as u64)? as usize,
            delay: Duration::from_millis(env.number("OTEL_BSP_SCHEDULE_DELAY", DELAY_MS)?),
        }))
    }

    fn resource(&self, env: &Environment<'_>) -> Result<BTreeMap<String, String>, Error> {
        let own = [
            ("service.name", SERVICE),
            ("service.namespace", "knative-lambda"),
            ("service.version", env!("CARGO_PKG_VERSION")),
            ("telemetry.sdk.language", "rust"),
            ("telemetry.sdk.name", "opentelemetry"),
        ];
        let mut resource: BTreeMap<String, String> =
            own.into_iter().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
        for pair in &self.attributes {
            let (name, value) = pair.split_once('=').ok_or_else(|| Error::Attribute(pair.clone()))?;
            resource.insert(name.trim().to_owned(), value.trim().to_owned());
        }
        resource.extend(env.resource()?);
        Ok(resource)
    }
}

/// Documents and tools often write only host and port.
fn url_of(text: &str) -> Result<http::Uri, Error> {
    let text = text.trim();
    let whole = if text.contains("://") { text.to_owned() } else { format!("http://{text}") };
    let url: http::Uri = whole.parse().map_err(|error| Error::Endpoint(format!("`{text}`: {error}")))?;
    let is_http = matches!(url.scheme_str(), Some("http" | "https"));
    if !is_http || url.host().is_none_or(str::is_empty) || url.query().is_some() {
        return Err(Error::Endpoint(format!("`{text}` must be a URL such as http://localhost:4318")));
    }
    Ok(url)
}

/// The path of traces is part of the URL for HTTP. `is_whole`: the user wrote it.
fn endpoint(url: &http::Uri, protocol: Protocol, is_whole: bool) -> String {
    let text = url.to_string();
    let text = text.trim_end_matches('/');
    match protocol {
        Protocol::Http if !is_whole && !url.path().ends_with(HTTP_PATH) => format!("{text}{HTTP_PATH}"),
        _ => text.to_owned(),
    }
}

/// The variables of OpenTelemetry. An empty one counts as not set.
struct Environment<'a>(&'a dyn Fn(&str) -> Option<String>);

const PREFIX: &str = "OTEL_EXPORTER_OTLP_";

impl Environment<'_> {
    fn get(&self, name: &str) -> Option<String> {
        (self.0)(name)
    }

    /// A variable for traces, or else the one for everything.
    fn of_signal(&self, name: &str) -> Option<String> {
        self.get(&format!("{PREFIX}TRACES_{name}")).or_else(|| self.get(&format!("{PREFIX}{name}")))
    }

    fn is_disabled(&self) -> Result<bool, Error> {
        let is_off = self.get("OTEL_SDK_DISABLED").is_some_and(|value| value.eq_ignore_ascii_case("true"));
        match self.get("OTEL_TRACES_EXPORTER").as_deref() {
            None | Some("otlp") => Ok(is_off),
            Some("none") => Ok(true),
            Some(value) => Err(wrong("OTEL_TRACES_EXPORTER", value, "otlp or none")),
        }
    }

    /// The endpoint, and whether it is the whole URL.
    fn endpoint(&self) -> Option<(String, bool)> {
        let whole = self.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT").map(|url| (url, true));
        whole.or_else(|| self.get("OTEL_EXPORTER_OTLP_ENDPOINT").map(|url| (url, false)))
    }

    fn protocol(&self) -> Result<Option<Protocol>, Error> {
        let Some(name) = self.of_signal("PROTOCOL") else { return Ok(None) };
        let protocol = Protocol::named(&name);
        protocol.map(Some).ok_or_else(|| wrong("OTEL_EXPORTER_OTLP_PROTOCOL", &name, Protocol::NAMES))
    }

    fn tls(&self) -> Tls {
        let path = |name| self.of_signal(name).map(PathBuf::from);
        Tls { ca: path("CERTIFICATE"), certificate: path("CLIENT_CERTIFICATE"), key: path("CLIENT_KEY") }
    }

    fn sampler(&self, rate: f64) -> Result<Sampler, Error> {
        let ratio = || match self.get("OTEL_TRACES_SAMPLER_ARG") {
            None => Ok(1.0),
            Some(text) => text
                .parse()
                .ok()
                .filter(|ratio| (0.0..=1.0).contains(ratio))
                .ok_or_else(|| wrong("OTEL_TRACES_SAMPLER_ARG", &text, "a number from 0 to 1")),
        };
        let Some(name) = self.get("OTEL_TRACES_SAMPLER") else { return Ok(Sampler::new(true, rate)) };
        Ok(match name.as_str() {
            "always_on" => Sampler::new(false, 1.0),
            "always_off" => Sampler::new(false, 0.0),
            "traceidratio" => Sampler::new(false, ratio()?),
            "parentbased_always_on" => Sampler::new(true, 1.0),
            "parentbased_always_off" => Sampler::new(true, 0.0),
            "parentbased_traceidratio" => Sampler::new(true, ratio()?),
            other => {
                let expected = "always_on, always_off or traceidratio, or one of them after parentbased_";
                return Err(wrong("OTEL_TRACES_SAMPLER", other, expected));
            }
        })
    }

    fn resource(&self) -> Result<Vec<(String, String)>, Error> {
        let mut pairs = Vec::new();
        let variable = "OTEL_RESOURCE_ATTRIBUTES";
        let text = self.get(variable).unwrap_or_default();
        for pair in text.split(',').map(str::trim).filter(|pair| !pair.is_empty()) {
            let expected = "name=value, separated by commas";
            let (name, value) = pair.split_once('=').ok_or_else(|| wrong(variable, pair, expected))?;
            let value = percent_decode_str(value.trim()).decode_utf8_lossy().into_owned();
            pairs.push((name.trim().to_owned(), value));
        }
        pairs.extend(self.get("OTEL_SERVICE_NAME").map(|name| ("service.name".to_owned(), name)));
        Ok(pairs)
    }

    fn signal(&self, name: &str, default: u64) -> Result<u64, Error> {
        match self.of_signal(name) {
            None => Ok(default),
            Some(text) => positive(&text).ok_or_else(|| wrong("OTEL_EXPORTER_OTLP_TIMEOUT", &text, NUMBER)),
        }
    }

    fn number(&self, variable: &'static str, default: u64) -> Result<u64, Error> {
        match self.get(variable) {
            None => Ok(default),
            Some(text) => positive(&text).ok_or_else(|| wrong(variable, &text, NUMBER)),
        }
    }
}

const NUMBER: &str = "a whole number from 1 to 1000000";

fn positive(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|number| (1..=1_000_000).contains(number))
}

fn wrong(variable: &'static str, value: &str, expected: &'static str) -> Error {
    Error::Variable { variable, value: value.to_owned(), expected }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(endpoint: Option<&str>) -> Settings {
        let endpoint = endpoint.map(str::to_owned);
        Settings { endpoint, protocol: None, sample_rate: 0.1, attributes: Vec::new(), queue: 2048 }
    }

    fn target(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Result<Option<Target>, Error> {
        settings(endpoint).target(|name| {
            variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
        })
    }

    fn found(endpoint: Option<&str>, variables: &[(&str, &str)]) -> Target {
        target(endpoint, variables).expect("valid").expect("an endpoint")
    }

    #[test]
    fn nothing_is_exported_without_an_endpoint() {
        assert_eq!(target(None, &[]).unwrap(), None);
        assert_eq!(target(None, &[("OTEL_EXPORTER_OTLP_ENDPOINT", " ")]).unwrap(), None);
        assert_eq!(target(Some("http://c:4318"), &[("OTEL_SDK_DISABLED", "TRUE")]).unwrap(), None);
        assert_eq!(target(Some("http://c:4318"), &[("OTEL_TRACES_EXPORTER", "none")]).unwrap(), None);
    }

    #[test]
    fn the_endpoint_has_the_path_of_its_protocol() {
        let of = |endpoint: &str, variables: &[(&str, &str)]| {
            let target = found(Some(endpoint), variables);
            (target.endpoint, target.protocol)
        };
        let http = |url: &str| (url.to_owned(), Protocol::Http);
        assert_eq!(of("http://c:4318", &[]), http("http://c:4318/v1/traces"));
        assert_eq!(of("https://c/otlp/", &[]), http("https://c/otlp/v1/traces"));
        assert_eq!(of("http://c:4318/v1/traces", &[]), http("http://c:4318/v1/traces"));
        assert_eq!(of("tempo.svc:4317", &[]), ("http://tempo.svc:4317".to_owned(), Protocol::Grpc));
        let variables = [("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")];
        assert_eq!(of("http://c:4317", &variables), http("http://c:4317/v1/traces"));
        let variables = [
            ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://d/own"),
            ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://e"),
        ];
        assert_eq!(of("http://c:4318", &variables), http("http://d/own"));
        assert_eq!(of("http://c:4318", &variables[1..]), http("http://e/v1/traces"));
    }

    #[test]
    fn variables_choose_the_sampler_and_describe_the_service() {
        assert_eq!(found(Some("http://c"), &[]).sampler, Sampler::new(true, 0.1));
        let variables = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "0.25")];
        assert_eq!(found(Some("http://c"), &variables).sampler, Sampler::new(false, 0.25));
        let variables = [
            ("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=pre%20prod, service.name=other"),
            ("OTEL_SERVICE_NAME", "orders"),
        ];
        let resource = found(Some("http://c"), &variables).resource;
        assert_eq!(
            (&*resource["deployment.environment"], &*resource["service.name"]),
            ("pre prod", "orders")
        );
        assert_eq!(found(Some("http://c"), &[]).resource["service.name"], SERVICE);
    }

    #[test]
    fn wrong_values_are_named() {
        for (variable, value) in [
            ("OTEL_TRACES_SAMPLER", "sometimes"),
            ("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json"),
            ("OTEL_TRACES_EXPORTER", "zipkin"),
            ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
            ("OTEL_RESOURCE_ATTRIBUTES", "nothing"),
        ] {
            let error = target(Some("http://c"), &[(variable, value)]).expect_err(variable).to_string();
            assert!(error.starts_with(variable) && error.contains(value), "{error}");
        }
        for endpoint in ["ftp://c", "http://", "a b", "http://c?x=1"] {
            let error = target(Some(endpoint), &[]).expect_err(endpoint).to_string();
            assert!(error.starts_with("traces.endpoint"), "{error}");
        }
    }
}
