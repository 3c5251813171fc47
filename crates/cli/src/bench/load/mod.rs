//! The load generator: producers on keep-alive connections, each with one request open at a time.
//!
//! A key belongs to one producer, so the order in which its events arrive is the order of their numbers.

mod producer;
mod schedule;

use std::collections::VecDeque;
use std::net::SocketAddr;

use anyhow::bail;
use serde::{Deserialize, Serialize};

use self::producer::{Flight, Producer};
use self::schedule::Schedule;
use super::child::{Port, say};
use super::histogram::{Histogram, Summary};
use super::wire::conn::Peer;
use super::wire::http::{self, Response};
use super::wire::poll::{Commands, Poller, Ready, Token, now_ns};
use super::wire::template::{Mark, Template};

const DRIVER: u32 = 0;
const PRODUCER: u32 = 1;

/// How long a producer waits after the server was too busy to take its request.
const PAUSE_NS: u64 = 5_000_000;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Spec {
    pub target: SocketAddr,
    pub run: String,
    pub connections: u32,
    pub keys: u32,
    /// Events per request: 1 is binary mode, more is a batch.
    pub batch: u32,
    /// Stops after this many events of every key.
    pub per_key: Option<u32>,
    /// Open loop: events per second, whatever the answers.
    pub rate: Option<f64>,
    /// Open loop: half of the events go to these first keys.
    pub hot_keys: u32,
    /// Single events are posted so that the server takes them through its HTTP library.
    pub long_way: bool,
}

/// Counts since the previous mark; `accepted` and `busy` since the start.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct LoadMark {
    pub at_ns: u64,
    pub accepted: u64,
    /// Requests that the server was too busy to take, sent again later.
    pub busy: u64,
    pub accept: Summary,
}

struct Load {
    spec: Spec,
    producers: Vec<Producer>,
    /// The last number given, per key.
    numbers: Vec<u32>,
    template: Template,
    schedule: Option<Schedule>,
    /// Producers that wait after a busy answer, in the order of their time.
    pausing: VecDeque<(u64, u32)>,
    sending: bool,
    open_requests: u32,
    accepted: u64,
    busy: u64,
    accept: Histogram,
    finishing: bool,
}

pub fn run(spec: Spec) -> anyhow::Result<()> {
    let poller = Poller::new()?;
    let mut commands = Commands::new(&poller, Token { kind: DRIVER, index: 0 })?;
    let mut load = Load::new(spec, &poller)?;
    say(&Port { port: load.spec.target.port() })?;
    let mut ready = Ready::new();
    loop {
        poller.wait(&mut ready, load.wakes_at_ns())?;
        for token in ready.tokens() {
            match token.kind {
                DRIVER => match commands.read()? {
                    None => return Ok(()),
                    Some(lines) => lines.iter().try_for_each(|line| load.execute(line))?,
                },
                _ => load.hear(token.index)?,
            }
        }
        load.send_due()?;
        load.report_when_finished()?;
    }
}

