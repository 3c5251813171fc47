//! Calls a function's replicas and returns the whole response to the caller.

use super::Options;
use super::connection::{Begun, CallError, Connection, Message};
use super::pool::{self, Pool};
use super::request::write_length;
use super::response_parser::Wanted;
use bytes::Bytes;
use klambda_core::address::ReplicaAddress;
use klambda_core::outcome::CallOutcome;
use klambda_crash::{Guard, Lock};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// An event sent to a replica.
#[derive(Debug)]
pub struct Call {
    /// The header lines of the event, each ending with CRLF.
    pub headers: Vec<u8>,
    pub body: Bytes,
}

#[derive(Debug)]
pub struct CallResponse {
    pub status: u16,
    pub content_type: Option<String>,
    /// The whole body, or the beginning of a long one.
    pub body: Vec<u8>,
    /// The remaining part of a long body.
    pub rest: Option<Rest>,
}

/// The remaining part of a long response, read on demand.
pub struct Rest {
    pool: Arc<Pool>,
    /// `None` once everything is read.
    connection: Option<Connection>,
    begun: Begun,
}

/// How much of a long response is in memory at a time.
const PART_BYTES: usize = 64 << 10;

impl CallResponse {
    fn new(mut rest: Rest) -> Result<CallResponse, CallOutcome> {
        rest.settle().map_err(CallOutcome::Broken)?;
        let reply = rest.begun.answer.reply();
        let status = reply.code;
        let content_type = reply.content.as_ref().and_then(|content| content.content_type.clone());
        let body = rest.begun.answer.drain_body();
        let rest = rest.connection.is_some().then_some(rest);
        Ok(CallResponse { status, content_type, body, rest })
    }
}

impl Rest {
    /// How many bytes are missing, if the length is known.
    pub fn length(&self) -> Option<u64> {
        self.begun.answer.missing()
    }

    /// The next part; `None` at the end.
    pub async fn next(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>, String> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        connection.read(&mut self.begun, deadline, PART_BYTES).await.map_err(|trouble| match trouble {
            CallError::Closed(why) | CallError::Broken(why) => why,
            CallError::Timeout => "the response timed out".to_owned(),
        })?;
        self.settle()?;
        Ok(Some(self.begun.answer.drain_body()).filter(|part| !part.is_empty()))
    }

    /// Returns the connection to the pool when everything is read.
    fn settle(&mut self) -> Result<(), String> {
        let content = self.begun.answer.reply().content.as_ref();
        if let Some(bytes_max) = content.and_then(|content| content.cut_at) {
            return Err(format!("the response is longer than {bytes_max} bytes"));
        }
        if self.begun.answer.is_whole()
            && let Some(connection) = self.connection.take()
            && self.begun.is_reusable()
        {
            self.pool.give_back(connection);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Rest {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Rest").field("length", &self.length()).finish_non_exhaustive()
    }
}

/// Keeps connections to replicas for later calls. Each runtime needs its own, because a connection is woken by the
/// runtime that opened it.
pub struct Caller {
    options: Options,
    replicas: Lock<HashMap<ReplicaAddress, Arc<Pool>, foldhash::fast::RandomState>>,
}

impl Caller {
    pub fn new(options: Options) -> Caller {
        Caller { options, replicas: Lock::default() }
    }

    /// Makes the call once. It is sent again only if the connection was closed before any byte of the call was sent.
    pub async fn call(
        &self,
        address: &ReplicaAddress,
        call: &Call,
        within: Duration,
    ) -> Result<CallResponse, CallOutcome> {
        let (pool, now) = (self.pool(address)?, Instant::now());
        let deadline = now + within;
        let mut connection = match pool.take(now) {
            Some(connection) => connection,
            None => pool.connect(deadline).await?,
        };
        loop {
            let bytes_max = self.options.answer_bytes_max;
            let mut begun = Begun::new(bytes_max, Wanted::All);
            let begin = poll_fn(|context| {
                connection.begin(context, call, &mut begun);
                Poll::Ready(())
            });
            begin.await;
            match connection.read(&mut begun, deadline, PART_BYTES).await {
                Ok(()) => return CallResponse::new(Rest { pool, connection: Some(connection), begun }),
                Err(CallError::Closed(_)) if connection.is_used() && !connection.has_sent() => {
                    connection = pool.connect(deadline).await?;
                }
                Err(CallError::Closed(why) | CallError::Broken(why)) => return Err(CallOutcome::Broken(why)),
                Err(CallError::Timeout) => return Err(CallOutcome::Timeout),
            }
        }
    }

    fn pool(&self, address: &ReplicaAddress) -> Result<Arc<Pool>, CallOutcome> {
        let mut replicas = self.replicas();
        if let Some(pool) = replicas.get(address) {
            return Ok(pool.clone());
        }
        let key = pool::Key::of_replica(address);
        let pool = Arc::new(Pool::new(key, self.options).map_err(CallOutcome::Unusable)?);
        replicas.insert(address.clone(), pool.clone());
        Ok(pool)
    }

    /// Closes old connections, and forgets replicas without open connections.
    pub fn sweep(&self) {
        self.replicas().retain(|_, pool| {
            pool.sweep(Duration::ZERO);
            !pool.is_empty() || Arc::strong_count(pool) > 1
        });
    }

    fn replicas(&self) -> Guard<'_, HashMap<ReplicaAddress, Arc<Pool>, foldhash::fast::RandomState>> {
        self.replicas.lock()
    }
}

impl Message for Call {
    fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(b"POST / HTTP/1.1\r\nhost: function\r\n");
        out.extend_from_slice(&self.headers);
        write_length(out, self.body.len());
    }

    fn body(&self) -> &[u8] {
        &self.body
    }

    fn body_bytes(&self) -> Bytes {
        self.body.clone()
    }
}
