//! The audit log: who changed what, when, and from where. It never contains payloads or secrets.
//!
//! An entry is a document in the same group as the change, so a crash keeps both or neither. The entry is prepared
//! before the change and written with the first record of the change. A request that changes nothing leaves no entry.
//!
//! Entry numbers increase. [`expiry`] deletes old entries, so numbers may be missing.

mod expiry;

use self::expiry::Counts;
use crate::documents::Stored;
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

/// The numbers of the entries, cached after the first lookup because only this module writes entries.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Numbers {
    /// No entry has a lower number.
    first: u64,
    /// The number of the next entry.
    next: u64,
    counts: Counts,
}

/// An entry about to be written.
pub(crate) struct NextEntry {
    number: u64,
    namespace: Option<String>,
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
const LOOK_MAX: usize = 1000;

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
        let namespace = entry.namespace.clone();
        let stored = StoredEntry { time: self.now.0, entry };
        let content = serde_json::to_vec(&stored).map_err(|error| Failure::State(error.to_string()))?;
        Ok(Some(NextEntry { number, namespace, content }))
    }

    /// Called inside a group, before the change.
    pub(crate) fn write_audit(&mut self, next: &NextEntry) -> Result<(), Failure> {
        self.scratch.audit = None;
        let key = key(next.number);
        let changes = vec![DocumentChange { kind: KIND, key: &key, content: Some(&next.content) }];
        self.append(&Record::Documents { time: self.now, changes })?;
        if let Some(numbers) = &mut self.maintenance.audit {
            numbers.counts.add_new(next.number, next.namespace.as_deref());
            numbers.next = next.number + 1;
        }
        Ok(())
    }

    /// Writes the pending entry now, for work that changes nothing before it has an effect outside.
    pub(crate) fn audit_now(&mut self) -> Result<(), Failure> {
        if self.scratch.audit.is_some() { self.in_group(0, |_| Ok(())) } else { Ok(()) }
    }

    /// Returns entries from newest to oldest, starting before `before`, and the `before` of the next page.
    pub fn audit_page(
        &mut self,
        before: Option<u64>,
        limit: usize,
        is_wanted: impl Fn(&Audited) -> bool,
    ) -> Result<(Vec<Audited>, Option<u64>), Failure> {
        let &mut Numbers { first, next, .. } = self.audit_numbers()?;
        let mut end = before.unwrap_or(next).min(next);
        let mut found = Vec::new();
        for _ in 0..LOOK_MAX {
            let Some(number) = self.audit_before(first, end)? else { return Ok((found, None)) };
            end = number;
            let audited = self.audit_entry(number)?;
            found.extend(audited.filter(&is_wanted));
            if found.len() == limit {
                break;
            }
        }
        Ok((found, (end > first).then_some(end)))
    }

    fn audit_entry(&self, number: u64) -> Result<Option<Audited>, Failure> {
        self.document(KIND, &key(number))?.map(|document| decode(&document)).transpose()
    }

    /// Up to `limit` entries from this number on, oldest first.
    fn audit_scan(&self, from: u64, limit: usize) -> Result<Vec<Audited>, Failure> {
        let after = from.checked_sub(1).map(key);
        self.documents(KIND, after.as_deref(), limit)?.iter().map(decode).collect()
    }

    fn audit_numbers(&mut self) -> Result<&mut Numbers, Failure> {
        if self.maintenance.audit.is_none() {
            let first = self.audit_from(0)?.unwrap_or(1);
            let next = self.audit_before(first, u64::MAX)?.map_or(first, |last| last + 1);
            self.maintenance.audit = Some(Numbers { first, next, counts: Counts::from(first) });
        }
        self.maintenance.audit.as_mut().ok_or_else(|| Failure::State("no audit numbers".into()))
    }

    /// The last entry with a number lower than `end`, if there is one from `first` on. Rows are only scanned forwards,
    /// so this doubles the distance until the range contains an entry, and then halves the range.
    fn audit_before(&self, first: u64, end: u64) -> Result<Option<u64>, Failure> {
        let from = |number: u64| Ok::<_, Failure>(self.audit_from(number)?.filter(|found| *found < end));
        let (mut distance, mut none_from) = (1, end);
        let mut last = loop {
            let start = end.saturating_sub(distance).max(first);
            if let Some(found) = from(start)? {
                break found;
            }
            if start <= first {
                return Ok(None);
            }
            (none_from, distance) = (start, distance.saturating_mul(2));
        };
        while none_from - last > 1 {
            let middle = last + (none_from - last) / 2;
            match from(middle)? {
                Some(found) => last = found,
                None => none_from = middle,
            }
        }
        Ok(Some(last))
    }

    /// The first entry with this number or a higher one.
    fn audit_from(&self, number: u64) -> Result<Option<u64>, Failure> {
        let prefix = rows::documents(KIND);
        let found = self.store.rows.scan(&prefix, &rows::document(KIND, &key(number)), 1)?;
        Ok(found.first().and_then(|(row, _)| std::str::from_utf8(&row[prefix.len()..]).ok()?.parse().ok()))
    }
}

fn decode(document: &Stored) -> Result<Audited, Failure> {
    let number = document.key.parse().map_err(|_| Malformed("audit number"))?;
    let stored: StoredEntry =
        serde_json::from_slice(&document.content).map_err(|_| Malformed("audit entry"))?;
    Ok(Audited { number, time: Millis(stored.time), entry: stored.entry })
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
