//! The interpreters and compilers of this machine, and the selection by version.

use crate::{Error, Language};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ffi::OsString;
use std::fmt;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::Mutex;
use tokio::task::JoinSet;

const PROBE_MAX: Duration = Duration::from_secs(10);
const PROBES_AT_ONCE: usize = 8;
const PYTHON_PROBE: &str = "import sys; print('%d.%d.%d' % sys.version_info[:3]); print(sys.executable)";
const NODE_PROBE: &str = "console.log(process.versions.node); console.log(process.execPath)";

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version {
    pub major: u32,
    pub minor: u32,
    pub patch: u32,
}

impl Version {
    fn parse(text: &str) -> Option<Version> {
        let mut parts = text.trim().split('.').map(|part| part.parse::<u32>().ok());
        let major = parts.next()??;
        let minor = parts.next().unwrap_or(Some(0))?;
        Some(Version { major, minor, patch: parts.next().flatten().unwrap_or(0) })
    }

    /// Whether `20`, `20.x`, `v20.11` and the like match this version. An empty text matches any.
    fn is_asked(&self, asked: &str) -> bool {
        let asked = asked.trim().trim_start_matches(|c: char| c.is_ascii_alphabetic() || c == '-');
        let own = [self.major, self.minor, self.patch];
        let mut parts =
            asked.split('.').filter(|part| !part.is_empty() && !matches!(*part, "x" | "*")).zip(own);
        parts.all(|(part, number)| part.parse() == Ok(number))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}.{}", self.major, self.minor, self.patch)
    }
}

#[derive(Clone, Debug)]
pub struct Tool {
    pub language: Language,
    pub version: Version,
    /// The program itself, not a script that finds it.
    pub path: PathBuf,
}

impl Tool {
    /// The folder of the tool first, so that its companion programs are found beside it.
    pub(crate) fn search_path(&self) -> OsString {
        let own = self.path.parent().map(Path::to_path_buf);
        let all = own.into_iter().chain(search_folders());
        std::env::join_paths(all).unwrap_or_else(|_| std::env::var_os("PATH").unwrap_or_default())
    }
}

#[derive(Default)]
pub(crate) struct Tools(Mutex<HashMap<Language, Vec<Tool>>>);

impl Tools {
    /// The newest matching version. If none matches, the machine is searched again, because one may have been installed.
    pub(crate) async fn find(&self, language: Language, asked: &str) -> Result<Tool, Error> {
        let mut known = self.0.lock().await;
        if let Some(tool) = known.get(&language).and_then(|tools| newest(tools, asked)) {
            return Ok(tool);
        }
        let tools = discover(language).await;
        let found = newest(&tools, asked);
        let available = describe(&tools);
        known.insert(language, tools);
        found.ok_or(Error::VersionNotAvailable { language, asked: asked.to_owned(), available })
    }

    pub(crate) async fn all(&self, language: Language) -> Vec<Tool> {
        let mut known = self.0.lock().await;
        if let Some(tools) = known.get(&language) {
            return tools.clone();
        }
        let tools = discover(language).await;
        known.insert(language, tools.clone());
        tools
    }
}

fn newest(tools: &[Tool], asked: &str) -> Option<Tool> {
    let meant = tools.iter().filter(|tool| asked == "latest" || tool.version.is_asked(asked));
    meant.max_by_key(|tool| tool.version).cloned()
}

fn describe(tools: &[Tool]) -> String {
    if tools.is_empty() {
        return "installed: none".to_owned();
    }
    let versions: BTreeSet<Version> = tools.iter().map(|tool| tool.version).collect();
    let versions: Vec<String> = versions.iter().map(Version::to_string).collect();
    format!("installed: {}", versions.join(", "))
}

/// The oldest version that the wrappers support.
fn oldest(language: Language) -> Version {
    let (major, minor) = match language {
        Language::NodeJs => (18, 0),
        Language::Python => (3, 9),
        Language::Go => (1, 21),
    };
    Version { major, minor, patch: 0 }
}

/// Probes several programs at a time, because most are scripts that find the real program first.
async fn discover(language: Language) -> Vec<Tool> {
    let asked = candidates(language);
    let mut probes: JoinSet<(usize, Option<(Version, PathBuf)>)> = JoinSet::new();
    let mut answers: Vec<Option<(Version, PathBuf)>> = vec![None; asked.len()];
    for (index, path) in asked.into_iter().enumerate() {
        if probes.len() >= PROBES_AT_ONCE
            && let Some(Ok((index, answer))) = probes.join_next().await
        {
            answers[index] = answer;
        }
        probes.spawn(async move { (index, probe(language, &path).await) });
    }
    while let Some(joined) = probes.join_next().await {
        if let Ok((index, answer)) = joined {
            answers[index] = answer;
        }
    }
    let mut tools: Vec<Tool> = Vec::new();
    for (version, path) in answers.into_iter().flatten() {
        if version >= oldest(language) && !tools.iter().any(|tool| tool.path == path) {
            tools.push(Tool { language, version, path });
        }
    }
    tools
}

