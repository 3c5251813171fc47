//! Running one tool of a build: in a process group of its own that ends with the build, in an environment of its own.

use crate::output::Output;
use crate::stall::stalls;
use crate::{Error, Tended, Tender, Tool};
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;
use tokio::process::{Child, Command};

/// Settings that say where packages come from and how to reach them. All others stay outside of a build.
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
/// How often a tool may try, and how long it may wait for an answer of the network.
const LESS_PATIENCE: [(&str, &str); 4] = [
    ("npm_config_fetch_retries", "1"),
    ("npm_config_fetch_timeout", "60000"),
    ("PIP_RETRIES", "1"),
    ("PIP_TIMEOUT", "30"),
];
const PASSED_PREFIXES: [&str; 2] = ["PIP_", "NPM_CONFIG_"];

/// Where a build works and what it has written so far.
pub(crate) struct Bench {
    /// The artifact in the making.
    pub(crate) dir: PathBuf,
    /// The home folder of the tools, beside it.
    pub(crate) home: PathBuf,
    /// Caches that builds share.
    pub(crate) cache: PathBuf,
    /// Put before every command.
    pub(crate) launcher: Vec<OsString>,
    pub(crate) tender: Option<Tender>,
    pub(crate) output: Output,
    /// How long a command may do nothing at all.
    pub(crate) stall: Duration,
}

impl Bench {
    pub(crate) fn code(&self) -> PathBuf {
        self.dir.join("code")
    }

    /// Runs a command in the code folder; its exit decides.
    pub(crate) async fn run(&self, tool: &Tool, program: &OsStr, args: &[&OsStr]) -> Result<bool, Error> {
        let mut command = self.command(tool, program);
        command.args(args);
        let tended = self.tender.as_ref().map(|tender| (tender.0)());
        command.envs(tended.as_ref().map(|tended| tended.variable()));
        let child = command.spawn().map_err(|e| Error::io("cannot start", Path::new(program), &e))?;
        let mut group = Group::of(child, tended);
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
            // First, since what it left may hold its output open.
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
        let status = status.map_err(|e| Error::io("cannot wait for", Path::new(program), &e))?;
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
        // A build that cannot reach its registry is tried again as a whole; the tools need not insist.
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

    /// The last line that has the first of the words in it; else that has the second; and so on.
    pub(crate) fn line_with(&self, words: &[&str]) -> Option<String> {
        let lines = self.output.lines();
        words.iter().find_map(|word| lines.iter().rev().find(|line| line.contains(word))).cloned()
    }

    pub(crate) fn is_out_of_reach(&self) -> bool {
        self.line_with(&UNREACHABLE).is_some()
    }

    /// A failed installation, told apart by what the tool says.
    pub(crate) fn installation_failed(&self, tool: &str, not_found: &[&str]) -> Error {
        if let Some(line) = self.line_with(&UNREACHABLE) {
            let advice = "check the network, or the proxy and registry settings of the environment";
            return self.failed(format!("{tool} could not reach its registry: {line}; {advice}"));
        }
        match self.line_with(not_found) {
            Some(message) => Error::DependencyNotFound { message, log: self.output.lines() },
            None => self.failed(format!("{tool} could not install the dependencies; the log says why")),
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

/// npm looks for its settings in the home folder, which a build does not see.
fn npm_settings() -> Option<PathBuf> {
    let file = PathBuf::from(std::env::var_os("HOME")?).join(".npmrc");
    file.is_file().then_some(file)
}

/// A command and everything it started. When it is dropped all of it is killed, also what outlives a command that has
/// ended and would write into folders that are gone.
struct Group {
    child: Child,
    id: Option<Pid>,
    tended: Option<Box<dyn Tended>>,
}

impl Group {
    fn of(child: Child, mut tended: Option<Box<dyn Tended>>) -> Group {
        let id = child.id().and_then(|id| Pid::from_raw(id as i32));
        if let (Some(tended), Some(id)) = (&mut tended, id) {
            tended.started(id.as_raw_nonzero().get());
        }
        Group { child, id, tended }
    }

    /// Returns when nothing of it is left.
    async fn end(&mut self) {
        self.kill();
        if let Some(tended) = self.tended.take() {
            let _ = tokio::task::spawn_blocking(move || tended.end()).await;
        }
    }

    fn kill(&self) {
        if let Some(id) = self.id {
            // Mostly there is nothing left of it.
            let _ = kill_process_group(id, Signal::KILL);
        }
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        self.kill();
        if let Some(tended) = self.tended.take() {
            // The build was cancelled; no caller waits for the result.
            std::thread::spawn(move || tended.end());
        }
    }
}
