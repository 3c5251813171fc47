//! Requests to the API server: a rate limit for all of them, and errors by what to do about them.

use crate::child::Child;
use crate::kinds::Kind;
use crate::names::{FINALIZER, MANAGER};
use crate::step::Doomed;
use http::Request;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, Preconditions};
use kube::{Api, Client};
use serde_json::{Value, json};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Mutex;
use tokio::time::Instant;

/// Requests per second, without watches. A cluster has other clients too.
const REQUESTS_PER_SECOND: u32 = 400;
const TIMEOUT: Duration = Duration::from_secs(30);
/// After this many failures in a row, no request is made for a while.
const BREAKER_FAILURES: u64 = 5;
const BREAKER_PAUSE: Duration = Duration::from_secs(60);

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another write was faster, or the cache was behind.
    #[error("the object changed meanwhile")]
    Conflict,
    #[error("the API server rejected the {kind} {name}: {message}")]
    Rejected { kind: &'static str, name: String, message: String },
    #[error("the API server could not write the {kind} {name}: {message}")]
    Trouble { kind: &'static str, name: String, message: String },
    #[error("the API server did not answer in time")]
    Timeout,
    #[error("the API server failed {BREAKER_FAILURES} times in a row; waiting before the next request")]
    Paused,
    #[error("could not reach the API server: {0}")]
    Unreachable(String),
}

impl Error {
    pub fn is_conflict(&self) -> bool {
        matches!(self, Error::Conflict)
    }
}

#[derive(Clone)]
pub struct Cluster {
    client: Client,
    pace: Arc<Pace>,
}

#[derive(Default)]
struct Pace {
    /// When the next request may start.
    next: Mutex<Option<Instant>>,
    failures: AtomicU64,
    /// Until when no request is made.
    paused: Mutex<Option<Instant>>,
    requests: AtomicU64,
    writes: AtomicU64,
}

impl Cluster {
    pub fn new(client: Client) -> Cluster {
        Cluster { client, pace: Arc::default() }
    }

    pub fn client(&self) -> &Client {
        &self.client
    }

    /// Requests and writes since the start.
    pub fn counts(&self) -> (u64, u64) {
        (self.pace.requests.load(Ordering::Relaxed), self.pace.writes.load(Ordering::Relaxed))
    }

    fn api(&self, kind: Kind, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &kind.resource())
    }

    /// Server-side apply. Returns the object as it is now.
    pub async fn apply(&self, child: &Child) -> Result<Value, Error> {
        let api = self.api(child.kind, &child.namespace);
        let params = PatchParams::apply(MANAGER).force();
        let patch = Patch::Apply(&child.manifest);
        let request = api.patch(&child.name, &params, &patch);
        let applied = self.send(request, true).await.map_err(|error| error.about(child.kind, &child.name))?;
        applied.map(to_value).ok_or(Error::Conflict)
    }

    pub async fn get(&self, kind: Kind, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        let found = self.send(self.api(kind, namespace).get(name), false).await;
        Ok(found.map_err(|error| error.about(kind, name))?.map(to_value))
    }

    /// Deletes an object and, in the background, everything that it owns. A missing object is fine.
    pub async fn delete(&self, namespace: &str, doomed: &Doomed) -> Result<(), Error> {
        let mut params = DeleteParams::background();
        params.preconditions =
            doomed.uid.clone().map(|uid| Preconditions { uid: Some(uid), resource_version: None });
        let api = self.api(doomed.kind, namespace);
        match self.send(api.delete(&doomed.name, &params), true).await {
            Ok(_) | Err(Failed::Conflict) => Ok(()),
            Err(error) => Err(error.about(doomed.kind, &doomed.name)),
        }
    }

    /// Writes the status, unless the object changed since it was read.
    pub async fn replace_status(&self, kind: Kind, object: &Value) -> Result<Option<Value>, Error> {
        let (namespace, name) = names(object);
        let path = format!("{}/{name}/status", self.api(kind, namespace).resource_url());
        let answer = self.send_json("PUT", &path, object).await;
        answer.map_err(|error| error.about(kind, name))
    }

    /// Adds the finalizer, or removes it, unless the object changed since it was read.
    pub async fn set_finalizer(
        &self,
        kind: Kind,
        object: &Value,
        is_wanted: bool,
    ) -> Result<Option<Value>, Error> {
        let (namespace, name) = names(object);
        let known = object["metadata"]["finalizers"].as_array().cloned().unwrap_or_default();
        let mut finalizers: Vec<Value> = known.into_iter().filter(|known| *known != FINALIZER).collect();
        if is_wanted {
            finalizers.push(FINALIZER.into());
        }
        let version = &object["metadata"]["resourceVersion"];
        let patch = json!({ "metadata": { "finalizers": finalizers, "resourceVersion": version } });
        let (api, params, patch) = (self.api(kind, namespace), PatchParams::default(), Patch::Merge(&patch));
        let request = api.patch(name, &params, &patch);
        let changed = self.send(request, true).await.map_err(|error| error.about(kind, name))?;
        Ok(changed.map(to_value))
    }

    /// Creates an Event for people.
    pub async fn create_event(&self, namespace: &str, event: &Value) -> Result<(), Error> {
        let path = format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events");
        self.send_json("POST", &path, event).await.map(drop).map_err(|error| error.named("Event", ""))
    }

    pub async fn get_lease(&self, namespace: &str, name: &str) -> Result<Option<Value>, Error> {
        let path = format!("{}/{name}", leases(namespace));
        self.request_lease("GET", &path, None).await
    }

    pub async fn create_lease(&self, namespace: &str, name: &str, spec: Value) -> Result<(), Error> {
        let metadata = json!({ "name": name, "namespace": namespace });
        let lease = json!({
            "apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata, "spec": spec,
        });
        self.request_lease("POST", &leases(namespace), Some(&lease)).await.map(drop)
    }

    pub async fn replace_lease(&self, namespace: &str, name: &str, lease: Value) -> Result<(), Error> {
        let path = format!("{}/{name}", leases(namespace));
        self.request_lease("PUT", &path, Some(&lease)).await.map(drop)
    }

    /// Neither waits for its turn nor stops after failures: a late renewal would lose the lease.
    async fn request_lease(
        &self,
        method: &str,
        path: &str,
        body: Option<&Value>,
    ) -> Result<Option<Value>, Error> {
        let request = request(method, path, body).map_err(|error| error.named("Lease", ""))?;
        answer(self.client.request::<Value>(request)).await.map_err(|error| error.named("Lease", ""))
    }

    async fn send_json(&self, method: &str, path: &str, body: &Value) -> Result<Option<Value>, Failed> {
        let request = request(method, path, Some(body))?;
        self.send(self.client.request::<Value>(request), true).await
    }

    /// `None` if the object does not exist.
    async fn send<T>(
        &self,
        request: impl Future<Output = Result<T, kube::Error>>,
        is_write: bool,
    ) -> Result<Option<T>, Failed> {
        self.pace.turn().await?;
        self.pace.requests.fetch_add(1, Ordering::Relaxed);
        self.pace.writes.fetch_add(u64::from(is_write), Ordering::Relaxed);
        let result = answer(request).await;
        self.pace.note(matches!(result, Err(Failed::Timeout | Failed::Unreachable(_)))).await;
        result
    }
}

