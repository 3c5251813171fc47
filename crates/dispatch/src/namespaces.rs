//! Namespaces by name and by number, with their limits.
//!
//! A namespace is stored as a document. Its number is the address of its first record in the log, so numbers are
//! never reused: a namespace that is deleted and created again sees nothing of the old one.

use crate::accept::Rejection;
use crate::documents::{Expected, Write};
use crate::engine::{Engine, Failure};
use crate::operate::{Leftover, Put, Refused};
use crate::subscription::Subscription;
use hashbrown::HashMap;
use klambda_core::ids::NamespaceId;
use klambda_core::namespace::{self, Document, Limits, SchemaCheck};
use klambda_core::subscription::CONTROLLER;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The kind of the documents that store namespaces.
pub const DOCUMENTS: &str = "namespace";

/// The sender of events: its namespace, and whether it may issue commands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Sender {
    /// `None` means the default namespace.
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
    pub schema_check: SchemaCheck,
    pub created: Millis,
    pub intake: Intake,
    /// Events accepted since the server started. Kept in memory only.
    pub accepted: u64,
}

/// A token bucket that holds the events of one second at most. Kept in memory only.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Intake {
    /// Events that may come in now, in thousandths.
    room: u64,
    /// `None` until the first event, when the bucket is full.
    filled_at: Option<Millis>,
}

impl Intake {
    fn admits(&mut self, events_per_second: u64, now: Millis) -> bool {
        const EVENT: u64 = 1000;
        let full = events_per_second.saturating_mul(EVENT);
        // A rate per second is the same number of thousandths per millisecond.
        let added = |since: Millis| now.since(since).saturating_mul(events_per_second);
        self.room = self.filled_at.map_or(full, |at| self.room.saturating_add(added(at)).min(full));
        self.filled_at = Some(now);
        let is_admitted = self.room >= EVENT;
        self.room -= if is_admitted { EVENT } else { 0 };
        is_admitted
    }
}

/// The stored form of a namespace.
#[derive(Serialize, Deserialize)]
struct StoredNamespace {
    /// `None` in the first record, whose address is the number.
    #[serde(default)]
    id: Option<NamespaceId>,
    created: Millis,
    document: Value,
}

impl Default for Namespaces {
    fn default() -> Namespaces {
        let mut namespaces = Namespaces { all: HashMap::new(), names: HashMap::new() };
        let (name, limits) = (namespace::DEFAULT.to_owned(), Limits::default());
        let default = Document { name, limits, schema_check: SchemaCheck::default() };
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
        let Document { name, limits, schema_check } = document;
        self.names.insert(name.clone(), id);
        let known = self.all.remove(&id).map(|known| (known.intake, known.accepted));
        let (intake, accepted) = known.unwrap_or_default();
        self.all.insert(id, Namespace { name, limits, schema_check, created, intake, accepted });
    }

    fn remove(&mut self, name: &str) {
        if let Some(id) = self.names.remove(name) {
            self.all.remove(&id);
        }
    }

    /// Applies a written or deleted document of a namespace.
    pub fn apply(&mut self, at: LogAddress, name: &str, content: Option<&[u8]>) -> Result<(), Malformed> {
        let Some(content) = content else {
            self.remove(name);
            return Ok(());
        };
        let stored: StoredNamespace =
            serde_json::from_slice(content).map_err(|_| Malformed("namespace document"))?;
        let document = Document::parse(&stored.document).map_err(|_| Malformed("namespace document"))?;
        let first = if name == namespace::DEFAULT { NamespaceId(0) } else { NamespaceId(at.0) };
        self.put(stored.id.unwrap_or(first), document, stored.created);
        Ok(())
    }
}

impl Namespace {
    pub fn document(&self) -> Document {
        Document { name: self.name.clone(), limits: self.limits, schema_check: self.schema_check }
    }

    /// True if one more event is within the rate limit.
    pub fn admits(&mut self, now: Millis) -> bool {
        self.limits.events_per_second.is_none_or(|max| self.intake.admits(max, now))
    }
}

impl Engine {
    /// The namespace of the sender, if it accepts one more event.
    pub(crate) fn admit(&mut self, sender: &Sender) -> Result<NamespaceId, Rejection> {
        let name = sender.namespace.as_deref().unwrap_or(namespace::DEFAULT);
        let Some(id) = self.namespaces.named(name) else {
            return Err(Rejection::NoNamespace { namespace: name.to_owned() });
        };
        let now = self.now;
        let Some(known) = self.namespaces.get_mut(id) else { return Ok(id) };
        let limits = known.limits;
        if !known.admits(now) {
            return Err(self.over_limit(id, "eventsPerSecond"));
        }
        match limits.backlog {
            Some(max) if self.subscriptions.owed_in(id) >= max => Err(self.over_limit(id, "backlog")),
            _ => Ok(id),
        }
    }

    fn over_limit(&mut self, id: NamespaceId, limit: &'static str) -> Rejection {
        let namespace = self.namespace_name(id).unwrap_or_default().to_owned();
        self.metrics.namespace_rejected(&namespace, limit);
        Rejection::NamespaceFull { namespace, limit }
    }

