//! The ceiling: the highest rate that this machine reaches for durable, ordered delivery over HTTP, with nothing else.
//!
//! One thread for all sockets, one for the disk. A request is parsed, its event appended to the open commit group, and
//! answered when the group is synced; then it takes its place in its key's queue. The head of a queue goes out on one of
//! 64 connections, the next after the 2xx. Acknowledgements ride in the next group. No recovery, no retries, no API.

mod commit;
mod lanes;

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::path::PathBuf;

use anyhow::{Context, bail};
use serde::{Deserialize, Serialize};

use self::commit::{Committer, Group};
use self::lanes::{Lanes, Place};
use super::child::{Port, say};
use super::wire::conn::{Conn, Peer};
use super::wire::http;
use super::wire::poll::{Commands, Poller, Ready, Token};

const LISTENER: u32 = 0;
const DRIVER: u32 = 1;
const COMMIT: u32 = 2;
const PRODUCER: u32 = 3;
const COURIER: u32 = 4;

const COURIERS: u32 = 64;
const ACCEPTED: &[u8] = b"HTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n";

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub folder: PathBuf,
    pub sink: SocketAddr,
}

struct Ceiling {
    poller: Poller,
    listener: TcpListener,
    producers: Vec<Option<Conn>>,
    couriers: Vec<Courier>,
    free_couriers: Vec<u32>,
    lanes: Lanes,
    open: Group,
    committer: Committer,
    request_line: Vec<u8>,
}

/// A connection to the target, and what it carries.
struct Courier {
    conn: Conn,
    carries: Option<Place>,
}

pub fn run(spec: Spec) -> anyhow::Result<()> {
    let poller = Poller::new()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    poller.add_level(&listener, Token { kind: LISTENER, index: 0 })?;
    let mut commands = Commands::new(&poller, Token { kind: DRIVER, index: 0 })?;
    let mut ceiling = Ceiling::new(poller, listener, &spec)?;
    say(&Port { port: ceiling.listener.local_addr()?.port() })?;
    let mut ready = Ready::new();
    loop {
        ceiling.poller.wait(&mut ready, None)?;
        // Delivers accepted events before it reads new ones. The other way round, the queues grow and the rate falls.
        for token in ready.tokens().filter(|token| token.kind == COURIER) {
            ceiling.acknowledge(token.index)?;
        }
        ceiling.deliver()?;
        for token in ready.tokens().filter(|token| token.kind != COURIER) {
            match token.kind {
                LISTENER => ceiling.welcome()?,
                DRIVER if commands.read()?.is_none() => return Ok(()),
                DRIVER => {}
                COMMIT => ceiling.committed()?,
                _ => ceiling.accept(token.index)?,
            }
        }
        ceiling.deliver()?;
        ceiling.commit();
    }
}

impl Ceiling {
    fn new(poller: Poller, listener: TcpListener, spec: &Spec) -> anyhow::Result<Self> {
        let couriers = (0..COURIERS)
            .map(|index| {
                let conn = Conn::connect(spec.sink, &poller, Token { kind: COURIER, index })?;
                Ok(Courier { conn, carries: None })
            })
            .collect::<io::Result<Vec<_>>>()?;
        let committer = Committer::start(&spec.folder)?;
        poller.add_level(committer.done(), Token { kind: COMMIT, index: 0 })?;
        Ok(Self {
            poller,
            listener,
            producers: Vec::new(),
            couriers,
            free_couriers: (0..COURIERS).collect(),
            lanes: Lanes::default(),
            open: Group::default(),
            committer,
            request_line: format!("POST / HTTP/1.1\r\nhost: {}\r\n", spec.sink).into_bytes(),
        })
    }

    fn welcome(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let index = self.producers.len() as u32;
            self.producers.push(Some(Conn::adopt(stream, &self.poller, Token { kind: PRODUCER, index })?));
            self.accept(index)?;
        }
    }

    /// Puts a producer's event into the open group, in the form in which it goes out.
    fn accept(&mut self, index: u32) -> anyhow::Result<()> {
        let Some(conn) = &mut self.producers[index as usize] else { return Ok(()) };
        conn.flush()?;
        let peer = conn.fill()?;
        if !conn.unread().is_empty() {
            let mut room = http::headers();
            if let Some(request) = http::request(conn.unread(), &mut room)? {
                let key = request.header("ce-partitionkey").context("an event has no ce-partitionkey")?;
                let lane = self.lanes.of(key);
                self.open.append_event(index, lane, &self.request_line, &request);
                let bytes = request.total_bytes;
                conn.consume(bytes);
            }
        }
        if peer == Peer::Closed {
            self.producers[index as usize] = None;
        }
        Ok(())
    }

    /// Hands the open group to the disk as soon as that is free: the group grows with the load, a lone event waits for no
    /// company. Acknowledgements alone wait for the next event.
    fn commit(&mut self) {
        if self.open.has_events() && !self.committer.busy() {
            let next = self.lanes.spare_group();
            self.committer.commit(std::mem::replace(&mut self.open, next));
        }
    }

    fn committed(&mut self) -> anyhow::Result<()> {
        let (group, waiting) = self.committer.finish()?;
        for index in &waiting {
            if let Some(conn) = &mut self.producers[*index as usize] {
                conn.send(ACCEPTED)?;
            }
        }
        self.lanes.enqueue(group);
        Ok(())
    }

    fn deliver(&mut self) -> anyhow::Result<()> {
        while let Some(index) = self.free_couriers.last().copied()
            && let Some(place) = self.lanes.pop_ready()
        {
            self.free_couriers.pop();
            let courier = &mut self.couriers[index as usize];
            courier.conn.send(self.lanes.bytes(&place))?;
            courier.carries = Some(place);
        }
        Ok(())
    }

    fn acknowledge(&mut self, index: u32) -> anyhow::Result<()> {
        let courier = &mut self.couriers[index as usize];
        courier.conn.flush()?;
        let peer = courier.conn.fill()?;
        if !courier.conn.unread().is_empty()
            && let Some(response) = http::response(courier.conn.unread())?
        {
            courier.conn.consume(response.total_bytes);
            let Some(place) = courier.carries.take() else { bail!("the target answered without a request") };
            if !(200..300).contains(&response.status) {
                bail!("the target answered {}: the ceiling knows no retries", response.status);
            }
            self.open.append_acknowledgement(&place);
            self.lanes.acknowledged(place);
            self.free_couriers.push(index);
        }
        if peer == Peer::Closed {
            bail!("the target closed a connection");
        }
        Ok(())
    }
}
