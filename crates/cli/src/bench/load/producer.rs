//! One producer: a connection, the keys it owns, and the request it waits for.

use std::collections::VecDeque;

use super::Spec;
use crate::bench::wire::conn::Conn;
use crate::bench::wire::poll::{Poller, Token};

pub struct Producer {
    pub conn: Conn,
    /// Events still to send; without a limit, `None`.
    pub left: Option<u64>,
    index: u32,
    step: u32,
    keys: u32,
    next_key: u32,
    flight: Option<Flight>,
    /// Open loop: events whose time has come, behind the open request.
    due: VecDeque<(u32, u64)>,
    open_loop: bool,
}

/// The open request: this many events of the producer's keys, from the first on.
#[derive(Clone, Copy, Debug)]
pub struct Flight {
    pub first_key: u32,
    pub events: u32,
    pub sent_ns: u64,
}

impl Producer {
    pub fn connect(spec: &Spec, index: u32, poller: &Poller, token: Token) -> anyhow::Result<Self> {
        let owned = u64::from(spec.keys.saturating_sub(index).div_ceil(spec.connections));
        let left = if owned == 0 { Some(0) } else { spec.per_key.map(|events| owned * u64::from(events)) };
        Ok(Self {
            conn: Conn::connect(spec.target, poller, token)?,
            left,
            index,
            step: spec.connections,
            keys: spec.keys,
            next_key: index,
            flight: None,
            due: VecDeque::new(),
            open_loop: spec.rate.is_some(),
        })
    }

    pub fn key_after(&self, key: u32) -> u32 {
        let next = key + self.step;
        if next < self.keys { next } else { self.index }
    }

    /// Open loop: whether the event can go at once. Its time counts from now then, and from when it was due if it has
    /// to wait for an answer, so that a slow server is not excused and a slow load generator is.
    pub fn await_turn(&mut self, key: u32, due_ns: u64, now_ns: u64) -> bool {
        let idle = self.flight.is_none();
        self.due.push_back((key, if idle && self.due.is_empty() { now_ns } else { due_ns }));
        idle
    }

    pub fn take_off(&mut self, sending: bool, batch: u32, now_ns: u64) -> Option<Flight> {
        if self.flight.is_some() {
            return None;
        }
        let flight = if self.open_loop {
            let (first_key, sent_ns) = self.due.pop_front()?;
            Flight { first_key, events: 1, sent_ns }
        } else {
            let events = self.left.map_or(batch, |left| left.min(u64::from(batch)) as u32);
            if !sending || events == 0 {
                return None;
            }
            Flight { first_key: self.next_key, events, sent_ns: now_ns }
        };
        self.left = self.left.map(|left| left - u64::from(flight.events));
        if !self.open_loop {
            self.next_key = (0..flight.events).fold(self.next_key, |key, _| self.key_after(key));
        }
        self.flight = Some(flight);
        Some(flight)
    }

    pub fn land(&mut self) -> Option<Flight> {
        self.flight.take()
    }

    /// Takes back a request that the server was too busy for, so that the next one is the same.
    pub fn turn_back(&mut self, flight: &Flight, numbers: &mut [u32]) {
        let mut key = flight.first_key;
        for _ in 0..flight.events {
            numbers[key as usize] -= 1;
            key = self.key_after(key);
        }
        self.left = self.left.map(|left| left + u64::from(flight.events));
        if self.open_loop {
            self.due.push_front((flight.first_key, flight.sent_ns));
        } else {
            self.next_key = flight.first_key;
        }
    }
}
