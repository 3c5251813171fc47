//! What people do to resources. A write is made from what is in memory and stored only if that is still so; if somebody
//! was faster, it is made again.

use crate::control::{Control, DOCUMENTS, Shared};
use crate::gone;
use crate::state;
use klambda_core::fault::Fault;
use klambda_core::ids::uuid;
use klambda_dispatch::documents::{self, CONTENT_BYTES_MAX, Expected, Write};
use klambda_dispatch::runner::Stopped;
use klambda_dispatch::{Engine, audit};
use klambda_functions::name::Name;
use klambda_functions::request;
use klambda_functions::resource::{Form, Kind, Resource, STATUS_BYTES_MAX};
use klambda_functions::write::{self, Birth, Change, Refused, Written};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// What of a resource is not its status: together they can be kept, whatever becomes of it.
const ASKED_BYTES_MAX: usize = CONTENT_BYTES_MAX - STATUS_BYTES_MAX;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("there is no {} {name} in namespace {namespace}", .kind.word())]
    NotFound { kind: Kind, namespace: String, name: String },
    #[error("there is a {} {name} in namespace {namespace} already", .kind.word())]
    Exists { kind: Kind, namespace: String, name: String },
    #[error("the document is not valid")]
    Invalid(Vec<Fault>),
    #[error("{0}")]
    Conflict(String),
    #[error("{}", Refused::Deleting)]
    Deleting,
    #[error("there are {0} functions and agents already (functions.max)")]
    Limit(usize),
    #[error("namespace {namespace:?} has {max} functions and agents already (its limits.functions)")]
    NamespaceLimit { namespace: String, max: u64 },
    #[error(transparent)]
    Store(documents::Error),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A resource as it is after a write, and what the write changed.
#[derive(Clone, Debug)]
pub struct Applied {
    pub resource: Arc<Resource>,
    pub change: Change,
}

impl From<Refused> for Error {
    fn from(refused: Refused) -> Error {
        match refused {
            Refused::Invalid(faults) => Error::Invalid(faults),
            Refused::Deleting => Error::Deleting,
            other => Error::Conflict(other.to_string()),
        }
    }
}

/// What a write is made from, and the version of its document.
type Live = (Arc<Resource>, u64);

/// What came of storing a write.
enum Stored {
    Done(Arc<Resource>),
    /// It was made from something that has changed since.
    Outrun,
}

impl Control {
    /// As POST does: it must not be there yet.
    pub async fn create(&self, document: &Value, kind: Kind) -> Result<Applied, Error> {
        let resource = write::create(document, Form::Body(kind), self.birth()).map_err(Error::Invalid)?;
        let name = Name::of(&resource);
        audit::named(name.name());
        if let Some(known) = self.get(&name) {
            return Err(exists(&known));
        }
        let began = Instant::now();
        match self.store(resource, None).await? {
            Stored::Done(resource) => {
                self.counting.wrote(&name, false, Change::Created, began.elapsed());
                Ok(Applied { resource, change: Change::Created })
            }
            Stored::Outrun => {
                let (namespace, name) = (name.namespace().to_owned(), name.name().to_owned());
                Err(Error::Exists { kind, namespace, name })
            }
        }
    }

    /// A whole document, merged three ways with what was applied last.
    pub async fn apply(&self, name: &Name, document: &Value, kind: Kind) -> Result<Applied, Error> {
        loop {
            let live = self.live(name);
            let known = live.as_ref().map(|(resource, _)| &**resource);
            if let Some(other) = known.filter(|known| known.kind != kind) {
                return Err(exists(other));
            }
            let written = write::apply(known, document, Form::Body(kind), self.birth())?;
            if let Some(applied) = self.finish(live, written).await? {
                return Ok(applied);
            }
        }
    }

    /// A part of a document, merged in.
    pub async fn update(&self, kind: Kind, name: &Name, body: &Value) -> Result<Applied, Error> {
        self.change(kind, name, |live| Ok(write::update(live, body)?)).await
    }

    pub async fn delete(&self, kind: Kind, name: &Name, version: Option<&str>) -> Result<Applied, Error> {
        let now = self.clock.now();
        self.change(kind, name, |live| {
            write::check_version(live, version)?;
            let change = if live.is_deleting() { Change::Nothing } else { Change::Metadata };
            Ok(Written { resource: write::delete(live, now), change })
        })
        .await
    }

    pub async fn rebuild(&self, kind: Kind, name: &Name) -> Result<Applied, Error> {
        let id = self.birth().uid;
        self.mark(kind, name, |resource| request::rebuild(resource, &id)).await
    }

    pub(crate) async fn mark(
        &self,
        kind: Kind,
        name: &Name,
        mark: impl Fn(&mut Resource),
    ) -> Result<Applied, Error> {
        self.change(kind, name, |live| {
            if live.is_deleting() {
                return Err(Refused::Deleting.into());
            }
            let mut resource = live.clone();
            mark(&mut resource);
            let change = if resource == *live { Change::Nothing } else { Change::Metadata };
            Ok(Written { resource, change })
        })
        .await
    }

    async fn change(
        &self,
        kind: Kind,
        name: &Name,
        change: impl Fn(&Resource) -> Result<Written, Error>,
    ) -> Result<Applied, Error> {
        loop {
            let live = self.live(name).filter(|(resource, _)| resource.kind == kind);
            let live = live.ok_or_else(|| not_found(kind, name))?;
            let written = change(&live.0)?;
            if let Some(applied) = self.finish(Some(live), written).await? {
                return Ok(applied);
            }
        }
    }

