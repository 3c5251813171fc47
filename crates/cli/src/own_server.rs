//! The server of a command that brings its own: a process that ends with this one, and a folder that goes with it.

use crate::bench::child::Child;
use crate::bench::interrupt;
use crate::client::Client;
use crate::commands::is_unreachable;
use crate::contexts::Connection;
use crate::route::Route;
use anyhow::{Context, anyhow, bail};
use klambda_core::namespace;
use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const START: Duration = Duration::from_secs(20);
const END: Duration = Duration::from_secs(10);
const ANSWER: Duration = Duration::from_secs(20);
/// Ending the command does not wait for slow calls. Their events are removed with the folder.
const CONFIG: &str = "delivery: {shutdownTimeout: 1s}\n";

pub struct OwnServer {
    // The server goes before its folder does.
    server: Child,
    connection: Connection,
    folder: TempDir,
}

/// A temporary folder, before the server starts in it.
pub fn folder(command: &str) -> std::io::Result<TempDir> {
    tempfile::Builder::new().prefix(&format!("klambda-{command}-")).tempdir()
}

pub fn data(folder: &Path) -> PathBuf {
    folder.join("data")
}

impl OwnServer {
    /// Listens on a free port, unless there is an address.
    pub fn start(folder: TempDir, listen: Option<&str>) -> anyhow::Result<OwnServer> {
        // Bound for a moment, so that a server which already listens there is not mistaken for this one.
        let listen = listen.unwrap_or("127.0.0.1:0");
        let bound = TcpListener::bind(listen).with_context(|| format!("cannot listen on {listen}"))?;
        let address = bound.local_addr()?.to_string();
        drop(bound);
        let log = File::create(folder.path().join("serve.log"))?;
        let data = data(folder.path()).to_string_lossy().into_owned();
        let config = folder.path().join("serve.yaml");
        std::fs::write(&config, CONFIG)?;
        let config = config.to_string_lossy();
        let arguments = ["--listen", &address, "--data", &data, "--config", &config].map(str::to_owned);
        let server = Child::server(&std::env::current_exe()?, &arguments, log)?;
        let connection = Connection {
            server: format!("http://{address}"),
            token_file: None,
            ca_file: None,
            namespace: namespace::DEFAULT.to_owned(),
            timeout: ANSWER,
        };
        let mut own = OwnServer { server, connection, folder };
        own.wait_until_ready()?;
        Ok(own)
    }

    fn wait_until_ready(&mut self) -> anyhow::Result<()> {
        let client = self.client()?;
        let deadline = Instant::now() + START;
        while client.get(&Route::new(&["status"])).is_err() {
            if self.server.has_ended()? || Instant::now() > deadline {
                bail!("the server did not start: {}", self.said());
            }
            interrupt::sleep(Duration::from_millis(10))?;
        }
        Ok(())
    }

    pub fn url(&self) -> &str {
        &self.connection.server
    }

    pub fn client(&self) -> anyhow::Result<Client> {
        Client::new(self.connection.clone())
    }

    pub fn path(&self) -> &Path {
        self.folder.path()
    }

    /// What the server has printed.
    fn said(&self) -> String {
        let text = std::fs::read_to_string(self.path().join("serve.log")).unwrap_or_default();
        text.trim().to_owned()
    }

    /// A server that cannot be reached because it is gone is not one that the user should start.
    pub fn explain(&mut self, error: anyhow::Error) -> anyhow::Error {
        match self.server.has_ended() {
            Ok(true) if is_unreachable(&error) => anyhow!("the command's own server ended: {}", self.said()),
            _ => error,
        }
    }

    /// Asks it to end, and waits for that.
    pub fn end(&mut self) -> anyhow::Result<()> {
        self.server.end(END)
    }
}
