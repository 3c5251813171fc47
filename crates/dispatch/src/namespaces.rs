//! Namespaces: by name and by number, with what each may have.
//!
//! A namespace is kept as a document of the platform. Its number is where its first record stands in the log, so that no
//! number is ever given twice: one that is deleted and made again sees nothing of what was there before.

use crate::documents::{Expected, Write};
use crate::engine::{Engine, Failure};
use crate::operate::{Put, Refused};
use crate::subscription::Subscription;
use hashbrown::HashMap;
use klambda_core::ids::{Address, NamespaceId};
use klambda_core::namespace::{self, Document, Limits};
use klambda_core::subscription::CONTROLLER;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kind of document that namespaces are kept as.
pub const DOCUMENTS: &str = "namespace";

/// Who sends events: into which namespace, and whether those that ask for something are obeyed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// None: the default one.
    pub namespace: Option<Box<str>>,
    pub may_command: bool,
}

pub(crate) struct Namespaces {
    all: HashMap<NamespaceId, Namespace>,
    names: HashMap<String, NamespaceId>,
}

pub(crate) struct Namespace {
    pub name: String,
    pub limits: Limits,
    pub created: Millis,
    pub intake: Intake,
}

/// How many events were taken in the second that runs. Ends with the process.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intake {
    second: u64,
    events: u64,
}

/// What is kept of a namespace.
#[derive(Serialize, Deserialize)]
struct Stored {
    /// None in its first record, of which it is the address.
    #[serde(default)]
    id: Option<NamespaceId>,
    created: Millis,
    document: Value,
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        let mut namespaces = Namespaces { all: HashMap::new(), names: HashMap::new() };
        let default = Document { name: namespace::DEFAULT.to_owned(), limits: Limits::default() };
        namespaces.put(NamespaceId(0), default, Millis::ZERO);
        namespaces
    }
}

impl Namespaces {
    pub fn named(&self, name: &str) -> Option<NamespaceId> {
        match name {
            namespace::DEFAULT => Some(NamespaceId(0)),
            other => self.names.get(other).copied(),
        }
    }

    pub fn get(&self, id: NamespaceId) -> Option<&Namespace> {
        self.all.get(&id)
    }

    pub fn get_mut(&mut self, id: NamespaceId) -> Option<&mut Namespace> {
        self.all.get_mut(&id)
    }

    pub fn values(&self) -> impl Iterator<Item = &Namespace> {
        self.all.values()
    }

    fn put(&mut self, id: NamespaceId, document: Document, created: Millis) {
        let Document { name, limits } = document;
        self.names.insert(name.clone(), id);
        let intake = self.all.get(&id).map(|known| known.intake).unwrap_or_default();
        self.all.insert(id, Namespace { name, limits, created, intake });
    }

    fn remove(&mut self, name: &str) {
        if let Some(id) = self.names.remove(name) {
            self.all.remove(&id);
        }
        // The default one is there also without a document.
        if name == namespace::DEFAULT {
            let document = Document { name: name.to_owned(), limits: Limits::default() };
            self.put(NamespaceId(0), document, Millis::ZERO);
        }
    }

    /// A document of a namespace was written or removed.
    pub fn apply(&mut self, at: Address, name: &str, content: Option<&[u8]>) -> Result<(), Malformed> {
        let Some(content) = content else {
            self.remove(name);
            return Ok(());
        };
        let malformed = Malformed("namespace document");
        let stored: Stored = serde_json::from_slice(content).map_err(|_| malformed)?;
        let document = Document::parse(&stored.document).map_err(|_| Malformed("namespace document"))?;
        let first = if name == namespace::DEFAULT { NamespaceId(0) } else { NamespaceId(at.0) };
        self.put(stored.id.unwrap_or(first), document, stored.created);
        Ok(())
    }
}

impl Namespace {
    pub fn document(&self) -> Document {
        Document { name: self.name.clone(), limits: self.limits }
    }

    /// Whether one more event may come in now. One that may is counted.
    pub fn admits(&mut self, now: Millis) -> bool {
        let Some(max) = self.limits.events_per_second else { return true };
        let second = now.0 / 1000;
        if self.intake.second != second {
            self.intake = Intake { second, events: 0 };
        }
        self.intake.events += 1;
        self.intake.events <= max
    }
}

