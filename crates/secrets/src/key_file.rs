//! The file that holds the encryption keys. Only its owner may read it, and it is replaced as a whole.

use crate::key::{KeyRing, Malformed};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

const MODE: u32 = 0o600;
const OTHERS: u32 = 0o077;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyFile {
    path: PathBuf,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("the key file {shown} can be read by other users (mode {mode:04o}): run `chmod 600 {shown}`", shown = .path.display())]
    Open { path: PathBuf, mode: u32 },
    #[error("the key file {} cannot be used: {source}", .path.display())]
    Malformed { path: PathBuf, source: Malformed },
    #[error("the key file {} cannot be used: {source}", .path.display())]
    Io { path: PathBuf, source: io::Error },
}

impl KeyFile {
    pub fn new(path: impl Into<PathBuf>) -> KeyFile {
        KeyFile { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The keys; none if there is no such file.
    pub fn read(&self) -> Result<KeyRing, Error> {
        let file = match File::open(&self.path) {
            Ok(file) => file,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(KeyRing::default()),
            Err(error) => return Err(self.failed(error)),
        };
        let mode = file.metadata().map_err(|error| self.failed(error))?.mode() & 0o7777;
        if mode & OTHERS != 0 {
            return Err(Error::Open { path: self.path.clone(), mode });
        }
        let text = io::read_to_string(file).map(Zeroizing::new).map_err(|error| self.failed(error))?;
        KeyRing::parse(&text).map_err(|source| Error::Malformed { path: self.path.clone(), source })
    }

    /// Returns when the keys are durable. A crash leaves the old file or the new one.
    pub fn write(&self, keys: &KeyRing) -> Result<(), Error> {
        self.try_write(keys).map_err(|error| self.failed(error))
    }

    fn try_write(&self, keys: &KeyRing) -> io::Result<()> {
        // A link stays a link: the keys belong on the disk that it names.
        let path = match fs::canonicalize(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.path.clone(),
            found => found?,
        };
        let mut name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_owned();
        name.push(".new");
        let new = path.with_file_name(name);
        // Left by a crash, perhaps with another mode.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = OpenOptions::new().write(true).create_new(true).mode(MODE).open(&new)?;
        file.write_all(keys.to_text().as_bytes())?;
        file.sync_all()?;
        fs::rename(&new, &path)?;
        let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
        File::open(folder.unwrap_or(Path::new(".")))?.sync_all()
    }

    fn failed(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::key::EncryptionKey;
    use std::os::unix::fs::PermissionsExt;

    fn ring() -> KeyRing {
        KeyRing::default().with_first(EncryptionKey::random().unwrap())
    }

    #[test]
    fn keys_are_kept_in_a_file_of_its_owner_alone() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("secrets.key"));
        assert!(file.read().unwrap().is_empty());
        let ring = ring();
        file.write(&ring).unwrap();
        assert_eq!(fs::metadata(file.path()).unwrap().mode() & 0o777, 0o600);
        assert_eq!(file.read().unwrap().first().unwrap().id(), ring.first().unwrap().id());
        let two = ring.with_first(EncryptionKey::random().unwrap());
        file.write(&two).unwrap();
        assert_eq!(file.read().unwrap().len(), 2);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_to_a_key_file_stays_a_link() {
        let (folder, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let real = KeyFile::new(other.path().join("real.key"));
        real.write(&ring()).unwrap();
        let link = KeyFile::new(folder.path().join("secrets.key"));
        std::os::unix::fs::symlink(real.path(), link.path()).unwrap();
        let two = link.read().unwrap().with_first(EncryptionKey::random().unwrap());
        link.write(&two).unwrap();
        assert!(fs::symlink_metadata(link.path()).unwrap().is_symlink());
        assert_eq!(real.read().unwrap().len(), 2);
    }

    #[test]
    fn a_file_that_others_can_read_is_refused_with_the_command_that_fixes_it() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("secrets.key"));
        file.write(&ring()).unwrap();
        for mode in [0o640, 0o604, 0o660] {
            fs::set_permissions(file.path(), fs::Permissions::from_mode(mode)).unwrap();
            let refused = file.read().unwrap_err().to_string();
            assert!(refused.contains(&format!("mode 0{mode:o}")), "{refused}");
            assert!(refused.ends_with(&format!("run `chmod 600 {}`", file.path().display())), "{refused}");
        }
        fs::set_permissions(file.path(), fs::Permissions::from_mode(0o400)).unwrap();
        assert!(file.read().is_ok());
    }

    #[test]
    fn a_file_without_keys_is_refused() {
        let folder = tempfile::tempdir().unwrap();
        let file = KeyFile::new(folder.path().join("secrets.key"));
        file.write(&KeyRing::default()).unwrap();
        assert!(file.read().unwrap_err().to_string().contains("holds no key"));
    }
}
