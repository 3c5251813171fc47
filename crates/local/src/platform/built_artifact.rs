//! Built artifacts: a small file for each says how to start it.

use klambda_build::Artifact;
use serde::{Deserialize, Serialize};
use std::io;
use std::path::{Path, PathBuf};

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct BuiltArtifact {
    /// Hash of its content.
    pub content: String,
    pub folder: PathBuf,
    pub command: Vec<String>,
    pub environment: Vec<(String, String)>,
}

impl BuiltArtifact {
    pub fn of(artifact: Artifact) -> BuiltArtifact {
        let text = |word: std::ffi::OsString| word.to_string_lossy().into_owned();
        BuiltArtifact {
            content: artifact.hash.to_string(),
            folder: artifact.dir,
            command: artifact.command.into_iter().map(text).collect(),
            environment: artifact.env.into_iter().map(|(name, value)| (text(name), text(value))).collect(),
        }
    }

    /// `None` if the artifact no longer exists.
    pub fn read(folder: &Path, hash: &str) -> Option<BuiltArtifact> {
        let text = std::fs::read(folder.join(format!("{hash}.json"))).ok()?;
        let built: BuiltArtifact = serde_json::from_slice(&text).ok()?;
        let built = built.at_home(folder.parent()?);
        built.folder.is_dir().then_some(built)
    }

    /// Moves the paths to this folder if the artifact was built in another one: after a restore or a move of the data folder.
    fn at_home(self, home: &Path) -> BuiltArtifact {
        let Some(built_in) = self.folder.parent().and_then(Path::parent).map(Path::to_path_buf) else {
            return self;
        };
        if built_in == home {
            return self;
        }
        let moved = |text: String| match Path::new(&text).strip_prefix(&built_in) {
            Ok(inside) => home.join(inside).to_string_lossy().into_owned(),
            Err(_) => text,
        };
        let folder = moved(self.folder.to_string_lossy().into_owned());
        BuiltArtifact {
            content: self.content,
            folder: folder.into(),
            command: self.command.into_iter().map(&moved).collect(),
            environment: self.environment.into_iter().map(|(name, value)| (name, moved(value))).collect(),
        }
    }

    pub fn write(&self, folder: &Path, hash: &str) -> io::Result<()> {
        write(&folder.join(format!("{hash}.json")), self)
    }

    pub fn uri(&self) -> String {
        format!("file://{}", self.folder.display())
    }
}

/// Writes the whole file or nothing.
pub fn write<T: Serialize>(path: &Path, value: &T) -> io::Result<()> {
    let next = path.with_extension("next");
    std::fs::write(&next, serde_json::to_vec(value)?)?;
    std::fs::rename(next, path)
}
