//! The disk interface on a folder of a real file system, used by one process at a time.

use crate::disk::{Disk, File};
use klambda_core::os_error::in_words;
use std::fs::{self, OpenOptions, TryLockError};
use std::io::{self, Read, Write};
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

const LOCK: &str = "lock";

pub struct RealDisk {
    folder: PathBuf,
    /// Open while the disk is in use. Syncing it makes names durable.
    handle: fs::File,
    writable: bool,
    names_failed: AtomicBool,
    /// Holds the lock until it is closed. The kernel also closes it when the process is killed. `None` for a
    /// read-only folder without a lock file.
    _lock: Option<fs::File>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("data folder {} is in use by {}", folder.display(), holder(*pid))]
    Held {
        folder: PathBuf,
        /// `None` if the holder only reads, or has taken the lock but not written its id yet.
        pid: Option<u32>,
    },
    #[error("{} is a file, not a folder; name a new or an empty folder for the data", .0.display())]
    NotAFolder(PathBuf),
    #[error("data folder {}: {}", folder.display(), in_words(source))]
    Io { folder: PathBuf, source: io::Error },
}

impl RealDisk {
    /// Creates the folder if necessary and locks it for this process.
    pub fn open(folder: &Path) -> Result<RealDisk, Error> {
        if folder.metadata().is_ok_and(|found| !found.is_dir()) {
            return Err(Error::NotAFolder(folder.to_owned()));
        }
        create_folder(folder).map_err(|source| io_error(folder, source))?;
        RealDisk::take(folder, true)
    }

    /// For tools that read the folder of a stopped server, or a copy. Writes nothing. If the folder has a lock file,
    /// no server can start on it in the meantime. A folder without a lock file was never used by a server.
    pub fn read_only(folder: &Path) -> Result<RealDisk, Error> {
        RealDisk::take(folder, false)
    }

    /// Read-only and without the lock, so a running server may change files at any time. Only for files that are
    /// replaced as a whole, such as the manifest.
    pub fn unlocked(folder: &Path) -> Result<RealDisk, Error> {
        RealDisk::new(folder, false, None)
    }

    fn take(folder: &Path, writable: bool) -> Result<RealDisk, Error> {
        // A missing folder is the first error to report.
        fs::metadata(folder).map_err(|source| io_error(folder, source))?;
        let lock = if writable { Some(take_lock(folder)?) } else { share_lock(folder)? };
        RealDisk::new(folder, writable, lock)
    }

    fn new(folder: &Path, writable: bool, lock: Option<fs::File>) -> Result<RealDisk, Error> {
        let handle = fs::File::open(folder).map_err(|source| io_error(folder, source))?;
        let names_failed = AtomicBool::new(false);
        Ok(RealDisk { folder: folder.to_owned(), handle, writable, names_failed, _lock: lock })
    }

    fn path(&self, name: &str) -> PathBuf {
        assert!(!name.contains('/') && name != LOCK, "{name:?} is not a valid file name for the store");
        self.folder.join(name)
    }

    fn must_be_writable(&self) -> io::Result<()> {
        match self.writable {
            true => Ok(()),
            false => Err(io::ErrorKind::ReadOnlyFilesystem.into()),
        }
    }
}

