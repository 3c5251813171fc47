//! The manifest: a small file that describes the data folder. It contains the format, the hash key, the checkpoint
//! address and the list of tables. A rename replaces it atomically.

use crate::address::LogAddress;
use crate::disk::{Disk, read_exact_at, sync_names};
use crate::recovery::Checkpoint;
use klambda_core::ids::Position;
use klambda_core::os_error::in_words;
use klambda_core::planted::{self, Bug};
use serde::{Deserialize, Serialize};
use std::io;

/// Format 2 added namespaces to events. Format 3 added separate rows and records for unordered events.
pub const FORMAT: u32 = 4;
pub const NAME: &str = "manifest";
const NEW_NAME: &str = "manifest-new";

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Manifest {
    pub format: u32,
    /// The key of this folder's identity hashes, in hexadecimal.
    pub key: String,
    pub checkpoint: LogAddress,
    pub next_position: Position,
    /// Newest first.
    pub rows: Vec<String>,
    pub marks: Vec<String>,
    /// The number of the next table. Numbers are never reused.
    pub next_table: u64,
}

/// The part of the manifest that all formats share.
#[derive(Deserialize)]
struct Format {
    format: u32,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("manifest: {}", in_words(.0))]
    Io(#[from] io::Error),
    #[error("the manifest is damaged: {0}")]
    Damaged(String),
    #[error("the data folder has format {found}, but this version supports only format {FORMAT}: {}", advice(*.found))]
    Format { found: u32 },
    #[error(
        "the folder contains a log but no manifest: it is damaged or not a data folder of knative-lambda"
    )]
    Missing,
}

/// What the user can do with a folder of another format.
fn advice(found: u32) -> &'static str {
    match found < FORMAT {
        true => {
            "deliver all pending events with the version that wrote it, then start this version with an empty folder"
        }
        false => "use the version that wrote it",
    }
}

impl Manifest {
    pub fn new(key: [u8; 16]) -> Manifest {
        Manifest {
            format: FORMAT,
            key: key.iter().map(|byte| format!("{byte:02x}")).collect(),
            checkpoint: LogAddress(0),
            next_position: Position(1),
            rows: Vec::new(),
            marks: Vec::new(),
            next_table: 1,
        }
    }

    pub fn key(&self) -> [u8; 16] {
        let mut key = [0; 16];
        for (n, byte) in key.iter_mut().enumerate() {
            *byte =
                self.key.get(2 * n..2 * n + 2).and_then(|hex| u8::from_str_radix(hex, 16).ok()).unwrap_or(0);
        }
        key
    }

    pub fn checkpoint(&self) -> Checkpoint {
        Checkpoint { address: self.checkpoint, next_position: self.next_position }
    }

    pub fn take_table_name(&mut self, kind: &str) -> String {
        let name = format!("{kind}-{:08}", self.next_table);
        self.next_table += 1;
        name
    }

    /// Returns `None` for a new folder.
    pub fn load(disk: &dyn Disk) -> Result<Option<Manifest>, Error> {
        let file = match disk.open(NAME) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let has_log = disk.list()?.iter().any(|name| name.starts_with("log-"));
                return if has_log { Err(Error::Missing) } else { Ok(None) };
            }
            Err(error) => return Err(error.into()),
        };
        let mut bytes = vec![0; file.len()? as usize];
        read_exact_at(&*file, &mut bytes, 0)?;
        Manifest::decode(&bytes).map(Some)
    }

    fn decode(bytes: &[u8]) -> Result<Manifest, Error> {
        let damaged = || Error::Damaged("the checksum does not match".into());
        let text = std::str::from_utf8(bytes).map_err(|_| damaged())?;
        let (crc, json) = text.split_once('\n').ok_or_else(damaged)?;
        if crc != format!("{:08x}", crc32fast::hash(json.as_bytes())) {
            return Err(damaged());
        }
        let unreadable = |error: serde_json::Error| Error::Damaged(error.to_string());
        // Checked first, because another format may have other fields.
        let Format { format } = serde_json::from_str(json).map_err(unreadable)?;
        match format {
            FORMAT => serde_json::from_str(json).map_err(unreadable),
            other => Err(Error::Format { found: other }),
        }
    }

    /// The content of the file.
    pub fn encode(&self) -> io::Result<Vec<u8>> {
        let json = serde_json::to_string_pretty(self).map_err(io::Error::other)?;
        Ok(format!("{:08x}\n{json}", crc32fast::hash(json.as_bytes())).into_bytes())
    }

    /// If this fails because names were lost, either the old or the new manifest may be on disk.
    pub fn save(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = disk.create(NEW_NAME)?;
        file.write_at(&self.encode()?, 0)?;
        if !planted::is_on(Bug::ManifestUnsynced) {
            file.sync()?;
        }
        disk.rename(NEW_NAME, NAME)?;
        sync_names(disk)
    }

    /// Removes files that the manifest does not name: leftovers of chores that a crash interrupted.
    pub fn sweep(&self, disk: &dyn Disk) -> io::Result<()> {
        for name in disk.list()? {
            let table = name.starts_with("rows-") || name.starts_with("marks-");
            let named = self.rows.contains(&name) || self.marks.contains(&name);
            if (table && !named) || name.starts_with("spare") || name == NEW_NAME {
                disk.remove(&name)?;
            }
        }
        Ok(())
    }
}