    pub fn namespace_id(&self, name: &str) -> Result<NamespaceId, Refused> {
        let id = self.namespaces.named(name);
        id.ok_or_else(|| Refused::NotFound(format!("namespace {name:?} not found")))
    }

    /// The name of an existing namespace.
    pub fn namespace_name(&self, id: NamespaceId) -> Option<&str> {
        self.namespaces.get(id).map(|namespace| namespace.name.as_str())
    }

    /// The names of all namespaces.
    pub fn namespace_names(&self) -> std::collections::HashMap<NamespaceId, String> {
        self.namespaces.all.iter().map(|(id, namespace)| (*id, namespace.name.clone())).collect()
    }

    /// What each namespace does with events that do not match their schema.
    pub fn schema_checks(&self) -> impl Iterator<Item = (&str, SchemaCheck)> {
        self.namespaces.values().map(|namespace| (namespace.name.as_str(), namespace.schema_check))
    }

    fn namespace(&self, name: &str) -> Option<&Namespace> {
        self.namespaces.named(name).and_then(|id| self.namespaces.get(id))
    }

    /// When the namespace was created; 0 for the default namespace.
    pub fn namespace_created(&self, name: &str) -> Millis {
        self.namespace(name).map_or(Millis::ZERO, |namespace| namespace.created)
    }

    pub fn namespace_limits(&self, name: &str) -> Limits {
        self.namespace(name).map(|namespace| namespace.limits).unwrap_or_default()
    }

    pub fn put_namespace(&mut self, document: &Document) -> Result<Put, Refused> {
        let put = self.check_put_namespace(document)?;
        if put == Put::Unchanged {
            return Ok(put);
        }
        let known = self.namespaces.named(&document.name);
        let before = known.and_then(|id| self.namespaces.get(id));
        let created = before.map_or(self.now, |before| before.created);
        let stored = StoredNamespace { id: known, created, document: document.to_json() };
        let content = serde_json::to_vec(&stored).map_err(|error| Refused::Unavailable(error.to_string()))?;
        self.write_namespace(&document.name, Some(content))?;
        Ok(put)
    }

    /// Returns the result that `put_namespace` would have. Changes nothing.
    pub fn check_put_namespace(&self, document: &Document) -> Result<Put, Refused> {
        let max = self.config.namespaces_max;
        let known = self.namespaces.named(&document.name).and_then(|id| self.namespaces.get(id));
        match known {
            Some(known) if known.document() == *document => Ok(Put::Unchanged),
            Some(_) => Ok(Put::Changed),
            None if self.namespaces.all.len() < max => Ok(Put::Created),
            None => {
                Err(Refused::Limit(format!("the limit of {max} namespaces is reached (limits.namespaces)")))
            }
        }
    }

    /// Deletes an empty namespace. The caller checks for documents of other kinds first.
    pub fn delete_namespace(&mut self, name: &str) -> Result<(), Refused> {
        let id = self.namespace_id(name)?;
        if name == namespace::DEFAULT {
            return Err(Refused::Conflict("the default namespace cannot be deleted".into()));
        }
        self.must_be_empty(id, name)?;
        let controller = namespace::full_name(name, CONTROLLER).into_owned();
        if self.subscriptions.named(&controller).is_some() {
            self.delete_subscription(&controller, Leftover::Discard)?;
        }
        self.write_namespace(name, None)
    }

    fn must_be_empty(&self, id: NamespaceId, name: &str) -> Result<(), Refused> {
        let inside = || self.subscriptions.values().filter(|s| s.namespace == id);
        let own = |s: &&Subscription| s.document.is_controller();
        let is_used = |s: &Subscription| s.tally.owed() + s.tally.dead + s.tally.held > 0;
        let current = inside().filter(|s| !own(s) && !s.is_retired()).count();
        let detail = if current > 0 {
            format!("namespace {name:?} still has subscriptions ({current}); delete them first")
        } else if inside().any(|s| !own(&s)) {
            format!("namespace {name:?} still has dead letters; replay or purge them first")
        } else if inside().any(is_used) {
            format!(
                "namespace {name:?} still has pending or failed commands; resolve those of subscription {CONTROLLER} first"
            )
        } else {
            return Ok(());
        };
        Err(Refused::Conflict(detail))
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

    /// Removes everything of a deleted namespace that a new one with the same name could see, or that would
    /// accumulate.
    pub(crate) fn forget_namespace(&mut self, name: &str) {
        self.metrics.forget_namespace(name);
        self.forget_replays_of(name);
    }

    /// After a start, loads the namespaces from the tables.
    pub(crate) fn load_namespaces(&mut self) -> Result<(), Failure> {
        for stored in self.documents(DOCUMENTS, None, usize::MAX)? {
            self.namespaces.apply(LogAddress(stored.version), &stored.key, Some(&stored.content))?;
        }
        Ok(())
    }
}
