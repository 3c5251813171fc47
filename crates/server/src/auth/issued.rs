//! Tokens that the server issued. They are documents of the engine, and held in memory by their hashes.
//!
//! Steps of the engine change them one after the other, and memory changes in the same step as the document. So the two
//! always agree. The lock is held only for a lookup or an insertion.

use super::Unknown;
use klambda_access::{Hash, Identity, Namespaces, Token, Unreadable};
use klambda_core::namespace::full_name;
use klambda_core::time::Millis;
use klambda_core::webhook::PREFIX;
use klambda_dispatch::documents::{self, Expected, Write};
use klambda_dispatch::operate;
use klambda_dispatch::runner::Clock;
use klambda_dispatch::{Engine, Failure};
use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, RwLock, RwLockReadGuard, RwLockWriteGuard};

const KIND: &str = "token";
const PAGE: usize = documents::CHANGES_MAX;
/// Uses within this time count as one.
const USE_MS: u64 = 1000;

pub struct Issued {
    table: RwLock<Table>,
    clock: Clock,
    tokens_max: usize,
}

#[derive(Default)]
struct Table {
    by_hash: HashMap<Hash, Arc<Entry>>,
    by_name: BTreeMap<String, Arc<Entry>>,
}

struct Entry {
    token: Token,
    identity: Arc<Identity>,
    /// When it was used last, and the value that is stored. 0 means never.
    used: AtomicU64,
    stored: AtomicU64,
}

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("token {0} already exists")]
    Exists(String),
    #[error("token {0} not found")]
    NotFound(String),
    #[error("the limit of {0} tokens is reached (limits.tokens): delete unused tokens")]
    Limit(usize),
    #[error(transparent)]
    Namespace(#[from] operate::Refused),
    #[error(transparent)]
    Store(#[from] documents::Error),
}

#[derive(Debug, thiserror::Error)]
pub enum LoadError {
    #[error(transparent)]
    Store(#[from] Failure),
    #[error("token {name}: {source}")]
    Malformed { name: String, source: Unreadable },
}

impl Issued {
    pub fn load(engine: &Engine, clock: Clock, tokens_max: usize) -> Result<Issued, LoadError> {
        let mut table = Table::default();
        let mut after: Option<String> = None;
        loop {
            let page = engine.documents(KIND, after.as_deref(), PAGE)?;
            let Some(last) = page.last() else { break };
            after = Some(last.key.clone());
            for stored in page {
                let token = Token::decode(&stored.content)
                    .map_err(|source| LoadError::Malformed { name: stored.key, source })?;
                table.insert(Entry::new(token));
            }
        }
        Ok(Issued { table: RwLock::new(table), clock, tokens_max })
    }

    pub fn is_empty(&self) -> bool {
        self.read().by_name.is_empty()
    }

    /// The owner of this token, if it is valid now.
    pub fn who(&self, given: &[u8]) -> Result<Arc<Identity>, Unknown> {
        let hash = Hash::of(given);
        let table = self.read();
        let entry = table.by_hash.get(&hash).ok_or(Unknown::WrongToken)?;
        let now = self.clock.now();
        if entry.token.is_expired(now) {
            return Err(Unknown::ExpiredToken);
        }
        if now.0.saturating_sub(entry.used.load(Ordering::Relaxed)) >= USE_MS {
            entry.used.store(now.0, Ordering::Relaxed);
        }
        Ok(Arc::clone(&entry.identity))
    }

    pub fn get(&self, name: &str) -> Option<Token> {
        self.read().by_name.get(name).map(|entry| entry.current())
    }

    /// Tokens by name, starting after `after`, and whether more follow.
    pub fn list(
        &self,
        after: Option<&str>,
        limit: usize,
        is_wanted: impl Fn(&Token) -> bool,
    ) -> (Vec<Token>, bool) {
        let table = self.read();
        let start = after.map_or(Bound::Unbounded, Bound::Excluded);
        let wanted = table.by_name.range::<str, _>((start, Bound::Unbounded));
        let wanted = wanted.map(|(_, entry)| entry).filter(|entry| is_wanted(&entry.token));
        let mut found: Vec<Token> = wanted.take(limit + 1).map(|entry| entry.current()).collect();
        let more = found.len() > limit;
        found.truncate(limit);
        (found, more)
    }

    /// How many tokens with this beginning of their names are valid now.
    pub fn live(&self, prefix: &str) -> usize {
        let now = self.clock.now();
        let table = self.read();
        let named = table.by_name.range::<str, _>((Bound::Included(prefix), Bound::Unbounded));
        let named = named.take_while(|(name, _)| name.starts_with(prefix));
        named.filter(|(_, entry)| !entry.token.is_expired(now)).count()
    }

    // ---- steps of the engine ------------------------------------------------------------------------------

    /// There must be room for another token.
    pub fn must_have_room(&self) -> Result<(), Refused> {
        let table = self.read();
        let count = table.by_name.len();
        let has_room = count < self.tokens_max || table.expired(self.clock.now()).is_some();
        if has_room { Ok(()) } else { Err(Refused::Limit(count)) }
    }

    pub fn create(&self, engine: &mut Engine, token: Token) -> Result<(), Refused> {
        let (exists, count, expired) = {
            let table = self.read();
            (table.by_name.contains_key(&token.name), table.by_name.len(), table.expired(self.clock.now()))
        };
        if exists {
            return Err(Refused::Exists(token.name));
        }
        // Expired tokens do not count: one of them makes room.
        let replaced = match count >= self.tokens_max {
            true => Some(expired.ok_or(Refused::Limit(count))?),
            false => None,
        };
        match &token.grant.namespaces {
            Namespaces::All => {}
            Namespaces::Named(names) => {
                names.iter().try_for_each(|name| engine.namespace_id(name).map(drop))?;
            }
            Namespaces::Endpoint { namespace, name } => must_have_endpoint(engine, namespace, name)?,
        }
        let mut writes = vec![write(&token.name, Some(token.encode()))];
        writes.extend(replaced.iter().map(|name| write(name, None)));
        engine.put_documents(&writes, &[])?;
        let mut table = self.write();
        replaced.iter().for_each(|name| table.remove(name));
        table.insert(Entry::new(token));
        Ok(())
    }

    /// A token that names this namespace. It would also be valid in a later namespace with that name.
    pub fn naming(&self, namespace: &str) -> Option<String> {
        let names = |token: &Token| match &token.grant.namespaces {
            Namespaces::Named(names) => names.contains(namespace),
            Namespaces::Endpoint { namespace: own, .. } => own == namespace,
            Namespaces::All => false,
        };
        let table = self.read();
        table.by_name.values().find(|entry| names(&entry.token)).map(|entry| entry.token.name.clone())
    }

    /// The webhook endpoints that have tokens.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        let endpoint = |entry: &Arc<Entry>| match &entry.token.grant.namespaces {
            Namespaces::Endpoint { namespace, name } => Some((namespace.clone(), name.clone())),
            Namespaces::All | Namespaces::Named(_) => None,
        };
        self.read().by_name.values().filter_map(endpoint).collect()
    }

    /// Deletes the tokens of an endpoint that is deleted.
    pub fn delete_of(&self, engine: &mut Engine, namespace: &str, endpoint: &str) -> Result<(), Refused> {
        let own = Namespaces::Endpoint { namespace: namespace.to_owned(), name: endpoint.to_owned() };
        let is_own = |entry: &&Arc<Entry>| entry.token.grant.namespaces == own;
        let names: Vec<String> =
            self.read().by_name.values().filter(is_own).map(|entry| entry.token.name.clone()).collect();
        names.iter().try_for_each(|name| self.delete(engine, name))
    }

    pub fn delete(&self, engine: &mut Engine, name: &str) -> Result<(), Refused> {
        if !self.read().by_name.contains_key(name) {
            return Err(Refused::NotFound(name.to_owned()));
        }
        engine.put_documents(&[write(name, None)], &[])?;
        self.write().remove(name);
        Ok(())
    }

    /// Stores the last use of some tokens for which it changed. Returns whether there may be more.
    pub fn store_uses(&self, engine: &mut Engine) -> Result<bool, Refused> {
        let used: Vec<(Arc<Entry>, u64)> = {
            let table = self.read();
            let used =
                table.by_name.values().filter_map(|entry| Some((Arc::clone(entry), entry.unstored()?)));
            used.take(PAGE).collect()
        };
        if used.is_empty() {
            return Ok(false);
        }
        let stored = |(entry, at): &(Arc<Entry>, u64)| {
            let token = Token { last_used: Some(Millis(*at)), ..entry.token.clone() };
            write(&token.name, Some(token.encode()))
        };
        engine.put_documents(&used.iter().map(stored).collect::<Vec<_>>(), &[])?;
        for (entry, at) in &used {
            entry.stored.store(*at, Ordering::Relaxed);
        }
        Ok(used.len() == PAGE)
    }

    pub fn has_unstored_uses(&self) -> bool {
        self.read().by_name.values().any(|entry| entry.unstored().is_some())
    }

    fn read(&self) -> RwLockReadGuard<'_, Table> {
        self.table.read().unwrap_or_else(|poisoned| poisoned.into_inner())
    }

    fn write(&self) -> RwLockWriteGuard<'_, Table> {
        self.table.write().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

