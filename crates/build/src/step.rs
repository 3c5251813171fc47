//! Runs one tool of a build, in a process group that ends with the build, and in its own environment.

use crate::output::Output;
use crate::stall::stalls;
use crate::{Error, ProcessTracker, Tool, TrackedProcess};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// Variables that configure package sources and proxies. No other variable is passed to a build.
const PASSED: [&str; 17] = [
    "GOPROXY",
    "GOFLAGS",
    "GOSUMDB",
    "GONOSUMDB",
    "GONOPROXY",
    "GOPRIVATE",
    "GOINSECURE",
    "SSL_CERT_FILE",
    "SSL_CERT_DIR",
    "NIX_SSL_CERT_FILE",
    "CURL_CA_BUNDLE",
    "REQUESTS_CA_BUNDLE",
    "NODE_EXTRA_CA_CERTS",
    "HTTP_PROXY",
    "HTTPS_PROXY",
    "NO_PROXY",
    "ALL_PROXY",
];
/// Limits for retries and network timeouts of the tools.
const LESS_PATIENCE: [(&str, &str); 4] = [
    ("npm_config_fetch_retries", "1"),
    ("npm_config_fetch_timeout", "60000"),
    ("PIP_RETRIES", "1"),
    ("PIP_TIMEOUT", "30"),
];
const PASSED_PREFIXES: [&str; 2] = ["PIP_", "NPM_CONFIG_"];

/// The folders of a build and its output so far.
pub(crate) struct Bench {
    /// The unfinished artifact.
    pub(crate) dir: PathBuf,
    /// The home folder of the tools, beside it.
    pub(crate) home: PathBuf,
    /// Caches that builds share.
    pub(crate) cache: PathBuf,
    /// Prefix of every command.
    pub(crate) launcher: Vec<OsString>,
    pub(crate) tracker: Option<ProcessTracker>,
    pub(crate) output: Output,
    /// How long a command may be idle.
    pub(crate) stall: Duration,
}

impl Bench {
    pub(crate) fn code(&self) -> PathBuf {
        self.dir.join("code")
    }

    /// Runs a command in the code folder. Returns whether it exited successfully.
    pub(crate) async fn run(&self, tool: &Tool, program: &OsStr, args: &[&OsStr]) -> Result<bool, Error> {
        let mut command = self.command(tool, program);
        command.args(args);
        let tracked = self.tracker.as_ref().map(|tracker| (tracker.0)());
        command.envs(tracked.as_ref().map(|tracked| tracked.variable()));
        let child = command.spawn().map_err(|e| Error::io("could not start", Path::new(program), &e))?;
        let mut group = Group::of(child, tracked);
        let (out, err) = (group.child.stdout.take(), group.child.stderr.take());
        let read_out = async {
            if let Some(out) = out {
                self.output.clone().read(out).await
            }
        };
        let read_err = async {
            if let Some(err) = err {
                self.output.clone().read(err).await
            }
        };
        let id = group.id;
        let ended = async {
            let status = group.child.wait().await;
            // First, because a leftover process may hold its output open.
            group.end().await;
            status
        };
        let work = Box::pin(async { tokio::join!(ended, read_out, read_err) });
        let (status, (), ()) = tokio::select! {
            ended = work => ended,
            () = stalls(id, &self.output, self.stall) => {
                return Err(Error::Stalled { after: self.stall, log: self.output.lines() });
            }
        };
        let status = status.map_err(|e| Error::io("could not wait for", Path::new(program), &e))?;
        Ok(status.success())
    }

    fn command(&self, tool: &Tool, program: &OsStr) -> Command {
        let mut words = self.launcher.iter().map(OsString::as_os_str).chain([program]);
        let mut command = Command::new(words.next().unwrap_or(program));
        command.args(words).current_dir(self.code()).process_group(0).kill_on_drop(true);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        self.environment(tool, &mut command);
        command
    }

