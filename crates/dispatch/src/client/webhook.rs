//! Calls of webhook endpoints: the body, and its signature by the Standard Webhooks specification.

mod batch;
mod signature;
mod trial;

pub use batch::SentBatch;
pub use signature::SigningKey;
pub use trial::{Beside, Tried};

use super::connection::Message;
use super::own_headers::Rendered;
use super::request::{write_header, write_length};
use super::target::{Prepared, Way};
use super::tls::{Credentials, Pem, Pems};
use crate::engine::Delivery;
use crate::secrets::{Secrets, Values};
use bytes::Bytes;
use http::{HeaderName, HeaderValue};
use klambda_core::event_codec::EventView;
use klambda_core::time::Millis;
use klambda_core::webhook::{EventId, PREFIX, PayloadForm, Spec, Tls, payload};
use klambda_crash::Lock;
use std::borrow::Cow;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The keys in the secret of an endpoint.
pub const CURRENT: &str = "current";
pub const PREVIOUS: &str = "previous";
/// Until when the previous key signs too, in milliseconds since the epoch.
pub const PREVIOUS_UNTIL: &str = "previous-until";

/// How long opened secrets are used before they are read again.
const FRESH: Duration = Duration::from_secs(5);

/// The name of the secret that holds the signing keys of an endpoint.
pub fn secret_name(endpoint: &str) -> String {
    format!("{PREFIX}{endpoint}")
}

/// The secrets of one endpoint, read again from time to time.
#[derive(Default)]
pub struct Opened {
    latest: Lock<Option<(Instant, Arc<Keys>)>>,
}

/// What the secrets of an endpoint contain, ready to be used.
pub struct Keys {
    current: SigningKey,
    previous: Option<(SigningKey, Millis)>,
    headers: Rendered,
    /// If the endpoint has TLS settings of its own.
    credentials: Option<Arc<Credentials>>,
}

impl Opened {
    /// The keys of the endpoint. The error says which secret is missing.
    pub async fn keys(&self, target: &Prepared, secrets: &dyn Secrets) -> Result<Arc<Keys>, String> {
        match self.fresh() {
            Some(keys) => Ok(keys),
            // Boxed, because it is rare and its state is large.
            None => Box::pin(self.open(target, secrets)).await,
        }
    }

    fn fresh(&self) -> Option<Arc<Keys>> {
        let latest = self.latest.lock();
        latest.as_ref().filter(|(read, _)| read.elapsed() < FRESH).map(|(_, keys)| keys.clone())
    }

    async fn open(&self, target: &Prepared, secrets: &dyn Secrets) -> Result<Arc<Keys>, String> {
        let document = &target.document;
        let spec = document.spec.target.endpoint().ok_or("not a webhook endpoint")?;
        let own = secrets.open(&document.namespace, &document.name).await?;
        let pems = pems(&spec.tls, &document.namespace, secrets).await?;
        let keys = Arc::new(Keys {
            current: key(&own, CURRENT, spec)?,
            previous: previous(&own, spec)?,
            headers: headers(spec, &document.namespace, secrets).await?,
            credentials: pems.map(|pems| self.credentials(&pems)).transpose()?,
        });
        if let (Some(credentials), Way::Http1(pool)) = (&keys.credentials, &target.way) {
            pool.adopt(credentials);
        }
        *self.latest.lock() = Some((Instant::now(), keys.clone()));
        Ok(keys)
    }

    /// Parses certificates only if they have changed.
    fn credentials(&self, pems: &Pems) -> Result<Arc<Credentials>, String> {
        let latest = self.latest.lock().as_ref().and_then(|(_, keys)| keys.credentials.clone());
        match latest.filter(|latest| latest.are_from(pems)) {
            Some(latest) => Ok(latest),
            None => pems.credentials().map(Arc::new),
        }
    }
}

/// The certificates of an endpoint. `None` if it has no TLS settings of its own.
async fn pems(tls: &Tls, namespace: &str, secrets: &dyn Secrets) -> Result<Option<Pems>, String> {
    if tls.is_default() {
        return Ok(None);
    }
    let mut pems = Pems::default();
    if let Some(ca) = &tls.ca {
        pems.ca = Some(pem(&secrets.open(namespace, &ca.secret).await?, &ca.secret, &ca.key)?);
    }
    if let Some(client) = &tls.client_certificate {
        let values = secrets.open(namespace, &client.secret).await?;
        let of = |key: &str| pem(&values, &client.secret, key);
        pems.client = Some((of(&client.certificate)?, of(&client.private_key)?));
    }
    Ok(Some(pems))
}

fn pem(values: &Values, secret: &str, key: &str) -> Result<Pem, String> {
    let text = values.get(key).ok_or_else(|| format!("secret {secret} has no key {key}"))?;
    Ok(Pem { name: format!("key {key} of secret {secret}"), text: text.clone() })
}

fn key(values: &Values, name: &str, spec: &Spec) -> Result<SigningKey, String> {
    let value = values.get(name).ok_or_else(|| format!("the signing secret has no key {name}"))?;
    SigningKey::parse(value, spec.signature)
}

fn previous(values: &Values, spec: &Spec) -> Result<Option<(SigningKey, Millis)>, String> {
    let until = values.get(PREVIOUS_UNTIL).and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
    let Some(until) = until.map(Millis) else { return Ok(None) };
    match values.contains_key(PREVIOUS) {
        true => Ok(Some((key(values, PREVIOUS, spec)?, until))),
        false => Ok(None),
    }
}

