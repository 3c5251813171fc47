//! Secrets as files: written into a folder of the replica before it starts, and removed with it.

use std::fmt;
use std::fs::{self, DirBuilder, OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use zeroize::Zeroizing;

/// The variable with the folder, in which each secret is a folder with a file for each key.
pub const VARIABLE: &str = "KLAMBDA_SECRETS";
/// The same folder in a container.
pub const IN_CONTAINER: &str = "/var/run/secrets/klambda";

/// What a replica finds in its folder.
#[derive(Clone, Default)]
pub struct Files {
    pub secrets: Vec<SecretFiles>,
}

#[derive(Clone)]
pub struct SecretFiles {
    pub secret: String,
    /// A second place in a container.
    pub path: Option<String>,
    pub files: Vec<(String, Zeroizing<Vec<u8>>)>,
}

/// Files that exist as long as this does.
pub struct Written {
    folder: PathBuf,
}

/// Who reads the files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reader {
    /// A process of our own user.
    Process,
    /// An image, which may run as any user. The folder above has mode 0700, so other users of this machine cannot reach
    /// the files; in the container the folder itself is mounted.
    Container,
}

impl Files {
    pub fn write(&self, folder: PathBuf, reader: Reader) -> io::Result<Written> {
        let (folder_mode, file_mode) = match reader {
            Reader::Process => (0o700, 0o600),
            Reader::Container => (0o755, 0o644),
        };
        if let Some(parent) = folder.parent() {
            DirBuilder::new().mode(0o700).recursive(true).create(parent)?;
        }
        make(&folder, folder_mode)?;
        let written = Written { folder };
        for secret in &self.secrets {
            let own = written.folder.join(&secret.secret);
            make(&own, folder_mode)?;
            for (key, value) in &secret.files {
                let mut file =
                    OpenOptions::new().write(true).create_new(true).mode(0o600).open(own.join(key))?;
                file.write_all(value)?;
                // Not affected by the umask.
                file.set_permissions(Permissions::from_mode(file_mode))?;
            }
        }
        Ok(written)
    }

    /// Which folders a container sees, and where.
    pub fn mounts(&self, written: &Written) -> Vec<(PathBuf, String)> {
        let whole = (written.folder.clone(), IN_CONTAINER.to_owned());
        let own = |secret: &SecretFiles| Some((written.folder.join(&secret.secret), secret.path.clone()?));
        [whole].into_iter().chain(self.secrets.iter().filter_map(own)).collect()
    }
}

impl Written {
    pub fn folder(&self) -> &Path {
        &self.folder
    }
}

impl Drop for Written {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.folder) {
            tracing::warn!(%error, folder = %self.folder.display(), "Could not remove the secret files of a replica");
        }
    }
}

impl fmt::Debug for Files {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.secrets.iter().map(|secret| &secret.secret)).finish()
    }
}

fn make(folder: &Path, mode: u32) -> io::Result<()> {
    DirBuilder::new().mode(0o700).recursive(true).create(folder)?;
    fs::set_permissions(folder, Permissions::from_mode(mode))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn files_are_for_their_owner_alone_and_go_with_the_replica() {
        let home = tempfile::tempdir().unwrap();
        let value = Zeroizing::new(b"hush".to_vec());
        let tls = SecretFiles {
            secret: "tls".into(),
            path: Some("/etc/tls".into()),
            files: vec![("cert.pem".into(), value)],
        };
        let files = Files { secrets: vec![tls] };
        let written = files.write(home.path().join("secrets/7"), Reader::Process).unwrap();
        let file = written.folder().join("tls/cert.pem");
        assert_eq!(fs::read(&file).unwrap(), b"hush");
        let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o777;
        assert_eq!((mode(&file), mode(written.folder())), (0o600, 0o700));
        let mounts = files.mounts(&written);
        assert_eq!(mounts[1], (written.folder().join("tls"), "/etc/tls".to_owned()));
        assert_eq!(format!("{files:?}"), "[\"tls\"]");
        drop(written);
        assert!(!home.path().join("secrets/7").exists());

        let written = files.write(home.path().join("secrets/8"), Reader::Container).unwrap();
        let file = written.folder().join("tls/cert.pem");
        let modes = [file.as_path(), written.folder(), &home.path().join("secrets")].map(mode);
        assert_eq!(modes, [0o644, 0o755, 0o700], "readable in the container, not on this machine");
    }
}
