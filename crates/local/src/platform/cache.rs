//! The cache that builds share. The part of a tool is removed as a whole when it is too old, or when the cache is too large.
//! Parts are never pruned, because tools expect to find everything that they stored.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    /// Time since the last write.
    pub age: Duration,
}

struct Part {
    folder: PathBuf,
    bytes: u64,
    written: SystemTime,
}

/// Must not run during a build. Returns the reason for each removed part.
pub fn sweep(cache: &Path, limits: Limits, now: SystemTime) -> Vec<&'static str> {
    let entries = fs::read_dir(cache).into_iter().flatten().flatten().map(|entry| entry.path());
    let mut parts: Vec<Part> = entries.filter(|path| path.is_dir()).map(Part::measure).collect();
    parts.sort_by_key(|part| part.written);
    let mut bytes: u64 = parts.iter().map(|part| part.bytes).sum();
    let mut emptied = Vec::new();
    for part in parts {
        let is_old = now.duration_since(part.written).is_ok_and(|age| age > limits.age);
        if (is_old || bytes > limits.bytes) && part.remove() {
            bytes -= part.bytes;
            emptied.push(if is_old { "age" } else { "size" });
        }
    }
    emptied
}

impl Part {
    fn measure(folder: PathBuf) -> Part {
        let mut part = Part { bytes: 0, written: SystemTime::UNIX_EPOCH, folder };
        let mut folders = vec![part.folder.clone()];
        while let Some(folder) = folders.pop() {
            for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
                let Ok(metadata) = entry.metadata() else { continue };
                part.bytes += metadata.len();
                part.written = part.written.max(metadata.modified().unwrap_or(SystemTime::UNIX_EPOCH));
                if metadata.is_dir() {
                    folders.push(entry.path());
                }
            }
        }
        part
    }

    fn remove(&self) -> bool {
        if self.bytes == 0 {
            return false;
        }
        make_writable(&self.folder);
        let removed = fs::remove_dir_all(&self.folder);
        if let Err(error) = &removed {
            tracing::warn!(%error, path = %self.folder.display(), "Could not remove part of the build cache");
        }
        removed.is_ok()
    }
}

/// Go makes the folders of its modules read-only.
fn make_writable(folder: &Path) {
    let _ = fs::set_permissions(folder, fs::Permissions::from_mode(0o700));
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            make_writable(&entry.path());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_that_are_old_or_too_much_are_emptied_and_others_stay() {
        let cache = tempfile::tempdir().expect("a folder");
        let day = Duration::from_secs(86_400);
        let now = SystemTime::now();
        for (part, days, bytes) in [("old", 40, 10), ("large", 2, 5000), ("kept", 1, 100)] {
            fs::create_dir_all(cache.path().join(part).join("deep")).expect("made");
            let path = cache.path().join(part).join("deep/file");
            fs::write(&path, vec![0; bytes]).expect("written");
            let past = now - day * days;
            for place in [path, cache.path().join(part).join("deep")] {
                fs::File::open(place).and_then(|file| file.set_modified(past)).expect("set");
            }
        }
        fs::set_permissions(cache.path().join("old/deep"), fs::Permissions::from_mode(0o500)).expect("set");
        let all: u64 = 5000 + 100 + 10 + 3 * 8192;
        let limits = |bytes| Limits { bytes, age: day * 30 };
        assert_eq!(sweep(cache.path(), limits(all), now), ["age"]);
        assert!(sweep(cache.path(), limits(all), now).is_empty());
        let kept = Part::measure(cache.path().join("kept")).bytes;
        assert_eq!(sweep(cache.path(), limits(kept), now), ["size"]);
        assert!(cache.path().join("kept/deep/file").exists());
    }
}
