//! The recording sink: a target that answers immediately or after a delay, and records when each event arrived.

use std::collections::VecDeque;
use std::io;
use std::net::TcpListener;

use anyhow::Context;
use serde::{Deserialize, Serialize};

use super::child::{Port, say};
use super::ledger::Ledger;
use super::wire::conn::{Conn, Peer};
use super::wire::http;
use super::wire::poll::{Commands, Poller, Ready, Token, now_ns};
use super::wire::template::{Mark, read_id};

const LISTENER: u32 = 0;
const DRIVER: u32 = 1;
const CALLER: u32 = 2;

const DONE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
const FAILED: &[u8] = b"HTTP/1.1 500 Internal Server Error\r\ncontent-length: 0\r\n\r\n";

/// After this number of answers the sink reads requests again: a request that stays unread while others are answered would
/// seem to arrive late.
const ANSWERS_MAX: usize = 4;

/// The key whose events always fail.
pub const POISON: &str = "poison";

#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Spec {
    pub keys: u32,
    /// How long the target works on an event.
    pub delay_us: u64,
    /// With any, only these first keys take that long: they are the lanes in which events queue.
    pub hot_keys: u32,
}

struct Sink {
    spec: Spec,
    poller: Poller,
    listener: TcpListener,
    callers: Vec<Option<Caller>>,
    free: Vec<u32>,
    /// Answers to come, in the order of their time, since every one takes equally long.
    later: VecDeque<Later>,
    ledger: Ledger,
}

struct Caller {
    conn: Conn,
    /// Identifies the caller, so that a later caller with the same slot does not get its answer.
    serial: u64,
}

struct Later {
    due_ns: u64,
    caller: u32,
    serial: u64,
    received_ns: u64,
    key: u32,
}

/// The fields of a request, copied from the bytes of the connection.
enum Delivery {
    Event(Mark),
    Poison,
}

pub fn run(spec: Spec) -> anyhow::Result<()> {
    let poller = Poller::new()?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    listener.set_nonblocking(true)?;
    poller.add_level(&listener, Token { kind: LISTENER, index: 0 })?;
    let mut commands = Commands::new(&poller, Token { kind: DRIVER, index: 0 })?;
    say(&Port { port: listener.local_addr()?.port() })?;
    let ledger = Ledger::new(spec.keys, spec.hot_keys);
    let mut sink = Sink {
        spec,
        poller,
        listener,
        callers: Vec::new(),
        free: Vec::new(),
        later: VecDeque::new(),
        ledger,
    };
    let mut ready = Ready::new();
    loop {
        sink.poller.wait(&mut ready, sink.later.front().map(|later| later.due_ns))?;
        for token in ready.tokens() {
            match token.kind {
                LISTENER => sink.welcome()?,
                DRIVER => match commands.read()? {
                    None => return Ok(()),
                    Some(lines) => lines.iter().try_for_each(|_mark| say(&sink.ledger.mark(now_ns())))?,
                },
                _ => sink.serve(token.index)?,
            }
        }
        sink.answer_due(ANSWERS_MAX)?;
    }
}

impl Sink {
    fn welcome(&mut self) -> anyhow::Result<()> {
        loop {
            let stream = match self.listener.accept() {
                Ok((stream, _)) => stream,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error.into()),
            };
            let index = self.free.pop().unwrap_or_else(|| {
                self.callers.push(None);
                self.callers.len() as u32 - 1
            });
            let conn = Conn::adopt(stream, &self.poller, Token { kind: CALLER, index })?;
            self.callers[index as usize] = Some(Caller { conn, serial: now_ns() });
            self.serve(index)?;
        }
    }

    fn serve(&mut self, index: u32) -> anyhow::Result<()> {
        let Some(caller) = &mut self.callers[index as usize] else { return Ok(()) };
        caller.conn.flush()?;
        let peer = caller.conn.fill()?;
        let now = now_ns();
        while let Some((delivery, bytes)) = read_delivery(caller.conn.unread(), &self.ledger)? {
            caller.conn.consume(bytes);
            match delivery {
                Delivery::Poison => {
                    self.ledger.refused();
                    caller.conn.send(FAILED)?;
                }
                Delivery::Event(mark) => {
                    self.ledger.received(mark, now);
                    let delayed = self.spec.hot_keys == 0 || mark.key < self.spec.hot_keys;
                    if delayed && self.spec.delay_us > 0 {
                        let due_ns = now + self.spec.delay_us * 1_000;
                        let (serial, key) = (caller.serial, mark.key);
                        self.later.push_back(Later { due_ns, caller: index, serial, received_ns: now, key });
                    } else {
                        caller.conn.send(DONE)?;
                        self.ledger.answered(mark.key, now, now_ns());
                    }
                }
            }
        }
        if peer == Peer::Closed {
            self.callers[index as usize] = None;
            self.free.push(index);
        }
        Ok(())
    }

    fn answer_due(&mut self, most: usize) -> anyhow::Result<()> {
        let now = now_ns();
        for _ in 0..most {
            let Some(later) = self.later.pop_front_if(|later| later.due_ns <= now) else { break };
            let Some(caller) = &mut self.callers[later.caller as usize] else { continue };
            if caller.serial == later.serial {
                caller.conn.send(DONE)?;
                self.ledger.answered(later.key, later.received_ns, now_ns());
            }
        }
        Ok(())
    }
}

fn read_delivery(bytes: &[u8], ledger: &Ledger) -> anyhow::Result<Option<(Delivery, usize)>> {
    if bytes.is_empty() {
        return Ok(None);
    }
    let mut room = http::headers();
    let Some(request) = http::request(bytes, &mut room)? else { return Ok(None) };
    if request.header("ce-partitionkey") == Some(POISON.as_bytes()) {
        return Ok(Some((Delivery::Poison, request.total_bytes)));
    }
    let (id, sent_ns) = match request.header("ce-id") {
        Some(id) => (id, request.header("ce-sentns")),
        None => read_payload(request.body)?,
    };
    let (key, number) = read_id(id)
        .filter(|(key, _)| ledger.knows(*key))
        .with_context(|| format!("a delivery has the unknown id {}", String::from_utf8_lossy(id)))?;
    let sent_ns = sent_ns.and_then(http::decimal).context("a delivery has no sentns")?;
    Ok(Some((Delivery::Event(Mark { key, number, sent_ns }), request.total_bytes)))
}

/// Id and send time in the payload of a webhook. Both stand before the data, which is not parsed: the receiver of plain calls
/// does not parse it either, and both must cost the machine about the same.
fn read_payload(body: &[u8]) -> anyhow::Result<(&[u8], Option<&[u8]>)> {
    let id = text_after(body, b",\"id\":\"").context("a delivery has no ce-id and is no webhook")?;
    Ok((id, text_after(body, b"\"sentns\":\"")))
}

/// The text up to the next quote. The bench sends no text with escapes.
fn text_after<'b>(body: &'b [u8], start: &[u8]) -> Option<&'b [u8]> {
    let from = body.windows(start.len()).position(|window| window == start)? + start.len();
    let length = body[from..].iter().position(|byte| *byte == b'"')?;
    Some(&body[from..from + length])
}