fn request(method: &str, path: &str, body: Option<&Value>) -> Result<Request<Vec<u8>>, Failed> {
    let bytes = body.map(|body| body.to_string().into_bytes()).unwrap_or_default();
    let request = Request::builder().method(method).uri(path).header("content-type", "application/json");
    request.body(bytes).map_err(|error| Failed::Unreachable(error.to_string()))
}

/// `None` if the object does not exist.
async fn answer<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<Option<T>, Failed> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Err(_) => Err(Failed::Timeout),
        Ok(Ok(value)) => Ok(Some(value)),
        Ok(Err(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Ok(Err(kube::Error::Api(status))) if status.code == 409 => Err(Failed::Conflict),
        // Busy, or a webhook that does not answer. A retry may help.
        Ok(Err(kube::Error::Api(status))) if status.code == 429 || status.code >= 500 => {
            Err(Failed::Trouble(status.message.clone()))
        }
        Ok(Err(kube::Error::Api(status))) => Err(Failed::Rejected(status.message.clone())),
        Ok(Err(error)) => Err(Failed::Unreachable(error.to_string())),
    }
}

fn to_value(object: DynamicObject) -> Value {
    let mut value = serde_json::to_value(object).unwrap_or_default();
    if let Some(metadata) = value["metadata"].as_object_mut() {
        metadata.remove("managedFields");
    }
    value
}

fn names(object: &Value) -> (&str, &str) {
    let text = |name: &str| object["metadata"][name].as_str().unwrap_or_default();
    (text("namespace"), text("name"))
}

fn leases(namespace: &str) -> String {
    format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases")
}

/// An error before it is known what it is about.
enum Failed {
    Conflict,
    Rejected(String),
    /// The API server answers, but cannot do it now.
    Trouble(String),
    Timeout,
    Paused,
    Unreachable(String),
}

impl Failed {
    fn about(self, kind: Kind, name: &str) -> Error {
        self.named(kind.name(), name)
    }

    fn named(self, kind: &'static str, name: &str) -> Error {
        match self {
            Failed::Conflict => Error::Conflict,
            Failed::Rejected(message) => Error::Rejected { kind, name: name.to_owned(), message },
            Failed::Trouble(message) => Error::Trouble { kind, name: name.to_owned(), message },
            Failed::Timeout => Error::Timeout,
            Failed::Paused => Error::Paused,
            Failed::Unreachable(why) => Error::Unreachable(why),
        }
    }
}

impl Pace {
    /// Waits for the turn of a request.
    async fn turn(&self) -> Result<(), Failed> {
        if self.paused.lock().await.is_some_and(|until| Instant::now() < until) {
            return Err(Failed::Paused);
        }
        let at = {
            let mut next = self.next.lock().await;
            let at = next.unwrap_or_else(Instant::now).max(Instant::now());
            *next = Some(at + Duration::from_secs(1) / REQUESTS_PER_SECOND);
            at
        };
        tokio::time::sleep_until(at).await;
        Ok(())
    }

    async fn note(&self, failed: bool) {
        if !failed {
            self.failures.store(0, Ordering::Relaxed);
            return;
        }
        let failures = self.failures.fetch_add(1, Ordering::Relaxed) + 1;
        if failures >= BREAKER_FAILURES {
            self.failures.store(0, Ordering::Relaxed);
            tracing::warn!("The API server failed {BREAKER_FAILURES} times in a row; pausing requests");
            *self.paused.lock().await = Some(Instant::now() + BREAKER_PAUSE);
        }
    }
}
