//! Processes of the bench, the demo and `dev`. They run this executable, read commands as lines, and end with their owner.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, bail};
use rustix::process::{Pid, Signal, kill_process, set_parent_process_death_signal};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::interrupt;

/// The first line of every role: where it listens, or whom it is connected to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Port {
    pub port: u16,
}

/// A process of ours. Dropping it kills it.
pub struct Child {
    name: &'static str,
    process: std::process::Child,
    conversation: Option<Conversation>,
}

struct Conversation {
    commands: ChildStdin,
    lines: mpsc::Receiver<String>,
}

impl Child {
    /// Starts a role of the bench, which answers every command with a line.
    pub fn role(name: &'static str, exe: &Path, spec: &impl Serialize) -> anyhow::Result<(Self, Port)> {
        let mut process = Command::new(exe)
            .args(["bench", "--role", name, "--spec", &serde_json::to_string(spec)?])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .with_context(|| format!("starting the {name}"))?;
        let commands = process.stdin.take().context("no standard input")?;
        let lines = forward_lines(process.stdout.take().context("no standard output")?);
        let mut child = Self { name, process, conversation: Some(Conversation { commands, lines }) };
        let port = child.listen(Duration::from_secs(30))?;
        Ok((child, port))
    }

    /// Starts the server under test, by way of a role that ties its life to ours.
    pub fn server(exe: &Path, arguments: &[String], log: File) -> anyhow::Result<Self> {
        let process = Command::new(exe)
            .args(["bench", "--role", "serve", "--spec", &serde_json::to_string(arguments)?])
            .stdin(Stdio::null())
            .stdout(log.try_clone()?)
            .stderr(log)
            .process_group(0)
            .spawn()
            .context("starting the server")?;
        Ok(Self { name: "server", process, conversation: None })
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    pub fn ask<T: DeserializeOwned>(&mut self, command: &str, within: Duration) -> anyhow::Result<T> {
        let name = self.name;
        let conversation =
            self.conversation.as_mut().with_context(|| format!("the {name} takes no commands"))?;
        writeln!(conversation.commands, "{command}").with_context(|| format!("the {name} has ended"))?;
        self.listen(within).with_context(|| format!("asking the {name} to {command}"))
    }

    fn listen<T: DeserializeOwned>(&mut self, within: Duration) -> anyhow::Result<T> {
        let name = self.name;
        let Some(conversation) = &self.conversation else { bail!("the {name} says nothing") };
        let deadline = Instant::now() + within;
        loop {
            match conversation.lines.recv_timeout(Duration::from_millis(50)) {
                Ok(line) => {
                    return serde_json::from_str(&line).with_context(|| format!("the {name} said {line}"));
                }
                Err(mpsc::RecvTimeoutError::Disconnected) => bail!("the {name} ended before it answered"),
                Err(mpsc::RecvTimeoutError::Timeout) if Instant::now() > deadline => {
                    bail!("the {name} did not answer within {within:?}")
                }
                Err(mpsc::RecvTimeoutError::Timeout) => interrupt::check()?,
            }
        }
    }

    pub fn has_ended(&mut self) -> anyhow::Result<bool> {
        Ok(self.process.try_wait()?.is_some())
    }

    /// Asks it to end and waits until it has; kill -9 if that takes too long.
    pub fn end(&mut self, within: Duration) -> anyhow::Result<()> {
        let pid = i32::try_from(self.process.id()).ok().and_then(Pid::from_raw);
        if let Some(pid) = pid.filter(|_| self.process.try_wait().is_ok_and(|ended| ended.is_none())) {
            kill_process(pid, Signal::TERM)?;
        }
        let deadline = Instant::now() + within;
        while self.process.try_wait()?.is_none() {
            if Instant::now() > deadline {
                self.kill();
                bail!("the {} did not end within {within:?}", self.name);
            }
            // Also after an interrupt, which is often why it ends.
            thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// Kills it with -9 and waits until it has ended.
    pub fn kill(&mut self) {
        // It can only fail because the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        self.kill();
    }
}

fn forward_lines(stdout: std::process::ChildStdout) -> mpsc::Receiver<String> {
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        for line in BufReader::new(stdout).lines().map_while(Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
    });
    lines
}

/// A role's line to the driver.
pub fn say(message: &impl Serialize) -> anyhow::Result<()> {
    let mut stdout = std::io::stdout().lock();
    serde_json::to_writer(&mut stdout, message)?;
    stdout.write_all(b"\n")?;
    Ok(stdout.flush()?)
}

/// Ends this process when the driver ends, however that happens.
pub fn live_with_parent() -> anyhow::Result<()> {
    set_parent_process_death_signal(Some(Signal::KILL)).context("tying this process to the driver")
}

/// Becomes `klambda serve`, which keeps the tie to the driver.
pub fn become_server(arguments: &[String]) -> anyhow::Result<()> {
    let mut command = Command::new(std::env::current_exe()?);
    command.arg("serve").args(arguments);
    for (name, _) in std::env::vars_os().filter(|(name, _)| name.as_encoded_bytes().starts_with(b"KLAMBDA_"))
    {
        // The user's own server is configured by these, not the one under test.
        command.env_remove(name);
    }
    Err(command.exec()).context("starting klambda serve")
}
