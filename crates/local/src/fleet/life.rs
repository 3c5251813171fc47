//! The life of one local replica: started, health-checked, watched, stopped.

use super::failure::{End, LAST_LINES, Reason};
use super::files::{Files, IN_CONTAINER, Reader, VARIABLE, Written};
use super::probe::{self, Expect};
use super::replica::Order;
use super::{Endpoint, Run, Shared};
use crate::container::{self, Engine, Image};
use crate::logs::Printer;
use crate::process::{self, Exit, Process};
use klambda_core::address::ReplicaAddress;
use std::io;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// How long a process may take to exit after its drain time.
const LAST_CHANCE: Duration = Duration::from_secs(1);

pub struct Life {
    pub shared: Arc<Shared>,
    pub function: Arc<str>,
    pub printer: Printer,
    pub start_timeout: Duration,
    pub orders: watch::Receiver<Order>,
}

impl Life {
    pub async fn run(mut self, run: Run, socket: Option<(OwnedFd, ReplicaAddress)>) {
        let end = match (run, socket) {
            (Run::Process(command), Some((listener, address))) => {
                self.process(command, listener, address).await
            }
            (Run::Image(image), _) => self.image(&image).await,
            _ => not_started("could not create a socket; raise the limit of open files".into()),
        };
        self.shared.ended(&self.function, self.replica(), end);
    }

    fn replica(&self) -> u64 {
        self.printer.replica
    }

    async fn process(
        &mut self,
        command: Arc<process::Command>,
        listener: OwnedFd,
        address: ReplicaAddress,
    ) -> End {
        let (command, _files) = match self.with_files(command).await {
            Ok(ready) => ready,
            Err(error) => return no_files(&error),
        };
        match self.spawn(command, Some(listener)).await {
            Ok(process) => self.watch(&process, probe::until_up(&address, Expect::Ok)).await,
            Err(error) => not_started(error.to_string()),
        }
    }

    async fn image(&mut self, image: &Image) -> End {
        let Some(engine) = container::engine().await else {
            let message = container::NO_ENGINE.to_owned();
            return End::NotStarted { reason: Reason::NoContainerEngine, message };
        };
        let fetched = tokio::select! {
            fetched = engine.fetch(&image.reference) => fetched,
            _ = stopped(&mut self.orders) => return End::Stopped,
        };
        if let Err((reason, message)) = fetched {
            return End::NotStarted { reason, message };
        }
        if image.digest.get().is_none()
            && let Some(digest) = engine.digest(&image.reference).await
        {
            // Another replica may have set it meanwhile, to the same digest.
            let _ = image.digest.set(digest);
        }
        let name = engine.name_of(self.replica());
        let (image, _files) = match self.with_mounts(image).await {
            Ok(ready) => ready,
            Err(error) => return no_files(&error),
        };
        let process = match self.spawn(Arc::new(engine.command(&image, &name)), None).await {
            Ok(process) => process,
            Err(error) => return not_started(error.to_string()),
        };
        let (shared, function, replica) = (self.shared.clone(), self.function.clone(), self.replica());
        let up = async {
            let address = ReplicaAddress::Tcp(port(engine, &name, image.port).await);
            probe::until_up(&address, Expect::Any).await;
            shared.opened(&function, replica, Endpoint::Local(address));
        };
        let end = self.watch(&process, up).await;
        engine.remove(&name).await;
        match end {
            End::Exited { exit, last_lines } if exit.code == Some(container::EXIT_ENGINE) => {
                not_started(container::refused(&last_lines))
            }
            end => end,
        }
    }

    async fn spawn(
        &self,
        command: Arc<process::Command>,
        listener: Option<OwnedFd>,
    ) -> Result<Process, process::Error> {
        let process = self.shared.spawner.spawn(command, listener, self.printer.clone()).await?;
        for note in process.notes() {
            tracing::info!(function = &*self.function, note, "Resource limit not fully enforced");
        }
        Ok(process)
    }

