//! A small separate file with the address where the last commit group begins.
//!
//! A frame contains the address up to which the log was durable when the frame was written, so a later frame proves
//! an earlier one. Nothing follows the last group. If a lost sector contained its header together with the end of the
//! previous group, or if its frames were written while the previous sync was still running, damage would look like a
//! torn tail. This file makes the difference visible.
//!
//! The file is written before each sync and never synced itself. After a killed process it is exact; after a power
//! cut it may be outdated or torn. Its content was true when it was written and stays true, so an outdated file is
//! valid. A torn file counts as absent.

use crate::address::LogAddress;
use crate::disk::{Disk, File};
use std::io;
use std::sync::Arc;

pub const NAME: &str = "synced";
const MAGIC: u32 = 0x6b6c_7379;
const BYTES: usize = 16;

/// `None` if the file could not be opened. The log works without it.
#[derive(Clone)]
pub(crate) struct Witness(Option<Arc<dyn File>>);

impl Witness {
    pub(crate) fn open(disk: &dyn Disk) -> Witness {
        let file = match disk.open(NAME) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => disk.create(NAME),
            other => other,
        };
        Witness(file.ok())
    }

    pub(crate) fn write(&self, durable: LogAddress) {
        if let Some(file) = &self.0 {
            let _ = file.write_at(&encode(durable), 0);
        }
    }
}

/// The log was durable up to this address.
pub(crate) fn read(disk: &dyn Disk) -> LogAddress {
    let mut bytes = [0; BYTES];
    let n = disk.open(NAME).and_then(|file| file.read_at(&mut bytes, 0)).unwrap_or(0);
    let address = LogAddress(bytes[8..].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    if n == BYTES && encode(address) == bytes { address } else { LogAddress(0) }
}

/// For a new folder: removes a file that was left by an earlier one.
pub fn forget(disk: &dyn Disk) -> io::Result<()> {
    match disk.remove(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// The content of the file for this address.
pub fn encode(durable: LogAddress) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&crc32fast::hash(&durable.0.to_le_bytes()).to_le_bytes());
    out[8..].copy_from_slice(&durable.0.to_le_bytes());
    out
}
