//! Calls of a function's replicas by those who wait for the answer: all of it is given back.

use super::Options;
use super::answer::Wanted;
use super::connection::{Connection, Message, Replied, Trouble};
use super::pool::{self, Pool};
use super::request::write_length;
use bytes::Bytes;
use klambda_core::address::Address;
use klambda_core::outcome::Outcome;
use klambda_crash::{Guard, Lock};
use std::collections::HashMap;
use std::sync::Arc;
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
    pub body: Vec<u8>,
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
        let (pool, deadline) = (self.pool(address)?, Instant::now() + within);
        let mut connection = match pool.take() {
            Some(connection) => connection,
            None => pool.connect(deadline).await?,
        };
        loop {
            match connection.call(call, deadline, self.options.answer_bytes_max).await {
                Ok(replied) => return self.answer(&pool, connection, replied),
                Err(Trouble::Closed(_)) if connection.is_used() && !connection.has_sent() => {
                    connection = pool.connect(deadline).await?;
                }
                Err(Trouble::Closed(why) | Trouble::Broken(why)) => return Err(Outcome::Broken(why)),
                Err(Trouble::Timeout) => return Err(Outcome::Timeout),
            }
        }
    }

    fn answer(&self, pool: &Pool, connection: Connection, replied: Replied) -> Result<Answer, Outcome> {
        if replied.reusable {
            pool.give_back(connection);
        }
        let content = replied.reply.content.unwrap_or_default();
        if let Some(bytes_max) = content.cut_at {
            return Err(Outcome::Broken(format!("the answer is longer than {bytes_max} bytes")));
        }
        Ok(Answer { status: replied.reply.code, content_type: content.content_type, body: content.body })
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

    fn wants(&self) -> Wanted {
        Wanted::All
    }
}