    /// The command with its secret files in place. The files exist as long as the second part of the answer.
    async fn with_files(
        &self,
        command: Arc<process::Command>,
    ) -> io::Result<(Arc<process::Command>, Option<Written>)> {
        let Some(files) = &command.files else { return Ok((command, None)) };
        let written = self.write(files.clone(), Reader::Process).await?;
        let mut own = process::Command::clone(&command);
        own.environment.push((VARIABLE.to_owned(), written.folder().to_string_lossy().into_owned()));
        Ok((Arc::new(own), Some(written)))
    }

    async fn with_mounts(&self, image: &Image) -> io::Result<(Image, Option<Written>)> {
        let mut own = image.clone();
        let Some(files) = &image.files else { return Ok((own, None)) };
        let written = self.write(files.clone(), Reader::Container).await?;
        own.mounts = files.mounts(&written);
        own.environment.push((VARIABLE.to_owned(), IN_CONTAINER.to_owned()));
        Ok((own, Some(written)))
    }

    async fn write(&self, files: Arc<Files>, reader: Reader) -> io::Result<Written> {
        let folder = self.shared.options.secrets().join(self.replica().to_string());
        tokio::task::spawn_blocking(move || files.write(folder, reader)).await.map_err(io::Error::other)?
    }

    /// Watches a process from its start to its end.
    async fn watch(&mut self, process: &Process, up: impl Future<Output = ()>) -> End {
        let starting = tokio::time::timeout(self.start_timeout, up);
        tokio::select! {
            exit = process.exited() => return self.exited(exit),
            time = stopped(&mut self.orders) => return self.stop(process, time).await,
            up = starting => match up {
                Ok(()) => self.shared.became_ready(&self.function, self.replica()),
                Err(_) => {
                    process.stop(LAST_CHANCE).await;
                    return End::NeverAnswered { last_lines: self.last_lines() };
                }
            }
        }
        tokio::select! {
            exit = process.exited() => self.exited(exit),
            time = stopped(&mut self.orders) => self.stop(process, time).await,
        }
    }

    fn exited(&self, exit: Exit) -> End {
        match *self.orders.borrow() {
            Order::Run | Order::Kill => End::Exited { exit, last_lines: self.last_lines() },
            _ => End::Stopped,
        }
    }

    async fn stop(&self, process: &Process, time: Option<Duration>) -> End {
        let Some(time) = time else {
            process.kill();
            process.exited().await;
            return End::NotResponding { last_lines: self.last_lines() };
        };
        process.stop(time.max(LAST_CHANCE)).await;
        End::Stopped
    }

    fn last_lines(&self) -> Vec<String> {
        self.printer.logs.last_of(self.replica(), LAST_LINES)
    }
}

fn no_files(error: &io::Error) -> End {
    not_started(format!("its secret files cannot be written: {error}"))
}

fn not_started(message: String) -> End {
    End::NotStarted { reason: Reason::StartFailed, message }
}

async fn port(engine: &Engine, name: &str, port: u16) -> SocketAddr {
    loop {
        match engine.address(name, port).await {
            Some(address) => return address,
            None => tokio::time::sleep(Duration::from_millis(50)).await,
        }
    }
}

/// Waits for the order to stop, then for the open requests. Returns the remaining time, or `None` if the process must be
/// killed.
async fn stopped(orders: &mut watch::Receiver<Order>) -> Option<Duration> {
    let order = orders.wait_for(|order| *order != Order::Run).await.map(|order| *order);
    Some(match order {
        Ok(Order::Kill) => return None,
        Ok(Order::Drain(time)) => {
            let started = Instant::now();
            let ended = orders.wait_for(|order| matches!(order, Order::End(_)));
            let _ = tokio::time::timeout(time, ended).await;
            time.saturating_sub(started.elapsed())
        }
        Ok(Order::End(time)) => time,
        // The fleet no longer knows the replica.
        Ok(Order::Run) | Err(_) => Duration::ZERO,
    })
}
