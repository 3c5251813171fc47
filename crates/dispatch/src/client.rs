//! Calls targets over HTTP: takes a delivery and returns an outcome.
//!
//! Nothing that a target does is an error here. Every way in which a call can end is an [`CallOutcome`], and other code
//! decides what that means for the event and its lane. The client ignores proxy settings of the environment and
//! follows no redirects.

mod call_trace;
mod caller;
mod connection;
mod content;
mod dial;
mod h2c;
mod own_headers;
mod pool;
mod reply;
mod request;
mod response_parser;
mod stream;
mod target;
mod tls;
mod watch;
pub mod webhook;

#[cfg(test)]
mod response_parser_tests;
#[cfg(test)]
mod testing;
#[cfg(test)]
mod tests;

pub use caller::{Call, CallResponse, Caller, Rest};

use crate::engine::Delivery;
use crate::functions::{Acquired, Functions, NoFunctions, Unavailable};
use crate::schema_checks::{NoChecks, SchemaChecks};
use crate::secrets::{NoSecrets, Secrets};
use crate::traces::Tracer;
use call_trace::CallTrace;
use connection::{Begun, CallError, Connection};
use klambda_core::event::Event;
use klambda_core::event_codec::EventView;
use klambda_core::outcome::CallOutcome;
use klambda_core::subscription::{Document, FunctionName};
use klambda_core::trace::TRACEPARENT;
use klambda_core::webhook::Spec as EndpointSpec;
use klambda_crash::{Guard, Lock};
use klambda_outbound as outbound;
use own_headers::Rendered;
use pool::Pool;
use request::Request;
use response_parser::Wanted;
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;
use target::{Prepared, Replicas, Way};
use tokio::time::Instant;
use webhook::{SentBatch, Signed, WebhookRequest};

#[derive(Clone, Copy, Debug)]
pub struct Options {
    pub connect_timeout_ms: u64,
    /// Connections that are idle for this long are closed.
    pub pool_idle_ms: u64,
    /// The peer may close a connection that was idle for this long just as a call is sent on it. In that case the
    /// call is repeated. If the connection was idle for less, the peer has probably seen the call, so the attempt
    /// counts.
    pub stale_ms: u64,
    /// Answers are read up to this size so that the connection can be reused. A longer answer costs the connection.
    pub answer_bytes_max: usize,
    /// Maximum size of a function's answer, including its events.
    pub replies_bytes_max: usize,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connect_timeout_ms: 5_000,
            pool_idle_ms: 90_000,
            stale_ms: 1_000,
            answer_bytes_max: 64 << 10,
            replies_bytes_max: 1 << 20,
        }
    }
}

/// Clones share their connections.
#[derive(Clone)]
pub struct Client {
    shared: Arc<Shared>,
}

struct Shared {
    options: Options,
    providers: Providers,
    targets: Lock<Targets>,
}

/// What the client needs to call functions and webhook endpoints, and what it may call.
#[derive(Clone)]
pub struct Providers {
    pub functions: Arc<dyn Functions>,
    pub secrets: Arc<dyn Secrets>,
    /// Checks the events that functions reply.
    pub checks: Arc<dyn SchemaChecks>,
    /// Limits the addresses of targets that users choose.
    pub outbound: outbound::Guard,
    /// Records the calls, if the server exports traces.
    pub tracer: Option<Tracer>,
}

/// Provides nothing: only URLs can be called, without limits.
impl Default for Providers {
    fn default() -> Providers {
        Providers {
            functions: Arc::new(NoFunctions),
            secrets: Arc::new(NoSecrets),
            checks: Arc::new(NoChecks),
            outbound: outbound::Guard::off(),
            tracer: None,
        }
    }
}

#[derive(Default)]
struct Targets {
    /// By the address of the document, which the entry keeps alive.
    prepared: HashMap<usize, Arc<Prepared>, foldhash::fast::FixedState>,
    pools: HashMap<pool::Key, Weak<Pool>>,
    is_swept: bool,
}

/// How often idle connections are checked, and the maximum delay before a changed file is noticed.
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);
/// How long an endpoint waits whose signing secret cannot be read.
const SECRET_RETRY_MS: u64 = 5_000;
/// Replaces "no timeout" where an `Instant` would overflow.
const FOREVER: Duration = Duration::from_secs(365 * 86_400);

impl Client {
    pub fn new(options: Options) -> Client {
        Client::with_providers(options, Providers::default())
    }

    /// A client that can also call functions and webhook endpoints.
    pub fn with_providers(options: Options, providers: Providers) -> Client {
        Client { shared: Arc::new(Shared { options, providers, targets: Lock::default() }) }
    }

    /// Makes the call. Dropping the future closes the connection. The event's bytes are released when they are sent.
    pub async fn deliver(&self, delivery: &mut Delivery) -> CallOutcome {
        let tracer = self.shared.providers.tracer.as_ref();
        let trace = tracer.and_then(|tracer| CallTrace::begin(tracer, delivery));
        let (Ok(outcome) | Err(outcome)) = self.try_deliver(delivery, trace.as_ref()).await;
        if let (Some(tracer), Some(trace)) = (tracer, trace) {
            trace.end(tracer, &delivery.document, &outcome);
        }
        match outcome {
            CallOutcome::Replied { status, replies } => self.checked(delivery, status, replies).await,
            outcome => outcome,
        }
    }

