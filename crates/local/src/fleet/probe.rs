//! Asking a replica whether it is up. The request waits in its socket until it is; so there is one, as a rule.

use super::Endpoint;
use std::net::SocketAddr;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// Between two requests, where one was refused or broken off.
const AGAIN: Duration = Duration::from_millis(50);

/// Which answers mean that it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// From our own wrappers.
    Ok,
    /// From images, which need not know the address.
    Any,
}

pub async fn until_up(endpoint: SocketAddr, expect: Expect) {
    loop {
        match status(endpoint).await {
            Ok(200) => return,
            Ok(_) if expect == Expect::Any => return,
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn status(address: SocketAddr) -> std::io::Result<u16> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET /healthz HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    // "HTTP/1.1 200"
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    let code = std::str::from_utf8(&head[9..]).ok().and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}

impl Endpoint {
    pub fn address(&self) -> Option<SocketAddr> {
        match self {
            Endpoint::Local(address) => Some(*address),
            Endpoint::Url(_) => None,
        }
    }
}
