//! Shared by the tests: a platform in a temporary folder, versions of the testbed server, calls, waiting.

use klambda_core::address::{ReplicaAddress, path_of};
use klambda_local::fleet::{self, Fleet, Observation, Run, Scaling, Version};
use klambda_local::process::limits::Groups;
use klambda_local::process::{self, Command, Limits, Spawner};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};

pub const TESTBED: &str = env!("CARGO_BIN_EXE_klambda-local-testbed");

/// Long enough for a busy machine. Successful tests never wait this long.
pub const PATIENCE: Duration = Duration::from_secs(20);

pub fn spawner(folder: &Path, groups: Groups) -> Spawner {
    let helper = vec![TESTBED.into(), "child".into()];
    Spawner::start(process::Options { helper, records: folder.join("children"), groups }).unwrap()
}

/// A fleet that stops its processes even if its test fails: they die with this program.
pub struct Platform {
    pub fleet: Fleet,
    pub folder: TempDir,
}

impl Platform {
    pub fn start() -> Platform {
        Platform::in_folder(TempDir::new().unwrap())
    }

    pub fn in_folder(folder: TempDir) -> Platform {
        Platform::with(folder, |_| {})
    }

    pub fn with(folder: TempDir, change: impl FnOnce(&mut fleet::Options)) -> Platform {
        let mut options = fleet::Options::new(folder.path().to_path_buf());
        options.restarts.backoff = Duration::from_millis(5);
        change(&mut options);
        let fleet = Fleet::start(options, spawner(folder.path(), Groups::none())).unwrap();
        Platform { fleet, folder }
    }

    pub async fn end(self) -> TempDir {
        self.fleet.shutdown(Duration::from_secs(5)).await;
        self.folder
    }

    /// Waits until the function matches.
    pub async fn wait(&self, function: &str, wanted: impl Fn(&Observation) -> bool) -> Observation {
        let (started, mut last) = (Instant::now(), None);
        while started.elapsed() < PATIENCE {
            if let Some(seen) = self.fleet.observe(function) {
                if wanted(&seen) {
                    return seen;
                }
                last = Some(seen);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        panic!("{function} did not reach the expected state; it is {last:?}");
    }

    /// Sends one request to a replica, like the server.
    pub async fn call(&self, function: &str, path: &str) -> Result<String, String> {
        let mut lease = self.fleet.acquire(function).await.map_err(|error| error.to_string())?;
        let answer = get(lease.address().unwrap().clone(), path).await.map_err(|error| error.to_string())?;
        lease.answered();
        Ok(answer)
    }
}

pub fn command(environment: &[(&str, &str)]) -> Command {
    let environment = environment.iter().map(|(name, value)| ((*name).into(), (*value).into())).collect();
    Command {
        program: TESTBED.into(),
        arguments: vec!["serve".into()],
        folder: PathBuf::from("/"),
        environment,
        limits: Limits::default(),
        container: None,
        files: None,
    }
}

/// A version of the testbed server. Artifact and version have the same name.
pub fn version(id: &str, environment: &[(&str, &str)], scaling: Scaling) -> Version {
    let run = Run::Process(Arc::new(command(environment)));
    Version { id: id.into(), artifact: format!("artifact-{id}").into(), generation: 1, run, scaling }
}

pub async fn get(address: ReplicaAddress, path: &str) -> std::io::Result<String> {
    match address {
        ReplicaAddress::Tcp(address) => get_over(TcpStream::connect(address).await?, path).await,
        ReplicaAddress::Local(name) => get_over(UnixStream::connect(path_of(&name)).await?, path).await,
    }
}

async fn get_over(mut stream: impl AsyncRead + AsyncWrite + Unpin, path: &str) -> std::io::Result<String> {
    let request = format!("GET {path} HTTP/1.1\r\nHost: x\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    match answer.split_once("\r\n\r\n") {
        Some((head, body)) if head.starts_with("HTTP/1.1 200") => Ok(body.to_owned()),
        _ => Err(std::io::Error::other(format!("answered {answer:?}"))),
    }
}

pub fn is_alive(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    stat.rsplit_once(')').is_some_and(|(_, rest)| !rest.trim_start().starts_with('Z'))
}

pub async fn until(what: &str, wanted: impl Fn() -> bool) {
    let started = Instant::now();
    while !wanted() {
        assert!(started.elapsed() < PATIENCE, "{what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}
