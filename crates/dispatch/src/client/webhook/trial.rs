//! A call of a webhook endpoint beside its lanes: a test, or an event that is sent again.

use super::super::connection::{Begun, CallError};
use super::super::reply::Excerpt;
use super::super::request::write_header;
use super::super::response_parser::Wanted;
use super::super::target::Way;
use super::super::{Client, SWEEP_INTERVAL};
use super::{Signed, WebhookRequest};
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

/// Tells the receiver that a user sent the event again.
const RESEND: &str = "klambda-resend";

/// Why a call is made beside the lanes.
pub enum Beside<'a> {
    Test,
    /// The event is sent again from its place. An unordered event has none.
    Resend(Option<payload::Place<'a>>),
}

/// The answer to a call.
#[derive(Debug)]
pub struct Tried {
    pub status: u16,
    /// The first bytes of the body.
    pub body: Vec<u8>,
}

impl Tried {
    /// The beginning of the body in one printable line.
    pub fn line(&self) -> String {
        let mut excerpt = Excerpt::of(self.status);
        excerpt.push(&self.body);
        excerpt.line()
    }
}

impl Client {
    /// Calls the endpoint of a subscription once. A test event has no place in a workflow.
    pub async fn try_endpoint(
        &self,
        document: Arc<Document>,
        event: &EventView<'_>,
        beside: Beside<'_>,
        now: Millis,
    ) -> Result<Tried, CallOutcome> {
        let unusable = |why: String| CallOutcome::Unusable(why);
        let target = self.shared.prepared(&document).map_err(unusable)?;
        let not_endpoint = || unusable("not a webhook endpoint".to_owned());
        let spec = target.document.spec.target.endpoint().ok_or_else(not_endpoint)?;
        let Way::Http1(pool) = &target.way else { return Err(not_endpoint()) };
        let keys = target.opened.keys(&target, &*self.shared.providers.secrets).await.map_err(unusable)?;
        let id = EventId::new(&target.document.namespace, event.source(), event.id());
        let mut body = Vec::new();
        let place = if let Beside::Resend(place) = &beside { place.as_ref() } else { None };
        // An endpoint that takes several events in one call always gets an array.
        let brackets = spec.batch.map(|_| [b'[', b']']);
        body.extend(brackets.map(|[begin, _]| begin));
        payload::write(&mut body, &spec.payload, id, event, place);
        body.extend(brackets.map(|[_, end]| end));
        let mut signed = Signed::of(body, spec, id, now, &keys);
        if let Beside::Resend(_) = beside {
            write_header(&mut signed.block, RESEND, "true");
        }
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
