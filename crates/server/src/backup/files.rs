//! Appends artifacts of functions to the archive of a backup. Opens one file at a time and reads it in chunks.

use klambda_functions::platform::Files;
use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::UNIX_EPOCH;
use tar::{Builder, EntryType, Header};

pub fn append<W: Write>(archive: &mut Builder<W>, files: &Files) -> io::Result<()> {
    files.paths.iter().try_for_each(|path| append_path(archive, files, path))
}

/// Skips files that no longer exist: a function may delete files of its own folder.
fn append_path<W: Write>(archive: &mut Builder<W>, files: &Files, path: &Path) -> io::Result<()> {
    let (from, name) = (files.folder.join(path), files.name.join(path));
    let Some(metadata) = there(fs::symlink_metadata(&from))? else { return Ok(()) };
    let mut header = header(&metadata);
    if metadata.is_symlink() {
        let Some(target) = there(fs::read_link(&from))? else { return Ok(()) };
        header.set_entry_type(EntryType::Symlink);
        return archive.append_link(&mut header, name, target);
    }
    if metadata.is_file() {
        let Some(file) = there(File::open(&from))? else { return Ok(()) };
        header.set_size(metadata.len());
        // A file that shrinks meanwhile is padded, because the header already has its length.
        return archive.append_data(&mut header, name, file.chain(io::repeat(0)).take(metadata.len()));
    }
    if metadata.is_dir() {
        header.set_entry_type(EntryType::Directory);
        archive.append_data(&mut header, name, io::empty())?;
        return append_folder(archive, files, path);
    }
    Ok(())
}

fn append_folder<W: Write>(archive: &mut Builder<W>, files: &Files, path: &Path) -> io::Result<()> {
    let Some(entries) = there(fs::read_dir(files.folder.join(path)))? else { return Ok(()) };
    let names = entries.map(|entry| entry.map(|entry| entry.file_name()));
    let mut names = names.collect::<io::Result<Vec<_>>>()?;
    names.sort();
    names.iter().try_for_each(|name| append_path(archive, files, &path.join(name)))
}

/// The owner can always read and write the unpacked files. Compiled Python is valid only with the original times.
fn header(metadata: &Metadata) -> Header {
    let mut header = Header::new_gnu();
    let owner = if metadata.is_dir() { 0o700 } else { 0o600 };
    header.set_mode(metadata.permissions().mode() & 0o777 | owner);
    let written = metadata.modified().ok().and_then(|time| time.duration_since(UNIX_EPOCH).ok());
    header.set_mtime(written.map_or(0, |since| since.as_secs()));
    header.set_size(0);
    header
}

fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn what_is_packed_unpacks_the_same() {
        let home = tempfile::tempdir().unwrap();
        let (from, to) = (home.path().join("from"), home.path().join("to"));
        fs::create_dir_all(from.join("artifacts/a/code/deep")).unwrap();
        fs::write(from.join("artifacts/a/code/deep/run"), vec![7; 100_000]).unwrap();
        let can_run = fs::Permissions::from_mode(0o755);
        fs::set_permissions(from.join("artifacts/a/code/deep/run"), can_run).unwrap();
        std::os::unix::fs::symlink("deep/run", from.join("artifacts/a/code/link")).unwrap();
        fs::write(from.join("left-out"), "x").unwrap();
        let paths = ["artifacts/a", "made/gone.json"].map(PathBuf::from).into();
        let files = Files { folder: from, name: "functions".into(), paths };
        let mut archive = Builder::new(Vec::new());
        append(&mut archive, &files).unwrap();
        let bytes = archive.into_inner().unwrap();
        tar::Archive::new(bytes.as_slice()).unpack(&to).unwrap();
        let code = to.join("functions/artifacts/a/code");
        assert_eq!(fs::read(code.join("link")).unwrap(), vec![7; 100_000]);
        assert_eq!(fs::metadata(code.join("deep/run")).unwrap().permissions().mode() & 0o777, 0o755);
        assert!(fs::symlink_metadata(code.join("link")).unwrap().is_symlink());
        assert!(!to.join("functions/left-out").exists());
    }
}