fn must_have_endpoint(engine: &Engine, namespace: &str, name: &str) -> Result<(), operate::Refused> {
    engine.namespace_id(namespace)?;
    let full_name = full_name(namespace, &format!("{PREFIX}{name}")).into_owned();
    match engine.subscription_id(&full_name) {
        Ok(_) => Ok(()),
        Err(_) => Err(operate::Refused::NotFound(format!("webhook endpoint {name:?} not found"))),
    }
}

fn write(name: &str, content: Option<Vec<u8>>) -> Write {
    Write { kind: KIND.to_owned(), key: name.to_owned(), content, expected: Expected::Any }
}

impl Table {
    fn remove(&mut self, name: &str) {
        if let Some(entry) = self.by_name.remove(name) {
            self.by_hash.remove(&entry.token.hash);
        }
    }

    /// The token that expired first, if one has expired.
    fn expired(&self, now: Millis) -> Option<String> {
        let expired = self.by_name.values().map(|entry| &entry.token).filter(|token| token.is_expired(now));
        expired.min_by_key(|token| token.expires).map(|token| token.name.clone())
    }

    fn insert(&mut self, entry: Entry) {
        let entry = Arc::new(entry);
        self.by_hash.insert(entry.token.hash, Arc::clone(&entry));
        self.by_name.insert(entry.token.name.clone(), entry);
    }
}

impl Entry {
    fn new(token: Token) -> Entry {
        let name = format!("token/{}", token.name);
        let identity = Arc::new(Identity { name: name.into(), grant: token.grant.clone() });
        let used = token.last_used.map_or(0, |at| at.0);
        Entry { token, identity, used: used.into(), stored: used.into() }
    }

    fn current(&self) -> Token {
        let used = self.used.load(Ordering::Relaxed);
        Token { last_used: (used > 0).then_some(Millis(used)), ..self.token.clone() }
    }

    fn unstored(&self) -> Option<u64> {
        let used = self.used.load(Ordering::Relaxed);
        (used != self.stored.load(Ordering::Relaxed)).then_some(used)
    }
}

impl fmt::Debug for Issued {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Issued").field("count", &self.read().by_name.len()).finish_non_exhaustive()
    }
}
