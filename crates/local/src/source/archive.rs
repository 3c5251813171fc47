//! Unpacks untrusted archives: zip and tar.gz.
//!
//! Every entry is checked before any byte of it is written: its path has only plain names and goes only through real
//! folders; links stay inside; devices, pipes and encrypted entries are rejected. Bytes are counted while unpacking, not
//! taken from the header. Of the mode, only the executable bit is kept.

use super::budget::{Budget, link_stays_inside, plain_path};
use super::{Error, Fetched, Limits};
use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Instant;

mod tarball;

/// Longer link targets are an attack or a mistake.
const LINK_BYTES_MAX: u64 = 4096;

/// Unpacks an archive into an existing empty folder. The first bytes determine its type.
pub fn unpack(archive: &Path, into: &Path, limits: &Limits) -> Result<Fetched, Error> {
    unpack_by(archive, into, limits, Instant::now() + limits.time)
}

pub(super) fn unpack_by(
    archive: &Path,
    into: &Path,
    limits: &Limits,
    deadline: Instant,
) -> Result<Fetched, Error> {
    let mut file = fs::File::open(archive)?;
    let packed_bytes = file.metadata()?.len();
    if packed_bytes > limits.transfer_bytes {
        return Err(Error::TooLarge(format!("the archive is larger than {} bytes", limits.transfer_bytes)));
    }
    let mut unpacking = Unpacking { into, budget: Budget::of_archive(limits, packed_bytes, deadline) };
    let mut magic = [0; 4];
    let known = file.read_exact(&mut magic).is_ok();
    file.rewind()?;
    match magic {
        [b'P', b'K', 3, 4] | [b'P', b'K', 5, 6] if known => unzip(file, limits, &mut unpacking)?,
        [0x1f, 0x8b, ..] if known => tarball::unpack(file, &mut unpacking)?,
        _ => return Err(Error::BadArchive("the file is neither a zip nor a tar.gz".into())),
    }
    Ok(unpacking.budget.fetched())
}

struct Unpacking<'a> {
    into: &'a Path,
    budget: Budget,
}

impl Unpacking<'_> {
    fn folder(&mut self, path: &Path) -> Result<(), Error> {
        let mut at = self.into.to_path_buf();
        for name in path.iter() {
            at.push(name);
            match fs::create_dir(&at) {
                Ok(()) => {}
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                    // Do not follow links: an entry behind a link could end up anywhere.
                    if !fs::symlink_metadata(&at)?.is_dir() {
                        return Err(Error::UnsafeArchive(format!("{path:?} goes through a link or a file")));
                    }
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The path of an entry that is not a folder. Creates its parent folders.
    fn place(&mut self, path: &Path) -> Result<PathBuf, Error> {
        let Some(parent) = path.parent() else {
            return Err(Error::UnsafeArchive("an entry has no name".into()));
        };
        self.folder(parent)?;
        Ok(self.into.join(path))
    }

    fn file(&mut self, path: &Path, mode: u32, content: &mut impl Read) -> Result<(), Error> {
        let place = self.place(path)?;
        let mut file = fs::File::create_new(&place).map_err(|error| twice(path, error))?;
        self.budget.copy(content, &mut file)?;
        let mode = if mode & 0o111 == 0 { 0o644 } else { 0o755 };
        file.set_permissions(fs::Permissions::from_mode(mode))?;
        Ok(())
    }

    fn link(&mut self, path: &Path, target: &Path) -> Result<(), Error> {
        if target.as_os_str().len() as u64 > LINK_BYTES_MAX {
            return Err(Error::UnsafeArchive(format!("the target of link {path:?} is too long")));
        }
        if !link_stays_inside(path, target) {
            return Err(Error::UnsafeArchive(format!(
                "link {path:?} points out of the folder, to {target:?}"
            )));
        }
        let place = self.place(path)?;
        std::os::unix::fs::symlink(target, place).map_err(|error| twice(path, error))
    }

    fn hard_link(&mut self, path: &Path, target: &Path) -> Result<(), Error> {
        let target = plain_path(target)?;
        let place = self.place(path)?;
        self.place(&target)?;
        let original = self.into.join(&target);
        match fs::symlink_metadata(&original) {
            Ok(metadata) if metadata.is_file() => {}
            _ => {
                return Err(Error::UnsafeArchive(format!(
                    "{path:?} links to {target:?}, which is not a file in the archive"
                )));
            }
        }
        fs::hard_link(original, place).map_err(|error| twice(path, error))
    }
}

fn twice(path: &Path, error: io::Error) -> Error {
    match error.kind() {
        io::ErrorKind::AlreadyExists => Error::UnsafeArchive(format!("the archive contains {path:?} twice")),
        _ => Error::Io(error),
    }
}

fn unzip(mut file: fs::File, limits: &Limits, unpacking: &mut Unpacking) -> Result<(), Error> {
    entries_claimed(&mut file, limits.files)?;
    let mut archive = zip::ZipArchive::new(io::BufReader::new(file)).map_err(bad_zip)?;
    for index in 0..archive.len() {
        let mut entry = archive.by_index(index).map_err(bad_zip)?;
        unpacking.budget.entry()?;
        let name = entry.name().map_err(bad_zip)?.into_owned();
        let path = plain_path(Path::new(&name))?;
        let mode = entry.unix_mode().unwrap_or(0o644);
        if entry.is_dir() {
            unpacking.folder(&path)?;
        } else if entry.is_symlink() {
            let mut target = String::new();
            let read = (&mut entry).take(LINK_BYTES_MAX + 1).read_to_string(&mut target);
            read.map_err(|error| Error::BadArchive(error.to_string()))?;
            unpacking.link(&path, Path::new(&target))?;
        } else if !matches!(mode & 0o170_000, 0 | 0o100_000) {
            return Err(Error::UnsafeArchive(format!("{path:?} is not a file, folder or link")));
        } else {
            unpacking.file(&path, mode, &mut entry)?;
        }
    }
    Ok(())
}

fn bad_zip(error: zip::result::ZipError) -> Error {
    Error::BadArchive(error.to_string())
}

/// Reading the entry list of a zip takes memory per entry, so the number of entries is checked first, at every place near the
/// end of the file that looks like the record that contains it.
fn entries_claimed(file: &mut fs::File, files_max: u64) -> Result<(), Error> {
    const RECORD: usize = 22;
    const MARK: [u8; 4] = [b'P', b'K', 5, 6];
    /// The record, the longest comment after it, and the extra bytes that readers tolerate.
    const TAIL: u64 = 128 << 10;
    let length = file.metadata()?.len();
    let tail_length = length.min(TAIL);
    file.seek(SeekFrom::Start(length - tail_length))?;
    let mut tail = Vec::with_capacity(tail_length as usize);
    file.read_to_end(&mut tail)?;
    file.rewind()?;
    for record in tail.windows(RECORD).filter(|window| window[..4] == MARK) {
        let count = u64::from(u16::from_le_bytes([record[10], record[11]]));
        // The maximum value in one of these fields means that the real values are in a zip64 record.
        let is_elsewhere = [10..12, 12..16, 16..20].iter().any(|field| is_largest(&record[field.clone()]));
        if is_elsewhere {
            return Err(Error::TooLarge(
                "zip64 archives are not supported; use a plain zip with fewer than 65535 files and less than 4 GiB".into(),
            ));
        }
        if count > files_max {
            return Err(Error::TooLarge(format!(
                "more than {files_max} files; remove files that the function does not need"
            )));
        }
    }
    Ok(())
}

fn is_largest(field: &[u8]) -> bool {
    field.iter().all(|byte| *byte == u8::MAX)
}
