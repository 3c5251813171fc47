//! How many events told of functions that are gone. One of the same name that comes later counts on, so that whoever
//! reads them by key and sequence sees one row of numbers.

use klambda_dispatch::documents::{Expected, Stored, Write};
use klambda_dispatch::{Engine, Failure};
use klambda_functions::name::Name;
use std::collections::{HashSet, VecDeque};

/// The kind of the documents that keep it.
const DOCUMENTS: &str = "lambda.gone";
/// Beyond this the ones that went first are forgotten.
const KEPT_MAX: usize = 10_000;
const PAGE: usize = 1000;

/// Which names have a number kept for them. The numbers themselves are with the engine.
#[derive(Default)]
pub struct Gone {
    known: HashSet<Name>,
    /// In the order of going.
    names: VecDeque<Name>,
}

impl Gone {
    pub fn load(engine: &Engine) -> Result<Gone, Failure> {
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
        let mut gone = Gone::default();
        all.iter().for_each(|stored| gone.add(Name::from_text(&stored.key)));
        Ok(gone)
    }

    /// The writes that forget the oldest, so that there is room for so many more.
    pub fn too_many(&self, going: usize) -> Vec<Write> {
        let too_many = (self.names.len() + going).saturating_sub(KEPT_MAX);
        self.names.iter().take(too_many).map(forget).collect()
    }

    /// One of this name is gone, and its number is kept.
    pub fn add(&mut self, name: Name) {
        if self.known.insert(name.clone()) {
            self.names.push_back(name);
        }
        while self.names.len() > KEPT_MAX {
            let oldest = self.names.pop_front();
            oldest.map(|name| self.known.remove(&name));
        }
    }

    /// One of this name is there again, and keeps the number itself.
    pub fn take(&mut self, name: &Name) {
        if self.known.remove(name) {
            self.names.retain(|known| known != name);
        }
    }
}

/// How many events told of the last one of this name.
pub fn told(engine: &Engine, name: &Name) -> Result<u64, Failure> {
    let stored = engine.document(DOCUMENTS, name.as_str())?;
    let number = stored.and_then(|stored| std::str::from_utf8(&stored.content).ok()?.parse().ok());
    Ok(number.unwrap_or(0))
}

/// What to write when one goes, beside its own document.
pub fn keep(name: &Name, told: u64) -> Write {
    write(name, Some(told.to_string().into_bytes()))
}

/// What to write when one of this name is there again.
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
        let mut gone = Gone::default();
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
