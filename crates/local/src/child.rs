//! The little program between the server and a function's process: it makes the process die with the server, puts it
//! where its limits are, and becomes it.
//!
//! The server starts itself again with a hidden word, and this runs before anything else of it. So no code runs between
//! fork and exec, where little is allowed, and nothing here is `unsafe`.

use crate::process::{leftovers, mark};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

/// What a shell answers where a command cannot be run.
pub const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;
/// The parent was gone already; nobody is there to see this.
const EXIT_ORPHAN: i32 = 125;

/// Among the arguments: the command may do less than this program.
const CONFINED: &str = "confined";

/// Arguments: the parent's pid, [`CONFINED`] or not, the files of control groups to enter, `--`, the command. Or `watch`, the folder of
/// records, the server.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ! {
    let mut arguments = arguments;
    let first = arguments.next();
    if first.as_deref().is_some_and(|word| word == leftovers::WATCH) {
        watch(arguments);
    }
    let parent = first.and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(parent) = parent else { fail("the first argument is the pid of the parent") };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        fail(&format!("cannot tie this process to its parent: {error}"));
    }
    // It may have died before the line above; then no signal comes.
    if getppid() != Some(parent) {
        exit(EXIT_ORPHAN);
    }
    if let Ok(word) = std::env::var(mark::VARIABLE) {
        mark::take(&word);
    }
    for word in arguments.by_ref().take_while(|argument| argument != "--") {
        if word == CONFINED { confine() } else { enter(&word) }
    }
    let Some(program) = arguments.next() else { fail("no command given") };
    become_it(&program, arguments)
}

/// Where everything runs as root, these would let a function read the memory and the environment of the server. Others
/// do not have them, and may not give them up either.
const FORBIDDEN: [CapabilitySet; 3] =
    [CapabilitySet::SYS_PTRACE, CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];

fn confine() {
    for capability in FORBIDDEN {
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Not a process of a function, but the one that sees to it that none is left.
fn watch(mut arguments: impl Iterator<Item = OsString>) -> ! {
    let (Some(folder), Some(server)) = (arguments.next(), arguments.next()) else { fail("watch what?") };
    leftovers::watch(Path::new(&folder), &server.to_string_lossy());
    exit(0)
}

/// Its own pid is what 0 means there.
fn enter(file: &OsStr) {
    if let Err(error) = std::fs::write(file, "0") {
        fail(&format!("cannot enter {}: {error}", file.display()));
    }
}

fn become_it(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> ! {
    let error = Command::new(program).args(arguments).exec();
    eprintln!("{} cannot be run: {error}", program.display());
    exit(match error.kind() {
        std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_RUNNABLE,
    })
}

fn fail(message: &str) -> ! {
    eprintln!("klambda child: {message}");
    exit(EXIT_NOT_RUNNABLE)
}

/// Those of [`main`]'s arguments that stand before files and command.
pub fn launch_words(parent: u32, is_confined: bool) -> Vec<OsString> {
    let confined = is_confined.then(|| OsString::from(CONFINED));
    [OsString::from(parent.to_string())].into_iter().chain(confined).collect()
}

/// The arguments that [`main`] reads, after the words that lead to it.
pub(crate) fn arguments(
    parent: u32,
    enter: &[std::path::PathBuf],
    is_confined: bool,
    command: &[OsString],
) -> Vec<OsString> {
    let mut arguments = launch_words(parent, is_confined);
    arguments.extend(enter.iter().map(|file| file.clone().into_os_string()));
    arguments.push("--".into());
    arguments.extend_from_slice(command);
    arguments
}
