//! A secret or config map as a folder of files.

use super::{Result, unreadable, without_line_break};
use klambda_secrets::Value;
use std::path::{Path, PathBuf};

const BYTES_MAX: u64 = 1 << 20;

pub struct Folder {
    path: PathBuf,
    name: String,
}

impl Folder {
    /// `None` if there is no such folder.
    pub fn of(root: &Path, namespace: &str, name: &str) -> Option<Folder> {
        let path = root.join(namespace).join(name);
        let is_plain = is_plain(namespace) && is_plain(name);
        (is_plain && path.is_dir()).then(|| Folder { path, name: name.to_owned() })
    }

    pub fn has(&self, key: &str) -> bool {
        is_plain(key) && self.path.join(key).is_file()
    }

    /// Names of files. A mounted secret of Kubernetes has hidden files beside them.
    pub fn keys(&self) -> Vec<String> {
        let entries = std::fs::read_dir(&self.path).into_iter().flatten().flatten();
        let names = entries.filter_map(|entry| entry.file_name().into_string().ok());
        let mut keys: Vec<String> = names.filter(|name| !name.starts_with("..") && self.has(name)).collect();
        keys.sort();
        keys
    }

    pub fn read(&self, key: &str) -> Result<Option<Value>> {
        if !self.has(key) {
            return Ok(None);
        }
        let failed = |why: String| unreadable(format!("Key {key} of {} cannot be read: {why}", self.name));
        let path = self.path.join(key);
        let bytes = std::fs::metadata(&path).map_err(|error| failed(error.to_string()))?.len();
        if bytes > BYTES_MAX {
            return Err(failed("the file is larger than 1 MiB".to_owned()));
        }
        let value = std::fs::read(&path).map_err(|error| failed(error.kind().to_string()))?;
        Ok(Some(without_line_break(value)))
    }
}

/// The name of something in a folder, which does not lead out of it.
fn is_plain(name: &str) -> bool {
    !name.is_empty() && name != "." && name != ".." && !name.contains(['/', '\0'])
}
