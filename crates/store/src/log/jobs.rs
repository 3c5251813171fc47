//! What the log has done by other threads: syncs, and the blocks of the next segment.

use crate::disk::{Disk, File};
use klambda_core::ids::Address;
use std::io;
use std::sync::Arc;

/// Makes everything written so far durable. Runs on any thread.
pub struct SyncJob {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) files: Vec<Arc<dyn File>>,
    pub(super) names: bool,
    pub up_to: Address,
}

impl SyncJob {
    pub fn run(&self) -> io::Result<()> {
        if self.names {
            self.disk.sync_names()?;
        }
        self.files.iter().try_for_each(|file| file.sync())
    }
}

pub(super) const SPARE: &str = "spare";
const SPARE_UNFINISHED: &str = "spare-unfinished";

/// Writes the blocks of the next segment. Runs on any thread.
pub struct PrepareJob {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) bytes: u64,
}

impl PrepareJob {
    pub fn run(&self) -> io::Result<Arc<dyn File>> {
        let result = self.write_zeros();
        if result.is_err() {
            // What was written of it takes up the room others need.
            let _ = self.disk.remove(SPARE_UNFINISHED);
        }
        result
    }

    fn write_zeros(&self) -> io::Result<Arc<dyn File>> {
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
        self.disk.sync_names().map_err(|source| io::Error::other(NamesLost(source)))?;
        Ok(file)
    }
}

/// Names of the log may be lost with it, and the next sync of names would not say so: no way to go on.
#[derive(Debug, thiserror::Error)]
#[error("names could not be made durable: {0}")]
pub(super) struct NamesLost(#[source] io::Error);
