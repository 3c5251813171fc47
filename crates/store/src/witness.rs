//! Where the last commit group begins, in a small file of its own.
//!
//! A frame says how far the log was durable when it was written, so a later frame proves an earlier one. Nothing comes
//! after the last group: if a lost sector held its header together with the end of the group before, or if its frames
//! were written while the sync before was still under way, damage would look like a torn tail. This file tells.
//!
//! It is written before each sync and never synced itself: a killed process leaves it exact, a power cut may leave it
//! old or torn. What it says was true when it was written and stays true, so old is fine, and torn is as good as nothing.

use crate::disk::{Disk, File};
use klambda_core::ids::Address;
use std::io;
use std::sync::Arc;

pub const NAME: &str = "synced";
const MAGIC: u32 = 0x6b6c_7379;
const BYTES: usize = 16;

/// Nothing is written if the file cannot be had: the log does without.
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

    pub(crate) fn write(&self, durable: Address) {
        if let Some(file) = &self.0 {
            let _ = file.write_at(&encode(durable), 0);
        }
    }
}

/// All below this was durable once.
pub(crate) fn read(disk: &dyn Disk) -> Address {
    let mut bytes = [0; BYTES];
    let n = disk.open(NAME).and_then(|file| file.read_at(&mut bytes, 0)).unwrap_or(0);
    let address = Address(bytes[8..].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte)));
    if n == BYTES && encode(address) == bytes { address } else { Address(0) }
}

/// Of a folder that is new: whatever was there before is not its own.
pub fn forget(disk: &dyn Disk) -> io::Result<()> {
    match disk.remove(NAME) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other,
    }
}

/// What the file holds that says this.
pub fn encode(durable: Address) -> [u8; BYTES] {
    let mut out = [0; BYTES];
    out[..4].copy_from_slice(&MAGIC.to_le_bytes());
    out[4..8].copy_from_slice(&crc32fast::hash(&durable.0.to_le_bytes()).to_le_bytes());
    out[8..].copy_from_slice(&durable.0.to_le_bytes());
    out
}
