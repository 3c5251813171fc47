//! The audit log: who changed what, when, and from where. It never contains payloads or secrets.
//!
//! An entry is a document in the same group as the change, so a crash keeps both or neither. The entry is prepared
//! before the change and written with the first record of the change. A request that changes nothing leaves no entry.
//!
//! Entry numbers are contiguous, so the newest entries are found without a scan.

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

/// One audited action.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, schemars::JsonSchema)]
#[schemars(rename = "AuditEntry")]
pub struct Entry {
    pub who: String,
    /// `create`, `put`, `delete`, `pause`, …
    pub verb: String,
    /// `subscription`, `function`, `token`, …
    pub kind: String,
    /// `None` if the action concerns the whole server.
    pub namespace: Option<String>,
    pub name: String,
    /// The address of the client.
    pub from: String,
}

/// An entry read from the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Audited {
    pub number: u64,
    pub time: Millis,
    pub entry: Entry,
}

/// The range of existing entries; `next` is exclusive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    first: u64,
    next: u64,
}

/// An entry about to be written.
pub(crate) struct NextEntry {
    number: u64,
    content: Vec<u8>,
}

impl NextEntry {
    /// Maximum size of the entry in the log.
    pub fn length_max(&self) -> usize {
        RECORD_HEADER + 64 + self.content.len()
    }
}

#[derive(Serialize, Deserialize)]
struct StoredEntry {
    time: u64,
    #[serde(flatten)]
    entry: Entry,
}

const KIND: &str = "audit";
/// Limit per text of an entry, because some texts come from the client.
const TEXT_BYTES_MAX: usize = 512;
/// Maximum number of entries that one request reads.
const LOOK_MAX: u64 = 1000;
/// Maximum number of entries deleted at once.
const EXPIRE_MAX: u64 = 250;
const EXPIRE_EVERY_MS: u64 = 60_000;

impl Engine {
    /// Makes a change and records who made it. Returns the result, and whether an entry was written.
    pub fn audited<T>(&mut self, entry: &Entry, change: impl FnOnce(&mut Engine) -> T) -> (T, bool) {
        self.scratch.audit = Some(Box::new(entry.clone()));
        let done = change(self);
        (done, self.scratch.audit.take().is_none())
    }

    /// The pending entry that belongs to the next group, if there is one.
    pub(crate) fn next_audit(&mut self) -> Result<Option<NextEntry>, Failure> {
        let Some(entry) = self.scratch.audit.as_ref().map(|entry| entry.shortened()) else { return Ok(None) };
        let number = self.audit_numbers()?.next;
        let stored = StoredEntry { time: self.now.0, entry };
        let content = serde_json::to_vec(&stored).map_err(|error| Failure::State(error.to_string()))?;
        Ok(Some(NextEntry { number, content }))
    }

    /// Called inside a group, before the change.
    pub(crate) fn write_audit(&mut self, next: &NextEntry) -> Result<(), Failure> {
        self.scratch.audit = None;
        let key = key(next.number);
        let changes = vec![DocumentChange { kind: KIND, key: &key, content: Some(&next.content) }];
        self.append(&Record::Documents { time: self.now, changes })?;
        if let Some(numbers) = &mut self.maintenance.audit {
            numbers.next = next.number + 1;
        }
        Ok(())
    }

    /// Returns entries from newest to oldest, starting before `before`, and the `before` of the next page.
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
        let stored: StoredEntry =
            serde_json::from_slice(&document.content).map_err(|_| Malformed("audit entry"))?;
        Ok(Some(Audited { number, time: Millis(stored.time), entry: stored.entry }))
    }

    /// Once per minute, deletes the oldest entries that exceed the age or count limit.
    pub(crate) fn expire_audit(&mut self) -> Result<(), Failure> {
        if self.maintenance.expire_audit_at > self.now || self.must_write().is_err() {
            return Ok(());
        }
        self.maintenance.expire_audit_at = self.now + EXPIRE_EVERY_MS;
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
            self.maintenance.expire_audit_at = self.now;
        }
        let keys: Vec<String> = (first..end).map(key).collect();
        let changes = keys.iter().map(|key| DocumentChange { kind: KIND, key, content: None }).collect();
        self.commit(&Record::Documents { time: self.now, changes })?;
        self.maintenance.audit = Some(Numbers { first: end, next });
        Ok(())
    }

    fn is_audit_old(&self, number: u64) -> Result<bool, Failure> {
        let entry = self.audit_entry(number)?;
        Ok(entry.is_none_or(|entry| self.now.since(entry.time) > self.config.audit_age_ms))
    }

    /// Cached after the first lookup, because only this code writes entries.
    fn audit_numbers(&mut self) -> Result<Numbers, Failure> {
        if let Some(numbers) = self.maintenance.audit {
            return Ok(numbers);
        }
        let numbers = match self.audit_from(0)? {
            None => Numbers { first: 1, next: 1 },
            Some(first) => {
                let mut step = 1;
                while self.audit_from(first + step)?.is_some() {
                    step *= 2;
                }
                // The last entry is before `first + step` and not before `first + step / 2`.
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
        self.maintenance.audit = Some(numbers);
        Ok(numbers)
    }

    /// The first entry with this number or a higher one.
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
    /// Removes line breaks and cuts texts to the limit.
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

// ---- tasks on behalf of a user --------------------------------------------------------------------------------

tokio::task_local! {
    static NOTED: Arc<AuditContext>;
}

/// Work that a task does on behalf of a user. It leaves one entry, written with the first step that changes
/// something.
pub(crate) struct AuditContext {
    entry: Mutex<Entry>,
    is_written: AtomicBool,
}

/// Runs a task on behalf of a user and audits the changes that it makes in the engine.
pub async fn on_behalf<F: Future>(entry: Entry, work: F) -> F::Output {
    let noted = AuditContext { entry: Mutex::new(entry), is_written: AtomicBool::new(false) };
    NOTED.scope(Arc::new(noted), work).await
}

/// Sets the name of the changed resource if it was not known when the task began.
pub fn named(name: &str) {
    let _ = NOTED.try_with(|noted| {
        noted.entry.lock().unwrap_or_else(PoisonError::into_inner).name = name.to_owned();
    });
}

/// The identity that the current task works for, if there is one.
pub fn who() -> Option<String> {
    NOTED.try_with(|noted| noted.entry.lock().unwrap_or_else(PoisonError::into_inner).who.clone()).ok()
}

pub(crate) fn noted() -> Option<Arc<AuditContext>> {
    NOTED.try_with(Arc::clone).ok()
}

impl AuditContext {
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
