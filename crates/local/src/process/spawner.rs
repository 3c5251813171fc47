//! The thread that starts all processes, and the tasks that watch them.

use super::leftovers::Records;
use super::limits::{Group, Groups, Held, Watch, Watched};
use super::strays::Strays;
use super::tracked::ProcessTracker;
use super::{Command, Error, Exit, Process, mark};
use crate::logs::{Printer, Stream};
use crate::{child, container};
use klambda_crash::Point;
use rustix::process::{Pid, Signal, kill_process_group};
use std::ffi::OsString;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::Stdio;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::JoinHandle;

/// How long to wait for the rest of the output after a process has ended. Only a descendant that escaped the kill can
/// make this wait long.
const LAST_WORDS: Duration = Duration::from_millis(500);

#[derive(Clone, Debug)]
pub struct Options {
    /// The program and arguments that run [`child::main`].
    pub helper: Vec<OsString>,
    /// The folder that records all processes. It survives this program.
    pub records: PathBuf,
    pub groups: Groups,
}

/// Starts processes. Clones share the same thread.
#[derive(Clone)]
pub struct Spawner {
    requests: mpsc::Sender<Request>,
    tracker: ProcessTracker,
    /// Number of processes of an earlier run that were killed at the start of this one.
    leftovers: usize,
}

struct Request {
    command: Arc<Command>,
    listener: Option<OwnedFd>,
    printer: Printer,
    answer: oneshot::Sender<Result<Process, Error>>,
}

impl Spawner {
    /// Kills leftovers first. Must be called within a runtime, which watches the processes.
    pub fn start(options: Options) -> io::Result<Spawner> {
        let (records, leftovers) = Records::open(&options.records)?;
        let records = Arc::new(records);
        let tracker = ProcessTracker::new(records.clone());
        let (requests, received) = mpsc::channel::<Request>();
        let mut watcher = watcher(&options.helper, &records)?;
        let mut starter = Starter {
            options,
            shared: Arc::new(Shared {
                records: records.clone(),
                watch: Watch::default(),
                strays: Strays::default(),
            }),
            runtime: Handle::current(),
        };
        std::thread::Builder::new().name("klambda-spawn".into()).spawn(move || {
            while let Ok(request) = received.recv() {
                Point::Spawn.pass();
                let started = starter.start(&request.command, request.listener, &request.printer);
                let _ = request.answer.send(started);
            }
            // When the last handle is dropped, this thread ends, and with it all processes that it started.
            drop(watcher.stdin.take());
            let _ = watcher.wait();
        })?;
        Ok(Spawner { requests, tracker, leftovers })
    }

    /// For processes that other code starts.
    pub fn tracker(&self) -> ProcessTracker {
        self.tracker.clone()
    }

    pub fn leftovers(&self) -> usize {
        self.leftovers
    }

    /// Starts a command. A socket becomes the standard input of the command. Our copy is closed then, so that waiting
    /// connections break when the process ends.
    pub async fn spawn(
        &self,
        command: Arc<Command>,
        listener: Option<OwnedFd>,
        printer: Printer,
    ) -> Result<Process, Error> {
        let (answer, answered) = oneshot::channel();
        let request = Request { command, listener, printer, answer };
        self.requests.send(request).map_err(|_| Error::Ended)?;
        answered.await.map_err(|_| Error::Ended)?
    }
}

/// Starts the process that kills what is left if this one is killed. It notices by its standard input.
fn watcher(helper: &[OsString], records: &Records) -> io::Result<std::process::Child> {
    let (program, words) = helper.split_first().ok_or(io::ErrorKind::InvalidInput)?;
    let mut command = std::process::Command::new(program);
    // Not in our group: signals from the terminal are only for us.
    command.args(words).args(records.watch_words()).process_group(0);
    // Only the variables that clients of container engines need.
    command.env_clear().envs(container::client_environment());
    command.stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::null()).spawn()
}

struct Starter {
    options: Options,
    shared: Arc<Shared>,
    runtime: Handle,
}

struct Shared {
    records: Arc<Records>,
    watch: Watch,
    strays: Strays,
}