    async fn checked(&self, delivery: &Delivery, status: u16, replies: Vec<Event>) -> CallOutcome {
        let (checks, namespace) = (&self.shared.providers.checks, &delivery.document.namespace);
        let replies = match checks.is_on(namespace) {
            true => checks.mark(namespace, replies).await,
            false => replies,
        };
        CallOutcome::Replied { status, replies }
    }

    #[cfg(test)]
    pub async fn call(&self, delivery: &Delivery) -> CallOutcome {
        self.deliver(&mut delivery.clone()).await
    }

    async fn try_deliver(
        &self,
        delivery: &mut Delivery,
        trace: Option<&CallTrace>,
    ) -> Result<CallOutcome, CallOutcome> {
        let target = &*self.shared.prepared(&delivery.document).map_err(CallOutcome::Unusable)?;
        let live = target.headers.live(SWEEP_INTERVAL).map_err(CallOutcome::Unusable)?;
        let own = live.as_deref().or_else(|| target.headers.fixed());
        let own = own.expect("headers are fixed or live");
        let mut signed = match target.document.spec.target.endpoint() {
            Some(spec) => Some(self.signed(target, spec, delivery, trace).await?),
            None => None,
        };
        let batch = signed.as_mut().and_then(|signed| signed.batch.take());
        let mut sending = Sending { delivery, target, own, signed, batch, trace };
        let options = self.shared.options;
        let bytes_max = if target.is_function { options.replies_bytes_max } else { options.answer_bytes_max };
        match &target.way {
            Way::Http1(pool) => sending.call_http1(pool, bytes_max).await,
            Way::H2c(pool) => {
                let called = async {
                    let request = sending.event_request()?;
                    h2c::call(pool, &request, target.deadline(Instant::now()), bytes_max).await
                };
                let reply = Box::pin(called).await?;
                Ok(reply.into_outcome())
            }
            Way::Function(replicas) => Box::pin(self.call_function(&mut sending, replicas)).await,
        }
    }

    /// The signed body for a webhook endpoint. Without its keys an endpoint is not called, and no attempt is counted.
    async fn signed(
        &self,
        target: &Prepared,
        spec: &EndpointSpec,
        delivery: &Delivery,
        trace: Option<&CallTrace>,
    ) -> Result<Box<Signed>, CallOutcome> {
        let keys = target.opened.keys(target, &*self.shared.providers.secrets).await;
        let keys = keys.map_err(|why| CallOutcome::NotReady { why, retry_after_ms: SECRET_RETRY_MS })?;
        let signed = Signed::new(delivery, spec, &keys);
        let mut signed = signed.ok_or_else(|| CallOutcome::Unusable("the event cannot be decoded".into()))?;
        if let Some(trace) = trace.filter(|_| !spec.headers.iter().any(|(name, _)| name == TRACEPARENT)) {
            signed.add_header(TRACEPARENT, trace.context.header().as_str());
        }
        Ok(Box::new(signed))
    }

    /// Waits for a replica without a time limit, then calls it. The replica is held until the answer is read.
    async fn call_function(
        &self,
        sending: &mut Sending<'_>,
        replicas: &Replicas,
    ) -> Result<CallOutcome, CallOutcome> {
        let FunctionName { namespace, name } = &replicas.function;
        if let Some(handling) = self.shared.providers.functions.handle(namespace, name, sending.delivery) {
            return Ok(handling.await);
        }
        let acquired = self.shared.providers.functions.acquire(namespace, name);
        if !matches!(acquired, Acquired::Ready(_)) {
            sending.delivery.detach();
        }
        let acquired = acquired.wait().await;
        let mut lease = acquired.map_err(|Unavailable { why, retry_after_ms }| {
            let why = format!("function {namespace}/{name}: {why}");
            CallOutcome::NotReady { why, retry_after_ms }
        })?;
        let options = self.shared.options;
        let pool = replicas.pool(&lease.address, |key| self.shared.targets().pool(key, options));
        let pool = pool.map_err(CallOutcome::Unusable)?;
        let outcome = sending.call_http1(&pool, options.replies_bytes_max).await;
        if outcome.is_ok() {
            lease.held.answered();
        }
        drop(lease);
        outcome.map_err(|outcome| match outcome {
            // One replica ended. The breaker is for the whole function, so it must not count this.
            CallOutcome::Refused(why) | CallOutcome::Broken(why) => CallOutcome::Ended(why),
            other => other,
        })
    }
}

/// A delivery being sent, for as long as its bytes are needed.
struct Sending<'a> {
    delivery: &'a mut Delivery,
    target: &'a Prepared,
    own: &'a Rendered,
    /// The call of a webhook endpoint, until it is sent.
    signed: Option<Box<Signed>>,
    /// The events of such a call, if it may carry several.
    batch: Option<Box<SentBatch>>,
    trace: Option<&'a CallTrace>,
}

