//! What people do to resources. A write is made from what is in memory and stored only if that is still so; if somebody
//! was faster, it is made again.

use crate::control::{Control, DOCUMENTS, Shared};
use crate::gone;
use crate::names::Name;
use klambda_core::fault::Fault;
use klambda_core::ids::uuid;
use klambda_dispatch::Engine;
use klambda_dispatch::documents::{self, CONTENT_BYTES_MAX, Expected, Write};
use klambda_dispatch::runner::Stopped;
use klambda_functions::request;
use klambda_functions::resource::{Form, Kind, Resource, STATUS_BYTES_MAX};
use klambda_functions::write::{self, Birth, Change, Refused, Written};
use serde_json::Value;
use std::sync::Arc;
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
            let live = self.get(name);
            if let Some(other) = live.as_deref().filter(|live| live.kind != kind) {
                return Err(exists(other));
            }
            let written = write::apply(live.as_deref(), document, Form::Body(kind), self.birth())?;
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
            let live = self.find(kind, name)?;
            let written = change(&live)?;
            if let Some(applied) = self.finish(Some(live), written).await? {
                return Ok(applied);
            }
        }
    }

    async fn finish(&self, live: Option<Arc<Resource>>, written: Written) -> Result<Option<Applied>, Error> {
        let Written { resource, change } = written;
        if let (Change::Nothing, Some(resource)) = (change, &live) {
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

    async fn store(&self, mut resource: Resource, from: Option<Arc<Resource>>) -> Result<Stored, Error> {
        let content = sized(&mut resource, from.as_deref())?;
        let control = self.clone();
        let step = move |engine: &mut Engine| control.put(engine, resource, from, content);
        let stored = self.handle()?.command(step).await?;
        self.changed.notify_one();
        stored
    }

    /// In the engine's own step, so that memory and documents change together.
    fn put(
        &self,
        engine: &mut Engine,
        mut resource: Resource,
        from: Option<Arc<Resource>>,
        mut content: Vec<u8>,
    ) -> Result<Stored, Error> {
        let mut state = self.lock();
        let name = Name::of(&resource);
        let live = state.functions.get(&name).map(|entry| (&entry.resource, entry.version));
        let expected = match (live, &from) {
            (None, None) if state.functions.len() >= self.options.functions_max => {
                return Err(Error::Limit(self.options.functions_max));
            }
            (None, None) => Expected::Absent,
            (Some((live, version)), Some(from)) if Arc::ptr_eq(live, from) => Expected::Version(version),
            _ => return Ok(Stored::Outrun),
        };
        let mut writes = Vec::with_capacity(2);
        if from.is_none() && state.gone.told(&name) > 0 {
            // Events of one name are counted on, whoever has it.
            resource.counters.transitions = state.gone.told(&name);
            content = resource.to_stored();
            writes.push(gone::forget(&name));
        }
        let key = name.as_str().to_owned();
        writes.push(Write { kind: DOCUMENTS.into(), key, content: Some(content), expected });
        let version = engine.put_documents(&writes, &[]).map_err(Error::Store)?;
        state.gone.take(&name);
        state.store(resource, version);
        state.enqueue(&name);
        let stored = state.functions.get(&name).map(|entry| Stored::Done(entry.resource.clone()));
        Ok(stored.unwrap_or(Stored::Outrun))
    }
}

impl Shared {
    /// One of this kind.
    pub fn find(&self, kind: Kind, name: &Name) -> Result<Arc<Resource>, Error> {
        self.get(name).filter(|resource| resource.kind == kind).ok_or_else(|| Error::NotFound {
            kind,
            namespace: name.namespace().to_owned(),
            name: name.name().to_owned(),
        })
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

fn exists(resource: &Resource) -> Error {
    let metadata = &resource.metadata;
    let (namespace, name) = (metadata.namespace.clone(), metadata.name.clone());
    match resource.is_deleting() {
        true => Refused::Deleting.into(),
        false => Error::Exists { kind: resource.kind, namespace, name },
    }
}
