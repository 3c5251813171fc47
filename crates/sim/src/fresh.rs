//! Fresh seeds, derived from the commit: every commit has new ones, and everyone who runs that commit gets the same.

use sha2::{Digest, Sha256};
use std::fmt;
use std::hash::{BuildHasher, Hasher};
use std::process::Command;

/// The first fresh seed, and where it comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fresh {
    pub from: u64,
    /// `None` if the seed is random, because there is no git repository.
    commit: Option<String>,
}

impl Fresh {
    pub fn here() -> Fresh {
        head().map_or_else(Fresh::random, |commit| Fresh::of(&commit))
    }

    fn of(commit: &str) -> Fresh {
        Fresh { from: base(commit.as_bytes()), commit: Some(commit.to_owned()) }
    }

    fn random() -> Fresh {
        let random = std::hash::RandomState::new().build_hasher().finish();
        Fresh { from: base(&random.to_be_bytes()), commit: None }
    }
}

impl fmt::Display for Fresh {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.commit {
            Some(commit) => write!(f, "fresh seeds from {} (commit {:.12})", self.from, commit),
            None => write!(f, "fresh seeds from {} (random: no git repository)", self.from),
        }
    }
}

/// The first six bytes of a SHA-256. The remaining bits leave space for counting.
fn base(bytes: &[u8]) -> u64 {
    Sha256::digest(bytes).iter().take(6).fold(0, |number, byte| number << 8 | u64::from(*byte))
}

fn head() -> Option<String> {
    let output = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "rev-parse", "HEAD"])
        .output()
        .ok()
        .filter(|output| output.status.success())?;
    let commit = String::from_utf8(output.stdout).ok()?.trim().to_owned();
    (!commit.is_empty()).then_some(commit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_says_where_its_seeds_begin() {
        let fresh = Fresh::of("3462b82");
        // printf 3462b82 | sha256sum
        assert_eq!(format!("{:012x}", fresh.from), "f596c7556234");
        assert_ne!(fresh.from, Fresh::of("3462b83").from);
        assert_eq!(fresh.to_string(), format!("fresh seeds from {} (commit 3462b82)", fresh.from));
    }

    #[test]
    fn without_a_commit_they_begin_anywhere() {
        assert_ne!(Fresh::random(), Fresh::random());
    }
}
