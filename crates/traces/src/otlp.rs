//! Spans in the form of OpenTelemetry, and the exporter that sends them.

use crate::settings::{ClientIdentity, Error, Protocol, Target};
use klambda_core::trace::{self, Kind, Span, Value};
use opentelemetry::trace::{Link, SpanContext, SpanId, SpanKind, Status, TraceFlags, TraceId, TraceState};
use opentelemetry::{InstrumentationScope, KeyValue};
use opentelemetry_otlp::tonic_types::transport::{Certificate, ClientTlsConfig, Identity};
use opentelemetry_otlp::{SpanExporter as Otlp, WithExportConfig, WithHttpConfig, WithTonicConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::{SpanData, SpanEvents, SpanExporter, SpanLinks};

pub struct Exporter {
    otlp: Otlp,
    scope: InstrumentationScope,
}

/// Must be called inside the runtime that exports. Nothing is connected yet.
pub fn exporter(target: &Target) -> Result<Exporter, Error> {
    let mut otlp = match target.protocol {
        Protocol::Grpc => grpc(target)?,
        Protocol::Http => http(target)?,
    };
    let attributes = target.resource.iter().map(|(key, value)| KeyValue::new(key.clone(), value.clone()));
    otlp.set_resource(&Resource::builder_empty().with_attributes(attributes).build());
    let scope = InstrumentationScope::builder("klambda").with_version(env!("CARGO_PKG_VERSION")).build();
    Ok(Exporter { otlp, scope })
}

fn grpc(target: &Target) -> Result<Otlp, Error> {
    let mut builder = Otlp::builder().with_tonic().with_endpoint(&target.endpoint);
    if target.endpoint.starts_with("https:") {
        let mut tls = ClientTlsConfig::new().with_native_roots();
        if let Some(ca) = target.tls.ca()? {
            tls = tls.ca_certificate(Certificate::from_pem(ca));
        }
        if let Some(ClientIdentity { certificate, key }) = target.tls.client()? {
            tls = tls.identity(Identity::from_pem(certificate, key));
        }
        builder = builder.with_tls_config(tls);
    }
    builder.build().map_err(|error| Error::Exporter(error.to_string()))
}

fn http(target: &Target) -> Result<Otlp, Error> {
    let failed = |error: reqwest::Error| Error::Exporter(error.to_string());
    // The client uses the crypto provider of the process. An error means that the same provider is already installed.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .timeout(target.timeout);
    if let Some(ca) = target.tls.ca()? {
        client = client.add_root_certificate(reqwest::Certificate::from_pem(&ca).map_err(failed)?);
    }
    if let Some(ClientIdentity { mut certificate, key }) = target.tls.client()? {
        certificate.extend_from_slice(&key);
        client = client.identity(reqwest::Identity::from_pem(&certificate).map_err(failed)?);
    }
    let builder = Otlp::builder().with_http().with_http_client(client.build().map_err(failed)?);
    let builder =
        builder.with_endpoint(&target.endpoint).with_protocol(opentelemetry_otlp::Protocol::HttpBinary);
    builder.build().map_err(|error| Error::Exporter(error.to_string()))
}

impl Exporter {
    /// Ends within the timeout of the exporter.
    pub async fn export(&self, spans: Vec<Span>) -> Result<(), String> {
        let spans = spans.into_iter().map(|span| self.data(span)).collect();
        self.otlp.export(spans).await.map_err(|error| error.to_string())
    }

    fn data(&self, span: Span) -> SpanData {
        let mut links = SpanLinks::default();
        links.links = span.links.iter().map(|link| Link::with_context(context(link, true))).collect();
        SpanData {
            span_context: context(&span.context, false),
            parent_span_id: span.parent.map_or(SpanId::INVALID, |parent| SpanId::from_bytes(parent.0)),
            parent_span_is_remote: span.kind == Kind::Server,
            span_kind: match span.kind {
                Kind::Server => SpanKind::Server,
                Kind::Client => SpanKind::Client,
                Kind::Internal => SpanKind::Internal,
            },
            name: span.name.into(),
            start_time: span.start,
            end_time: span.start + span.took,
            attributes: span.attributes.into_iter().map(attribute).collect(),
            dropped_attributes_count: 0,
            events: SpanEvents::default(),
            links,
            status: span.error.map_or(Status::Unset, Status::error),
            instrumentation_scope: self.scope.clone(),
        }
    }
}

fn context(context: &trace::Context, is_remote: bool) -> SpanContext {
    SpanContext::new(
        TraceId::from_bytes(context.trace.0),
        SpanId::from_bytes(context.span.0),
        if context.is_sampled { TraceFlags::SAMPLED } else { TraceFlags::default() },
        is_remote,
        TraceState::NONE,
    )
}

fn attribute((key, value): (&'static str, Value)) -> KeyValue {
    match value {
        Value::Text(text) => KeyValue::new(key, text),
        Value::Static(text) => KeyValue::new(key, text),
        Value::Integer(number) => KeyValue::new(key, number),
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use klambda_core::trace::{Context, Subject};
    use std::time::{Duration, SystemTime};

    pub fn span() -> Span {
        let text = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
        Span {
            name: "operator.event.process",
            kind: Kind::Client,
            context: Context::parse(text).expect("a context"),
            parent: None,
            links: Vec::new(),
            start: SystemTime::UNIX_EPOCH,
            took: Duration::from_millis(1),
            attributes: vec![("event.type", "order.placed".into())],
            error: None,
            subject: Subject::Attempt {
                subscription: "orders".into(),
                event_type: "order.placed".into(),
                delivered_after_ms: Some(100),
            },
        }
    }
}