impl Engine {
    pub fn namespace_id(&self, name: &str) -> Result<NamespaceId, Refused> {
        let id = self.namespaces.named(name);
        id.ok_or_else(|| Refused::NotFound(format!("there is no namespace {name:?}")))
    }

    /// The name of a namespace that is there.
    pub fn namespace_name(&self, id: NamespaceId) -> Option<&str> {
        self.namespaces.get(id).map(|namespace| namespace.name.as_str())
    }

    /// The names of all that are there.
    pub fn namespace_names(&self) -> std::collections::HashMap<NamespaceId, String> {
        self.namespaces.all.iter().map(|(id, namespace)| (*id, namespace.name.clone())).collect()
    }

    /// When it was created; the default one always was.
    pub fn namespace_created(&self, name: &str) -> Millis {
        let id = self.namespaces.named(name);
        id.and_then(|id| self.namespaces.get(id)).map_or(Millis::ZERO, |namespace| namespace.created)
    }

    pub fn namespace_limits(&self, name: &str) -> Limits {
        let id = self.namespaces.named(name);
        id.and_then(|id| self.namespaces.get(id)).map(|namespace| namespace.limits).unwrap_or_default()
    }

    pub fn put_namespace(&mut self, document: &Document) -> Result<Put, Refused> {
        let known = self.namespaces.named(&document.name);
        let before = known.and_then(|id| self.namespaces.get(id));
        if before.is_some_and(|before| before.limits == document.limits) {
            return Ok(Put::Unchanged);
        }
        if known.is_none() && self.namespaces.all.len() >= self.config.namespaces_max {
            let max = self.config.namespaces_max;
            return Err(Refused::Limit(format!("there are {max} namespaces already (limits.namespaces)")));
        }
        let created = before.map_or(self.now, |before| before.created);
        let stored = Stored { id: known, created, document: document.to_json() };
        let content = serde_json::to_vec(&stored).map_err(|error| Refused::Unavailable(error.to_string()))?;
        self.write_namespace(&document.name, Some(content))?;
        Ok(if known.is_some() { Put::Changed } else { Put::Created })
    }

    /// Only an empty one goes. Whoever keeps other documents in it asks for those first.
    pub fn delete_namespace(&mut self, name: &str) -> Result<(), Refused> {
        let id = self.namespace_id(name)?;
        if name == namespace::DEFAULT {
            return Err(Refused::Conflict("the default namespace is always there".into()));
        }
        // The server's own goes with it, unless commands are in it.
        let is_empty = |s: &Subscription| s.tally.owed() + s.tally.dead + s.tally.held == 0;
        let counts = |s: &&Subscription| !s.document.is_controller() || !is_empty(s);
        let inside = self.subscriptions.values().filter(|s| s.namespace == id).filter(counts);
        let (current, left): (Vec<_>, Vec<_>) = inside.partition(|s| !s.is_retired());
        if !current.is_empty() {
            let names: Vec<&str> = current.iter().take(5).map(|s| s.document.name.as_str()).collect();
            let detail = format!(
                "namespace {name:?} has subscriptions ({}: {}); delete them first, and see to the commands of {CONTROLLER}",
                current.len(),
                names.join(", ")
            );
            return Err(Refused::Conflict(detail));
        }
        if !left.is_empty() {
            let detail = format!("namespace {name:?} has dead letters; replay or purge them first");
            return Err(Refused::Conflict(detail));
        }
        let full_name = namespace::full_name(name, CONTROLLER).into_owned();
        if self.subscriptions.named(&full_name).is_some() {
            self.delete_subscription(&full_name, crate::operate::Leftover::Discard)?;
        }
        self.write_namespace(name, None)
    }

    fn write_namespace(&mut self, name: &str, content: Option<Vec<u8>>) -> Result<(), Refused> {
        let (kind, key) = (DOCUMENTS.to_owned(), name.to_owned());
        let write = Write { kind, key, content, expected: Expected::Any };
        match self.put_documents(&[write], &[]) {
            Ok(_) => Ok(()),
            Err(crate::documents::Error::Refused(refused)) => Err(refused),
            Err(other) => Err(Refused::Unavailable(other.to_string())),
        }
    }

    /// After a start: those whose documents are in tables.
    pub(crate) fn load_namespaces(&mut self) -> Result<(), Failure> {
        for stored in self.documents(DOCUMENTS, None, usize::MAX)? {
            self.namespaces.apply(Address(stored.version), &stored.key, Some(&stored.content))?;
        }
        Ok(())
    }
}
