//! Calls of a function's replicas by those who wait for the answer: all of it is given back.

use super::Options;
use super::answer::Wanted;
use super::connection::{Begun, Connection, Message, Trouble};
use super::pool::{self, Pool};
use super::request::write_length;
use bytes::Bytes;
use klambda_core::address::Address;
use klambda_core::outcome::Outcome;
use klambda_crash::{Guard, Lock};
use std::collections::HashMap;
use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;
use tokio::time::Instant;

/// What is sent to a replica: an event.
#[derive(Debug)]
pub struct Call {
    /// Lines that end with CRLF: those of the event.
    pub headers: Vec<u8>,
    pub body: Bytes,
}

#[derive(Debug)]
pub struct Answer {
    pub status: u16,
    pub content_type: Option<String>,
    /// All of it, or the beginning of a long one.
    pub body: Vec<u8>,
    /// What follows the beginning of a long one.
    pub rest: Option<Rest>,
}

/// The rest of a long answer, which is read as far as it is asked for.
pub struct Rest {
    pool: Arc<Pool>,
    /// Until all is read.
    connection: Option<Connection>,
    begun: Begun,
}

/// Of a long answer so much is in memory at a time.
const PART_BYTES: usize = 64 << 10;

impl Answer {
    fn new(mut rest: Rest) -> Result<Answer, Outcome> {
        rest.settle().map_err(Outcome::Broken)?;
        let reply = rest.begun.answer.reply();
        let status = reply.code;
        let content_type = reply.content.as_ref().and_then(|content| content.content_type.clone());
        let body = rest.begun.answer.drain_body();
        let rest = rest.connection.is_some().then_some(rest);
        Ok(Answer { status, content_type, body, rest })
    }
}

impl Rest {
    /// How much is still to come, if that is known.
    pub fn length(&self) -> Option<u64> {
        self.begun.answer.missing()
    }

    /// The next part; nothing if that was all.
    pub async fn next(&mut self, deadline: Instant) -> Result<Option<Vec<u8>>, String> {
        let Some(connection) = &mut self.connection else { return Ok(None) };
        connection.read(&mut self.begun, deadline, PART_BYTES).await.map_err(|trouble| match trouble {
            Trouble::Closed(why) | Trouble::Broken(why) => why,
            Trouble::Timeout => "the answer took too long".to_owned(),
        })?;
        self.settle()?;
        Ok(Some(self.begun.answer.drain_body()).filter(|part| !part.is_empty()))
    }

    /// Gives the connection back when all is read.
    fn settle(&mut self) -> Result<(), String> {
        let content = self.begun.answer.reply().content.as_ref();
        if let Some(bytes_max) = content.and_then(|content| content.cut_at) {
            return Err(format!("the answer is longer than {bytes_max} bytes"));
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

/// Keeps connections to replicas for the next call. One for each runtime: a connection is woken by the one it was
/// opened on.
pub struct Caller {
    options: Options,
    replicas: Lock<HashMap<Address, Arc<Pool>, foldhash::fast::RandomState>>,
}

impl Caller {
    pub fn new(options: Options) -> Caller {
        Caller { options, replicas: Lock::default() }
    }

    /// Makes the call once. It is sent again only if its connection was closed before it took a byte of it.
    pub async fn call(&self, address: &Address, call: &Call, within: Duration) -> Result<Answer, Outcome> {
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
                Ok(()) => return Answer::new(Rest { pool, connection: Some(connection), begun }),
                Err(Trouble::Closed(_)) if connection.is_used() && !connection.has_sent() => {
                    connection = pool.connect(deadline).await?;
                }
                Err(Trouble::Closed(why) | Trouble::Broken(why)) => return Err(Outcome::Broken(why)),
                Err(Trouble::Timeout) => return Err(Outcome::Timeout),
            }
        }
    }

    fn pool(&self, address: &Address) -> Result<Arc<Pool>, Outcome> {
        let mut replicas = self.replicas();
        if let Some(pool) = replicas.get(address) {
            return Ok(pool.clone());
        }
        let key = pool::Key::of_replica(address);
        let pool = Arc::new(Pool::new(key, self.options).map_err(Outcome::Unusable)?);
        replicas.insert(address.clone(), pool.clone());
        Ok(pool)
    }

    /// Lets go of old connections, and of replicas to which none is open.
    pub fn sweep(&self) {
        self.replicas().retain(|_, pool| {
            pool.sweep(Duration::ZERO);
            !pool.is_empty() || Arc::strong_count(pool) > 1
        });
    }

    fn replicas(&self) -> Guard<'_, HashMap<Address, Arc<Pool>, foldhash::fast::RandomState>> {
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
