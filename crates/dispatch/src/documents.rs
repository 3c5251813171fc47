//! Documents that the platform stores by kind and key, for example functions. A change and its events are one atomic
//! step: a crash keeps both or neither.

use crate::engine::{Engine, Failure};
use crate::group::{NoRoom, Origin, OutboxEntry};
use crate::namespaces;
use crate::operate::Refused;
use crate::rows;
use klambda_core::event::Event;
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use klambda_store::log;
use klambda_store::record::{DocumentChange, Record};
use klambda_store::segment::RECORD_HEADER;

pub const KIND_BYTES_MAX: usize = 64;
pub const KEY_BYTES_MAX: usize = 1024;
pub const CONTENT_BYTES_MAX: usize = 1 << 20;
pub const CHANGES_MAX: usize = 1000;
pub const EVENTS_MAX: usize = 1000;

/// A document to write or delete.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub kind: String,
    pub key: String,
    /// `None` deletes the document.
    pub content: Option<Vec<u8>>,
    pub expected: Expected,
}

/// The precondition of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Expected {
    Any,
    Absent,
    Version(u64),
}

/// An event about a document, in the namespace of the resource.
#[derive(Clone, Debug, PartialEq)]
pub struct DocumentEvent {
    pub namespace: String,
    pub event: Event,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stored {
    pub key: String,
    /// Increases with every change of any document.
    pub version: u64,
    pub content: Vec<u8>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Another writer was first.
    #[error("{kind} {key:?} {}; read it again and repeat the change", found_text(.found))]
    Conflict { kind: String, key: String, found: Option<u64> },
    #[error("{0}")]
    Invalid(String),
    #[error(transparent)]
    Refused(#[from] Refused),
}

fn found_text(found: &Option<u64>) -> String {
    found.map_or_else(|| "does not exist".into(), |version| format!("now has version {version}"))
}

impl From<Failure> for Error {
    fn from(failure: Failure) -> Error {
        Error::Refused(failure.into())
    }
}

impl Engine {
    /// Writes all documents and accepts all events in one step, or does nothing. Returns the new version of the
    /// documents. An event that this system emitted before, with the same source and id, is ignored.
    pub fn put_documents(&mut self, writes: &[Write], events: &[DocumentEvent]) -> Result<u64, Error> {
        self.must_write()?;
        check_sizes(writes, events)?;
        for write in writes {
            self.check_version(write)?;
        }
        let entries: Vec<OutboxEntry<'_>> =
            events.iter().map(|told| self.entry(told)).collect::<Result<_, _>>()?;
        let changes = writes.iter().map(Write::change).collect();
        let record = Record::Documents { time: self.now, changes };
        let mut body = Vec::new();
        record.encode(&mut body);
        let beside = RECORD_HEADER + body.len();
        let length = match self.room_for(&entries, beside, Origin::System)? {
            Ok(length) => length,
            Err(NoRoom::TooLarge(_)) => {
                return Err(Error::Invalid(format!(
                    "{} documents and {} events do not fit into one step; write fewer at once",
                    writes.len(),
                    events.len()
                )));
            }
            Err(_) => return Err(Refused::DiskFull.into()),
        };
        let appended = self.in_group(length, |engine| {
            let at = engine.commit(&record)?;
            for entry in entries {
                engine.take_in_group(entry, Origin::System)?;
            }
            Ok(at)
        });
        match appended {
            Ok(at) => Ok(at.0),
            Err(Failure::Log(log::Error::Full)) => Err(Refused::DiskFull.into()),
            Err(failure) => {
                let why = failure.to_string();
                self.note(Err(failure));
                Err(Refused::Unavailable(why).into())
            }
        }
    }

    fn entry<'a>(&self, told: &'a DocumentEvent) -> Result<OutboxEntry<'a>, Error> {
        Ok(OutboxEntry { namespace: self.namespace_id(&told.namespace)?, event: &told.event })
    }

    fn check_version(&self, write: &Write) -> Result<(), Error> {
        if write.expected == Expected::Any {
            return Ok(());
        }
        let found = self.document(&write.kind, &write.key)?.map(|document| document.version);
        let holds = match write.expected {
            Expected::Any => true,
            Expected::Absent => found.is_none(),
            Expected::Version(version) => found == Some(version),
        };
        match holds {
            true => Ok(()),
            false => Err(Error::Conflict { kind: write.kind.clone(), key: write.key.clone(), found }),
        }
    }

    pub fn document(&self, kind: &str, key: &str) -> Result<Option<Stored>, Failure> {
        let row = self.store.rows.get(&rows::document(kind, key))?;
        row.map(|row| decode(key.to_owned(), &row)).transpose()
    }

    /// Documents of a kind by key, after `after`.
    pub fn documents(&self, kind: &str, after: Option<&str>, limit: usize) -> Result<Vec<Stored>, Failure> {
        let prefix = rows::documents(kind);
        let from = match after {
            Some(after) => [&rows::document(kind, after), [0].as_slice()].concat(),
            None => prefix.clone(),
        };
        let found = self.store.rows.scan(&prefix, &from, limit)?;
        let key = |row: &[u8]| {
            String::from_utf8(row[prefix.len()..].to_vec()).map_err(|_| Malformed("document key"))
        };
        found.into_iter().map(|(row, value)| decode(key(&row)?, &value)).collect()
    }

    pub(crate) fn apply_documents(
        &mut self,
        at: LogAddress,
        changes: &[DocumentChange<'_>],
    ) -> Result<(), Failure> {
        for change in changes {
            if change.kind == namespaces::DOCUMENTS {
                self.namespaces.apply(at, change.key, change.content)?;
                if change.content.is_none() {
                    self.forget_namespace(change.key);
                }
            }
            let row = rows::document(change.kind, change.key);
            match change.content {
                Some(content) => self.store.rows.put(&row, &[&at.0.to_be_bytes(), content].concat()),
                None => self.store.rows.delete(&row),
            }
        }
        Ok(())
    }
}

impl Write {
    fn change(&self) -> DocumentChange<'_> {
        DocumentChange { kind: &self.kind, key: &self.key, content: self.content.as_deref() }
    }
}

fn check_sizes(writes: &[Write], events: &[DocumentEvent]) -> Result<(), Error> {
    let invalid = |text: String| Err(Error::Invalid(text));
    if writes.len() > CHANGES_MAX || events.len() > EVENTS_MAX {
        return invalid(format!(
            "at most {CHANGES_MAX} documents and {EVENTS_MAX} events can be written at once"
        ));
    }
    for write in writes {
        let (kind, key) = (&write.kind, &write.key);
        if kind.is_empty() || kind.len() > KIND_BYTES_MAX || kind.contains('\0') {
            return invalid(format!(
                "the kind of a document must have 1 to {KIND_BYTES_MAX} bytes and no zero byte"
            ));
        }
        if key.is_empty() || key.len() > KEY_BYTES_MAX {
            return invalid(format!("the key of a document must have 1 to {KEY_BYTES_MAX} bytes"));
        }
        if write.content.as_ref().is_some_and(|content| content.len() > CONTENT_BYTES_MAX) {
            return invalid(format!("{kind} {key:?} is longer than {CONTENT_BYTES_MAX} bytes"));
        }
    }
    Ok(())
}

fn decode(key: String, row: &[u8]) -> Result<Stored, Failure> {
    let (version, content) = row.split_first_chunk().ok_or(Malformed("document"))?;
    Ok(Stored { key, version: u64::from_be_bytes(*version), content: content.to_vec() })
}
