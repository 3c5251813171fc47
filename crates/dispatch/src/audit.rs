//! The audit log: who changed what, when, and from where. Neither payloads nor secrets are in it.
//!
//! An entry is a document that is written in the group of the change itself: after a crash there are both or neither. It is
//! noted before the change is made, and goes with the first record of it. What changes nothing leaves no entry.
//!
//! Entries are numbered without a hole, so that the newest are found without a scan.

use crate::engine::{Engine, Failure};
use crate::rows;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::record::{DocumentChange, Record};
use klambda_store::segment::RECORD_HEADER;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

/// What somebody did.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Entry {
    pub who: String,
    /// `create`, `put`, `delete`, `pause`, …
    pub verb: String,
    /// `subscription`, `function`, `token`, …
    pub kind: String,
    /// None: it concerns the whole server.
    pub namespace: Option<String>,
    pub name: String,
    /// The address of the client.
    pub from: String,
}

/// An entry as it stands in the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub number: u64,
    pub time: Millis,
    pub entry: Entry,
}

/// Which entries there are: from the first up to the next, which is not there yet.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    first: u64,
    next: u64,
}

/// An entry that is about to be written.
pub(crate) struct Next {
    number: u64,
    content: Vec<u8>,
}

impl Next {
    /// What it takes in the log at most.
    pub fn length_max(&self) -> usize {
        RECORD_HEADER + 64 + self.content.len()
    }
}

#[derive(Serialize, Deserialize)]
struct Stored {
    time: u64,
    #[serde(flatten)]
    entry: Entry,
}

const KIND: &str = "audit";
/// Of each text of an entry: some come from outside.
const TEXT_BYTES_MAX: usize = 512;
/// Entries that one request looks at.
const LOOK_MAX: u64 = 1000;
/// Entries that one step removes.
const EXPIRE_MAX: u64 = 250;
const EXPIRE_EVERY_MS: u64 = 60_000;

impl Engine {
    /// Makes a change and notes who made it. Answers with what came of it, and whether there was anything to note.
    pub fn audited<T>(&mut self, entry: &Entry, change: impl FnOnce(&mut Engine) -> T) -> (T, bool) {
        self.scratch.audit = Some(Box::new(entry.clone()));
        let done = change(self);
        (done, self.scratch.audit.take().is_none())
    }

    /// The entry that goes with the group that is about to begin, if one is noted.
    pub(crate) fn next_audit(&mut self) -> Result<Option<Next>, Failure> {
        let Some(entry) = self.scratch.audit.as_ref().map(|entry| entry.shortened()) else { return Ok(None) };
        let number = self.audit_numbers()?.next;
        let stored = Stored { time: self.now.0, entry };
        let content = serde_json::to_vec(&stored).map_err(|error| Failure::State(error.to_string()))?;
        Ok(Some(Next { number, content }))
    }

    /// In a group, before the change.
    pub(crate) fn write_audit(&mut self, next: &Next) -> Result<(), Failure> {
        self.scratch.audit = None;
        let key = key(next.number);
        let changes = vec![DocumentChange { kind: KIND, key: &key, content: Some(&next.content) }];
        self.append(&Record::Documents { time: self.now, changes })?;
        if let Some(numbers) = &mut self.keeping.audit {
            numbers.next = next.number + 1;
        }
        Ok(())
    }

    /// Entries from the newest on, or from the one before `before`; and the `before` of the next page.
    pub fn audit_page(
        &mut self,
        before: Option<u64>,
        limit: usize,
        is_wanted: impl Fn(&Audited) -> bool,
    ) -> Result<(Vec<Audited>, Option<u64>), Failure> {
        let Numbers { first, next } = self.audit_numbers()?;
        let end = before.unwrap_or(next).min(next);
        let start = first.max(end.saturating_sub(LOOK_MAX));
        let mut found = Vec::new();
        for number in (start..end).rev() {
            let audited = self.audit_entry(number)?;
            if let Some(audited) = audited.filter(&is_wanted) {
                found.push(audited);
            }
            if found.len() == limit {
                return Ok((found, (number > first).then_some(number)));
            }
        }
        Ok((found, (start > first).then_some(start)))
    }

    fn audit_entry(&self, number: u64) -> Result<Option<Audited>, Failure> {
        let Some(document) = self.document(KIND, &key(number))? else { return Ok(None) };
        let stored: Stored =
            serde_json::from_slice(&document.content).map_err(|_| Malformed("audit entry"))?;
        Ok(Some(Audited { number, time: Millis(stored.time), entry: stored.entry }))
    }

