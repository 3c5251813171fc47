//! The folder that keeps contexts and tokens. Files are written whole and renamed into place.

use super::Contexts;
use crate::exit::Usage;
use anyhow::Context as _;
use std::fs::{self, DirBuilder, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, PermissionsExt};
use std::path::{Path, PathBuf};

#[derive(Clone, Debug)]
pub struct Folder(PathBuf);

const FILE: &str = "contexts.yaml";
const LOCK: &str = "contexts.lock";
const TOKENS: &str = "tokens";
const ONLY_OWNER: u32 = 0o700;

impl Folder {
    /// `None` if the environment names no home.
    pub fn of_user() -> Option<Folder> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let base = || variable("XDG_CONFIG_HOME").or_else(|| Some(variable("HOME")?.join(".config")));
        variable("KLAMBDA_CONFIG_DIR").or_else(|| Some(base()?.join("klambda"))).map(Folder)
    }

    pub fn missing() -> Usage {
        Usage("no folder for contexts: set KLAMBDA_CONFIG_DIR or HOME".to_owned())
    }

    /// Held while the list is read, changed and written, so that commands at the same time do not lose entries.
    pub fn lock(&self) -> anyhow::Result<File> {
        let lock = || -> io::Result<File> {
            DirBuilder::new().recursive(true).mode(ONLY_OWNER).create(&self.0)?;
            let file = File::options().write(true).create(true).truncate(false).open(self.0.join(LOCK))?;
            file.lock()?;
            Ok(file)
        };
        lock().with_context(|| self.0.join(LOCK).display().to_string())
    }

    pub fn read(&self) -> anyhow::Result<Contexts> {
        let file = self.0.join(FILE);
        match fs::read_to_string(&file) {
            Ok(text) => Ok(serde_saphyr::from_str(&text).map_err(|error| Usage::file(&file, &error))?),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Contexts::default()),
            Err(error) => Err(Usage::file(&file, &error).into()),
        }
    }

    pub fn write(&self, contexts: &Contexts) -> anyhow::Result<()> {
        replace(&self.0, FILE, serde_saphyr::to_string(contexts)?.as_bytes())
    }

    /// The file with the token of a context, if the context has one.
    pub fn token(&self, name: &str) -> Option<PathBuf> {
        Some(self.token_path(name)).filter(|file| file.exists())
    }

    pub fn write_token(&self, name: &str, token: &str) -> anyhow::Result<()> {
        replace(&self.0.join(TOKENS), name, format!("{token}\n").as_bytes())
    }

    pub fn delete_token(&self, name: &str) -> anyhow::Result<()> {
        let file = self.token_path(name);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(error).with_context(|| file.display().to_string())
            }
            _ => Ok(()),
        }
    }

    fn token_path(&self, name: &str) -> PathBuf {
        self.0.join(TOKENS).join(name)
    }
}

/// A temporary file has mode 0600 from the start: at no time can others read the token.
fn replace(folder: &Path, name: &str, content: &[u8]) -> anyhow::Result<()> {
    let write = || -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(ONLY_OWNER).create(folder)?;
        let mut file = tempfile::NamedTempFile::new_in(folder)?;
        file.write_all(content)?;
        file.as_file().sync_all()?;
        file.persist(folder.join(name))?;
        File::open(folder)?.sync_all()
    };
    write().with_context(|| folder.join(name).display().to_string())
}

/// What to tell the user if other users can read a file with a token.
pub fn exposure(file: &Path) -> Option<String> {
    let mode = fs::metadata(file).ok().filter(fs::Metadata::is_file)?.permissions().mode();
    let shown = file.display();
    (mode & 0o077 != 0)
        .then(|| format!("other users can read the token file {shown}; to fix this: chmod 600 {shown}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::contexts::Entry;

    fn mode(file: &Path) -> u32 {
        fs::metadata(file).expect("a file").permissions().mode() & 0o777
    }

    #[test]
    fn tokens_are_for_their_owner_alone() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = Folder(home.path().join("klambda"));
        assert_eq!(folder.read().expect("none yet"), Contexts::default());
        folder.write_token("prod", "secret").expect("written");
        let file = folder.token("prod").expect("a token");
        assert_eq!(fs::read_to_string(&file).expect("read"), "secret\n");
        assert_eq!(
            (mode(&file), mode(file.parent().expect("a folder")), mode(&folder.0)),
            (0o600, 0o700, 0o700)
        );
        assert_eq!(exposure(&file), None);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).expect("changed");
        assert!(exposure(&file).expect("a warning").contains("chmod 600"));
        folder.delete_token("prod").expect("deleted");
        folder.delete_token("prod").expect("deleted already");
        assert_eq!(folder.token("prod"), None);
    }

    #[test]
    fn changes_at_the_same_time_lose_nothing() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = Folder(home.path().join("klambda"));
        std::thread::scope(|scope| {
            for n in 0..8 {
                let folder = &folder;
                scope.spawn(move || {
                    let _lock = folder.lock().expect("locked");
                    let mut contexts = folder.read().expect("read");
                    contexts.contexts.insert(format!("c{n}"), Entry::default());
                    folder.write(&contexts).expect("written");
                });
            }
        });
        assert_eq!(folder.read().expect("read").contexts.len(), 8);
    }

    #[test]
    fn contexts_are_read_back() {
        let home = tempfile::tempdir().expect("a folder");
        let folder = Folder(home.path().to_owned());
        let mut contexts = Contexts { current: Some("a".to_owned()), ..Contexts::default() };
        let entry =
            Entry { server: "http://h:1".to_owned(), namespace: Some("no".to_owned()), ca_file: None };
        contexts.contexts.insert("a".to_owned(), entry);
        folder.write(&contexts).expect("written");
        assert_eq!(folder.read().expect("read"), contexts);
        fs::write(folder.0.join(FILE), "contexts: {a: {sever: x}}").expect("written");
        let error = folder.read().expect_err("a mistake");
        assert_eq!(crate::exit::code(&error), 2);
        assert!(error.to_string().contains(FILE), "{error}");
    }
}