    async fn finish(&self, live: Option<Live>, written: Written) -> Result<Option<Applied>, Error> {
        let Written { resource, change } = written;
        if let (Change::Nothing, Some((resource, _))) = (change, &live) {
            return Ok(Some(Applied { resource: resource.clone(), change }));
        }
        let began = Instant::now();
        match self.store(resource, live).await? {
            Stored::Done(resource) => {
                let name = Name::of(&resource);
                self.counting.wrote(&name, resource.is_deleting(), change, began.elapsed());
                Ok(Some(Applied { resource, change }))
            }
            Stored::Outrun => Ok(None),
        }
    }

    async fn store(&self, mut resource: Resource, from: Option<Live>) -> Result<Stored, Error> {
        let content = sized(&mut resource, from.as_ref().map(|(resource, _)| &**resource))?;
        let (control, from) = (self.clone(), from.map(|(_, version)| version));
        let stored = self.step(move |engine| control.put(engine, resource, from, content)).await?;
        self.changed.notify_one();
        stored
    }

    /// In a step of the engine. It is stored if its document still has the version that the write was made from.
    fn put(
        &self,
        engine: &mut Engine,
        mut resource: Resource,
        from: Option<u64>,
        mut content: Vec<u8>,
    ) -> Result<Stored, Error> {
        let name = Name::of(&resource);
        let is_new = from.is_none();
        if is_new && self.functions_count.load(Ordering::Relaxed) >= self.options.functions_max {
            return Err(Error::Limit(self.options.functions_max));
        }
        if is_new {
            check_namespace(engine, name.namespace())?;
        }
        let mut writes = Vec::with_capacity(2);
        let told = if is_new { gone::told(engine, &name).map_err(documents::Error::from) } else { Ok(0) };
        let told = told.map_err(Error::Store)?;
        if told > 0 {
            // Events of one name are counted on, whoever has it.
            resource.counters.transitions = told;
            content = resource.to_stored();
            writes.push(gone::forget(&name));
        }
        let (key, expected) = (name.as_str().to_owned(), from.map_or(Expected::Absent, Expected::Version));
        writes.push(Write { kind: DOCUMENTS.into(), key, content: Some(content), expected });
        let version = match engine.put_documents(&writes, &[]) {
            Ok(version) => version,
            Err(documents::Error::Conflict { .. }) => return Ok(Stored::Outrun),
            Err(error) => return Err(Error::Store(error)),
        };
        self.functions_count.fetch_add(usize::from(is_new), Ordering::Relaxed);
        resource.metadata.resource_version = version.to_string();
        let resource = Arc::new(resource);
        self.stored(state::Stored::Written { resource: resource.clone(), version });
        Ok(Stored::Done(resource))
    }
}

impl Shared {
    /// One of this kind.
    pub fn find(&self, kind: Kind, name: &Name) -> Result<Arc<Resource>, Error> {
        self.get(name).filter(|resource| resource.kind == kind).ok_or_else(|| not_found(kind, name))
    }

    fn birth(&self) -> Birth {
        let mut bytes = [0; 16];
        if let Err(error) = getrandom::fill(&mut bytes) {
            tracing::warn!(%error, "There is no randomness to be had; the clock has to do.");
            bytes[..8].copy_from_slice(&self.clock.now().0.to_be_bytes());
        }
        let [a, b, c, d, e, f, g, h, ..] = bytes;
        Birth {
            uid: uuid(bytes),
            random: u64::from_be_bytes([a, b, c, d, e, f, g, h]),
            now: self.clock.now(),
        }
    }
}

/// The document, if it leaves room for its status. What is larger because it was stored by an earlier version may be
/// made smaller, and may go.
fn sized(resource: &mut Resource, from: Option<&Resource>) -> Result<Vec<u8>, Error> {
    let asked = resource.asked_bytes();
    let is_taken = asked <= ASKED_BYTES_MAX
        || resource.is_deleting()
        || from.is_some_and(|from| asked <= from.asked_bytes());
    let content = if is_taken { resource.to_stored_within(CONTENT_BYTES_MAX) } else { None };
    content.ok_or_else(|| {
        let message = format!(
            "is {asked} bytes with all it says and what was applied last; at most {}Ki can be kept. Keep larger code in git or a bucket",
            ASKED_BYTES_MAX >> 10
        );
        Error::Invalid(vec![Fault::new("", message)])
    })
}

/// Whether the namespace is there and takes one more.
fn check_namespace(engine: &Engine, namespace: &str) -> Result<(), Error> {
    engine.namespace_id(namespace).map_err(|refused| Error::Store(refused.into()))?;
    let Some(max) = engine.namespace_limits(namespace).functions else { return Ok(()) };
    if functions_in(engine, namespace, max as usize)? as u64 >= max {
        return Err(Error::NamespaceLimit { namespace: namespace.to_owned(), max });
    }
    Ok(())
}

/// Whether a namespace has functions or agents, also ones that are on their way out.
pub fn has_functions(engine: &Engine, namespace: &str) -> Result<bool, Error> {
    Ok(functions_in(engine, namespace, 1)? > 0)
}

/// How many a namespace has, counted up to a limit.
fn functions_in(engine: &Engine, namespace: &str, limit: usize) -> Result<usize, Error> {
    let prefix = Name::new(namespace, "");
    let found = engine.documents(DOCUMENTS, Some(prefix.as_str()), limit);
    let found = found.map_err(|failure| Error::Store(failure.into()))?;
    Ok(found.iter().take_while(|document| document.key.starts_with(prefix.as_str())).count())
}

fn not_found(kind: Kind, name: &Name) -> Error {
    Error::NotFound { kind, namespace: name.namespace().to_owned(), name: name.name().to_owned() }
}

fn exists(resource: &Resource) -> Error {
    let metadata = &resource.metadata;
    let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
    match resource.is_deleting() {
        true => Refused::Deleting.into(),
        false => Error::Exists { kind: resource.kind, namespace, name },
    }
}