impl Disk for RealDisk {
    fn create(&self, name: &str) -> io::Result<Arc<dyn File>> {
        self.must_be_writable()?;
        let file =
            OpenOptions::new().read(true).write(true).create(true).truncate(true).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    fn open(&self, name: &str) -> io::Result<Arc<dyn File>> {
        let file = OpenOptions::new().read(true).write(self.writable).open(self.path(name))?;
        Ok(Arc::new(RealFile(file)))
    }

    /// Omits the lock, folders, and names that are not UTF-8. None of them belongs to the store.
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            let entry = entry?;
            if entry.file_type()?.is_file() {
                names.extend(entry.file_name().into_string().ok().filter(|name| name != LOCK));
            }
        }
        names.sort();
        Ok(names)
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.must_be_writable()?;
        fs::remove_file(self.path(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.must_be_writable()?;
        fs::rename(self.path(from), self.path(to))
    }

    fn sync_names(&self) -> io::Result<()> {
        self.must_be_writable()?;
        // The kernel reports a failure only once, but every later caller must get the error too.
        if self.names_failed.load(Ordering::Acquire) {
            return Err(io::Error::other("an earlier sync of the folder failed"));
        }
        self.handle.sync_all().inspect_err(|_| self.names_failed.store(true, Ordering::Release))
    }

    fn free_bytes(&self) -> Option<u64> {
        let stat = rustix::fs::fstatvfs(&self.handle).ok()?;
        stat.f_bavail.checked_mul(stat.f_frsize)
    }
}

struct RealFile(fs::File);

impl File for RealFile {
    fn read_at(&self, buf: &mut [u8], offset: u64) -> io::Result<usize> {
        let mut filled = 0;
        while filled < buf.len() {
            match self.0.read_at(&mut buf[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(n) => filled += n,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(filled)
    }

    fn write_at(&self, buf: &[u8], offset: u64) -> io::Result<()> {
        self.0.write_all_at(buf, offset)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync_data()
    }

    fn len(&self) -> io::Result<u64> {
        Ok(self.0.metadata()?.len())
    }

    fn uncache(&self) {
        let _ = rustix::fs::fadvise(&self.0, 0, None, rustix::fs::Advice::DontNeed);
    }
}

fn take_lock(folder: &Path) -> Result<fs::File, Error> {
    let failed = |source| io_error(folder, source);
    // Not truncated on opening: until we hold the lock, the content belongs to the holder.
    let mut lock = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .open(folder.join(LOCK))
        .map_err(failed)?;
    match lock.try_lock() {
        Ok(()) => {}
        Err(TryLockError::WouldBlock) => return Err(held(folder, lock)),
        Err(TryLockError::Error(source)) => return Err(failed(source)),
    }
    lock.set_len(0).map_err(failed)?;
    writeln!(lock, "{}", std::process::id()).map_err(failed)?;
    Ok(lock)
}

/// Readers share the lock and do not change its content.
fn share_lock(folder: &Path) -> Result<Option<fs::File>, Error> {
    let lock = match fs::File::open(folder.join(LOCK)) {
        Ok(lock) => lock,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(source) => return Err(io_error(folder, source)),
    };
    match lock.try_lock_shared() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Err(held(folder, lock)),
        Err(TryLockError::Error(source)) => Err(io_error(folder, source)),
    }
}

/// Only a process that holds the lock exclusively has written its id.
fn held(folder: &Path, mut lock: fs::File) -> Error {
    let is_shared = lock.try_lock_shared().is_ok();
    let pid = if is_shared { None } else { read_pid(&mut lock) };
    Error::Held { folder: folder.to_owned(), pid }
}

fn read_pid(lock: &mut fs::File) -> Option<u32> {
    let mut text = String::new();
    lock.take(32).read_to_string(&mut text).ok()?;
    text.trim().parse().ok()
}

/// Syncs the parents of new folders. Otherwise, a power cut could lose a new folder.
fn create_folder(folder: &Path) -> io::Result<()> {
    let missing: Vec<&Path> =
        folder.ancestors().take_while(|path| !path.as_os_str().is_empty() && !path.exists()).collect();
    // Other users of this machine must not read the content.
    fs::DirBuilder::new().recursive(true).mode(0o700).create(folder)?;
    for parent in missing.iter().filter_map(|path| path.parent()) {
        let here = parent.as_os_str().is_empty();
        fs::File::open(if here { Path::new(".") } else { parent })?.sync_all()?;
    }
    Ok(())
}

fn io_error(folder: &Path, source: io::Error) -> Error {
    Error::Io { folder: folder.to_owned(), source }
}

fn holder(pid: Option<u32>) -> String {
    pid.map_or_else(|| "another process".to_owned(), |pid| format!("process {pid}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn files_come_back_under_their_names() {
        let root = tempfile::tempdir().expect("a temporary folder");
        let folder = root.path().join("a/b");
        let disk = RealDisk::open(&folder).expect("a new folder");
        let mode = fs::metadata(&folder).expect("the folder exists").permissions().mode();
        assert_eq!(mode & 0o077, 0, "other users have no access");
        let file = disk.create("one").expect("create succeeds");
        file.write_at(b"hello", 3).expect("write succeeds");
        file.sync().expect("sync succeeds");
        disk.rename("one", "two").expect("rename succeeds");
        disk.sync_names().expect("sync_names succeeds");
        drop((file, disk));

        let disk = RealDisk::open(&folder).expect("the same folder");
        assert_eq!(disk.list().expect("list succeeds"), ["two"]);
        let file = disk.open("two").expect("open succeeds");
        let mut buf = [9; 16];
        assert_eq!(file.read_at(&mut buf, 1).expect("read succeeds"), 7);
        assert_eq!(&buf[..7], b"\0\0hello");
        assert_eq!(file.len().expect("len succeeds"), 8);
        assert!(disk.free_bytes().expect("the free space is known") > 0);
        disk.remove("two").expect("remove succeeds");
        assert_eq!(disk.open("two").err().map(|e| e.kind()), Some(io::ErrorKind::NotFound));
    }

    #[test]
    fn a_held_folder_names_its_holder() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let held = RealDisk::open(folder.path()).expect("the folder is free");
        for second in [RealDisk::open(folder.path()), RealDisk::read_only(folder.path())] {
            let message = second.err().expect("the folder is in use").to_string();
            let pid = std::process::id();
            assert_eq!(
                message,
                format!("data folder {} is in use by process {pid}", folder.path().display())
            );
        }
        drop(held);
        let reading = RealDisk::read_only(folder.path()).expect("the folder is free again");
        RealDisk::read_only(folder.path()).expect("readers share the folder");
        let message = RealDisk::open(folder.path()).err().expect("a reader uses the folder").to_string();
        assert!(message.ends_with("is in use by another process"), "{message}");
        drop(reading);
        RealDisk::open(folder.path()).expect("the folder is free again");
    }

    #[test]
    fn read_only_leaves_an_empty_folder_empty() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let disk = RealDisk::read_only(folder.path()).expect("an empty folder needs no lock");
        assert!(disk.list().expect("list succeeds").is_empty());
        assert_eq!(fs::read_dir(folder.path()).expect("a folder").count(), 0);
    }

    #[test]
    fn read_only_writes_nothing() {
        let folder = tempfile::tempdir().expect("a temporary folder");
        RealDisk::open(folder.path())
            .and_then(|disk| disk.create("x").map(drop).map_err(|source| io_error(folder.path(), source)))
            .expect("a folder with a file");
        let disk = RealDisk::read_only(folder.path()).expect("the folder is free");
        assert!(disk.create("y").is_err());
        assert!(disk.remove("x").is_err());
        assert!(disk.rename("x", "y").is_err());
        assert!(disk.open("x").expect("open succeeds").write_at(b"1", 0).is_err());
        assert!(RealDisk::read_only(&folder.path().join("none")).is_err());
        assert_eq!(disk.list().expect("list succeeds"), ["x"]);
    }
}
