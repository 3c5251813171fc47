//! A file system of its own in memory. Unmounted when dropped, also by a test that fails.

use crate::support::eventually;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};
use tempfile::TempDir;

pub struct SmallDisk {
    folder: TempDir,
    asked: AtomicU32,
}

impl SmallDisk {
    /// `None` if this process may not mount.
    pub fn mount(size: &str) -> Option<SmallDisk> {
        let folder = tempfile::tempdir().expect("a folder");
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "-o", &format!("size={size}"), "klambda-test"]).arg(folder.path());
        let is_mounted = mount.output().is_ok_and(|output| output.status.success());
        is_mounted.then(|| SmallDisk { folder, asked: AtomicU32::new(0) })
    }

    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Makes the disk large when all cases that need it full are done with that.
    pub fn grow_after(&self, cases: u32) {
        self.asked.fetch_add(1, SeqCst);
        eventually("all alerts of the full disk have fired", || match self.asked.load(SeqCst) {
            asked if asked >= cases => Ok(()),
            asked => Err(format!("{asked} of {cases}")),
        });
        let mut mount = Command::new("mount");
        mount.args(["-o", "remount,size=8g"]).arg(self.folder());
        assert!(mount.status().expect("mount").success());
    }
}

impl Drop for SmallDisk {
    fn drop(&mut self) {
        // Lazily: a process that still has a file open keeps the disk only for itself.
        let _ = Command::new("umount").arg("--lazy").arg(self.folder()).status();
    }
}