    /// Once a minute: entries that are too old or too many go, the oldest first.
    pub(crate) fn expire_audit(&mut self) -> Result<(), Failure> {
        if self.keeping.expire_audit_at > self.now || self.must_write().is_err() {
            return Ok(());
        }
        self.keeping.expire_audit_at = self.now + EXPIRE_EVERY_MS;
        let Numbers { first, next } = self.audit_numbers()?;
        let too_many = next.saturating_sub(self.config.audit_entries_max);
        let most = next.min(first + EXPIRE_MAX);
        let mut end = too_many.clamp(first, most);
        while end < most && self.is_audit_old(end)? {
            end += 1;
        }
        if end == first {
            return Ok(());
        }
        if end == first + EXPIRE_MAX {
            self.keeping.expire_audit_at = self.now;
        }
        let keys: Vec<String> = (first..end).map(key).collect();
        let changes = keys.iter().map(|key| DocumentChange { kind: KIND, key, content: None }).collect();
        self.commit(&Record::Documents { time: self.now, changes })?;
        self.keeping.audit = Some(Numbers { first: end, next });
        Ok(())
    }

    fn is_audit_old(&self, number: u64) -> Result<bool, Failure> {
        let entry = self.audit_entry(number)?;
        Ok(entry.is_none_or(|entry| self.now.since(entry.time) > self.config.audit_age_ms))
    }

    /// Looked up once after a start; nobody else writes entries.
    fn audit_numbers(&mut self) -> Result<Numbers, Failure> {
        if let Some(numbers) = self.keeping.audit {
            return Ok(numbers);
        }
        let numbers = match self.audit_from(0)? {
            None => Numbers { first: 1, next: 1 },
            Some(first) => {
                let mut step = 1;
                while self.audit_from(first + step)?.is_some() {
                    step *= 2;
                }
                // The last one is before `first + step`, and at or behind half of that.
                let (mut there, mut gone) = (first + step / 2, first + step);
                while gone - there > 1 {
                    let middle = there + (gone - there) / 2;
                    match self.audit_from(middle)?.is_some() {
                        true => there = middle,
                        false => gone = middle,
                    }
                }
                Numbers { first, next: gone }
            }
        };
        self.keeping.audit = Some(numbers);
        Ok(numbers)
    }

    /// The first entry from this number on.
    fn audit_from(&self, number: u64) -> Result<Option<u64>, Failure> {
        let prefix = rows::documents(KIND);
        let found = self.store.rows.scan(&prefix, &rows::document(KIND, &key(number)), 1)?;
        Ok(found.first().and_then(|(row, _)| std::str::from_utf8(&row[prefix.len()..]).ok()?.parse().ok()))
    }
}

fn key(number: u64) -> String {
    format!("{number:020}")
}

impl Entry {
    /// On one line, and no longer than there is room for.
    fn shortened(&self) -> Entry {
        let short = |text: &str| {
            let start = &text[..text.floor_char_boundary(TEXT_BYTES_MAX)];
            start.replace(char::is_control, " ")
        };
        Entry {
            who: short(&self.who),
            verb: short(&self.verb),
            kind: short(&self.kind),
            namespace: self.namespace.as_deref().map(short),
            name: short(&self.name),
            from: short(&self.from),
        }
    }
}

// ---- for whom a task works ------------------------------------------------------------------------------------

tokio::task_local! {
    static NOTED: Arc<Noted>;
}

/// What a task does on somebody's behalf. However many steps that takes, it is one entry, with the first that changes
/// something.
pub(crate) struct Noted {
    entry: Mutex<Entry>,
    is_written: AtomicBool,
}

/// Runs a task on somebody's behalf: the changes that it asks of the engine are noted.
pub async fn on_behalf<F: Future>(entry: Entry, work: F) -> F::Output {
    let noted = Noted { entry: Mutex::new(entry), is_written: AtomicBool::new(false) };
    NOTED.scope(Arc::new(noted), work).await
}

/// What is changed has a name that was not known at the beginning.
pub fn named(name: &str) {
    let _ = NOTED.try_with(|noted| {
        noted.entry.lock().unwrap_or_else(PoisonError::into_inner).name = name.to_owned();
    });
}

pub(crate) fn noted() -> Option<Arc<Noted>> {
    NOTED.try_with(Arc::clone).ok()
}

impl Noted {
    pub(crate) fn run<T>(&self, engine: &mut Engine, change: impl FnOnce(&mut Engine) -> T) -> T {
        if self.is_written.load(Ordering::Relaxed) {
            return change(engine);
        }
        let entry = self.entry.lock().unwrap_or_else(PoisonError::into_inner).clone();
        let (done, is_written) = engine.audited(&entry, change);
        self.is_written.store(is_written, Ordering::Relaxed);
        done
    }
}
