//! Checks whether a replica is up. The request waits in the socket until it is, so usually one request is enough.

use klambda_core::address::{ReplicaAddress, path_of};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

/// Delay before the next request if one was refused or broken off.
const AGAIN: Duration = Duration::from_millis(50);

/// Which responses mean that it is up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expect {
    /// Our own wrappers.
    Ok,
    /// Images, which need not know this path.
    Any,
}

pub async fn until_up(address: &ReplicaAddress, expect: Expect) {
    loop {
        match status(address).await {
            Ok(200) => return,
            Ok(_) if expect == Expect::Any => return,
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn status(address: &ReplicaAddress) -> std::io::Result<u16> {
    match address {
        ReplicaAddress::Tcp(address) => ask(TcpStream::connect(address).await?).await,
        ReplicaAddress::Local(name) => ask(UnixStream::connect(path_of(name)).await?).await,
    }
}

async fn ask(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> std::io::Result<u16> {
    stream.write_all(b"GET /healthz HTTP/1.1\r\nHost: function\r\nConnection: close\r\n\r\n").await?;
    // "HTTP/1.1 200"
    let mut head = [0; 12];
    stream.read_exact(&mut head).await?;
    let code = std::str::from_utf8(&head[9..]).ok().and_then(|code| code.parse().ok());
    code.ok_or_else(|| std::io::ErrorKind::InvalidData.into())
}
