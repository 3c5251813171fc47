//! The cheapest possible hop: copies bytes from one socket to another without looking at them.
//!
//! Two processes that wait for each other in turn cost two wake-ups per call, three processes cost four. The relay shows
//! the rate that remains when another process is in between.

use std::io::{self, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Passes connections on to `to`, on threads of their own, for as long as the program runs.
pub fn start(to: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Ends with the connection; the caller gets the error.
            thread::spawn(move || pass(client, to));
        }
    });
    Ok(address)
}

/// Each direction by itself: an answer may come in several pieces.
fn pass(client: TcpStream, to: SocketAddr) -> io::Result<()> {
    let server = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let (from_server, to_client) = (server.try_clone()?, client.try_clone()?);
    thread::spawn(move || carry(from_server, to_client));
    carry(client, server)
}

fn carry(mut from: TcpStream, mut to: TcpStream) -> io::Result<()> {
    let mut bytes = [0; 16 << 10];
    loop {
        match from.read(&mut bytes)? {
            0 => return to.shutdown(Shutdown::Write),
            count => to.write_all(&bytes[..count])?,
        }
    }
}
