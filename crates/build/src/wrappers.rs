//! The wrappers of `runtimes/`, embedded in the program and written to the data folder.

use crate::hash::Hasher;
use crate::{Error, Hash, files};
use std::path::{Path, PathBuf};

macro_rules! embedded {
    ($($path:literal),* $(,)?) => {
        [$(($path, include_str!(concat!("../../../runtimes/", $path)))),*]
    };
}

const FILES: [(&str, &str); 14] = embedded![
    "nodejs/main.js",
    "nodejs/http.js",
    "python/main.py",
    "python/klambda.py",
    "python/klambda_http.py",
    "go/go.mod",
    "go/call.go",
    "go/event.go",
    "go/handler.go",
    "go/http.go",
    "go/info.go",
    "go/reply.go",
    "go/request.go",
    "go/serve.go",
];

pub(crate) struct Wrappers {
    pub(crate) hash: Hash,
    dir: PathBuf,
}

impl Wrappers {
    /// Writes them into a folder named after their hash, unless it exists.
    pub(crate) fn write(into: &Path) -> Result<Wrappers, Error> {
        let hash = hash();
        let dir = into.join(hash.to_string());
        if !dir.is_dir() {
            std::fs::create_dir_all(into).map_err(|e| Error::io("could not create", into, &e))?;
            let making = tempfile::Builder::new().prefix(".making-").tempdir_in(into);
            let making = making.map_err(|e| Error::io("could not write into", into, &e))?;
            write_all(making.path())?;
            if let Err(error) = std::fs::rename(making.path(), &dir) {
                // Another process may have been faster.
                if !dir.is_dir() {
                    return Err(Error::io("could not create", &dir, &error));
                }
            }
        }
        Ok(Wrappers { hash, dir })
    }

    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.dir.join(file)
    }
}

fn hash() -> Hash {
    let mut hasher = Hasher::new();
    for (path, text) in FILES {
        hasher.part(path.as_bytes());
        hasher.part(text.as_bytes());
    }
    hasher.finish()
}

/// Writes the wrapper of one language into a new folder.
pub(crate) fn write_of(language: crate::Language, dir: &Path) -> Result<(), Error> {
    std::fs::create_dir_all(dir).map_err(|e| Error::io("could not create", dir, &e))?;
    for (path, text) in FILES {
        if let Some(file) = path.strip_prefix(language.name()).and_then(|rest| rest.strip_prefix('/')) {
            files::write(&dir.join(file), text.as_bytes())?;
        }
    }
    Ok(())
}

fn write_all(dir: &Path) -> Result<(), Error> {
    for (path, text) in FILES {
        let path = dir.join(path);
        let parent = path.parent().unwrap_or(dir);
        std::fs::create_dir_all(parent).map_err(|e| Error::io("could not create", parent, &e))?;
        files::write(&path, text.as_bytes())?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Language;

    #[test]
    fn every_file_of_a_wrapper_is_carried() {
        let runtimes = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../runtimes");
        let folder = tempfile::tempdir().expect("temporary folder");
        let written = Wrappers::write(folder.path()).expect("writable");
        let mut count = 0;
        for language in Language::ALL {
            let own = crate::hash::sorted_paths(&runtimes.join(language.name())).expect("readable");
            for file in own.iter().filter(|file| !file.starts_with("__pycache__")) {
                assert!(written.path(language.name()).join(file).is_file(), "{language}/{}", file.display());
                count += 1;
            }
        }
        assert_eq!(count, FILES.len());
    }
}
