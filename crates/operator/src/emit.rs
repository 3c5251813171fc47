//! Sends the events about functions to the dispatcher. The id of an event is derived from its transition, so an event that
//! is sent again is known there.

use crate::config::Config;
use klambda_core::event::Event;
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(5);

#[derive(Debug, thiserror::Error)]
#[error("could not send an event to the dispatcher: {0}")]
pub struct Error(String);

#[derive(Clone)]
pub struct Emitter {
    client: reqwest::Client,
    /// A bearer token for the dispatcher.
    token: Option<String>,
}

impl Emitter {
    pub fn new(token: Option<String>) -> Result<Emitter, Error> {
        let client = reqwest::Client::builder().timeout(TIMEOUT).build();
        Ok(Emitter { client: client.map_err(|error| Error(error.to_string()))?, token })
    }

    /// Sends events in order. Stops at the first that is not accepted.
    pub async fn send(&self, namespace: &str, events: &[Event], config: &Config) -> Result<(), Error> {
        if !config.emits {
            return Ok(());
        }
        for event in events {
            self.send_one(&config.events_url(namespace), event).await?;
        }
        Ok(())
    }

    async fn send_one(&self, url: &str, event: &Event) -> Result<(), Error> {
        let mut request = self.client.post(url).header("content-type", "application/cloudevents+json");
        if let Some(token) = &self.token {
            request = request.bearer_auth(token);
        }
        let body = event.to_json().to_string();
        let answer =
            request.body(body).send().await.map_err(|error| Error(error.without_url().to_string()))?;
        match answer.status() {
            status if status.is_success() => Ok(()),
            status => Err(Error(format!("it answered {status}"))),
        }
    }
}
