//! Asking a replica whether it is up. The request waits in its socket until it is; so there is one, as a rule.

use klambda_core::address::{Address, path_of};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

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

pub async fn until_up(address: &Address, expect: Expect) {
    loop {
        match status(address).await {
            Ok(200) => return,
            Ok(_) if expect == Expect::Any => return,
            _ => tokio::time::sleep(AGAIN).await,
        }
    }
}

async fn status(address: &Address) -> std::io::Result<u16> {
    match address {
        Address::Tcp(address) => ask(TcpStream::connect(address).await?).await,
        Address::Local(name) => ask(UnixStream::connect(path_of(name)).await?).await,
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
