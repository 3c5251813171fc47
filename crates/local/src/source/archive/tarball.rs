//! Reads tar.gz entry by entry, in file order. Long names are read here and not by the library, which would allocate as much
//! memory as a name claims to need. Nothing is skipped: all inflated bytes except headers count toward the budget, and the
//! number of headers is limited by the number of files.

use super::{Error, Unpacking};
use crate::source::budget::plain_path;
use flate2::read::MultiGzDecoder;
use std::ffi::OsString;
use std::fs;
use std::io::{BufReader, Read};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use tar::{Archive, Entry, EntryType, PaxExtensions};

/// Size limit of records that describe the next entry.
const DESCRIPTION_BYTES_MAX: u64 = 64 << 10;

type TarEntry<'a> = Entry<'a, MultiGzDecoder<BufReader<fs::File>>>;

/// Data about an entry from the records before it.
#[derive(Default)]
struct Described {
    path: Option<PathBuf>,
    link: Option<PathBuf>,
}

pub fn unpack(file: fs::File, unpacking: &mut Unpacking) -> Result<(), Error> {
    let mut archive = Archive::new(MultiGzDecoder::new(BufReader::new(file)));
    let mut described = Described::default();
    for entry in archive.entries().map_err(bad)?.raw(true) {
        let mut entry = entry.map_err(bad)?;
        unpacking.budget.entry()?;
        match entry.header().entry_type() {
            EntryType::GNULongName => described.path = Some(name(text(&mut entry, unpacking)?)),
            EntryType::GNULongLink => described.link = Some(name(text(&mut entry, unpacking)?)),
            EntryType::XHeader => pax(&text(&mut entry, unpacking)?, &mut described)?,
            EntryType::XGlobalHeader => drop(text(&mut entry, unpacking)?),
            kind => unpack_entry(&mut entry, kind, std::mem::take(&mut described), unpacking)?,
        }
    }
    Ok(())
}

fn unpack_entry(
    entry: &mut TarEntry,
    kind: EntryType,
    described: Described,
    unpacking: &mut Unpacking,
) -> Result<(), Error> {
    let path = match described.path {
        Some(path) => path,
        None => entry.path().map_err(bad)?.into_owned(),
    };
    let path = plain_path(&path)?;
    let mode = entry.header().mode().map_err(bad)?;
    let is_file = matches!(kind, EntryType::Regular | EntryType::Continuous);
    // The library would inflate it, uncounted, to find the next entry.
    if !is_file && entry.size() != 0 {
        return Err(Error::UnsafeArchive(format!("{path:?} has content but is not a file")));
    }
    match kind {
        // Some tools write an entry for the root folder, which already exists.
        EntryType::Directory => unpacking.folder(&path),
        _ if is_file => unpacking.file(&path, mode, entry),
        EntryType::Symlink | EntryType::Link => {
            let target = match described.link {
                Some(target) => Some(target),
                None => entry.link_name().map_err(bad)?.map(|target| target.into_owned()),
            };
            let target =
                target.ok_or_else(|| Error::UnsafeArchive(format!("link {path:?} has no target")))?;
            link(unpacking, kind, &path, &target)
        }
        _ => Err(Error::UnsafeArchive(format!("{path:?} is not a file, folder or link"))),
    }
}

fn link(unpacking: &mut Unpacking, kind: EntryType, path: &Path, target: &Path) -> Result<(), Error> {
    match kind {
        EntryType::Link => unpacking.hard_link(path, target),
        _ => unpacking.link(path, target),
    }
}

fn text(entry: &mut TarEntry, unpacking: &mut Unpacking) -> Result<Vec<u8>, Error> {
    let mut bytes = Vec::new();
    entry.take(DESCRIPTION_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(bad)?;
    if bytes.len() as u64 > DESCRIPTION_BYTES_MAX {
        return Err(Error::UnsafeArchive(format!("a name of more than {DESCRIPTION_BYTES_MAX} bytes")));
    }
    unpacking.budget.take(bytes.len() as u64)?;
    Ok(bytes)
}

fn name(mut bytes: Vec<u8>) -> PathBuf {
    if let Some(end) = bytes.iter().position(|byte| *byte == 0) {
        bytes.truncate(end);
    }
    PathBuf::from(OsString::from_vec(bytes))
}

fn pax(bytes: &[u8], described: &mut Described) -> Result<(), Error> {
    for extension in PaxExtensions::new(bytes) {
        let extension = extension.map_err(bad)?;
        match extension.key_bytes() {
            b"path" => described.path = Some(name(extension.value_bytes().to_vec())),
            b"linkpath" => described.link = Some(name(extension.value_bytes().to_vec())),
            // This would move the start of the next entry away from where the header says.
            b"size" => return Err(Error::UnsafeArchive("an entry has two sizes".into())),
            key if key.starts_with(b"GNU.sparse") => {
                return Err(Error::UnsafeArchive(
                    "sparse files are not supported; create the archive without --sparse".into(),
                ));
            }
            _ => {}
        }
    }
    Ok(())
}

fn bad(error: std::io::Error) -> Error {
    Error::BadArchive(error.to_string())
}
