//! Keeps the number of events about deleted functions. A function that is created later with the same name continues
//! this number, so consumers that read events by key and sequence see one series without gaps.

use klambda_dispatch::documents::{Expected, Stored, Write};
use klambda_dispatch::{Engine, Failure};
use klambda_functions::name::Name;
use std::collections::{HashSet, VecDeque};

/// The document kind that stores these numbers.
const DOCUMENTS: &str = "lambda.gone";
/// At this limit the oldest deletions are forgotten.
const KEPT_MAX: usize = 10_000;
const PAGE: usize = 1000;

/// The names of deleted functions whose number is kept. The engine stores the numbers.
#[derive(Default)]
pub struct DeletedNames {
    known: HashSet<Name>,
    /// In order of deletion.
    names: VecDeque<Name>,
}

impl DeletedNames {
    pub fn load(engine: &Engine) -> Result<DeletedNames, Failure> {
        let mut all: Vec<Stored> = Vec::new();
        loop {
            let page = engine.documents(DOCUMENTS, all.last().map(|last| last.key.as_str()), PAGE)?;
            let is_last = page.len() < PAGE;
            all.extend(page);
            if is_last {
                break;
            }
        }
        all.sort_by_key(|stored| stored.version);
        let mut gone = DeletedNames::default();
        all.iter().for_each(|stored| gone.add(Name::from_text(&stored.key)));
        Ok(gone)
    }

    /// The writes that forget the oldest names, so that `going` more fit.
    pub fn too_many(&self, going: usize) -> Vec<Write> {
        let too_many = (self.names.len() + going).saturating_sub(KEPT_MAX);
        self.names.iter().take(too_many).map(forget).collect()
    }

    /// Adds the name of a deleted function.
    pub fn add(&mut self, name: Name) {
        if self.known.insert(name.clone()) {
            self.names.push_back(name);
        }
        while self.names.len() > KEPT_MAX {
            let oldest = self.names.pop_front();
            oldest.map(|name| self.known.remove(&name));
        }
    }

    /// Removes the name of a function that was created again and now keeps the number itself.
    pub fn take(&mut self, name: &Name) {
        if self.known.remove(name) {
            self.names.retain(|known| known != name);
        }
    }
}

/// Number of events about the last function with this name.
pub fn told(engine: &Engine, name: &Name) -> Result<u64, Failure> {
    let stored = engine.document(DOCUMENTS, name.as_str())?;
    let number = stored.and_then(|stored| std::str::from_utf8(&stored.content).ok()?.parse().ok());
    Ok(number.unwrap_or(0))
}

/// The write that keeps the number when a function is deleted.
pub fn keep(name: &Name, told: u64) -> Write {
    write(name, Some(told.to_string().into_bytes()))
}

/// The write that drops the number when a function with this name is created again.
pub fn forget(name: &Name) -> Write {
    write(name, None)
}

fn write(name: &Name, content: Option<Vec<u8>>) -> Write {
    Write { kind: DOCUMENTS.into(), key: name.as_str().to_owned(), content, expected: Expected::Any }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_last_to_go_are_kept() {
        let name = |n: usize| Name::new("default", &format!("f{n}"));
        let mut gone = DeletedNames::default();
        (0..KEPT_MAX).for_each(|n| gone.add(name(n)));
        gone.take(&name(0));
        assert_eq!(gone.too_many(1), []);
        assert_eq!(gone.too_many(2), [forget(&name(1))]);
        gone.add(name(KEPT_MAX));
        gone.add(name(KEPT_MAX + 1));
        assert!(!gone.known.contains(&name(1)) && gone.known.contains(&name(2)));
        assert_eq!((gone.names.len(), gone.known.len()), (KEPT_MAX, KEPT_MAX));
    }
}
