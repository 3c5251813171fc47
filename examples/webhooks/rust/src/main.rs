//! A webhook receiver that processes every event once, in order, and reads from the feed what it missed.

use anyhow::{Context, bail};
use http::{HeaderMap, HeaderName, HeaderValue};
use serde_json::{Value, json};
use standardwebhooks::Webhook;
use std::collections::HashMap;
use std::env;
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use tiny_http::{Request, Response, Server};

/// The events so far, one JSON line each, and how far the feed was read. A real receiver uses its database.
struct Journal {
    file: File,
    /// The last event of each workflow.
    last: HashMap<String, Value>,
    cursor: Option<String>,
}

impl Journal {
    fn open(path: &str) -> anyhow::Result<Journal> {
        let file = File::options().create(true).read(true).append(true).open(path)?;
        let lines = BufReader::new(file.try_clone()?).lines();
        let mut journal = Journal { file, last: HashMap::new(), cursor: None };
        for line in lines {
            journal.remember(serde_json::from_str(&line?)?);
        }
        Ok(journal)
    }

    fn remember(&mut self, line: Value) {
        match line["cursor"].as_str() {
            Some(cursor) => self.cursor = Some(cursor.to_owned()),
            None => drop(self.last.insert(workflow(&line).to_owned(), line)),
        }
    }

    fn write(&mut self, line: Value) -> anyhow::Result<()> {
        self.file.write_all(format!("{line}\n").as_bytes())?;
        self.remember(line);
        Ok(())
    }

    /// Returns false if an event before this one is missing.
    fn take(&mut self, event: &Value) -> anyhow::Result<bool> {
        let last = self.last.get(workflow(event));
        let (before, last_id) = last.map_or((0, &Value::Null), |last| (number(last), &last["eventId"]));
        if number(event) <= before {
            return Ok(true); // known
        }
        if number(event) != before + 1 || event["previousEventId"] != *last_id {
            return Ok(false);
        }
        self.write(event.clone())?;
        Ok(true)
    }

    /// For an event whose predecessors are gone everywhere.
    fn take_anyway(&mut self, event: Value) -> anyhow::Result<()> {
        if self.take(&event)? {
            return Ok(());
        }
        eprintln!("lost: events before {} of {}", event["eventId"], workflow(&event));
        self.write(event)
    }

    /// Reads the feed to its end.
    fn catch_up(&mut self) -> anyhow::Result<()> {
        loop {
            let mut page = read_feed(self.cursor.as_deref())?;
            let Value::Array(items) = page["items"].take() else { bail!("the feed has no items: {page}") };
            let is_end = items.is_empty();
            for event in items {
                self.take_anyway(event)?;
            }
            if page["next"].as_str() != self.cursor.as_deref() {
                self.write(json!({"cursor": page["next"]}))?;
            }
            if is_end {
                return Ok(());
            }
        }
    }

    fn receive(&mut self, event: Value) -> anyhow::Result<()> {
        if self.take(&event)? {
            return Ok(());
        }
        self.catch_up()?;
        self.take_anyway(event)
    }
}

fn workflow(event: &Value) -> &str {
    event["workflowId"].as_str().unwrap_or_default()
}

fn number(event: &Value) -> u64 {
    event["sequenceNumber"].as_u64().unwrap_or_default()
}

fn read_feed(cursor: Option<&str>) -> anyhow::Result<Value> {
    let mut request = ureq::get(env::var("WEBHOOK_FEED").context("WEBHOOK_FEED")?);
    if let Some(cursor) = cursor {
        request = request.query("since", cursor);
    }
    if let Ok(token) = env::var("WEBHOOK_TOKEN") {
        request = request.header("authorization", format!("Bearer {token}"));
    }
    match request.call() {
        // Retention has removed events after the cursor.
        Err(ureq::Error::StatusCode(410)) if cursor.is_some() => read_feed(None),
        answer => Ok(answer?.body_mut().read_json()?),
    }
}

/// The events, if the signature is right. An endpoint with `batch` sends an array of them.
fn verify(webhook: &Webhook, request: &mut Request) -> anyhow::Result<Vec<Value>> {
    let mut headers = HeaderMap::new();
    for header in request.headers() {
        let name = HeaderName::from_bytes(header.field.as_str().as_bytes())?;
        headers.insert(name, HeaderValue::from_str(header.value.as_str())?);
    }
    let mut body = Vec::new();
    request.as_reader().read_to_end(&mut body)?;
    webhook.verify(&body, &headers)?;
    Ok(match serde_json::from_slice(&body)? {
        Value::Array(events) => events,
        event => vec![event],
    })
}

fn main() -> anyhow::Result<()> {
    let [port, path] = [1, 2].map(|n| env::args().nth(n).unwrap_or_default());
    let webhook = Webhook::new(&env::var("WEBHOOK_SECRET").context("WEBHOOK_SECRET")?)?;
    let mut journal = Journal::open(&path)?;
    journal.catch_up()?;
    let server = Server::http(format!("127.0.0.1:{port}")).map_err(anyhow::Error::from_boxed)?;
    for mut request in server.incoming_requests() {
        // The answer is 200 only when the events are stored.
        let status = match verify(&webhook, &mut request) {
            Err(_) => 401,
            Ok(events) => match events.into_iter().try_for_each(|event| journal.receive(event)) {
                Ok(()) => 200,
                Err(error) => {
                    eprintln!("{error:#}");
                    500
                }
            },
        };
        // A sender that has gone calls again.
        let _ = request.respond(Response::empty(status));
    }
    Ok(())
}
