//! A non-blocking connection with its unread and its unwritten bytes.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};

use super::poll::{Poller, Token};

const FIRST_READ_BYTES: usize = 4096;

pub struct Conn {
    stream: TcpStream,
    inbox: Vec<u8>,
    read_to: usize,
    outbox: Vec<u8>,
}

/// Whether the other side can still send.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Peer {
    Open,
    Closed,
}

impl Conn {
    pub fn connect(address: SocketAddr, poller: &Poller, token: Token) -> io::Result<Self> {
        Self::adopt(TcpStream::connect(address)?, poller, token)
    }

    pub fn adopt(stream: TcpStream, poller: &Poller, token: Token) -> io::Result<Self> {
        stream.set_nodelay(true)?;
        stream.set_nonblocking(true)?;
        poller.add_socket(&stream, token)?;
        Ok(Self { stream, inbox: vec![0; FIRST_READ_BYTES], read_to: 0, outbox: Vec::new() })
    }

    /// Reads all available bytes. A read that leaves room has emptied the socket: the next byte is a new edge.
    pub fn fill(&mut self) -> io::Result<Peer> {
        loop {
            if self.read_to == self.inbox.len() {
                self.inbox.resize(self.inbox.len() * 2, 0);
            }
            match self.stream.read(&mut self.inbox[self.read_to..]) {
                Ok(0) => return Ok(Peer::Closed),
                Ok(count) => self.read_to += count,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(Peer::Open),
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Err(error) if error.kind() == io::ErrorKind::ConnectionReset => return Ok(Peer::Closed),
                Err(error) => return Err(error),
            }
            if self.read_to < self.inbox.len() {
                return Ok(Peer::Open);
            }
        }
    }

    pub fn unread(&self) -> &[u8] {
        &self.inbox[..self.read_to]
    }

    pub fn consume(&mut self, count: usize) {
        self.inbox.copy_within(count..self.read_to, 0);
        self.read_to -= count;
    }

    /// Writes as much as the socket accepts. The rest follows when it is writable.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        if !self.outbox.is_empty() {
            self.outbox.extend_from_slice(bytes);
            return Ok(());
        }
        let written = write_some(&mut self.stream, bytes)?;
        self.outbox.extend_from_slice(&bytes[written..]);
        Ok(())
    }

    /// Writes the bytes that an earlier `send` could not write.
    pub fn flush(&mut self) -> io::Result<()> {
        if self.outbox.is_empty() {
            return Ok(());
        }
        let written = write_some(&mut self.stream, &self.outbox)?;
        self.outbox.drain(..written);
        Ok(())
    }
}

fn write_some(stream: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    let mut written = 0;
    while written < bytes.len() {
        match stream.write(&bytes[written..]) {
            Ok(count) => written += count,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(error),
        }
    }
    Ok(written)
}
