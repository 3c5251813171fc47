//! The server of the demo, and its temporary folder.

use super::proof::{self, Entry};
use super::script::{self, Draft, FUNCTION, Language, SUBSCRIPTION, Step};
use crate::client::{Client, Error};
use crate::own_server::{self, OwnServer};
use crate::route::Route;
use anyhow::{Context, anyhow};
use klambda_dispatch::check;
use klambda_store::real_disk::RealDisk;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::sync::Arc;

pub struct Stage {
    server: OwnServer,
    client: Client,
    language: Language,
}

impl Stage {
    pub fn set(language: Language) -> anyhow::Result<Stage> {
        let server = OwnServer::start(own_server::folder("demo")?, None)?;
        Ok(Stage { client: server.client()?, server, language })
    }

    pub fn url(&self) -> &str {
        self.server.url()
    }

    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        self.server.explain(error)
    }

    fn journal_path(&self) -> PathBuf {
        self.server.path().join("journal")
    }

    /// The lines that the function has written so far.
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

    /// The lanes of the function that are not idle.
    pub fn lanes(&self) -> anyhow::Result<Vec<Value>> {
        let route = Route::new(&["lanes"]).query("subscription", SUBSCRIPTION);
        match self.client.list_from(&route, "cursor", None::<&str>, 0) {
            Err(Error::Problem(problem)) if problem.status == 404 => Ok(Vec::new()),
            page => Ok(page?.items),
        }
    }

    /// Sends one event. Returns whether the server accepted it; it skips a duplicate.
    pub fn send(&self, step: Step) -> anyhow::Result<bool> {
        let body = step.event().to_string();
        let answer = self.client.post_as(&Route::new(&["events"]), body, "application/cloudevents+json")?;
        Ok(answer.body["results"][0]["status"] == "accepted")
    }

    pub fn replay(&self, dry_run: bool) -> anyhow::Result<Value> {
        let request = json!({"selector": {"subscription": SUBSCRIPTION}, "dryRun": dry_run});
        Ok(self.client.post(&Route::new(&["dlq", "replays"]), Some(&request))?.body)
    }

    /// Ends the server, and runs the checker on its folder. The checker shares no code with the server.
    pub fn check(&mut self) -> anyhow::Result<check::Report> {
        self.server.end()?;
        let data = own_server::data(self.server.path());
        let disk = RealDisk::read_only(&data).map_err(|error| anyhow!("{error}"))?;
        check::check(Arc::new(disk), &mut |_| {}).context("the data folder")
    }
}
