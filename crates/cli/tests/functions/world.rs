//! A server with functions, and helpers for requests to it.

use crate::support::process::{Process, agent, wait_until_ready};
use crate::support::shell::share_cache;
use crate::support::{KLAMBDA, eventually, free_port};
use serde_json::{Value, json};
use std::process::Command;
use tempfile::TempDir;

pub struct World {
    pub folder: TempDir,
    pub process: Option<Process>,
    pub url: String,
    address: String,
    pub settings: Vec<(&'static str, String)>,
}

pub const NODE_HELLO: &str = "exports.handler = async (event) => ({ hello: event.data.name });";

impl World {
    pub fn new() -> World {
        World::with(Vec::new())
    }

    /// With these variables set.
    pub fn with(settings: Vec<(&'static str, String)>) -> World {
        let folder = tempfile::tempdir().expect("a folder");
        share_cache(&folder.path().join("data/functions"));
        let address = format!("127.0.0.1:{}", free_port());
        let mut world = World { folder, process: None, url: String::new(), address, settings };
        world.start();
        world
    }

    pub fn start(&mut self) {
        let address = self.address.clone();
        let mut command = Command::new(KLAMBDA);
        command.args(["serve", "--listen", &address, "--data"]).arg(self.folder.path().join("data"));
        command.envs(self.settings.iter().map(|(name, value)| (name, value)));
        let mut process = Process::start(&mut command, &self.folder.path().join("serve.log"));
        self.url = format!("http://{address}");
        wait_until_ready(&self.url, &mut process);
        self.process = Some(process);
    }

    pub fn get(&self, path: &str) -> (u16, Value) {
        answer(agent().get(format!("{}{path}", self.url)).call())
    }

    pub fn post(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(agent().post(format!("{}{path}", self.url)).send_json(body))
    }

    pub fn put(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(agent().put(format!("{}{path}", self.url)).send_json(body))
    }

    pub fn patch(&self, path: &str, body: &Value) -> (u16, Value) {
        answer(agent().patch(format!("{}{path}", self.url)).send_json(body))
    }

    pub fn delete(&self, path: &str) -> (u16, Value) {
        answer(agent().delete(format!("{}{path}", self.url)).call())
    }

    /// Applies a function of this spec.
    pub fn apply(&self, name: &str, spec: &Value) -> Value {
        let (status, body) = self.put(
            &format!("/api/v1/lambda/functions/{name}?apply=true"),
            &json!({ "apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction",
                "metadata": { "name": name }, "spec": spec }),
        );
        assert!(status == 200 || status == 202, "{status} {body}");
        body
    }

    pub fn function(&self, name: &str) -> Value {
        self.get(&format!("/api/v1/lambda/functions/{name}")).1
    }

    /// Waits until it looks so.
    pub fn until(&self, name: &str, what: &str, is_so: impl Fn(&Value) -> bool) -> Value {
        eventually(&format!("{name}: {what}"), || {
            let seen = self.function(name);
            if is_so(&seen) { Ok(seen) } else { Err(format!("{seen:#}")) }
        })
    }

    pub fn ready(&self, name: &str) -> Value {
        self.until(name, "is ready", |seen| {
            seen["status"]["phase"] == "Ready"
                && seen["status"]["observedGeneration"] == seen["metadata"]["generation"]
                && is(seen, "DeployReady", "True")
        })
    }

    /// Terminal, with this reason in one of its conditions.
    pub fn failed(&self, name: &str, reason: &str) -> Value {
        self.until(name, &format!("fails with {reason}"), |seen| {
            seen["status"]["phase"] == "Failed" && conditions(seen).iter().any(|one| one["reason"] == reason)
        })
    }

    pub fn invoke(&self, name: &str, data: &Value) -> (u16, Value) {
        self.post(&format!("/api/v1/lambda/functions/{name}/invoke"), data)
    }

    /// No key is none.
    pub fn send(&self, kind: &str, id: &str, key: &str, data: &Value) {
        self.send_from("/test", kind, id, key, data);
    }

    pub fn send_from(&self, source: &str, kind: &str, id: &str, key: &str, data: &Value) {
        let mut event =
            json!({ "specversion": "1.0", "type": kind, "source": source, "id": id, "data": data });
        if !key.is_empty() {
            event["partitionkey"] = key.into();
        }
        let (status, body) = answer(
            agent()
                .post(format!("{}/api/v1/events", self.url))
                .content_type("application/cloudevents+json")
                .send(event.to_string()),
        );
        assert_eq!(status, 202, "{body}");
    }

    /// Events of the log of these types, oldest first.
    pub fn events(&self, kind: &str) -> Vec<Value> {
        let (_, page) = self.get(&format!("/api/v1/events?type={kind}&limit=1000"));
        page["items"].as_array().cloned().unwrap_or_default()
    }

    /// The messages that its replicas printed.
    pub fn printed(&self, name: &str) -> Vec<String> {
        let (_, page) = self.get(&format!("/api/v1/lambda/functions/{name}/logs?tail=1000"));
        let lines = page["items"].as_array().cloned().unwrap_or_default();
        let text = |line: &Value| {
            let text = line["text"].as_str().unwrap_or_default();
            let message = serde_json::from_str::<Value>(text).ok();
            message.and_then(|value| value["message"].as_str().map(str::to_owned)).unwrap_or(text.to_owned())
        };
        lines.iter().map(text).collect()
    }

    /// The processes of functions that are noted.
    pub fn children(&self) -> Vec<String> {
        let folder = self.folder.path().join("data/functions/children");
        let files = std::fs::read_dir(folder).into_iter().flatten().flatten();
        files.filter_map(|file| file.file_name().into_string().ok()).collect()
    }
}

pub fn conditions(seen: &Value) -> Vec<Value> {
    seen["status"]["conditions"].as_array().cloned().unwrap_or_default()
}

pub fn is(seen: &Value, kind: &str, status: &str) -> bool {
    conditions(seen).iter().any(|one| one["type"] == kind && one["status"] == status)
}

/// A spec with code in it.
pub fn inline(language: &str, handler: &str, code: &str) -> Value {
    json!({ "source": { "type": "inline", "inline": { "code": code } },
        "runtime": { "language": language, "handler": handler } })
}

pub fn node(code: &str) -> Value {
    inline("nodejs", "index.handler", code)
}

fn answer(answered: Result<ureq::http::Response<ureq::Body>, ureq::Error>) -> (u16, Value) {
    let mut answered = answered.unwrap_or_else(|error| panic!("{error}"));
    let text = answered.body_mut().read_to_string().expect("text");
    let value = serde_json::from_str(&text).unwrap_or(Value::String(text));
    (answered.status().as_u16(), value)
}
