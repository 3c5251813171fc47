//! The least that a hop can be: bytes in from one socket, out to another, and nothing read of them.
//!
//! Two processes that wait for each other in turn cost two wake-ups a call, three cost four. This tells what is left of
//! a rate when somebody stands in between, whoever it is.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::thread;

/// Passes connections on to `to`, each on a thread of its own, for as long as the program runs.
pub fn start(to: SocketAddr) -> io::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    thread::spawn(move || {
        for client in listener.incoming().flatten() {
            // Ends with the connection; why it ended is told to the one who called.
            thread::spawn(move || pass(client, to));
        }
    });
    Ok(address)
}

/// A call is shorter than a read, and its answer too.
fn pass(mut client: TcpStream, to: SocketAddr) -> io::Result<()> {
    let mut server = TcpStream::connect(to)?;
    client.set_nodelay(true)?;
    server.set_nodelay(true)?;
    let mut bytes = [0; 16 << 10];
    while carry(&mut client, &mut server, &mut bytes)? && carry(&mut server, &mut client, &mut bytes)? {}
    Ok(())
}

/// Whether there was something to carry.
fn carry(from: &mut TcpStream, to: &mut TcpStream, bytes: &mut [u8]) -> io::Result<bool> {
    let count = from.read(bytes)?;
    to.write_all(&bytes[..count])?;
    Ok(count > 0)
}
