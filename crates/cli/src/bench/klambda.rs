//! The server's API, as far as the bench needs it.

use std::io::Read;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, bail};
use serde_json::{Value, json};

use super::sink::POISON;

const SUBSCRIPTION: &str = "bench";
const PAGE_BYTES_MAX: u64 = 64 << 20;

pub struct Klambda {
    base: String,
    agent: ureq::Agent,
}

impl Klambda {
    pub fn new(address: SocketAddr) -> Self {
        let config = ureq::Agent::config_builder()
            .timeout_global(Some(Duration::from_secs(30)))
            .http_status_as_error(false)
            .proxy(None)
            .build();
        Self { base: format!("http://{address}"), agent: config.into() }
    }

    pub fn is_ready(&self) -> bool {
        let answer = self.agent.get(format!("{}/readyz", self.base)).call();
        answer.is_ok_and(|response| response.status() == 200)
    }

    /// An ordered subscription to everything, by `partitionkey`, that never gives up on an event.
    pub fn subscribe(&self, target: SocketAddr, concurrency: u32) -> anyhow::Result<()> {
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1",
            "kind": "Subscription",
            "metadata": {"name": SUBSCRIPTION},
            "spec": {
                "target": {"url": format!("http://{target}/")},
                "ordering": "ordered",
                "orderingPolicy": {"key": {"attribute": "partitionkey"}},
                "retry": {"attempts": "unlimited", "backoff": "10ms", "maxBackoff": "100ms"},
                "concurrency": concurrency,
            },
        });
        self.put_subscription(&document)
    }

    pub fn put_subscription(&self, document: &Value) -> anyhow::Result<()> {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let response =
            self.agent.put(format!("{}/api/v1/subscriptions/{name}", self.base)).send_json(document);
        read("creating a subscription", response).map(drop)
    }

    pub fn put_endpoint(&self, document: &Value) -> anyhow::Result<()> {
        let name = document["metadata"]["name"].as_str().unwrap_or_default();
        let response =
            self.agent.put(format!("{}/api/v1/webhooks/endpoints/{name}", self.base)).send_json(document);
        read("creating a webhook endpoint", response).map(drop)
    }

    pub fn act_on_endpoint(&self, name: &str, action: &str) -> anyhow::Result<()> {
        self.post(&format!("/api/v1/webhooks/endpoints/{name}/{action}")).map(drop)
    }

    /// Reads a page of the feed after `since`, as it is sent, into `page`. A buffer that is used again costs the reader less
    /// than new memory.
    pub fn feed_page(&self, endpoint: &str, since: &str, page: &mut Vec<u8>) -> anyhow::Result<()> {
        let since = if since.is_empty() { String::new() } else { format!("&since={since}") };
        let url = format!("{}/api/v1/webhooks/events?endpoint={endpoint}&limit=1000{since}", self.base);
        let mut response = self.agent.get(url).call()?;
        page.clear();
        response.body_mut().with_config().limit(PAGE_BYTES_MAX).reader().read_to_end(page)?;
        if response.status() != 200 {
            bail!(
                "reading the feed: the server answered {}: {}",
                response.status(),
                String::from_utf8_lossy(page)
            );
        }
        Ok(())
    }

    /// Sends events in one request.
    pub fn send_batch(&self, events: &Value) -> anyhow::Result<()> {
        let request = self.agent.post(format!("{}/api/v1/events", self.base));
        let request = request.content_type("application/cloudevents-batch+json");
        read("sending a batch", request.send(events.to_string())).map(drop)
    }

    pub fn pause(&self) -> anyhow::Result<()> {
        self.post(&format!("/api/v1/subscriptions/{SUBSCRIPTION}/pause")).map(drop)
    }

    pub fn resume(&self) -> anyhow::Result<()> {
        self.post(&format!("/api/v1/subscriptions/{SUBSCRIPTION}/resume")).map(drop)
    }

    /// How many events wait in the subscription.
    pub fn waiting(&self) -> anyhow::Result<u64> {
        let path = format!("/api/v1/subscriptions/{SUBSCRIPTION}");
        let document =
            read("reading the subscription", self.agent.get(format!("{}{path}", self.base)).call())?;
        document["status"]["waiting"].as_u64().context("the subscription's status has no `waiting`")
    }

    /// Sends one event of the key that always fails.
    pub fn send_poison(&self, id: &str) -> anyhow::Result<()> {
        let request = self
            .agent
            .post(format!("{}/api/v1/events", self.base))
            .header("ce-specversion", "1.0")
            .header("ce-type", "bench.poison")
            .header("ce-source", "/bench")
            .header("ce-id", id)
            .header("ce-partitionkey", POISON)
            .content_type("application/json");
        read("sending a poison event", request.send("{}")).map(drop)
    }

    pub fn purge_poison(&self) -> anyhow::Result<()> {
        self.post(&format!("/api/v1/lanes/{SUBSCRIPTION}/{POISON}/purge")).map(drop)
    }

    pub fn create_function(&self, document: &Value) -> anyhow::Result<()> {
        let response = self.agent.post(format!("{}/api/v1/lambda/functions", self.base)).send_json(document);
        read("creating a function", response).map(drop)
    }

    pub fn function(&self, name: &str) -> anyhow::Result<Value> {
        let path = format!("/api/v1/lambda/functions/{name}");
        read("reading a function", self.agent.get(format!("{}{path}", self.base)).call())
    }

    /// As Prometheus reads them.
    pub fn metrics(&self) -> anyhow::Result<String> {
        let mut response = self.agent.get(format!("{}/metrics", self.base)).call()?;
        Ok(response.body_mut().read_to_string()?)
    }

    fn post(&self, path: &str) -> anyhow::Result<Value> {
        read(path, self.agent.post(format!("{}{path}", self.base)).send_empty())
    }
}

fn read(
    what: &str,
    response: Result<ureq::http::Response<ureq::Body>, ureq::Error>,
) -> anyhow::Result<Value> {
    let mut response = response.with_context(|| what.to_owned())?;
    let status = response.status();
    let body = response.body_mut().read_to_string().with_context(|| what.to_owned())?;
    if !status.is_success() {
        bail!("{what}: the server answered {status}: {body}");
    }
    Ok(serde_json::from_str(&body).unwrap_or(Value::Null))
}
