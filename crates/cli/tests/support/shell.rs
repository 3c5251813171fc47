//! The command line as a person uses it, against one server.

use super::process::Server;
use super::{KLAMBDA, eventually, read};
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

/// A server of its own, and its clients.
pub struct Shell {
    pub server: Server,
    pub folder: TempDir,
}

impl Shell {
    pub fn new() -> Shell {
        let folder = tempfile::tempdir().expect("a folder");
        share_cache(&folder.path().join("data/functions"));
        Shell { server: Server::start(folder.path()), folder }
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    pub fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(KLAMBDA);
        command.args(words).env("KLAMBDA_SERVER", &self.server.url).current_dir(self.path());
        command
    }

    pub fn run(&self, words: &[&str]) -> Output {
        self.command(words).output().expect("klambda")
    }

    /// Its output; it must succeed.
    pub fn ok(&self, words: &[&str]) -> String {
        let output = self.run(words);
        let (out, err) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{words:?}: {err}\n{out}\n{}", self.server.process.printed());
        out
    }

    /// The exit code and the error; it must fail.
    pub fn fails(&self, words: &[&str]) -> (i32, String) {
        let output = self.run(words);
        assert!(!output.status.success(), "{words:?} succeeds: {}", text(&output.stdout));
        (output.status.code().unwrap_or(-1), text(&output.stderr))
    }

    pub fn json(&self, words: &[&str]) -> Value {
        let printed = self.ok(&[words, &["-o", "json"]].concat());
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{words:?}: {error}: {printed}"))
    }

    /// Writes a manifest into the folder.
    pub fn write(&self, name: &str, manifest: &str) -> String {
        let file: PathBuf = self.path().join(name);
        std::fs::write(&file, manifest).expect("written");
        file.to_string_lossy().into_owned()
    }

    /// A file of the examples, changed by the test where it must be.
    pub fn example(&self, name: &str, change: impl Fn(String) -> String) -> String {
        self.write(name, &change(read(&format!("examples/{name}"))))
    }

    /// The values of an attribute in the log of a function, in order. Waits until there are as many as given.
    pub fn logged(&self, name: &str, attribute: &str, count: usize) -> Vec<String> {
        eventually(&format!("{count} log lines of {name}"), || {
            let printed = self.ok(&["logs", name]);
            let lines = printed.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            let found: Vec<String> = lines
                .filter_map(|line| {
                    line.get(attribute)
                        .map(|value| value.as_str().map_or_else(|| value.to_string(), str::to_owned))
                })
                .collect();
            if found.len() >= count { Ok(found) } else { Err(printed) }
        })
    }
}

/// Tests share the caches of compilers, because compiling Go's library takes a minute.
pub fn share_cache(functions: &Path) {
    link_cache(&functions.join("cache"));
}

/// The same for `dev` and `run`, which keep their cache in this folder of the user.
pub fn share_cache_of_user(folder: &Path) {
    link_cache(&folder.join("klambda/build"));
}

fn link_cache(link: &Path) {
    let kept = Path::new(env!("CARGO_TARGET_TMPDIR")).join("build-cache");
    std::fs::create_dir_all(&kept).expect("a folder");
    std::fs::create_dir_all(link.parent().expect("a folder")).expect("a folder");
    std::os::unix::fs::symlink(kept, link).expect("a link");
}

pub fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
