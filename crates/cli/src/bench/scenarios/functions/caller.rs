//! One blocking connection, for calls one after another.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use anyhow::{Context, bail};

use crate::bench::wire::http;

const PATIENCE: Duration = Duration::from_secs(60);

pub struct Caller {
    stream: TcpStream,
    unread: Vec<u8>,
}

pub struct Answer {
    pub status: u16,
    pub body: Vec<u8>,
}

impl Caller {
    pub fn connect(address: SocketAddr) -> std::io::Result<Self> {
        let stream = TcpStream::connect(address)?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        Ok(Self { stream, unread: Vec::with_capacity(4096) })
    }

    pub fn call(&mut self, request: &[u8]) -> anyhow::Result<Answer> {
        self.stream.write_all(request).context("sending a request")?;
        let mut chunk = [0; 16 << 10];
        loop {
            if let Some(found) = http::response(&self.unread)? {
                let body = self.unread[found.head_bytes..found.total_bytes].to_vec();
                self.unread.drain(..found.total_bytes);
                return Ok(Answer { status: found.status, body });
            }
            match self.stream.read(&mut chunk).context("reading an answer")? {
                0 => bail!("the connection was closed before the answer"),
                count => self.unread.extend_from_slice(&chunk[..count]),
            }
        }
    }
}
