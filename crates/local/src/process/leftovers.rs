//! Processes that survive the program that started them.
//!
//! The kernel kills a process when its server dies, but not the processes that it started in turn. So a small watcher waits
//! beside every server for its end and kills what is left. If the watcher is killed too, the next start does it.
//!
//! A file for each process records its pid, start time and boot id. A pid alone may be reused; together with the start time
//! it is unique. Processes that a process started are recognized by their [`super::mark`], and the container of a client by
//! its name.

use super::Command;
use super::proc;
use super::strays::{LOOK_AGAIN, LOOKS_MAX, kill_marked};
use rustix::process::{Pid, Signal, kill_process_group};
use serde::{Deserialize, Serialize};
use std::ffi::OsString;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::atomic::{AtomicU64, Ordering};

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    started: u64,
    boot: String,
    mark: String,
    /// The run of the program that started it.
    server: String,
    container: Option<Container>,
}

#[derive(Debug, Serialize, Deserialize)]
struct Container {
    client: PathBuf,
    name: String,
}

impl Container {
    fn of(command: &Command) -> Option<Container> {
        let name = command.container.clone()?;
        Some(Container { client: command.program.clone(), name })
    }

    fn remove(&self) {
        let mut removal = std::process::Command::new(&self.client);
        removal.args(["rm", "--force", &self.name]).stdin(Stdio::null()).stdout(Stdio::null());
        let _ = removal.stderr(Stdio::null()).status();
    }
}

/// The folder of these files.
#[derive(Debug)]
pub struct Records {
    folder: PathBuf,
    boot: String,
    server: String,
}

impl Records {
    /// Kills leftovers of earlier runs, and returns their number.
    pub fn open(folder: &Path) -> io::Result<(Records, usize)> {
        fs::create_dir_all(folder)?;
        let pid = std::process::id() as i32;
        let started = proc::stat(pid).map_or(0, |stat| stat.started);
        let server = format!("{pid}.{started}");
        let records = Records { folder: folder.to_path_buf(), boot: proc::boot_id(), server };
        let mut ended = 0;
        for entry in fs::read_dir(folder)?.flatten() {
            ended += read(&entry.path()).map_or(0, |record| records.end(&record));
            match fs::remove_file(entry.path()) {
                // The watcher of the previous run may remove it at the same time.
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok((records, ended))
    }

    /// A name for a process that is unique across all runs.
    pub(super) fn new_name(&self) -> String {
        static GIVEN: AtomicU64 = AtomicU64::new(0);
        format!("klambda-{}-{}", self.server.replace('.', "-"), GIVEN.fetch_add(1, Ordering::Relaxed))
    }

    /// The arguments that make the helper run [`watch`].
    pub(super) fn watch_words(&self) -> [OsString; 3] {
        [WATCH.into(), self.folder.clone().into_os_string(), self.server.clone().into()]
    }

    fn end(&self, record: &Record) -> usize {
        if record.boot != self.boot {
            return 0;
        }
        let Some(pid) = Pid::from_raw(record.pid) else { return 0 };
        let mut ended = 0;
        if proc::stat(record.pid)
            .is_some_and(|stat| stat.started == record.started && stat.group == record.pid)
        {
            ended += usize::from(kill_process_group(pid, Signal::KILL).is_ok());
        }
        ended + kill_marked(std::slice::from_ref(&record.mark))
    }

    pub(super) fn add(&self, pid: i32, mark: &str, command: Option<&Command>) -> io::Result<()> {
        let started = proc::stat(pid).map_or(0, |stat| stat.started);
        let record = Record {
            pid,
            started,
            boot: self.boot.clone(),
            mark: mark.to_owned(),
            server: self.server.clone(),
            container: command.and_then(Container::of),
        };
        fs::write(self.file(pid), serde_json::to_vec(&record)?)
    }

    pub(super) fn remove(&self, pid: i32) {
        let _ = fs::remove_file(self.file(pid));
    }

    fn file(&self, pid: i32) -> PathBuf {
        self.folder.join(format!("{pid}.json"))
    }
}

fn read(file: &Path) -> Option<Record> {
    serde_json::from_slice(&fs::read(file).ok()?).ok()
}

/// The argument that makes the helper watch instead of running a command.
pub(crate) const WATCH: &str = "watch";

/// Waits for the end of standard input, which the server holds open, then kills what that server left.
pub(crate) fn watch(folder: &Path, server: &str) {
    let _ = io::copy(&mut io::stdin().lock(), &mut io::sink());
    let records = Records { folder: folder.to_path_buf(), boot: proc::boot_id(), server: server.to_owned() };
    // Only its own records: another server may have started in the same folder.
    let files = fs::read_dir(folder).into_iter().flatten().flatten().map(|entry| entry.path());
    let own: Vec<(PathBuf, Record)> = files
        .filter_map(|file| Some((file.clone(), read(&file)?)))
        .filter(|(_, record)| record.server == server)
        .collect();
    for _ in 0..LOOKS_MAX {
        if own.iter().map(|(_, record)| records.end(record)).sum::<usize>() == 0 {
            break;
        }
        std::thread::sleep(LOOK_AGAIN);
    }
    for (file, record) in own {
        record.container.iter().for_each(Container::remove);
        let _ = fs::remove_file(file);
    }
}
