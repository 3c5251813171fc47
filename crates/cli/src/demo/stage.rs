//! What the demo stands on: a folder that goes with it, and a server of its own in that.

use super::proof::{self, Entry};
use super::script::{self, Draft, FUNCTION, Language, SUBSCRIPTION, Step};
use crate::bench::child::Child;
use crate::bench::interrupt;
use crate::client::{Client, Error};
use crate::commands::is_unreachable;
use crate::contexts::Connection;
use crate::route::Route;
use anyhow::{Context, anyhow, bail};
use klambda_core::namespace;
use klambda_dispatch::check;
use klambda_store::real_disk::RealDisk;
use serde_json::{Value, json};
use std::fs::File;
use std::net::TcpListener;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(20);

pub struct Stage {
    // The server goes before its folder does.
    server: Child,
    client: Client,
    folder: TempDir,
    language: Language,
}

impl Stage {
    pub fn set(language: Language) -> anyhow::Result<Stage> {
        let folder = tempfile::Builder::new().prefix("klambda-demo-").tempdir()?;
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let log = File::create(folder.path().join("serve.log"))?;
        let data = folder.path().join("data").to_string_lossy().into_owned();
        let arguments = ["--listen", &address.to_string(), "--data", &data].map(str::to_owned);
        let server = Child::server(&std::env::current_exe()?, &arguments, log)?;
        let connection = Connection {
            server: format!("http://{address}"),
            token_file: None,
            ca_file: None,
            namespace: namespace::DEFAULT.to_owned(),
            timeout: ANSWER,
        };
        let mut stage = Stage { server, client: Client::new(connection)?, folder, language };
        stage.wait_until_ready()?;
        Ok(stage)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let deadline = Instant::now() + START;
        while self.client.get(&Route::new(&["status"])).is_err() {
            if self.server.has_ended()? || Instant::now() > deadline {
                bail!("the server did not start: {}", self.said());
            }
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    /// What the server has printed.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(self.folder.path().join("serve.log")).unwrap_or_default();
        text.trim().to_owned()
    }

    /// A server that cannot be reached because it is gone is not one that the user should start.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.server.has_ended() {
            Ok(true) if is_unreachable(&error) => anyhow!("the demo's own server ended: {}", self.said()),
            _ => error,
        }
    }

    fn journal_path(&self) -> PathBuf {
        self.folder.path().join("journal")
    }

    /// What the function has written down so far.
    pub fn journal(&self) -> Vec<Entry> {
        proof::read(&self.journal_path())
    }

    pub fn apply(&self, draft: Draft) -> anyhow::Result<()> {
        let manifest = script::manifest(self.language, draft, &self.journal_path());
        let route = Route::new(&["lambda", "functions", FUNCTION]);
        self.client.put(&route.query("apply", true), &manifest)?;
        Ok(())
    }

    pub fn function(&self) -> anyhow::Result<Value> {
        let route = Route::new(&["lambda", "functions", FUNCTION]);
        match self.client.get(&route) {
            Err(Error::Problem(problem)) if problem.status == 404 => Ok(Value::Null),
            answer => Ok(answer?),
        }
    }

    /// The lanes of the function that have something to do.
    pub fn lanes(&self) -> anyhow::Result<Vec<Value>> {
        let route = Route::new(&["lanes"]).query("subscription", SUBSCRIPTION);
        match self.client.list_from(&route, "cursor", None::<&str>, 0) {
            Err(Error::Problem(problem)) if problem.status == 404 => Ok(Vec::new()),
            page => Ok(page?.items),
        }
    }

    /// Sends one event; whether the server took it, which it does not if it knows it.
    pub fn send(&self, step: Step) -> anyhow::Result<bool> {
        let body = step.event().to_string();
        let answer = self.client.post_as(&Route::new(&["events"]), body, "application/cloudevents+json")?;
        Ok(answer.body["results"][0]["status"] == "accepted")
    }

    pub fn replay(&self, dry_run: bool) -> anyhow::Result<Value> {
        let request = json!({"selector": {"subscription": SUBSCRIPTION}, "dryRun": dry_run});
        Ok(self.client.post(&Route::new(&["dlq", "replays"]), Some(&request))?.body)
    }

    /// Ends the server and has its folder read by the checker that shares no code with it.
    pub fn check(&mut self) -> anyhow::Result<check::Report> {
        self.server.end(END)?;
        let disk =
            RealDisk::read_only(&self.folder.path().join("data")).map_err(|error| anyhow!("{error}"))?;
        check::check(Arc::new(disk), &mut |_| {}).context("the data folder")
    }
}
