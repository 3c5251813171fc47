//! Artifacts that were built, each in a small file beside them: how to start it.

use klambda_build::Artifact;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Made {
    /// Of its content, whoever asked for it.
    pub content: String,
    pub folder: PathBuf,
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl Made {
    pub fn of(artifact: Artifact) -> Made {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        Made {
            content: artifact.hash.to_string(),
            folder: artifact.dir,
            command: artifact.command.into_iter().map(text).collect(),
            environment: artifact.env.into_iter().map(|(name, value)| (text(name), text(value))).collect(),
        }
    }

    /// None as well if it is no longer there.
    pub fn read(folder: &Path, hash: &str) -> Option<Made> {
        let text = std::fs::read(folder.join(format!("{hash}.json"))).ok()?;
        let made: Made = serde_json::from_slice(&text).ok()?;
        made.folder.is_dir().then_some(made)
    }

    pub fn write(&self, folder: &Path, hash: &str) -> io::Result<()> {
        write(&folder.join(format!("{hash}.json")), self)
    }

    pub fn uri(&self) -> String {
        format!("file://{}", self.folder.display())
    }
}

/// All of it or nothing.
pub fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let next = path.with_extension("next");
    std::fs::write(&next, serde_json::to_vec(value)?)?;
    std::fs::rename(next, path)
}
