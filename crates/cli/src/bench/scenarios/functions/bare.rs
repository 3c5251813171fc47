//! The smallest hello HTTP servers of `runtimes/bare`, carried in the program, and their processes.

use std::fs;
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::thread;
use std::time::Duration;

use anyhow::{Context, bail};

use super::caller::Caller;
use crate::bench::rig::free_address;

macro_rules! runtimes {
    ($path:literal) => {
        include_str!(concat!("../../../../../../runtimes/", $path))
    };
}

/// Between two tries to connect to a server that opens its own port.
const AGAIN: Duration = Duration::from_micros(500);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Language {
    Nodejs,
    Python,
    Go,
}

/// How a bare server is started.
pub struct Bare {
    pub language: Language,
    /// Of the interpreter or the compiler; the function is asked to use the same.
    pub version: String,
    command: Vec<String>,
}

/// One that runs. Dropping it kills it.
pub struct Running {
    process: Child,
    pub address: SocketAddr,
}

impl Language {
    pub const ALL: [Language; 3] = [Language::Nodejs, Language::Python, Language::Go];

    pub fn name(self) -> &'static str {
        match self {
            Language::Nodejs => "nodejs",
            Language::Python => "python",
            Language::Go => "go",
        }
    }

    pub fn hello(self) -> &'static str {
        match self {
            Language::Nodejs => runtimes!("hello/nodejs/index.js"),
            Language::Python => runtimes!("hello/python/index.py"),
            Language::Go => runtimes!("hello/go/index.go"),
        }
    }

    /// Its version, and its path without links.
    fn tool(self) -> Option<(String, String)> {
        match self {
            Language::Nodejs => {
                ask("node", &["-e", "console.log(process.versions.node + ' ' + process.execPath)"])
            }
            Language::Python => {
                let print = "import sys; print('%d.%d.%d' % sys.version_info[:3], sys.executable)";
                ask("python3", &["-S", "-E", "-c", print])
            }
            Language::Go => ask("go", &["env", "GOVERSION"])
                .map(|(version, _)| (version.trim_start_matches("go").to_owned(), "go".to_owned())),
        }
    }
}

/// The first word of its output, and the rest.
fn ask(program: &str, arguments: &[&str]) -> Option<(String, String)> {
    let output = Command::new(program)
        .args(arguments)
        .env("GOTOOLCHAIN", "local")
        .stdin(Stdio::null())
        .stderr(Stdio::null())
        .output()
        .ok()?;
    let said = String::from_utf8(output.stdout).ok().filter(|_| output.status.success())?;
    let (first, rest) = said.trim().split_once(' ').unwrap_or((said.trim(), ""));
    Some((first.to_owned(), rest.to_owned()))
}

impl Bare {
    /// None where the language is not on this machine.
    pub fn prepare(language: Language, folder: &Path) -> anyhow::Result<Option<Self>> {
        let Some((version, program)) = language.tool() else { return Ok(None) };
        let folder = folder.join(language.name());
        fs::create_dir_all(&folder)?;
        let write = |file: &str, text: &str| -> anyhow::Result<String> {
            fs::write(folder.join(file), text).with_context(|| format!("writing {file}"))?;
            Ok(folder.join(file).to_string_lossy().into_owned())
        };
        let command = match language {
            Language::Nodejs => vec![program, write("server.js", runtimes!("bare/nodejs/server.js"))?],
            Language::Python => vec![program, write("server.py", runtimes!("bare/python/server.py"))?],
            Language::Go => {
                write("go.mod", runtimes!("bare/go/go.mod"))?;
                write("main.go", runtimes!("bare/go/main.go"))?;
                vec![compile(&program, &folder)?]
            }
        };
        Ok(Some(Self { language, version, command }))
    }

    pub fn start(&self) -> anyhow::Result<Running> {
        let address = free_address()?;
        let process = Command::new(&self.command[0])
            .args(&self.command[1..])
            .env("PORT", address.port().to_string())
            .stdin(Stdio::null())
            // Python logs every closed connection.
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("starting {}", self.command[0]))?;
        Ok(Running { process, address })
    }
}

fn compile(go: &str, folder: &Path) -> anyhow::Result<String> {
    let output = Command::new(go)
        .args(["build", "-trimpath", "-ldflags", "-s -w", "-o", "bare", "."])
        .env("GOTOOLCHAIN", "local")
        .current_dir(folder)
        .output()
        .context("compiling the bare server")?;
    if !output.status.success() {
        bail!("compiling the bare server: {}", String::from_utf8_lossy(&output.stderr));
    }
    Ok(fs::canonicalize(folder.join("bare"))?.to_string_lossy().into_owned())
}

impl Running {
    /// It opens its own port, so connecting is tried until it succeeds.
    pub fn connect(&mut self) -> anyhow::Result<Caller> {
        loop {
            if let Ok(caller) = Caller::connect(self.address) {
                return Ok(caller);
            }
            if self.process.try_wait()?.is_some() {
                bail!("the bare server ended before it listened");
            }
            thread::sleep(AGAIN);
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It can only fail because the process has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
