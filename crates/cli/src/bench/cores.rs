//! Which cores a process may run on.

use std::fs;

use anyhow::Context;
use rustix::process::Pid;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};

/// Gives the target the last core and the server the others; with one core there is nothing to share out.
///
/// Two processes that wake each other all the time end up on one core, where each waits for the other to finish its
/// burst while the other core idles. The result would then depend on the scheduler of Linux, not on the server.
pub fn keep_apart(server: u32, target: u32) -> anyhow::Result<()> {
    let all = sched_getaffinity(None)?;
    let mut ours: Vec<usize> = (0..CpuSet::MAX_CPU).filter(|cpu| all.is_set(*cpu)).collect();
    let Some(last) = ours.pop().filter(|_| !ours.is_empty()) else { return Ok(()) };
    allow(server, &ours)?;
    allow(target, &[last])
}

/// Every thread of the process, and those it starts later, which inherit it.
fn allow(pid: u32, cpus: &[usize]) -> anyhow::Result<()> {
    let mut set = CpuSet::new();
    cpus.iter().for_each(|cpu| set.set(*cpu));
    for task in fs::read_dir(format!("/proc/{pid}/task")).context("a process has ended")? {
        let thread: i32 = task?.file_name().to_string_lossy().parse()?;
        sched_setaffinity(Pid::from_raw(thread), &set)?;
    }
    Ok(())
}
