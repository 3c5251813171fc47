//! Reads snapshots from the server and carries out actions, on a thread of its own: a slow server must not freeze the
//! screen.

use super::model::{Action, Lane, LaneId, Letter, Request, Snapshot};
use crate::client::{Client, Error};
use crate::commands::why;
use crate::function::error;
use crate::output::{cell, number, text};
use crate::route::Route;
use crate::time;
use klambda_core::time::Millis;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender};
use std::time::{Duration, Instant};

/// Lanes of each kind that are fetched: the deepest, the oldest and the parked ones.
const LANES_MAX: usize = 50;
const LETTERS_MAX: usize = 20;
const SUBSCRIPTIONS_MAX: usize = 1_000;

pub enum Reply {
    Snapshot(Box<Snapshot>),
    Reason { title: String, text: String },
    Done(String),
    Failed(String),
}

pub struct Source {
    client: Client,
    started: Instant,
}

impl Source {
    pub fn new(client: Client) -> Source {
        Source { client, started: Instant::now() }
    }

    /// Sends a snapshot in every interval and answers requests in between, until the other side is gone.
    pub fn run(self, interval: Duration, requests: &Receiver<Request>, replies: &Sender<Reply>) {
        let mut next = Instant::now();
        loop {
            if Instant::now() >= next {
                let reply = self.snapshot().map(|snapshot| Reply::Snapshot(Box::new(snapshot)));
                if replies.send(reply.unwrap_or_else(failed)).is_err() {
                    return;
                }
                next = Instant::now() + interval;
            }
            match requests.recv_timeout(next.saturating_duration_since(Instant::now())) {
                Ok(request) => {
                    if replies.send(self.answer(request)).is_err() {
                        return;
                    }
                    // The screen shows the effect at once.
                    next = Instant::now();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn answer(&self, request: Request) -> Reply {
        match request {
            Request::Inspect(lane) => {
                self.reason(&lane).unwrap_or_else(|error| Reply::Failed(format!("{error:#}")))
            }
            Request::Act(action, lane) => self.act(action, &lane).map_or_else(failed, Reply::Done),
            Request::Quit => Reply::Done(String::new()),
        }
    }

    fn reason(&self, lane: &LaneId) -> anyhow::Result<Reply> {
        let route = Route::lane(&lane.subscription, &lane.key).within(&lane.namespace);
        let item = self.client.get(&route)?;
        let mut out = Vec::new();
        why::lane(&mut out, &item, time::now())?;
        let text = String::from_utf8_lossy(&out).into_owned();
        Ok(Reply::Reason { title: format!("lane {} of {}", lane.key, lane.subscription), text })
    }

    fn act(&self, action: Action, lane: &LaneId) -> Result<String, Error> {
        let LaneId { namespace, subscription, key } = lane;
        let steer =
            |verb| self.client.post(&Route::lane_action(subscription, key, verb).within(namespace), None);
        match action {
            Action::Resume => steer("resume").map(|_| format!("lane {key} of {subscription} resumed")),
            Action::Skip => steer("skip").map(|_| format!("lane {key} of {subscription}: skipped")),
            Action::Replay => {
                let request =
                    json!({"selector": {"subscription": subscription, "key": key}, "dryRun": false});
                let route = Route::new(&["dlq", "replays"]).within(namespace);
                let job = self.client.post(&route, Some(&request))?.body;
                // The job selects its dead letters later, so their number is not known yet.
                Ok(format!("replay {} started", cell(&job, "/id")))
            }
        }
    }

    pub fn snapshot(&self) -> Result<Snapshot, Error> {
        let list = |route: Route, limit| {
            self.client.list_from(&route, "cursor", None::<&str>, limit).map(|page| page.items)
        };
        let now = time::now();
        let mut snapshot = Snapshot { taken: self.started.elapsed(), ..Snapshot::default() };
        let subscriptions = list(Route::new(&["subscriptions"]), SUBSCRIPTIONS_MAX)?;
        subscriptions.iter().for_each(|item| add_subscription(&mut snapshot, item));
        if let Some(status) = self.status()? {
            snapshot.last_position = Some(number(&status, "/positions/last"));
            snapshot.uptime = Some(Duration::from_secs(number(&status, "/uptimeSeconds")));
        }
        let mut lanes = BTreeMap::new();
        for route in [
            Route::new(&["lanes"]).query("state", "parked"),
            Route::new(&["lanes"]).query("sort", "depth"),
            Route::new(&["lanes"]).query("sort", "age"),
        ] {
            for item in list(route, LANES_MAX)? {
                let lane = self.lane(&item, now);
                lanes.insert(lane.id.clone(), lane);
            }
        }
        snapshot.lanes = lanes.into_values().filter(|lane| lane.depth > 0 || lane.state != "open").collect();
        let letters = list(Route::new(&["dlq"]), LETTERS_MAX)?;
        snapshot.letters = letters.iter().map(|item| self.letter(item, now)).collect();
        Ok(snapshot)
    }

    /// `None` for a token that may not see the whole server.
    fn status(&self) -> Result<Option<Value>, Error> {
        match self.client.get(&Route::new(&["status"])) {
            Ok(status) => Ok(Some(status)),
            Err(Error::Problem(problem)) if problem.status == 403 => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn lane(&self, item: &Value, now: Millis) -> Lane {
        Lane {
            id: self.lane_id(item),
            state: cell(item, "/state"),
            depth: number(item, "/depth"),
            oldest: age(item, "/oldest", now),
            waits_for: text(item, "/waitsFor").unwrap_or_default(),
        }
    }

    fn letter(&self, item: &Value, now: Millis) -> Letter {
        Letter {
            id: cell(item, "/id"),
            lane: self.lane_id(item),
            reason: cell(item, "/reason"),
            age: age(item, "/failedAt", now),
            error: error(&cell(item, "/lastError")),
        }
    }

    fn lane_id(&self, item: &Value) -> LaneId {
        let namespace = text(item, "/namespace").unwrap_or_else(|| self.client.namespace().to_owned());
        LaneId { namespace, subscription: cell(item, "/subscription"), key: cell(item, "/key") }
    }
}

fn failed(error: Error) -> Reply {
    Reply::Failed(error.to_string())
}

fn add_subscription(snapshot: &mut Snapshot, item: &Value) {
    let count = |name: &str| number(item, &format!("/status/{name}"));
    snapshot.delivered += count("delivered");
    snapshot.pending += count("waiting");
    snapshot.in_flight += count("inFlight");
    snapshot.dead_letters += count("deadLetters");
    for (state, lanes) in item["status"]["lanes"].as_object().into_iter().flatten() {
        *snapshot.states.entry(state.clone()).or_default() += lanes.as_u64().unwrap_or(0);
    }
}

fn age(item: &Value, at: &str, now: Millis) -> Option<Duration> {
    let at = text(item, at).and_then(|at| Millis::parse_rfc3339(&at))?;
    Some(Duration::from_millis(now.since(at)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subscriptions_add_up() {
        let mut snapshot = Snapshot::default();
        let item = json!({"status": {"waiting": 3, "inFlight": 1, "deadLetters": 2, "delivered": 40,
            "lanes": {"parked": 1, "open": 2}}});
        add_subscription(&mut snapshot, &item);
        add_subscription(&mut snapshot, &item);
        assert_eq!((snapshot.pending, snapshot.in_flight, snapshot.dead_letters), (6, 2, 4));
        assert_eq!((snapshot.delivered, snapshot.states["parked"], snapshot.states["open"]), (80, 2, 4));
    }
}
