//! Notices changes in a folder. The kernel says that something happened; a look at all files says whether it matters.

use crate::exit::Usage;
use anyhow::{Context, bail};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::inotify::{self, CreateFlags, Reader, WatchFlags};
use rustix::io::Errno;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Not part of the source, or written by tools while one works.
const IGNORED: [&str; 3] = [".git", "node_modules", "__pycache__"];
const IGNORED_ENDS: [&str; 3] = [".swp", ".swx", "~"];
/// The maximum number of files of a source.
const FILES_MAX: usize = 20_000;
/// Changes that never stop are acted on after this time.
const UNREST_MAX: Duration = Duration::from_secs(2);

/// Time of the change in seconds and nanoseconds, size, inode: one of them differs after a change.
type Stamp = (i64, i64, u64, u64);

pub struct Watch {
    folder: PathBuf,
    inotify: OwnedFd,
    seen: BTreeMap<PathBuf, Stamp>,
    /// The time of the first change that was not examined yet.
    unrest: Option<Instant>,
}

impl Watch {
    pub fn new(folder: &Path) -> anyhow::Result<Watch> {
        let inotify = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        let mut watch = Watch { folder: folder.to_owned(), inotify, seen: BTreeMap::new(), unrest: None };
        watch.seen = watch.look()?;
        Ok(watch)
    }

    /// Waits up to `time` for changes. Returns a changed path, if there is one and nothing changes any more.
    pub fn changed(&mut self, time: Duration) -> anyhow::Result<Option<PathBuf>> {
        let is_restless = self.wait(time)?;
        if is_restless {
            self.drain()?;
            self.unrest.get_or_insert_with(Instant::now);
        }
        match self.unrest {
            None => Ok(None),
            Some(since) if is_restless && since.elapsed() < UNREST_MAX => Ok(None),
            Some(_) => {
                self.unrest = None;
                let now = self.look()?;
                let before = std::mem::replace(&mut self.seen, now);
                Ok(difference(&before, &self.seen).cloned())
            }
        }
    }

    fn wait(&self, time: Duration) -> io::Result<bool> {
        let timeout = Timespec::try_from(time).map_err(io::Error::other)?;
        match poll(&mut [PollFd::new(&self.inotify, PollFlags::IN)], Some(&timeout)) {
            Err(Errno::INTR) => Ok(false),
            ready => Ok(ready? > 0),
        }
    }

    fn drain(&self) -> io::Result<()> {
        let mut buffer = [MaybeUninit::uninit(); 4096];
        let mut reader = Reader::new(&self.inotify, &mut buffer);
        loop {
            match reader.next() {
                Ok(_) | Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(()),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// All files with their stamps. Folders are watched before they are read, so that no change is missed.
    fn look(&self) -> anyhow::Result<BTreeMap<PathBuf, Stamp>> {
        let mut found = BTreeMap::new();
        let mut folders = vec![PathBuf::new()];
        while let Some(folder) = folders.pop() {
            let entries = self.read_folder(&self.folder.join(&folder))?;
            for (path, metadata) in entries.iter().map(|(name, metadata)| (folder.join(name), metadata)) {
                if metadata.is_dir() {
                    folders.push(path);
                } else {
                    found.insert(
                        path,
                        (metadata.mtime(), metadata.mtime_nsec(), metadata.len(), metadata.ino()),
                    );
                }
                if found.len() + folders.len() > FILES_MAX {
                    let fault = format!("more than {FILES_MAX} files; a source has fewer");
                    bail!(Usage::file(&self.folder, &fault));
                }
            }
        }
        Ok(found)
    }

    fn read_folder(&self, path: &Path) -> anyhow::Result<Vec<(PathBuf, fs::Metadata)>> {
        const EVENTS: WatchFlags = WatchFlags::CREATE
            .union(WatchFlags::DELETE)
            .union(WatchFlags::MODIFY)
            .union(WatchFlags::ATTRIB)
            .union(WatchFlags::MOVE)
            .union(WatchFlags::ONLYDIR);
        let place = || format!("watching {}", path.display());
        match inotify::add_watch(&self.inotify, path, EVENTS) {
            // A folder below, removed meanwhile.
            Err(Errno::NOENT) if path != self.folder => return Ok(Vec::new()),
            Err(Errno::NOSPC) => {
                return Err(io::Error::other("the limit fs.inotify.max_user_watches is reached"))
                    .with_context(place);
            }
            added => added.with_context(place)?,
        };
        let entries = fs::read_dir(path).with_context(place)?.flatten();
        let entries = entries.filter(|entry| !is_ignored(&entry.file_name().to_string_lossy()));
        Ok(entries.filter_map(|entry| Some((entry.file_name().into(), entry.metadata().ok()?))).collect())
    }
}

fn is_ignored(name: &str) -> bool {
    IGNORED.contains(&name) || IGNORED_ENDS.iter().any(|end| name.ends_with(end))
}

/// The first path that is new, gone or different.
fn difference<'a>(
    before: &'a BTreeMap<PathBuf, Stamp>,
    after: &'a BTreeMap<PathBuf, Stamp>,
) -> Option<&'a PathBuf> {
    let changed = after.iter().find(|(path, stamp)| before.get(*path) != Some(stamp));
    changed.map(|(path, _)| path).or_else(|| before.keys().find(|path| !after.contains_key(*path)))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The changed files, reported when no further change follows.
    fn noticed(watch: &mut Watch) -> Option<PathBuf> {
        let mut looks = (0..50).map(|_| watch.changed(Duration::from_millis(20)).expect("a look"));
        looks.find_map(|found| found)
    }

    #[test]
    fn changes_are_noticed_also_in_new_folders_and_others_are_ignored() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = |name: &str| folder.path().join(name);
        fs::write(path("index.js"), "1").expect("written");
        let mut watch = Watch::new(folder.path()).expect("watched");
        fs::write(path("index.js"), "22").expect("written");
        assert_eq!(noticed(&mut watch), Some("index.js".into()));
        fs::create_dir_all(path("lib/deep")).expect("made");
        fs::write(path("lib/deep/a.js"), "1").expect("written");
        assert_eq!(noticed(&mut watch), Some("lib/deep/a.js".into()));
        fs::write(path("lib/deep/a.js"), "22").expect("written");
        assert_eq!(noticed(&mut watch), Some("lib/deep/a.js".into()));
        fs::create_dir(path("__pycache__")).expect("made");
        fs::write(path("__pycache__/index.pyc"), "1").expect("written");
        fs::write(path(".index.js.swp"), "1").expect("written");
        assert_eq!(noticed(&mut watch), None);
        fs::remove_file(path("index.js")).expect("removed");
        assert_eq!(noticed(&mut watch), Some("index.js".into()));
        drop(folder);
        assert!((0..3).any(|_| watch.changed(Duration::from_millis(20)).is_err()), "the folder is gone");
    }
}