fn search_folders() -> Vec<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).filter(|folder| folder.is_absolute()).collect()
}

fn candidates(language: Language) -> Vec<PathBuf> {
    let names: &[&str] = match language {
        Language::NodeJs => &["node", "nodejs"],
        Language::Python => &["python"],
        Language::Go => &["go"],
    };
    let mut found: Vec<PathBuf> = Vec::new();
    let mut files: HashSet<PathBuf> = HashSet::new();
    for folder in search_folders() {
        let Ok(entries) = std::fs::read_dir(&folder) else { continue };
        let mut inside: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
        inside.retain(|path| {
            names.iter().any(|name| is_named(path, name) && !is_too_old(path, name, language))
        });
        inside.sort();
        inside.retain(|path| can_run(path) && is_new(path, names, &mut files));
        found.extend(inside);
    }
    found
}

/// The name alone, or followed by a version.
fn is_named(path: &Path, name: &str) -> bool {
    let rest = path.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(name));
    rest.is_some_and(|rest| rest.trim_start_matches('-').chars().all(|c| c.is_ascii_digit() || c == '.'))
}

/// Skips other names of the same program. A program that depends on the name it is called by is not skipped.
fn is_new(path: &Path, names: &[&str], files: &mut HashSet<PathBuf>) -> bool {
    let file = path.canonicalize().unwrap_or_else(|_| path.to_path_buf());
    !names.iter().any(|name| is_named(&file, name)) || files.insert(file)
}

/// The name shows that the version is too old, so it is not probed.
fn is_too_old(path: &Path, name: &str, language: Language) -> bool {
    let rest = path.file_name().and_then(|file| file.to_str()).and_then(|file| file.strip_prefix(name));
    let parts: Vec<u32> = rest
        .unwrap_or_default()
        .trim_start_matches('-')
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect();
    let oldest = oldest(language);
    !parts.is_empty() && parts < [oldest.major, oldest.minor, oldest.patch][..parts.len().min(3)].to_vec()
}

fn can_run(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|data| data.is_file() && data.permissions().mode() & 0o111 != 0)
}

/// The version and the real path of a program.
async fn probe(language: Language, path: &Path) -> Option<(Version, PathBuf)> {
    let text = match language {
        Language::Python => ask(path, &["-S", "-E", "-c", PYTHON_PROBE]).await?,
        Language::NodeJs => ask(path, &["-e", NODE_PROBE]).await?,
        Language::Go => {
            let text = ask(path, &["env", "GOVERSION", "GOROOT"]).await?;
            let (version, root) = text.trim_start_matches("go").split_once('\n')?;
            format!("{version}\n{}/bin/go", root.trim())
        }
    };
    let (version, place) = text.split_once('\n')?;
    Some((Version::parse(version)?, PathBuf::from(place.trim())))
}

async fn ask(path: &Path, args: &[&str]) -> Option<String> {
    let mut command = Command::new(path);
    command
        .args(args)
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .kill_on_drop(true)
        .env("GOTOOLCHAIN", "local");
    let output: Output = tokio::time::timeout(PROBE_MAX, command.output()).await.ok()?.ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_meant_by_their_beginning() {
        let version = Version::parse("20.11.1").expect("a version");
        for asked in ["", "20", "20.x", "v20", "20.11", "nodejs20", "20.11.1"] {
            assert!(version.is_asked(asked), "{asked}");
        }
        for asked in ["2", "21", "20.1", "20.11.2", "abc20.12", "20.lts"] {
            assert!(!version.is_asked(asked), "{asked}");
        }
    }

    #[test]
    fn what_is_named_too_old_is_not_asked() {
        let is_too_old = |name| is_too_old(Path::new(name), "python", Language::Python);
        assert!(["/x/python2", "/x/python2.7", "/x/python3.8"].into_iter().all(is_too_old));
        assert!(!["/x/python", "/x/python3", "/x/python3.9", "/x/python3.13"].into_iter().any(is_too_old));
    }

    #[test]
    fn names_may_carry_a_version() {
        assert!(is_named(Path::new("/x/python3.11"), "python") && is_named(Path::new("/x/node-20"), "node"));
        assert!(
            !is_named(Path::new("/x/python3-config"), "python") && !is_named(Path::new("/x/gofmt"), "go")
        );
    }
}
