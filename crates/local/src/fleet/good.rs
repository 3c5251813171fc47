//! Records which artifacts have responded once, in an append-only text file. A line that starts with `-` removes an
//! artifact. The file is not synced: a lost line costs one extra start.

use std::collections::HashSet;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::Path;

#[derive(Debug)]
pub struct Good {
    artifacts: HashSet<Box<str>>,
    file: File,
}

impl Good {
    pub fn open(folder: &Path) -> io::Result<Good> {
        fs::create_dir_all(folder)?;
        let path = folder.join("good-artifacts");
        let text = match fs::read(&path) {
            Ok(bytes) => String::from_utf8_lossy(&bytes).into_owned(),
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) => return Err(error),
        };
        let mut artifacts = HashSet::new();
        // A line without a line end is incomplete.
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            match line.strip_prefix('-') {
                Some(forgotten) => artifacts.remove(forgotten),
                None => artifacts.insert(line.into()),
            };
        }
        rewrite(&path, &artifacts)?;
        Ok(Good { artifacts, file: OpenOptions::new().append(true).open(path)? })
    }

    pub fn contains(&self, artifact: &str) -> bool {
        self.artifacts.contains(artifact)
    }

    pub fn remember(&mut self, artifact: &str) {
        if !self.artifacts.contains(artifact) {
            self.artifacts.insert(artifact.into());
            self.note(format!("{artifact}\n"));
        }
    }

    pub fn forget(&mut self, artifact: &str) {
        if self.artifacts.remove(artifact) {
            self.note(format!("-{artifact}\n"));
        }
    }

    fn note(&mut self, line: String) {
        if let Err(error) = self.file.write_all(line.as_bytes()) {
            tracing::warn!(%error, "Could not record that an artifact works; it will be tested again");
        }
    }
}

/// Drops removed artifacts, so that the file does not grow with every start.
fn rewrite(path: &Path, artifacts: &HashSet<Box<str>>) -> io::Result<()> {
    let next = path.with_extension("next");
    let lines: String = artifacts.iter().map(|artifact| format!("{artifact}\n")).collect();
    fs::write(&next, lines)?;
    fs::rename(next, path)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remembers_across_starts_and_through_a_torn_end() {
        let folder = tempfile::tempdir().unwrap();
        let mut good = Good::open(folder.path()).unwrap();
        ["a", "b", "c"].iter().for_each(|artifact| good.remember(artifact));
        good.forget("b");
        good.file.write_all(b"torn").unwrap();
        let good = Good::open(folder.path()).unwrap();
        assert_eq!(
            ["a", "b", "c", "torn"].map(|artifact| good.contains(artifact)),
            [true, false, true, false]
        );
    }
}
