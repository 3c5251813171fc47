//! Changes of resources by callers. A write is computed from the state in memory and stored only if the resource has not
//! changed meanwhile. Otherwise the write is computed again.

use crate::control::{Control, DOCUMENTS, Shared};
use crate::deleted;
use crate::state;
use klambda_core::fault::Fault;
use klambda_core::ids::uuid;
use klambda_dispatch::documents::{self, CONTENT_BYTES_MAX, Expected, Write};
use klambda_dispatch::runner::Stopped;
use klambda_dispatch::{Engine, audit};
use klambda_functions::name::Name;
use klambda_functions::request;
use klambda_functions::resource::{Form, Resource, ResourceKind, STATUS_BYTES_MAX};
use klambda_functions::write::{self, Birth, Change, Refused, Written};
use serde_json::Value;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Size limit of everything except the status, so that a resource always fits together with its status.
const ASKED_BYTES_MAX: usize = CONTENT_BYTES_MAX - STATUS_BYTES_MAX;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("{} {name} not found in namespace {namespace}", .kind.word())]
    NotFound { kind: ResourceKind, namespace: String, name: String },
    #[error("{} {name} already exists in namespace {namespace}", .kind.word())]
    Exists { kind: ResourceKind, namespace: String, name: String },
    #[error("the document is not valid")]
    Invalid(Vec<Fault>),
    #[error("{0}")]
    Conflict(String),
    #[error("{}", Refused::Deleting)]
    Deleting,
    #[error("the limit of {0} functions and agents is reached (functions.max)")]
    Limit(usize),
    #[error("namespace {namespace} has reached its limit of {max} functions and agents (limits.functions)")]
    NamespaceLimit { namespace: String, max: u64 },
    #[error("{} {name} has no revision {number}; {}", .kind.word(), known_text(.known))]
    NoRevision { kind: ResourceKind, name: String, number: u64, known: Vec<u64> },
    #[error(
        "the artifact of revision {number} no longer exists ({artifact}): apply its manifest again to build it"
    )]
    ArtifactGone { number: u64, artifact: String },
    #[error("revision {number} of {name} cannot be read back: {why}")]
    Damaged { name: String, number: u64, why: String },
    #[error(transparent)]
    Store(documents::Error),
    #[error(transparent)]
    Stopped(#[from] Stopped),
}

/// A resource after a write, and what the write changed.
#[derive(Clone, Debug)]
pub struct Applied {
    pub resource: Arc<Resource>,
    pub change: Change,
}

/// Identities can have any length, but the size of a status is limited.
const WHO_BYTES_MAX: usize = 256;

fn who() -> Option<String> {
    audit::who().map(|who| who[..who.floor_char_boundary(WHO_BYTES_MAX)].to_owned())
}