async fn headers(spec: &Spec, namespace: &str, secrets: &dyn Secrets) -> Result<Rendered, String> {
    let mut rendered = Rendered::default();
    for (name, from) in &spec.headers {
        let values = secrets.open(namespace, &from.secret).await?;
        let wrong =
            |what: &str| format!("header {name}: {what} (key {} of secret {})", from.key, from.secret);
        let value = values.get(&from.key).ok_or_else(|| wrong("the value is missing"))?;
        let text = value.trim_ascii();
        let mut value =
            HeaderValue::from_bytes(text).map_err(|_| wrong("the value contains invalid characters"))?;
        value.set_sensitive(true);
        let header = HeaderName::from_bytes(name.as_bytes()).map_err(|_| wrong("invalid header name"))?;
        for part in [header.as_str().as_bytes(), b": ", text, b"\r\n"] {
            rendered.block.extend_from_slice(part);
        }
        rendered.pairs.push((header, value));
    }
    Ok(rendered)
}

/// One signed call.
pub struct Signed {
    /// The header lines of the signature and of the content.
    block: Vec<u8>,
    body: Bytes,
    /// For an endpoint that takes several events in one call.
    pub batch: Option<Box<SentBatch>>,
}

impl Signed {
    /// `None` if the event cannot be decoded. Then it has no id either.
    pub fn new(delivery: &Delivery, spec: &Spec, keys: &Keys) -> Option<Signed> {
        let Content { body, id, batch } = content(delivery, spec)?;
        let signed = Signed::of(body, spec, id, delivery.time, keys);
        Some(Signed { batch: batch.map(Box::new), ..signed })
    }

    pub fn add_header(&mut self, name: &str, value: &str) {
        write_header(&mut self.block, name, value);
    }

    fn of(body: Vec<u8>, spec: &Spec, id: EventId, time: Millis, keys: &Keys) -> Signed {
        let mut block = Vec::with_capacity(keys.headers.block.len() + SIGNATURE_BYTES);
        block.extend_from_slice(&keys.headers.block);
        sign(&mut block, id, time, &body, keys);
        let content_type = match (spec.payload.form, spec.batch) {
            (PayloadForm::Standard, _) => "application/json",
            (PayloadForm::CloudEvents, None) => "application/cloudevents+json; charset=utf-8",
            (PayloadForm::CloudEvents, Some(_)) => "application/cloudevents-batch+json; charset=utf-8",
        };
        write_header(&mut block, "content-type", content_type);
        Signed { block, body: body.into(), batch: None }
    }
}

/// Enough for the headers of one signature.
const SIGNATURE_BYTES: usize = 256;

/// The content of a call, before it is signed.
struct Content {
    body: Vec<u8>,
    /// The `webhook-id`.
    id: EventId,
    batch: Option<SentBatch>,
}

fn content(delivery: &Delivery, spec: &Spec) -> Option<Content> {
    if let Some(limits) = spec.batch {
        let (body, batch) = batch::body(delivery, spec, limits)?;
        return Some(Content { body, id: batch.id(), batch: Some(batch) });
    }
    let event = delivery.record.get(delivery.event.clone()).unwrap_or_default();
    let event = EventView::decode(event).ok()?;
    let id = delivery.event_id?;
    let mut body = Vec::with_capacity(event.data().len() + 512);
    payload::write(&mut body, &spec.payload, id, &event, place(delivery).as_ref());
    Some(Content { body, id, batch: None })
}

/// The body of a call as its receiver gets it. `None` if the event cannot be decoded, or the target is no endpoint.
pub fn body(delivery: &Delivery) -> Option<Vec<u8>> {
    let spec = delivery.document.spec.target.endpoint()?;
    Some(content(delivery, spec)?.body)
}

/// The place of the first event of a call.
fn place(delivery: &Delivery) -> Option<payload::Place<'_>> {
    delivery.place.as_ref().map(|place| payload::Place {
        workflow: Cow::Borrowed(place.workflow.as_deref().unwrap_or_default()),
        number: place.number.0,
        previous: place.previous_id.as_deref().map(Cow::Borrowed),
        flag: place.flag,
    })
}

/// Both keys sign while the previous one is still valid, so that receivers can switch at any time.
fn sign(block: &mut Vec<u8>, id: EventId, time: Millis, body: &[u8], keys: &Keys) {
    let seconds = (time.0 / 1000).to_string();
    id.with_text(|id| {
        let mut signatures = keys.current.sign(id, &seconds, body);
        if let Some((previous, _)) = keys.previous.as_ref().filter(|(_, until)| time < *until) {
            signatures.push(' ');
            signatures.push_str(&previous.sign(id, &seconds, body));
        }
        write_header(block, "webhook-id", id);
        write_header(block, "webhook-timestamp", &seconds);
        write_header(block, "webhook-signature", &signatures);
    });
}

/// A signed call to a target.
pub struct WebhookRequest<'a> {
    pub signed: &'a Signed,
    pub target: &'a Prepared,
    pub own: &'a Rendered,
}

impl Message for WebhookRequest<'_> {
    fn write_head(&self, out: &mut Vec<u8>) {
        for part in [&self.target.start, &self.own.block, &self.signed.block] {
            out.extend_from_slice(part);
        }
        write_length(out, self.signed.body.len());
    }

    fn body(&self) -> &[u8] {
        &self.signed.body
    }

    fn body_bytes(&self) -> Bytes {
        self.signed.body.clone()
    }
}
