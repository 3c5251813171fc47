//! A producer as producers should be: it sends again, under the same id, whatever it was not answered.

use crate::random::Random;
use crate::support::PATIENCE;
use crate::support::process::agent;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event, and the answer that its producer got.
#[derive(Clone, Debug)]
pub struct Sent {
    pub id: String,
    pub kind: &'static str,
    pub key: String,
    /// Within its key, from 1.
    pub sequence: u64,
    /// None if it was skipped: an earlier try, never answered, had been accepted.
    pub position: Option<u64>,
}

pub struct Producer<'a> {
    pub name: String,
    pub kind: &'static str,
    /// Of the server.
    pub url: String,
    pub keys: u64,
    pub payload_bytes: usize,
    pub random: Random,
    agent: ureq::Agent,
    next: Vec<u64>,
    /// Events that were answered, by all producers together.
    answered: &'a AtomicU64,
}

impl<'a> Producer<'a> {
    pub fn new(
        name: String,
        kind: &'static str,
        url: &str,
        keys: u64,
        random: Random,
        answered: &'a AtomicU64,
    ) -> Self {
        let (url, next) = (url.to_owned(), vec![0; keys as usize]);
        Producer { name, kind, url, keys, payload_bytes: 0, random, agent: agent(), next, answered }
    }

    /// Sends this number of events, spread over its keys. At most `window` are taken ahead of their turn and sent in any
    /// order; with a window of 0 all go in turn.
    pub fn run(mut self, events: u64, window: usize) -> Vec<Sent> {
        let mut ahead = Vec::new();
        let mut answered = Vec::new();
        let mut left = events;
        while left > 0 || !ahead.is_empty() {
            let size = self.batch_size();
            while left > 0 && ahead.len() < size + window {
                ahead.push(self.event());
                left -= 1;
            }
            if window > 0 {
                self.random.shuffle(&mut ahead);
            }
            let mut batch: Vec<Sent> = ahead.drain(..size.min(ahead.len())).collect();
            self.send(&mut batch);
            answered.extend(batch);
        }
        answered
    }

    /// Mostly many, often one.
    fn batch_size(&mut self) -> usize {
        match self.random.below(4) {
            0 => 1,
            _ => 1 + self.random.below(60) as usize,
        }
    }

    /// The next of some key.
    pub fn event(&mut self) -> Sent {
        let key = self.random.below(self.keys);
        let sequence = &mut self.next[key as usize];
        *sequence += 1;
        let key = format!("{}-{key}", self.name);
        Sent { id: format!("{key}-{sequence}"), kind: self.kind, key, sequence: *sequence, position: None }
    }

    /// Until it is answered.
    pub fn send(&mut self, batch: &mut [Sent]) {
        let deadline = Instant::now() + PATIENCE;
        while let Err(excuse) = self.try_send(batch) {
            assert!(Instant::now() < deadline, "{}: {excuse}", self.name);
            // Gives the next server time to start.
            std::thread::sleep(Duration::from_millis(5));
        }
        if self.random.below(30) == 0 {
            self.send_again(batch);
        }
    }

    /// Once. An error if there was no answer, or one that says to try again.
    pub fn try_send(&self, batch: &mut [Sent]) -> Result<(), String> {
        let results = self.post(batch)?;
        assert_eq!(results.len(), batch.len());
        if let Some(full) = results.iter().find(|result| result["problem"]["status"] == 507) {
            return Err(full["problem"].to_string());
        }
        for (event, result) in batch.iter_mut().zip(&results) {
            assert_eq!(result["id"], event.id.as_str());
            event.position = match result["status"].as_str() {
                Some("accepted") => Some(result["position"].as_u64().expect("a position")),
                Some("skipped") if result["reason"] == "duplicate" => None,
                _ => panic!("{result}"),
            };
        }
        self.answered.fetch_add(batch.len() as u64, Ordering::Relaxed);
        Ok(())
    }

    /// Answered events are known.
    fn send_again(&self, batch: &[Sent]) {
        if let Ok(results) = self.post(batch) {
            assert!(results.iter().all(|result| result["status"] == "skipped"), "{results:?}");
        }
    }

    fn post(&self, batch: &[Sent]) -> Result<Vec<Value>, String> {
        let payload = "x".repeat(self.payload_bytes);
        let json = |event: &Sent| {
            json!({
                "specversion": "1.0", "source": "/test", "id": event.id, "type": event.kind,
                "partitionkey": event.key, "sequence": event.sequence.to_string(), "data": payload,
            })
        };
        let (format, body) = match batch {
            [event] => ("application/cloudevents+json", json(event)),
            _ => ("application/cloudevents-batch+json", batch.iter().map(json).collect()),
        };
        let request = self.agent.post(format!("{}/api/v1/events", self.url)).header("content-type", format);
        let mut answer = request.send(body.to_string()).map_err(|error| error.to_string())?;
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 | 202 => {
                let mut answer: Value = serde_json::from_str(&text).expect("JSON");
                Ok(serde_json::from_value(answer["results"].take()).expect("results"))
            }
            429 | 500 | 503 | 507 => Err(text),
            status => panic!("{status}: {text}"),
        }
    }
}
