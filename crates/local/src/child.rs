//! A small helper program between the server and the process of a function. It ties the lifetime of the process to the
//! server, moves it into its control groups, and then replaces itself with the process.
//!
//! The server starts itself again with a hidden argument, and this code runs first. So no code runs between fork and exec,
//! where little is allowed, and nothing here is `unsafe`.

use crate::process::{leftovers, mark};
use rustix::process::{Pid, Signal, getppid, set_parent_process_death_signal};
use rustix::thread::{CapabilitySet, remove_capability_from_bounding_set};
use std::ffi::{OsStr, OsString};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, exit};

/// The exit code of a shell for a command that it cannot find.
pub const EXIT_NOT_FOUND: i32 = 127;
const EXIT_NOT_RUNNABLE: i32 = 126;
/// The parent has already exited, so nobody sees this code.
const EXIT_ORPHAN: i32 = 125;

/// An argument: run the command with fewer privileges than this program.
const CONFINED: &str = "confined";

/// Arguments: the pid of the parent, optionally [`CONFINED`], the files of the control groups to enter, `--`, the command.
/// Or: `watch`, the folder of records, the server.
pub fn main(arguments: impl Iterator<Item = OsString>) -> ! {
    let mut arguments = arguments;
    let first = arguments.next();
    if first.as_deref().is_some_and(|word| word == leftovers::WATCH) {
        watch(arguments);
    }
    let parent = first.and_then(|pid| pid.to_str()?.parse().ok()).and_then(Pid::from_raw);
    let Some(parent) = parent else { fail("the first argument must be the pid of the parent") };
    if let Err(error) = set_parent_process_death_signal(Some(Signal::KILL)) {
        fail(&format!("could not set the parent death signal: {error}"));
    }
    // The parent may have died before the signal was set. Then no signal arrives.
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

/// If everything runs as root, these capabilities would let a function read the memory and the environment of the server.
/// Other users do not have them and cannot drop them.
const FORBIDDEN: [CapabilitySet; 3] =
    [CapabilitySet::SYS_PTRACE, CapabilitySet::PERFMON, CapabilitySet::SYS_ADMIN];

fn confine() {
    for capability in FORBIDDEN {
        let _ = remove_capability_from_bounding_set(capability);
    }
}

/// Runs the watcher, which kills leftover processes.
fn watch(mut arguments: impl Iterator<Item = OsString>) -> ! {
    let (Some(folder), Some(server)) = (arguments.next(), arguments.next()) else {
        fail("watch needs a folder and a server")
    };
    leftovers::watch(Path::new(&folder), &server.to_string_lossy());
    exit(0)
}

/// Writing 0 moves the writing process itself.
fn enter(file: &OsStr) {
    if let Err(error) = std::fs::write(file, "0") {
        fail(&format!("could not enter the control group {}: {error}", file.display()));
    }
}

fn become_it(program: &OsStr, arguments: impl Iterator<Item = OsString>) -> ! {
    let error = Command::new(program).args(arguments).exec();
    eprintln!("could not run {}: {error}", program.display());
    exit(match error.kind() {
        std::io::ErrorKind::NotFound => EXIT_NOT_FOUND,
        _ => EXIT_NOT_RUNNABLE,
    })
}

fn fail(message: &str) -> ! {
    eprintln!("klambda child: {message}");
    exit(EXIT_NOT_RUNNABLE)
}

/// The arguments of [`main`] before the files and the command.
pub fn launch_words(parent: u32, is_confined: bool) -> Vec<OsString> {
    let confined = is_confined.then(|| OsString::from(CONFINED));
    [OsString::from(parent.to_string())].into_iter().chain(confined).collect()
}

/// The arguments of [`main`], without the words that select it.
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
