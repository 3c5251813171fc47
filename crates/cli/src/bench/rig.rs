//! The setup of every scenario: a folder on a real disk, the processes to start in it, and a line of progress.

use std::fs::{self, File};
use std::net::{SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use clap::ValueEnum;
use indicatif::ProgressBar;
use serde::Serialize;
use tempfile::TempDir;

use super::child::Child;
use super::klambda::Klambda;
use super::ledger::{SinkMark, Totals};
use super::load::LoadMark;
use super::report::{Faults, Report};
use super::{Output, ceiling, interrupt, load, sink};

const ANSWER: Duration = Duration::from_secs(10);
/// After this long without a delivery, missing events count as lost.
const STALL: Duration = Duration::from_secs(20);
const DRAIN_MAX: Duration = Duration::from_secs(3_600);

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub enum Subject {
    Ceiling,
    Klambda,
    /// The same server with requests that only the HTTP library accepts. The difference is the gain of the fast path.
    #[value(hide = true)]
    LongWay,
}

pub struct Rig {
    exe: PathBuf,
    folder: TempDir,
    /// The configuration file of the server under test.
    config: Option<PathBuf>,
    pub progress: ProgressBar,
}

/// The server under test, with its data folder.
pub struct Server {
    pub child: Child,
    pub address: SocketAddr,
    data: PathBuf,
}

pub struct Sink {
    pub child: Child,
    pub address: SocketAddr,
}

pub struct Load {
    pub child: Child,
}

impl Rig {
    pub fn new(folder: &Path, config: Option<PathBuf>) -> anyhow::Result<Self> {
        fs::create_dir_all(folder).with_context(|| format!("creating {}", folder.display()))?;
        let folder = tempfile::Builder::new().prefix("klambda-bench-").tempdir_in(folder)?;
        let progress = ProgressBar::new_spinner();
        progress.enable_steady_tick(Duration::from_millis(200));
        Ok(Self { exe: std::env::current_exe()?, folder, config, progress })
    }

    pub fn note(&self, what: impl Into<String>) {
        self.progress.set_message(what.into());
    }

    pub fn show(&self, report: &Report, output: Output) {
        if output == Output::Table {
            self.progress.suspend(|| println!("{}", report.text()));
        }
    }

    pub fn sink(&self, spec: &sink::Spec) -> anyhow::Result<Sink> {
        let (child, port) = Child::role("sink", &self.exe, spec)?;
        Ok(Sink { child, address: loopback(port.port) })
    }

    pub fn load(&self, spec: &load::Spec) -> anyhow::Result<Load> {
        Ok(Load { child: Child::role("load", &self.exe, spec)?.0 })
    }

    pub fn ceiling(&self, sink: &Sink) -> anyhow::Result<Server> {
        let data = self.fresh_folder("ceiling")?;
        let spec = ceiling::Spec { folder: data.clone(), sink: sink.address };
        let (child, port) = Child::role("ceiling", &self.exe, &spec)?;
        Ok(Server { child, address: loopback(port.port), data })
    }

    /// A klambda server in a folder of its own, ready.
    pub fn klambda(&self) -> anyhow::Result<(Server, Klambda)> {
        let data = self.fresh_folder("klambda")?;
        self.klambda_in(data)
    }

    /// A klambda server on an existing folder, ready.
    pub fn klambda_in(&self, data: PathBuf) -> anyhow::Result<(Server, Klambda)> {
        let address = free_address()?;
        let log_path = self.folder.path().join("serve.log");
        let log = File::create(&log_path)?;
        let arguments = self.serve_arguments(address, &data);
        let mut child = Child::server(&self.exe, &arguments, log)?;
        let klambda = Klambda::new(address);
        if let Err(error) = wait_until_ready(&mut child, &klambda) {
            let said = fs::read_to_string(&log_path).unwrap_or_default();
            return Err(error.context(format!("the server said: {said}")));
        }
        Ok((Server { child, address, data }, klambda))
    }

    fn serve_arguments(&self, address: SocketAddr, data: &Path) -> Vec<String> {
        let data = data.to_string_lossy();
        let mut arguments = ["--listen", &address.to_string(), "--data", &data].map(str::to_owned).to_vec();
        if let Some(config) = &self.config {
            arguments.extend(["--config".to_owned(), config.to_string_lossy().into_owned()]);
        }
        arguments
    }

    pub fn fresh_folder(&self, name: &str) -> anyhow::Result<PathBuf> {
        let path = self.folder.path().join(name);
        if path.exists() {
            // Left by a scenario that failed.
            fs::remove_dir_all(&path)?;
        }
        fs::create_dir(&path).with_context(|| format!("creating {}", path.display()))?;
        Ok(path)
    }
}

impl Server {
    /// Ends the server and removes its data.
    pub fn clear(mut self) -> anyhow::Result<()> {
        self.child.kill();
        fs::remove_dir_all(&self.data).with_context(|| format!("removing {}", self.data.display()))
    }

    /// Ends the server with -9 and hands back its folder.
    pub fn crash(mut self) -> PathBuf {
        self.child.kill();
        self.data.clone()
    }
}

impl Sink {
    pub fn mark(&mut self) -> anyhow::Result<SinkMark> {
        self.child.ask("mark", ANSWER)
    }

    /// Waits until all accepted events have arrived, or until no event arrives any more.
    pub fn drain(&mut self, accepted: u64) -> anyhow::Result<Totals> {
        let mut totals = self.mark()?.totals;
        let (started, mut moved) = (Instant::now(), Instant::now());
        while totals.delivered < accepted && moved.elapsed() < STALL && started.elapsed() < DRAIN_MAX {
            interrupt::sleep(Duration::from_millis(20))?;
            let now = self.mark()?.totals;
            if now.delivered > totals.delivered {
                moved = Instant::now();
            }
            totals = now;
        }
        Ok(totals)
    }
}

impl Load {
    pub fn go(&mut self) -> anyhow::Result<LoadMark> {
        self.child.ask("go", ANSWER)
    }

    pub fn mark(&mut self) -> anyhow::Result<LoadMark> {
        self.child.ask("mark", ANSWER)
    }

    /// Sends no further events, and waits for the answers to open requests.
    pub fn stop(&mut self) -> anyhow::Result<LoadMark> {
        self.child.ask("stop", Duration::from_secs(60))
    }

    /// Waits until every event has been sent and answered.
    pub fn finish(&mut self, within: Duration) -> anyhow::Result<LoadMark> {
        self.child.ask("finish", within)
    }
}

pub fn faults(accepted: u64, totals: &Totals) -> Faults {
    Faults {
        violations: totals.violations,
        duplicates: totals.duplicates,
        missing: accepted.saturating_sub(totals.delivered),
    }
}

fn wait_until_ready(child: &mut Child, klambda: &Klambda) -> anyhow::Result<()> {
    let deadline = Instant::now() + Duration::from_secs(120);
    while !klambda.is_ready() {
        if child.has_ended()? {
            bail!("the server ended before it was ready");
        }
        if Instant::now() > deadline {
            bail!("the server was not ready within two minutes");
        }
        interrupt::sleep(Duration::from_millis(2))?;
    }
    Ok(())
}

fn loopback(port: u16) -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], port))
}

pub fn free_address() -> anyhow::Result<SocketAddr> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?)
}
