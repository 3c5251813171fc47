//! Jobs that other threads run for the log: syncs, and preparation of the next segment.

use crate::address::LogAddress;
use crate::disk::{Disk, File, sync_names};
use crate::witness::Witness;
use klambda_core::planted::{self, Bug};
use std::io;
use std::sync::Arc;

/// Makes everything written so far durable. Can run on any thread.
pub struct SyncJob {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) files: Vec<Arc<dyn File>>,
    pub(super) names: bool,
    pub(super) witness: Witness,
    /// The start of the range that this sync makes durable.
    pub(super) from: LogAddress,
    pub up_to: LogAddress,
}

impl SyncJob {
    pub fn run(&self) -> io::Result<()> {
        if planted::is_on(Bug::SyncLeftOut) {
            return Ok(());
        }
        self.witness.write(self.from);
        if self.names && !planted::is_on(Bug::NamesUnsynced) {
            self.disk.sync_names()?;
        }
        self.files.iter().try_for_each(|file| file.sync())
    }
}

pub(super) const SPARE: &str = "spare";
const SPARE_UNFINISHED: &str = "spare-unfinished";

/// Writes the blocks of the next segment. Can run on any thread.
pub struct PrepareJob {
    disk: Arc<dyn Disk>,
    bytes: u64,
    /// The disk counts as full if less than this would remain free.
    keep_free_bytes: u64,
    spent: Vec<Arc<dyn File>>,
}

impl PrepareJob {
    pub(super) fn new(disk: Arc<dyn Disk>, bytes: u64, keep_free_bytes: u64) -> PrepareJob {
        PrepareJob { disk, bytes, keep_free_bytes, spent: Vec::new() }
    }

    /// Releases the cached pages of these files first. The new blocks then reuse those pages, which is much cheaper
    /// than pages that the kernel has to reclaim.
    pub fn after_uncaching(mut self, spent: Vec<Arc<dyn File>>) -> PrepareJob {
        self.spent = spent;
        self
    }

    pub fn run(&self) -> io::Result<Arc<dyn File>> {
        self.spent.iter().for_each(|file| file.uncache());
        let result = self.write_zeros();
        if result.is_err() {
            // The incomplete file would use space that others need.
            let _ = self.disk.remove(SPARE_UNFINISHED);
        }
        result
    }

    fn write_zeros(&self) -> io::Result<Arc<dyn File>> {
        if self.disk.free_bytes().is_some_and(|free| free < self.bytes + self.keep_free_bytes) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let zeros = vec![0; 1 << 20];
        let file = self.disk.create(SPARE_UNFINISHED)?;
        let mut offset = 0;
        while offset < self.bytes {
            let n = (self.bytes - offset).min(zeros.len() as u64);
            file.write_at(&zeros[..n as usize], offset)?;
            offset += n;
        }
        file.sync()?;
        self.disk.rename(SPARE_UNFINISHED, SPARE)?;
        sync_names(&*self.disk)?;
        Ok(file)
    }
}
