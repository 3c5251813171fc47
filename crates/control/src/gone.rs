//! How many events told of functions that are gone. One of the same name that comes later counts on, so that whoever
//! reads them by key and sequence sees one row of numbers.

use crate::names::Name;
use klambda_dispatch::documents::{Expected, Stored, Write};
use klambda_dispatch::{Engine, Failure};
use std::collections::{HashMap, VecDeque};

/// The kind of the documents that keep it.
const DOCUMENTS: &str = "lambda.gone";
/// Beyond this the ones that went first are forgotten.
const KEPT_MAX: usize = 10_000;
const PAGE: usize = 1000;

#[derive(Default)]
pub struct Gone {
    told: HashMap<Name, u64>,
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
        for stored in all {
            let told = std::str::from_utf8(&stored.content).ok().and_then(|text| text.parse().ok());
            gone.add(Name::from_text(&stored.key), told.unwrap_or(0));
        }
        Ok(gone)
    }

    pub fn told(&self, name: &Name) -> u64 {
        self.told.get(name).copied().unwrap_or(0)
    }

    /// What to write when these go, beside their own documents.
    pub fn writes(&self, going: &[(Name, u64)]) -> Vec<Write> {
        let kept = going.iter().map(|(name, told)| write(name, Some(told.to_string().into_bytes())));
        let too_many = (self.names.len() + going.len()).saturating_sub(KEPT_MAX);
        kept.chain(self.names.iter().take(too_many).map(forget)).collect()
    }

    /// They were written.
    pub fn keep(&mut self, going: Vec<(Name, u64)>) {
        for (name, told) in going {
            self.add(name, told);
        }
        while self.names.len() > KEPT_MAX {
            let oldest = self.names.pop_front();
            oldest.map(|name| self.told.remove(&name));
        }
    }

    fn add(&mut self, name: Name, told: u64) {
        if self.told.insert(name.clone(), told).is_none() {
            self.names.push_back(name);
        }
    }

    /// One of this name is there again, and keeps the number itself.
    pub fn take(&mut self, name: &Name) {
        if self.told.remove(name).is_some() {
            self.names.retain(|known| known != name);
        }
    }
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
        gone.keep((0..KEPT_MAX).map(|n| (name(n), n as u64 + 1)).collect());
        gone.take(&name(0));
        assert_eq!((gone.told(&name(0)), gone.told(&name(1))), (0, 2));
        let more = vec![(name(KEPT_MAX), 7), (name(KEPT_MAX + 1), 8)];
        let writes = gone.writes(&more);
        let written = |n: usize, content: Option<&[u8]>| write(&name(n), content.map(<[u8]>::to_vec));
        assert_eq!(
            writes,
            [written(KEPT_MAX, Some(b"7")), written(KEPT_MAX + 1, Some(b"8")), written(1, None)]
        );
        gone.keep(more);
        assert_eq!((gone.told(&name(1)), gone.told(&name(KEPT_MAX + 1))), (0, 8));
        assert_eq!((gone.names.len(), gone.told.len()), (KEPT_MAX, KEPT_MAX));
    }
}