fn known_text(known: &[u64]) -> String {
    let numbers: Vec<String> = known.iter().map(u64::to_string).collect();
    match numbers.as_slice() {
        [] => "it has none yet".to_owned(),
        [one] => format!("the only one is {one}"),
        _ => format!("there are {}", numbers.join(", ")),
    }
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

/// The resource that a write is based on, and the version of its document.
pub(crate) type Live = (Arc<Resource>, u64);

enum Stored {
    Done(Arc<Resource>),
    /// The resource changed after the write was computed.
    Outrun,
}

impl Control {
    /// Creates a resource, which must not exist yet.
    pub async fn create(&self, document: &Value, kind: ResourceKind) -> Result<Applied, Error> {
        let resource = write::create(document, Form::Body(kind), self.birth()).map_err(Error::Invalid)?;
        let name = Name::of(&resource);
        audit::named(name.name());
        if let Some(known) = self.get(&name) {
            return Err(exists(&known));
        }
        self.check_addresses(&resource, None)?;
        let mut resource = resource;
        resource.status.applied_by = who();
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

    /// Applies a whole document with a three-way merge.
    pub async fn apply(&self, name: &Name, document: &Value, kind: ResourceKind) -> Result<Applied, Error> {
        loop {
            let live = self.live(name);
            let known = live.as_ref().map(|(resource, _)| &**resource);
            if let Some(other) = known.filter(|known| known.kind != kind) {
                return Err(exists(other));
            }
            let written = write::apply(known, document, Form::Body(kind), self.birth())?;
            let written = self.look_into_folder(written).await;
            if let Some(applied) = self.finish(live, written).await? {
                return Ok(applied);
            }
        }
    }

    /// Returns the result that `apply` would have. Makes the same checks and stores nothing.
    pub async fn try_apply(
        &self,
        name: &Name,
        document: &Value,
        kind: ResourceKind,
    ) -> Result<Applied, Error> {
        let live = self.live(name);
        let known = live.as_ref().map(|(resource, _)| &**resource);
        if let Some(other) = known.filter(|known| known.kind != kind) {
            return Err(exists(other));
        }
        let written = write::apply(known, document, Form::Body(kind), self.birth())?;
        let Written { mut resource, change } = self.look_into_folder(written).await;
        self.check_addresses(&resource, known)?;
        sized(&mut resource, known)?;
        if change == Change::Created {
            let (control, namespace) = (self.clone(), name.namespace().to_owned());
            self.step(move |engine| control.check_room(engine, &namespace)).await??;
        }
        Ok(Applied { resource: Arc::new(resource), change })
    }

    /// Merges part of a document into the resource.
    pub async fn update(&self, kind: ResourceKind, name: &Name, body: &Value) -> Result<Applied, Error> {
        self.change(kind, name, |live| Ok(write::update(live, body)?)).await
    }

    pub async fn delete(
        &self,
        kind: ResourceKind,
        name: &Name,
        version: Option<&str>,
    ) -> Result<Applied, Error> {
        let now = self.clock.now();
        self.change(kind, name, |live| {
            write::check_version(live, version)?;
            let change = if live.is_deleting() { Change::Nothing } else { Change::Metadata };
            Ok(Written { resource: write::delete(live, now), change })
        })
        .await
    }

    pub async fn rebuild(&self, kind: ResourceKind, name: &Name) -> Result<Applied, Error> {
        let id = self.birth().uid;
        self.mark(kind, name, |resource| request::rebuild(resource, &id)).await
    }

    pub(crate) async fn mark(
        &self,
        kind: ResourceKind,
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
        kind: ResourceKind,
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

    /// Detects changed content of a source folder, even if the manifest is unchanged.
    async fn look_into_folder(&self, written: Written) -> Written {
        if written.change == Change::Created || !request::is_from_folder(&written.resource) {
            return written;
        }
        let Some(platform) = self.platform().await else { return written };
        let digest = platform.look(Arc::new(written.resource.clone())).await;
        request::note_folder(written, digest.ok().as_deref())
    }

    pub(crate) async fn finish(
        &self,
        live: Option<Live>,
        written: Written,
    ) -> Result<Option<Applied>, Error> {
        let Written { mut resource, change } = written;
        if let (Change::Nothing, Some((resource, _))) = (change, &live) {
            return Ok(Some(Applied { resource: resource.clone(), change }));
        }
        if matches!(change, Change::Created | Change::Spec) {
            self.check_addresses(&resource, live.as_ref().map(|(resource, _)| &**resource))?;
            resource.status.applied_by = who();
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

    /// Checks the limits on functions, of the server and of the namespace.
    fn check_room(&self, engine: &Engine, namespace: &str) -> Result<(), Error> {
        match self.functions_count.load(Ordering::Relaxed) >= self.options.functions_max {
            true => Err(Error::Limit(self.options.functions_max)),
            false => check_namespace(engine, namespace),
        }
    }

    /// Runs in a step of the engine. Stores the resource only if its document still has the expected version.
    fn put(
        &self,
        engine: &mut Engine,
        mut resource: Resource,
        from: Option<u64>,
        mut content: Vec<u8>,
    ) -> Result<Stored, Error> {
        let name = Name::of(&resource);
        let is_new = from.is_none();
        if is_new {
            self.check_room(engine, name.namespace())?;
        }
        let mut writes = Vec::with_capacity(2);
        let told = if is_new { deleted::told(engine, &name).map_err(documents::Error::from) } else { Ok(0) };
        let told = told.map_err(Error::Store)?;
        if told > 0 {
            // A function continues the event numbers of an earlier function with the same name.
            resource.counters.transitions = told;
            content = resource.to_stored();
            writes.push(deleted::forget(&name));
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
    /// The resource with this name and kind.
    pub fn find(&self, kind: ResourceKind, name: &Name) -> Result<Arc<Resource>, Error> {
        self.get(name).filter(|resource| resource.kind == kind).ok_or_else(|| not_found(kind, name))
    }

    fn birth(&self) -> Birth {
        let mut bytes = [0; 16];
        if let Err(error) = getrandom::fill(&mut bytes) {
            tracing::warn!(%error, "No random source available; using the clock instead");
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

/// The encoded document, if it leaves room for its status. A document that an earlier version stored above this limit may
/// still shrink or be deleted.
fn sized(resource: &mut Resource, from: Option<&Resource>) -> Result<Vec<u8>, Error> {
    let asked = resource.asked_bytes();
    let is_taken = asked <= ASKED_BYTES_MAX
        || resource.is_deleting()
        || from.is_some_and(|from| asked <= from.asked_bytes());
    let content = if is_taken { resource.to_stored_within(CONTENT_BYTES_MAX) } else { None };
    content.ok_or_else(|| {
        let message = format!(
            "is {asked} bytes including the last applied document; the maximum is {}Ki. Store larger code in git or in a bucket",
            ASKED_BYTES_MAX >> 10
        );
        Error::Invalid(vec![Fault::new("", message)])
    })
}

/// Checks that the namespace exists and is below its limit.
fn check_namespace(engine: &Engine, namespace: &str) -> Result<(), Error> {
    engine.namespace_id(namespace).map_err(|refused| Error::Store(refused.into()))?;
    let Some(max) = engine.namespace_limits(namespace).functions else { return Ok(()) };
    if functions_in(engine, namespace, max as usize)? as u64 >= max {
        return Err(Error::NamespaceLimit { namespace: namespace.to_owned(), max });
    }
    Ok(())
}

/// Whether a namespace has functions or agents, including those that are being deleted.
pub fn has_functions(engine: &Engine, namespace: &str) -> Result<bool, Error> {
    Ok(functions_in(engine, namespace, 1)? > 0)
}

/// Number of functions in a namespace, counted up to a limit.
fn functions_in(engine: &Engine, namespace: &str, limit: usize) -> Result<usize, Error> {
    let prefix = Name::new(namespace, "");
    let found = engine.documents(DOCUMENTS, Some(prefix.as_str()), limit);
    let found = found.map_err(|failure| Error::Store(failure.into()))?;
    Ok(found.iter().take_while(|document| document.key.starts_with(prefix.as_str())).count())
}

pub(crate) fn not_found(kind: ResourceKind, name: &Name) -> Error {
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
