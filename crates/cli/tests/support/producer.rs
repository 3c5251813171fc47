//! A producer as producers should be: it sends again, under the same id, whatever it was not answered.

use super::PATIENCE;
use super::process::agent;
use super::random::Random;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// An event, and what its producer was told of it.
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
    name: String,
    kind: &'static str,
    url: String,
    keys: u64,
    random: Random,
    agent: ureq::Agent,
    /// Events that were answered, by all producers together.
    answered: &'a AtomicU64,
}

impl<'a> Producer<'a> {
    pub fn new(
        name: String,
        kind: &'static str,
        server: &str,
        keys: u64,
        random: Random,
        answered: &'a AtomicU64,
    ) -> Self {
        let url = format!("{server}/api/v1/events");
        Producer { name, kind, url, keys, random, agent: agent(), answered }
    }

    /// Sends so many events, spread over its keys. At most `window` are taken ahead of their turn and sent in any
    /// order; with a window of 0 all go in turn.
    pub fn run(mut self, events: u64, window: usize) -> Vec<Sent> {
        let mut next = vec![0; self.keys as usize];
        let mut ahead = Vec::new();
        let mut answered = Vec::new();
        let mut left = events;
        while left > 0 || !ahead.is_empty() {
            let size = self.batch_size();
            while left > 0 && ahead.len() < size + window {
                ahead.push(self.event(&mut next));
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

    fn event(&mut self, next: &mut [u64]) -> Sent {
        let key = self.random.below(self.keys);
        let sequence = &mut next[key as usize];
        *sequence += 1;
        let key = format!("{}-{key}", self.name);
        Sent { id: format!("{key}-{sequence}"), kind: self.kind, key, sequence: *sequence, position: None }
    }

    fn send(&mut self, batch: &mut [Sent]) {
        let deadline = Instant::now() + PATIENCE;
        let results = loop {
            match self.try_send(batch) {
                Ok(results) => break results,
                Err(excuse) => assert!(Instant::now() < deadline, "{}: {excuse}", self.name),
            }
            // Gives the next server time to start.
            std::thread::sleep(Duration::from_millis(5));
        };
        self.note(batch, &results);
        self.answered.fetch_add(batch.len() as u64, Ordering::Relaxed);
        if self.random.below(30) == 0 {
            self.send_again(batch);
        }
    }

    fn note(&self, batch: &mut [Sent], results: &[Value]) {
        assert_eq!(results.len(), batch.len());
        for (event, result) in batch.iter_mut().zip(results) {
            assert_eq!(result["id"], event.id.as_str());
            event.position = match result["status"].as_str() {
                Some("accepted") => Some(result["position"].as_u64().expect("a position")),
                Some("skipped") if result["reason"] == "duplicate" => None,
                _ => panic!("{result}"),
            };
        }
    }

    /// What was answered is known.
    fn send_again(&self, batch: &[Sent]) {
        if let Ok(results) = self.try_send(batch) {
            assert!(results.iter().all(|result| result["status"] == "skipped"), "{results:?}");
        }
    }

    fn try_send(&self, batch: &[Sent]) -> Result<Vec<Value>, String> {
        let json = |event: &Sent| {
            json!({
                "specversion": "1.0", "source": "/test", "id": event.id, "type": event.kind,
                "partitionkey": event.key, "sequence": event.sequence.to_string(), "data": event.sequence,
            })
        };
        let (format, body) = match batch {
            [event] => ("application/cloudevents+json", json(event)),
            _ => ("application/cloudevents-batch+json", batch.iter().map(json).collect()),
        };
        let request = self.agent.post(&self.url).header("content-type", format);
        let mut answer = request.send(body.to_string()).map_err(|error| error.to_string())?;
        let text = answer.body_mut().read_to_string().map_err(|error| error.to_string())?;
        match answer.status().as_u16() {
            200 | 202 => {
                let mut answer: Value = serde_json::from_str(&text).expect("JSON");
                Ok(serde_json::from_value(answer["results"].take()).expect("results"))
            }
            429 | 503 => Err(text),
            status => panic!("{status}: {text}"),
        }
    }
}