impl Sending<'_> {
    fn begin(
        &self,
        connection: &mut Connection,
        context: &mut Context<'_>,
        begun: &mut Begun,
    ) -> Result<(), CallOutcome> {
        match &self.signed {
            Some(signed) => {
                let request = WebhookRequest { signed, target: self.target, own: self.own };
                connection.begin(context, &request, begun);
            }
            None => connection.begin(context, &self.event_request()?, begun),
        }
        Ok(())
    }

    fn event_request(&self) -> Result<Request<'_>, CallOutcome> {
        let event = self.delivery.record.get(self.delivery.event.clone()).unwrap_or_default();
        let event = EventView::decode(event).map_err(|error| CallOutcome::Unusable(error.to_string()))?;
        Ok(Request { delivery: self.delivery, event, target: self.target, own: self.own, trace: self.trace })
    }

    async fn call_http1(&mut self, pool: &Pool, bytes_max: usize) -> Result<CallOutcome, CallOutcome> {
        let now = Instant::now();
        let deadline = self.target.deadline(now);
        let mut connection = match pool.take(now) {
            Some(connection) => connection,
            None => self.connect(pool, deadline).await?,
        };
        loop {
            let mut begun = Begun::new(bytes_max, self.target.wanted());
            // The request is built inside the closure, so it is not part of the call's future.
            let begin = poll_fn(|context| Poll::Ready(self.begin(&mut connection, context, &mut begun)));
            begin.await?;
            if !connection.is_stale() {
                // Bytes that are not sent yet are kept by the connection.
                self.delivery.let_go();
                self.signed = None;
            }
            match connection.finish(&mut begun, deadline).await {
                Ok(replied) => {
                    if replied.reusable {
                        pool.give_back(connection);
                    }
                    return Ok(match &self.batch {
                        Some(batch) => batch.outcome(replied.reply),
                        None => replied.reply.into_outcome(),
                    });
                }
                // The target closed the idle connection. That says nothing about the event or the target.
                Err(CallError::Closed(_)) if connection.is_stale() && !self.delivery.record.is_empty() => {
                    connection = self.connect(pool, deadline).await?;
                }
                Err(CallError::Closed(why) | CallError::Broken(why)) => return Err(CallOutcome::Broken(why)),
                Err(CallError::Timeout) => return Err(CallOutcome::Timeout),
            }
        }
    }

    async fn connect(&mut self, pool: &Pool, deadline: Instant) -> Result<Connection, CallOutcome> {
        self.delivery.detach();
        pool.connect(deadline).await
    }
}

impl Prepared {
    /// How much of an answer to keep.
    fn wanted(&self) -> Wanted {
        match self.document.spec.target.endpoint() {
            _ if self.is_function => Wanted::Events,
            Some(endpoint) if endpoint.batch.is_some() => Wanted::Success,
            _ => Wanted::Nothing,
        }
    }

    fn deadline(&self, now: Instant) -> Instant {
        now + self.timeout.min(FOREVER)
    }
}

impl Shared {
    fn prepared(self: &Arc<Shared>, document: &Arc<Document>) -> Result<Arc<Prepared>, String> {
        let address = Arc::as_ptr(document).addr();
        let mut targets = self.targets();
        if let Some(prepared) = targets.prepared.get(&address) {
            return Ok(prepared.clone());
        }
        let reach = self.providers.outbound.reach(&document.namespace);
        let prepared = targets.prepare(document, reach, self.options)?;
        targets.prepared.insert(address, prepared.clone());
        if !targets.is_swept {
            targets.is_swept = true;
            tokio::spawn(sweep(Arc::downgrade(self)));
        }
        Ok(prepared)
    }

    fn targets(&self) -> Guard<'_, Targets> {
        self.targets.lock()
    }
}

impl Targets {
    fn prepare(
        &mut self,
        document: &Arc<Document>,
        reach: outbound::Reach,
        options: Options,
    ) -> Result<Arc<Prepared>, String> {
        Prepared::new(document.clone(), reach, |key| self.pool(key, options)).map(Arc::new)
    }

    fn pool(&mut self, key: pool::Key, options: Options) -> Result<Arc<Pool>, String> {
        if let Some(pool) = self.pools.get(&key).and_then(Weak::upgrade) {
            return Ok(pool);
        }
        let pool = Arc::new(Pool::new(key.clone(), options)?);
        self.pools.insert(key, Arc::downgrade(&pool));
        Ok(pool)
    }

    /// Removes documents that nobody else references, and pools that no document needs.
    fn forget(&mut self) -> Vec<Arc<Pool>> {
        self.prepared.retain(|_, prepared| Arc::strong_count(&prepared.document) > 1);
        self.pools.retain(|_, pool| pool.strong_count() > 0);
        self.pools.values().filter_map(Weak::upgrade).collect()
    }
}

/// Closes idle connections until the last client is dropped.
async fn sweep(shared: Weak<Shared>) {
    loop {
        tokio::time::sleep(SWEEP_INTERVAL).await;
        let Some(shared) = shared.upgrade() else { return };
        let pools = shared.targets().forget();
        pools.iter().for_each(|pool| pool.sweep(SWEEP_INTERVAL));
    }
}
