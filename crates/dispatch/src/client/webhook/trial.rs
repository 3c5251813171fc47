//! A test call of a webhook endpoint, outside of its lanes.

use super::super::connection::{Begun, CallError};
use super::super::response_parser::Wanted;
use super::super::target::Way;
use super::super::{Client, SWEEP_INTERVAL};
use super::{Signed, WebhookRequest};
use klambda_core::event::Event;
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::Document;
use klambda_core::time::Millis;
use klambda_core::webhook::{EventId, payload};
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use tokio::time::Instant;

/// How much of an answer is returned.
const SHOWN_BYTES: usize = 1024;

/// The answer to a test call.
#[derive(Debug)]
pub struct Tried {
    pub status: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
}

impl Client {
    /// Calls the endpoint of a subscription once, with an event that has no place in a workflow.
    pub async fn try_endpoint(
        &self,
        document: Document,
        event: &Event,
        now: Millis,
    ) -> Result<Tried, CallOutcome> {
        let unusable = |why: String| CallOutcome::Unusable(why);
        let target = self.shared.prepared(&Arc::new(document)).map_err(unusable)?;
        let not_endpoint = || unusable("not a webhook endpoint".to_owned());
        let spec = target.document.spec.target.endpoint().ok_or_else(not_endpoint)?;
        let Way::Http1(pool) = &target.way else { return Err(not_endpoint()) };
        let keys = target.opened.keys(&target, &*self.shared.providers.secrets).await.map_err(unusable)?;
        let id = EventId::new(&target.document.namespace, &event.source, &event.id);
        let (mut encoded, mut body) = (Vec::new(), Vec::new());
        event.encode(&mut encoded);
        let view = EventView::decode(&encoded).map_err(|error| unusable(error.to_string()))?;
        payload::write(&mut body, &spec.payload, id, &view, None);
        let signed = Signed::of(body, spec, id, now, &keys);
        let live = target.headers.live(SWEEP_INTERVAL).map_err(unusable)?;
        let own = live.as_deref().or_else(|| target.headers.fixed()).ok_or_else(not_endpoint)?;
        let request = WebhookRequest { signed: &signed, target: &target, own };
        let deadline = target.deadline(Instant::now());
        let mut connection = pool.connect(deadline).await?;
        let mut begun = Begun::new(SHOWN_BYTES, Wanted::All);
        let begin = poll_fn(|context| {
            connection.begin(context, &request, &mut begun);
            Poll::Ready(())
        });
        begin.await;
        connection.read(&mut begun, deadline, SHOWN_BYTES).await.map_err(|error| match error {
            CallError::Closed(why) | CallError::Broken(why) => CallOutcome::Broken(why),
            CallError::Timeout => CallOutcome::Timeout,
        })?;
        let status = begun.answer.reply().code;
        let mut body = begun.answer.drain_body();
        body.truncate(SHOWN_BYTES);
        Ok(Tried { status, body })
    }
}
