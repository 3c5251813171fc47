//! Calls over kept-alive connections, each with the next as soon as the last is answered; all on one thread.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::bail;

use super::check;
use crate::bench::interrupt;
use crate::bench::wire::conn::{Conn, Peer};
use crate::bench::wire::http;
use crate::bench::wire::poll::{Poller, Ready, Token, now_ns};

/// Answered calls per second within the window, after the warm-up.
pub fn rate(
    address: SocketAddr,
    request: &[u8],
    connections: u32,
    warm_up: Duration,
    window: Duration,
) -> anyhow::Result<f64> {
    let poller = Poller::new()?;
    let open = |index| Conn::connect(address, &poller, Token { kind: 0, index });
    let mut conns = (0..connections).map(open).collect::<Result<Vec<Conn>, _>>()?;
    for conn in &mut conns {
        conn.send(request)?;
    }
    let from = now_ns() + warm_up.as_nanos() as u64;
    let until = from + window.as_nanos() as u64;
    let (mut ready, mut answered) = (Ready::new(), 0_u64);
    while now_ns() < until {
        poller.wait(&mut ready, Some(until))?;
        interrupt::check()?;
        for token in ready.tokens() {
            let conn = &mut conns[token.index as usize];
            conn.flush()?;
            if conn.fill()? == Peer::Closed {
                bail!("a connection was closed");
            }
            while let Some(found) = http::response(conn.unread())? {
                check(&conn.unread()[found.head_bytes..found.total_bytes], found.status)?;
                conn.consume(found.total_bytes);
                conn.send(request)?;
                answered += u64::from((from..until).contains(&now_ns()));
            }
        }
    }
    Ok(answered as f64 / window.as_secs_f64())
}
