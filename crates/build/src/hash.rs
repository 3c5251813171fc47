//! Hash of a folder: paths, modes and contents, in an order that does not depend on the disk.

use sha2::{Digest, Sha256};
use std::fmt;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

/// SHA-256.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Hash([u8; 32]);

impl fmt::Display for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for Hash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Each part is prefixed with its length, so that different lists of parts never have the same bytes.
pub(crate) struct Hasher(Sha256);

impl Hasher {
    pub(crate) fn new() -> Hasher {
        Hasher(Sha256::new())
    }

    pub(crate) fn part(&mut self, bytes: &[u8]) {
        self.0.update((bytes.len() as u64).to_le_bytes());
        self.0.update(bytes);
    }

    pub(crate) fn finish(self) -> Hash {
        Hash(self.0.finalize().into())
    }

    fn file(&mut self, path: &Path) -> std::io::Result<()> {
        let mut file = std::fs::File::open(path)?;
        self.0.update(file.metadata()?.len().to_le_bytes());
        let mut buffer = vec![0; 64 * 1024];
        loop {
            match file.read(&mut buffer)? {
                0 => return Ok(()),
                count => self.0.update(&buffer[..count]),
            }
        }
    }
}

/// The hash of a folder. It ignores `.git`, and of the mode only the executable bit counts.
pub fn hash_folder(folder: &Path) -> std::io::Result<Hash> {
    let mut hasher = Hasher::new();
    for path in sorted_paths(folder)? {
        let full = folder.join(&path);
        let metadata = std::fs::symlink_metadata(&full)?;
        hasher.part(path.as_os_str().as_bytes());
        if metadata.is_symlink() {
            hasher.part(b"link");
            hasher.part(std::fs::read_link(&full)?.as_os_str().as_bytes());
        } else if metadata.is_file() {
            let can_run = metadata.permissions().mode() & 0o111 != 0;
            hasher.part(if can_run { b"program" } else { b"file" });
            hasher.file(&full)?;
        }
    }
    Ok(hasher.finish())
}

/// All files and links below a folder, sorted, relative to it.
pub(crate) fn sorted_paths(folder: &Path) -> std::io::Result<Vec<PathBuf>> {
    let mut paths = Vec::new();
    let mut open = vec![PathBuf::new()];
    while let Some(relative) = open.pop() {
        for entry in std::fs::read_dir(folder.join(&relative))? {
            let entry = entry?;
            let path = relative.join(entry.file_name());
            match entry.file_type()?.is_dir() {
                true if entry.file_name() == ".git" => {}
                true => open.push(path),
                false => paths.push(path),
            }
        }
    }
    paths.sort();
    Ok(paths)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn folder(files: &[(&str, &str)]) -> tempfile::TempDir {
        let folder = tempfile::tempdir().expect("temporary folder");
        for (path, text) in files {
            let path = folder.path().join(path);
            fs::create_dir_all(path.parent().expect("in a folder")).expect("folder");
            fs::write(path, text).expect("file");
        }
        folder
    }

    fn hash(folder: &tempfile::TempDir) -> Hash {
        hash_folder(folder.path()).expect("readable")
    }

    #[test]
    fn the_same_content_is_the_same_hash_and_nothing_else_is() {
        let first = folder(&[("a.js", "1"), ("b/c.js", "2")]);
        assert_eq!(hash(&first), hash(&folder(&[("b/c.js", "2"), ("a.js", "1"), (".git/x", "3")])));
        for other in [
            folder(&[("a.js", "2"), ("b/c.js", "2")]),
            folder(&[("a.js", "1"), ("bc.js", "2")]),
            folder(&[("a.js", "12"), ("b/c.js", "")]),
            folder(&[("a.js", "1")]),
        ] {
            assert_ne!(hash(&first), hash(&other));
        }
        let mut mode = fs::metadata(first.path().join("a.js")).expect("there").permissions();
        mode.set_mode(0o755);
        let before = hash(&first);
        fs::set_permissions(first.path().join("a.js"), mode).expect("owner");
        assert_ne!(before, hash(&first));
    }
}
