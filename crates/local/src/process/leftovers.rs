//! Processes of an earlier run of this program that are still there: ended at the next start.
//!
//! Each process has a file that names it by pid, start time and boot. A pid alone may be another's by now; with the
//! start time it cannot. What a process started itself is known by a word in its environment.

use super::proc::{self, Stat};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// In the environment of every process, with a word that is used once.
pub const MARK: &str = "KLAMBDA_REPLICA";

#[derive(Debug, Serialize, Deserialize)]
struct Record {
    pid: i32,
    started: u64,
    boot: String,
    mark: String,
}

/// The folder of these files.
#[derive(Debug)]
pub struct Records {
    folder: PathBuf,
    boot: String,
}

impl Records {
    /// Ends what earlier runs left, and says how many.
    pub fn open(folder: &Path) -> io::Result<(Records, usize)> {
        fs::create_dir_all(folder)?;
        let records = Records { folder: folder.to_path_buf(), boot: proc::boot_id() };
        let mut ended = 0;
        for entry in fs::read_dir(folder)?.flatten() {
            ended += records.end(&entry.path());
            fs::remove_file(entry.path())?;
        }
        Ok((records, ended))
    }

    fn end(&self, file: &Path) -> usize {
        let record = fs::read(file).ok().and_then(|bytes| serde_json::from_slice::<Record>(&bytes).ok());
        let Some(record) = record.filter(|record| record.boot == self.boot) else { return 0 };
        let Some(pid) = Pid::from_raw(record.pid) else { return 0 };
        let mut ended = 0;
        if proc::stat(record.pid)
            .is_some_and(|stat| stat.started == record.started && stat.group == record.pid)
        {
            ended += usize::from(kill_process_group(pid, Signal::KILL).is_ok());
        }
        let marked = proc::all().into_iter().filter(|stat| has_mark(stat, &record.mark));
        ended + marked.filter(|stat| kill(stat).is_some()).count()
    }

    pub(super) fn add(&self, pid: i32, mark: &str) -> io::Result<()> {
        let started = proc::stat(pid).map_or(0, |stat| stat.started);
        let record = Record { pid, started, boot: self.boot.clone(), mark: mark.to_owned() };
        fs::write(self.file(pid), serde_json::to_vec(&record)?)
    }

    pub(super) fn remove(&self, pid: i32) {
        let _ = fs::remove_file(self.file(pid));
    }

    fn file(&self, pid: i32) -> PathBuf {
        self.folder.join(format!("{pid}.json"))
    }
}

fn has_mark(stat: &Stat, mark: &str) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{}/environ", stat.pid)) else { return false };
    let expected = format!("{MARK}={mark}");
    environment.split(|byte| *byte == 0).any(|variable| variable == expected.as_bytes())
}

fn kill(stat: &Stat) -> Option<()> {
    kill_process(Pid::from_raw(stat.pid)?, Signal::KILL).ok()
}
