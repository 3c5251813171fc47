//! Processes that end with the test that started them.

use super::{KLAMBDA, eventually, free_port};
use rustix::process::{Pid, Signal, kill_process_group};
use std::fs::File;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::Duration;

/// A process in a group of its own, with all it prints in one file. Killed by its id when dropped.
pub struct Process {
    child: Child,
    pub printed: PathBuf,
}

impl Process {
    /// Appends to `printed`, as a terminal that is used twice.
    pub fn start(command: &mut Command, printed: &Path) -> Process {
        let file = File::options().create(true).append(true).open(printed).expect("a file to print to");
        let child = command
            .stdin(Stdio::null())
            .stdout(file.try_clone().expect("the file"))
            .stderr(file)
            .process_group(0)
            .spawn()
            .unwrap_or_else(|error| panic!("{command:?}: {error}"));
        Process { child, printed: printed.to_owned() }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    pub fn printed(&self) -> String {
        String::from_utf8_lossy(&std::fs::read(&self.printed).unwrap_or_default()).into_owned()
    }

    /// Asks it to end, and waits until it has.
    pub fn stop(mut self) -> ExitStatus {
        self.signal(Signal::TERM);
        self.child.wait().expect("an exit status")
    }

    /// Waits until it has ended by itself.
    pub fn wait(mut self) -> ExitStatus {
        self.child.wait().expect("an exit status")
    }

    /// To it and to all it has started.
    pub fn signal(&self, signal: Signal) {
        if let Some(group) = i32::try_from(self.child.id()).ok().and_then(Pid::from_raw) {
            let _ = kill_process_group(group, signal);
        }
    }

    pub fn has_ended(&mut self) -> bool {
        matches!(self.child.try_wait(), Ok(Some(_)))
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if !self.has_ended() {
            self.signal(Signal::KILL);
        }
        let _ = self.child.wait();
    }
}

/// `klambda serve` on a folder and a port of its own, ready.
pub struct Server {
    pub process: Process,
    pub url: String,
}

impl Server {
    pub fn start(folder: &Path) -> Server {
        Server::with(folder, &[])
    }

    /// With these variables set.
    pub fn with(folder: &Path, settings: &[(&str, &str)]) -> Server {
        Server::at(&format!("127.0.0.1:{}", free_port()), folder, settings)
    }

    /// On an address that something else knows already.
    pub fn at(address: &str, folder: &Path, settings: &[(&str, &str)]) -> Server {
        let mut command = Command::new(KLAMBDA);
        command.envs(settings.iter().copied());
        command.args(["serve", "--listen", address, "--data"]).arg(folder.join("data"));
        let mut process = Process::start(&mut command, &folder.join("serve.log"));
        let url = format!("http://{address}");
        wait_until_ready(&url, &mut process);
        Server { process, url }
    }
}

pub fn wait_until_ready(url: &str, process: &mut Process) {
    let agent = agent();
    eventually("the server is ready", || match agent.get(format!("{url}/readyz")).call() {
        Ok(answer) if answer.status() == 200 => Ok(()),
        _ if process.has_ended() => panic!("the server ended: {}", process.printed()),
        Ok(answer) => Err(format!("{}\n{}", answer.status(), process.printed())),
        Err(error) => Err(format!("{error}\n{}", process.printed())),
    });
}

pub fn agent() -> ureq::Agent {
    let config = ureq::Agent::config_builder()
        .timeout_global(Some(Duration::from_secs(30)))
        .http_status_as_error(false)
        .proxy(None);
    config.build().into()
}

/// `klambda event receive` on a port of its own.
pub struct Receiver {
    pub process: Process,
    pub url: String,
}

impl Receiver {
    pub fn start(folder: &Path, arguments: &[&str]) -> Receiver {
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = Command::new(KLAMBDA);
        command.args(["event", "receive", "-o", "json", "--listen", &address]).args(arguments);
        let process = Process::start(&mut command, &folder.join("receive.log"));
        eventually("the receiver listens", || {
            std::net::TcpStream::connect(&address).map(drop).map_err(|error| error.to_string())
        });
        Receiver { process, url: format!("http://{address}/") }
    }

    /// The deliveries so far.
    pub fn received(&self) -> Vec<serde_json::Value> {
        let printed = self.process.printed();
        let whole = printed.rsplit_once('\n').map_or("", |(whole, _)| whole);
        let lines = whole.lines().filter(|line| line.starts_with('{'));
        lines.map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }
}

/// The paths in a folder.
pub fn left_in(folder: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(folder).expect("a folder");
    entries.map(|entry| entry.expect("an entry").path().display().to_string()).collect()
}

/// Processes that were started with a path in this folder, or work in it.
pub fn users_of(folder: &Path) -> usize {
    let folder = folder.to_string_lossy().into_owned();
    let processes = std::fs::read_dir("/proc").expect("/proc").filter_map(Result::ok);
    let uses = |path: std::path::PathBuf| {
        let started = std::fs::read(path.join("cmdline")).unwrap_or_default();
        let works = std::fs::read_link(path.join("cwd")).unwrap_or_default();
        String::from_utf8_lossy(&started).contains(&folder) || works.starts_with(&folder)
    };
    processes.filter(|process| uses(process.path())).count()
}