impl Load {
    fn new(spec: Spec, poller: &Poller) -> anyhow::Result<Self> {
        let producers = (0..spec.connections)
            .map(|index| Producer::connect(&spec, index, poller, Token { kind: PRODUCER, index }))
            .collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self {
            producers,
            numbers: vec![0; spec.keys as usize],
            template: template(&spec, spec.batch),
            schedule: None,
            pausing: VecDeque::new(),
            sending: false,
            open_requests: 0,
            accepted: 0,
            busy: 0,
            accept: Histogram::new(),
            finishing: false,
            spec,
        })
    }

    fn execute(&mut self, command: &str) -> anyhow::Result<()> {
        match command {
            "go" => self.start(),
            "mark" => self.report(),
            "stop" => {
                self.sending = false;
                self.finishing = true;
                Ok(())
            }
            "finish" => {
                self.finishing = true;
                Ok(())
            }
            other => bail!("the load generator does not know {other:?}"),
        }
    }

    fn start(&mut self) -> anyhow::Result<()> {
        self.sending = true;
        self.schedule = self.spec.rate.map(|rate| Schedule::new(rate, &self.spec, now_ns()));
        self.report()?;
        if self.schedule.is_none() {
            (0..self.spec.connections).try_for_each(|index| self.send_next(index))?;
        }
        Ok(())
    }

    fn report(&mut self) -> anyhow::Result<()> {
        let (accepted, busy) = (self.accepted, self.busy);
        say(&LoadMark { at_ns: now_ns(), accepted, busy, accept: self.accept.take() })
    }

    fn report_when_finished(&mut self) -> anyhow::Result<()> {
        let sent = !self.sending || self.producers.iter().all(|producer| producer.left == Some(0));
        if self.finishing && self.open_requests == 0 && self.pausing.is_empty() && sent {
            self.finishing = false;
            return self.report();
        }
        Ok(())
    }

    fn wakes_at_ns(&self) -> Option<u64> {
        let paused = self.pausing.front().map(|(due_ns, _)| *due_ns);
        let scheduled = self.schedule.as_ref().filter(|_| self.sending).map(Schedule::next_ns);
        [paused, scheduled].into_iter().flatten().min()
    }

    fn send_due(&mut self) -> anyhow::Result<()> {
        let now = now_ns();
        while let Some((due_ns, index)) = self.pausing.front().copied()
            && due_ns <= now
        {
            self.pausing.pop_front();
            self.send_next(index)?;
        }
        while self.sending
            && let Some((key, due_ns)) = self.schedule.as_mut().and_then(|schedule| schedule.pop(now))
        {
            let index = key % self.spec.connections;
            if self.producers[index as usize].await_turn(key, due_ns, now) {
                self.send_next(index)?;
            }
        }
        Ok(())
    }

    /// Sends the producer's next request, if it has one to send.
    fn send_next(&mut self, index: u32) -> anyhow::Result<()> {
        let now = now_ns();
        let producer = &mut self.producers[index as usize];
        let Some(flight) = producer.take_off(self.sending, self.spec.batch, now) else { return Ok(()) };
        if self.template.events() != flight.events as usize {
            self.template = template(&self.spec, flight.events);
        }
        let mut key = flight.first_key;
        for event in 0..flight.events {
            self.numbers[key as usize] += 1;
            let number = self.numbers[key as usize];
            self.template.stamp(event as usize, Mark { key, number, sent_ns: flight.sent_ns });
            key = producer.key_after(key);
        }
        producer.conn.send(self.template.bytes())?;
        self.open_requests += 1;
        Ok(())
    }

    fn hear(&mut self, index: u32) -> anyhow::Result<()> {
        let conn = &mut self.producers[index as usize].conn;
        conn.flush()?;
        let peer = conn.fill()?;
        if !conn.unread().is_empty()
            && let Some(response) = http::response(conn.unread())?
        {
            self.answered(index, &response)?;
        }
        if peer == Peer::Closed && self.open_requests > 0 {
            bail!("the server closed a producer's connection");
        }
        Ok(())
    }

    fn answered(&mut self, index: u32, response: &Response) -> anyhow::Result<()> {
        let now = now_ns();
        let producer = &mut self.producers[index as usize];
        let Some(flight) = producer.land() else { bail!("the server answered without a request") };
        let body = &producer.conn.unread()[response.head_bytes..response.total_bytes];
        let accepted = response.status == 202 && all_accepted(&flight, body);
        if !accepted && !matches!(response.status, 429 | 503) {
            bail!("the server answered {}: {}", response.status, String::from_utf8_lossy(body));
        }
        producer.conn.consume(response.total_bytes);
        self.open_requests -= 1;
        if accepted {
            self.accepted += u64::from(flight.events);
            self.accept.record(now - flight.sent_ns);
            return self.send_next(index);
        }
        self.busy += 1;
        producer.turn_back(&flight, &mut self.numbers);
        self.pausing.push_back((now + PAUSE_NS, index));
        Ok(())
    }
}

fn template(spec: &Spec, events: u32) -> Template {
    match spec.batch {
        1 => Template::single(spec.target, &spec.run, spec.long_way),
        _ => Template::batch(spec.target, &spec.run, events as usize),
    }
}

/// A batch is judged event by event, so its 202 alone says little.
fn all_accepted(flight: &Flight, body: &[u8]) -> bool {
    let accepted = br#""accepted""#;
    flight.events == 1
        || body.windows(accepted.len()).filter(|window| window == accepted).count() == flight.events as usize
}