impl Starter {
    fn start(
        &mut self,
        command: &Command,
        listener: Option<OwnedFd>,
        printer: &Printer,
    ) -> Result<Process, Error> {
        let failed = |error| Error::Start { program: command.program.display().to_string(), error };
        let name = self.shared.records.new_name();
        let mut notes = Vec::new();
        let Held { groups, watch_bytes } = self.options.groups.limit(&name, command.limits, &mut notes);
        let spawned = self.spawn(command, listener, &name, &groups);
        let mut child = spawned.inspect_err(|_| groups.iter().for_each(Group::remove)).map_err(failed)?;
        let pid = child.id().and_then(|pid| Pid::from_raw(pid as i32));
        let Some(pid) = pid else { return Err(failed(io::Error::other("it exited immediately"))) };
        if let Err(error) = self.shared.records.add(pid.as_raw_nonzero().get(), &name, Some(command)) {
            tracing::warn!(%error, "Could not record a process; the next start would not kill it if it survives");
        }
        let ended_for_memory = Arc::new(AtomicBool::new(false));
        if let Some(memory_bytes) = watch_bytes {
            self.shared.watch.add(Watched { pid, memory_bytes, ended: ended_for_memory.clone() });
        }
        let readers = self.readers(&mut child, printer);
        let (ended, exit) = watch::channel(None);
        let shared = self.shared.clone();
        let memory_bytes = command.limits.memory_bytes;
        let life =
            Life { child, pid, mark: name, groups, memory_bytes, readers, ended_for_memory, ended, shared };
        self.runtime.spawn(life.watch());
        Ok(Process { pid, exit, notes: notes.into() })
    }

    fn spawn(
        &self,
        command: &Command,
        listener: Option<OwnedFd>,
        name: &str,
        groups: &[Group],
    ) -> io::Result<tokio::process::Child> {
        let (program, words) = self.options.helper.split_first().ok_or(io::ErrorKind::InvalidInput)?;
        let entries: Vec<PathBuf> = groups.iter().map(Group::entry).collect();
        let mut words_of_command = vec![command.program.clone().into_os_string()];
        words_of_command.extend(command.arguments.iter().map(OsString::from));
        // A container engine needs the privileges of its user, and confines its containers itself.
        let is_confined = command.container.is_none();
        let mut spawning = tokio::process::Command::new(program);
        spawning.args(words).args(child::arguments(
            std::process::id(),
            &entries,
            is_confined,
            &words_of_command,
        ));
        spawning.current_dir(&command.folder).env_clear().process_group(0).kill_on_drop(true);
        spawning.env("PATH", std::env::var_os("PATH").unwrap_or_default());
        spawning
            .envs(command.environment.iter().map(|(name, value)| (name, value)))
            .env(mark::VARIABLE, name);
        let stdin = match listener {
            Some(listener) => {
                spawning.env("KLAMBDA_LISTEN_FD", "0");
                Stdio::from(listener)
            }
            None => Stdio::null(),
        };
        spawning.stdin(stdin).stdout(Stdio::piped()).stderr(Stdio::piped());
        let _runtime = self.runtime.enter();
        spawning.spawn()
    }

    fn readers(&self, child: &mut tokio::process::Child, printer: &Printer) -> Vec<JoinHandle<()>> {
        let stdout = child.stdout.take().map(|from| printer.clone().read(Stream::Stdout, from));
        let stderr = child.stderr.take().map(|from| printer.clone().read(Stream::Stderr, from));
        let stdout = stdout.map(|reading| self.runtime.spawn(reading));
        let stderr = stderr.map(|reading| self.runtime.spawn(reading));
        stdout.into_iter().chain(stderr).collect()
    }
}

/// Watches a process from its start to its end.
struct Life {
    child: tokio::process::Child,
    pid: Pid,
    mark: String,
    groups: Vec<Group>,
    memory_bytes: Option<u64>,
    readers: Vec<JoinHandle<()>>,
    ended_for_memory: Arc<AtomicBool>,
    ended: watch::Sender<Option<Exit>>,
    shared: Arc<Shared>,
}

impl Life {
    async fn watch(mut self) {
        let status = self.child.wait().await;
        self.shared.watch.remove(self.pid);
        // Kill its children in the group. The pid of the group is not reused while a member lives. If none lives, nothing is
        // signalled, except in the instant when the pid is reused.
        let _ = kill_process_group(self.pid, Signal::KILL);
        self.shared.strays.end(std::mem::take(&mut self.mark)).await;
        for mut reader in self.readers.drain(..) {
            if tokio::time::timeout(LAST_WORDS, &mut reader).await.is_err() {
                reader.abort();
            }
        }
        let out_of_memory =
            self.ended_for_memory.load(Ordering::Relaxed) || self.groups.iter().any(Group::out_of_memory);
        self.groups.iter().for_each(Group::remove);
        self.shared.records.remove(self.pid.as_raw_nonzero().get());
        let status = status.ok();
        let exit = Exit {
            code: status.and_then(|status| status.code()),
            signal: status.and_then(|status| status.signal()),
            out_of_memory: self.memory_bytes.filter(|_| out_of_memory),
        };
        let _ = self.ended.send(Some(exit));
    }
}
