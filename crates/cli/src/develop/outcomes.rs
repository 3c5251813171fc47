//! The outcomes of the events that were sent to the server of `dev`, one line for each.

use crate::client::{Client, Error};
use crate::function;
use crate::output::{cell, one_line, text};
use crate::route::Route;
use crate::sse::Messages;
use serde_json::Value;
use std::collections::VecDeque;
use std::io::BufReader;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;
use ureq::http::Method;

/// Events whose outcome is awaited. Older ones are given up.
const PENDING_MAX: usize = 100;
const RECONNECT: Duration = Duration::from_secs(1);
/// Events of the platform itself.
const OWN_TYPES: &str = "lambda.";

pub struct Outcomes {
    subscription: String,
    events: Receiver<Value>,
    pending: VecDeque<Pending>,
}

struct Pending {
    route: Route,
    title: String,
    /// The last line, which is not repeated.
    said: String,
}

/// The known state of an event.
#[derive(Debug, PartialEq, Eq)]
enum Outcome {
    Open,
    /// It is tried again.
    Failed(String),
    Final(String),
}

impl Outcomes {
    /// Follows the events from the first one on, with a client of its own.
    pub fn follow(client: Client, subscription: String) -> std::io::Result<Outcomes> {
        let (sender, events) = sync_channel(PENDING_MAX);
        thread::Builder::new().name("events".into()).spawn(move || read_events(&client, &sender))?;
        Ok(Outcomes { subscription, events, pending: VecDeque::new() })
    }

    /// The lines to print now.
    pub fn news(&mut self, client: &Client) -> anyhow::Result<Vec<String>> {
        let mut lines = Vec::new();
        while let Ok(item) = self.events.try_recv() {
            self.pending.push_back(Pending::new(&item["event"]));
        }
        while self.pending.len() > PENDING_MAX {
            lines.extend(self.pending.pop_front().map(|one| format!("{}: still pending", one.title)));
        }
        let mut open = VecDeque::new();
        for mut one in std::mem::take(&mut self.pending) {
            let found = match client.get(&one.route) {
                // An event that is no longer kept.
                Err(Error::Problem(_)) => Value::Null,
                found => found?,
            };
            let (line, is_final) = match outcome(&found, &self.subscription) {
                Outcome::Open => (String::new(), false),
                Outcome::Failed(line) => (line, false),
                Outcome::Final(line) => (line, true),
            };
            if !line.is_empty() && line != one.said {
                lines.push(format!("{}: {line}", one.title));
                one.said = line;
            }
            if !is_final {
                open.push_back(one);
            }
        }
        self.pending = open;
        Ok(lines)
    }
}

impl Pending {
    fn new(event: &Value) -> Pending {
        let (id, source) = (cell(event, "/id"), cell(event, "/source"));
        let key = text(event, "/partitionkey").map(|key| format!(" key {key}")).unwrap_or_default();
        let title = one_line(&format!("{id} {}{key}", cell(event, "/type")));
        Pending { route: Route::new(&["events", &id]).query("source", source), title, said: String::new() }
    }
}

/// Until the program ends. The server sends events of one position only once, whatever breaks.
fn read_events(client: &Client, events: &SyncSender<Value>) {
    let mut after = 0;
    loop {
        let route = Route::new(&["events"]).query("after", after);
        if let Ok(stream) = client.stream(Method::GET, &route, "text/event-stream") {
            for message in Messages::new(BufReader::new(stream)).map_while(Result::ok) {
                let Ok(item) = serde_json::from_str::<Value>(&message.data) else { continue };
                after = item["position"].as_u64().unwrap_or(after);
                let is_own = cell(&item, "/event/type").starts_with(OWN_TYPES);
                if !is_own && events.send(item).is_err() {
                    return;
                }
            }
        }
        thread::sleep(RECONNECT);
    }
}

fn outcome(event: &Value, subscription: &str) -> Outcome {
    if event.is_null() {
        return Outcome::Final("unknown".to_owned());
    }
    let fates = event["fates"].as_array().map_or(&[][..], Vec::as_slice);
    let Some(fate) = fates.iter().find(|fate| fate["subscription"] == subscription) else {
        return Outcome::Final("no trigger of the function matches it".to_owned());
    };
    let attempts = fate["attempts"].as_u64().unwrap_or(1);
    let reason = || text(fate, "/reason").map(|reason| format!(": {}", one_line(&function::error(&reason))));
    let reason = || reason().unwrap_or_default();
    match fate["fate"].as_str() {
        Some("delivered") if attempts > 1 => Outcome::Final(format!("delivered in attempt {attempts}")),
        Some("delivered") => Outcome::Final("delivered".to_owned()),
        Some("deadLetter") => {
            let (id, reason) = (cell(fate, "/deadLetter"), reason());
            Outcome::Final(format!("failed in attempt {attempts}{reason}; dead letter {id}"))
        }
        Some("purged") => Outcome::Final("dropped".to_owned()),
        Some("retrying") => Outcome::Failed(format!("attempt {attempts} failed{}; trying again", reason())),
        Some("waiting" | "buffered" | "inFlight") => Outcome::Open,
        _ => Outcome::Final("unknown".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_event_is_followed_to_its_end() {
        let outcome = |fate: Value| outcome(&json!({"fates": [fate]}), "s");
        let last = |text: &str| Outcome::Final(text.to_owned());
        assert_eq!(outcome(json!({"subscription": "s", "fate": "inFlight", "attempts": 1})), Outcome::Open);
        assert_eq!(
            outcome(json!({"subscription": "s", "fate": "delivered", "attempts": 1})),
            last("delivered")
        );
        assert_eq!(
            outcome(json!({"subscription": "s", "fate": "delivered", "attempts": 2})),
            last("delivered in attempt 2")
        );
        assert_eq!(
            outcome(json!({"subscription": "s", "fate": "retrying", "attempts": 1, "reason": "HTTP 500"})),
            Outcome::Failed("attempt 1 failed: HTTP 500; trying again".to_owned())
        );
        assert_eq!(
            outcome(json!({"subscription": "s", "fate": "deadLetter", "attempts": 2, "deadLetter": "s.1",
                "reason": "retries-exhausted: HTTP 500"})),
            last("failed in attempt 2: retries-exhausted: HTTP 500; dead letter s.1")
        );
        assert_eq!(
            outcome(json!({"subscription": "other", "fate": "delivered"})),
            last("no trigger of the function matches it")
        );
    }
}