    fn environment(&self, tool: &Tool, command: &mut Command) {
        command.env_clear().envs(std::env::vars_os().filter(|(name, _)| is_passed(name)));
        command
            .env("PATH", tool.search_path())
            .env("HOME", &self.home)
            .env("TMPDIR", &self.home)
            .env("LANG", "C.UTF-8");
        command.env("npm_config_cache", self.cache.join("npm")).env("PIP_CACHE_DIR", self.cache.join("pip"));
        command.env("GOCACHE", self.cache.join("go-build")).env("GOMODCACHE", self.cache.join("go-mod"));
        command.env("GOPATH", self.cache.join("go")).env("GOTOOLCHAIN", "local").env("CGO_ENABLED", "0");
        // A build that cannot reach its registry is retried as a whole, so the tools need few retries.
        for (name, value) in LESS_PATIENCE {
            if std::env::var_os(name).is_none() {
                command.env(name, value);
            }
        }
        if let Some(file) = npm_settings() {
            command.env("npm_config_userconfig", file);
        }
    }

    pub(crate) fn failed(&self, message: String) -> Error {
        Error::Failed { message, log: self.output.lines() }
    }

    pub(crate) fn syntax_error(&self, message: String) -> Error {
        Error::SyntaxError { message, log: self.output.lines() }
    }

    /// The last line that contains the first word; if there is none, the second word; and so on.
    pub(crate) fn line_with(&self, words: &[&str]) -> Option<String> {
        let lines = self.output.lines();
        words.iter().find_map(|word| lines.iter().rev().find(|line| line.contains(word))).cloned()
    }

    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.line_with(&UNREACHABLE).is_some()
    }

    /// Classifies a failed installation by the output of the tool.
    pub(crate) fn installation_failed(&self, tool: &str, not_found: &[&str]) -> Error {
        if let Some(line) = self.line_with(&UNREACHABLE) {
            let advice = "check the network, or the proxy and registry settings of the environment";
            return self.failed(format!("{tool} could not reach its registry: {line}; {advice}"));
        }
        match self.line_with(not_found) {
            Some(message) => Error::DependencyNotFound { message, log: self.output.lines() },
            None => self.failed(format!("{tool} could not install the dependencies; see the build log")),
        }
    }
}

const UNREACHABLE: [&str; 16] = [
    "ENOTFOUND",
    "EAI_AGAIN",
    "ECONNREFUSED",
    "ECONNRESET",
    "ETIMEDOUT",
    "ENETUNREACH",
    "NewConnectionError",
    "Failed to establish a new connection",
    "name resolution",
    "Cannot connect to proxy",
    "no such host",
    "dial tcp",
    "Network is unreachable",
    "network timeout",
    "ReadTimeoutError",
    "ConnectTimeoutError",
];

fn is_passed(name: &OsStr) -> bool {
    let Some(name) = name.to_str() else { return false };
    let name = name.to_ascii_uppercase();
    PASSED.contains(&name.as_str()) || PASSED_PREFIXES.iter().any(|prefix| name.starts_with(prefix))
}

/// npm reads its settings from the home folder, which a build does not see.
fn npm_settings() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("HOME")?).join(".npmrc");
    file.is_file().then_some(file)
}

/// A command and all its descendants. Dropping it kills all of them, including those that outlive the command and would
/// write into removed folders.
struct Group {
    child: Child,
    id: Option<Pid>,
    tracked: Option<Box<dyn TrackedProcess>>,
}

impl Group {
    fn of(child: Child, mut tracked: Option<Box<dyn TrackedProcess>>) -> Group {
        let id = child.id().and_then(|id| Pid::from_raw(id as i32));
        if let (Some(tracked), Some(id)) = (&mut tracked, id) {
            tracked.started(id.as_raw_nonzero().get());
        }
        Group { child, id, tracked }
    }

    /// Returns when no process of it is left.
    async fn end(&mut self) {
        self.kill();
        if let Some(tracked) = self.tracked.take() {
            let _ = tokio::task::spawn_blocking(move || tracked.end()).await;
        }
    }

    fn kill(&self) {
        if let Some(id) = self.id {
            // Usually no process is left.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if let Some(tracked) = self.tracked.take() {
            // The build was cancelled; no caller waits for the result.
            std::thread::spawn(move || tracked.end());
        }
    }
}
