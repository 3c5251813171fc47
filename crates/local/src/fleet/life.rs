//! The life of one replica that runs here: started, asked whether it is up, watched, ended.

use super::failure::{End, LAST_LINES, Reason};
use super::probe::{self, Expect};
use super::replica::Order;
use super::{Endpoint, Run, Shared};
use crate::container::{self, Engine, Image};
use crate::process::logs::Logs;
use crate::process::{self, Exit, Process};
use klambda_core::address::Address;
use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::watch;

/// After its time to drain, how long a process has to end by itself.
const LAST_CHANCE: Duration = Duration::from_secs(1);

pub struct Life {
    pub shared: Arc<Shared>,
    pub function: Arc<str>,
    pub replica: u64,
    pub logs: Arc<Logs>,
    pub start_timeout: Duration,
    pub orders: watch::Receiver<Order>,
}

impl Life {
    pub async fn run(mut self, run: Run, socket: Option<(OwnedFd, Address)>) {
        let end = match (run, socket) {
            (Run::Process(command), Some((listener, address))) => {
                self.process(command, listener, address).await
            }
            (Run::Image(image), _) => self.image(&image).await,
            _ => not_started("no socket to listen on; raise the limit of open files".into()),
        };
        self.shared.ended(&self.function, self.replica, end);
    }

    async fn process(&mut self, command: Arc<process::Command>, listener: OwnedFd, address: Address) -> End {
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
        let name = engine.name_of(self.replica);
        let process = match self.spawn(Arc::new(engine.command(image, &name)), None).await {
            Ok(process) => process,
            Err(error) => return not_started(error.to_string()),
        };
        let (shared, function, replica) = (self.shared.clone(), self.function.clone(), self.replica);
        let up = async {
            let address = Address::Tcp(port(engine, &name, image.port).await);
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
        let process = self.shared.spawner.spawn(command, listener, self.logs.clone(), self.replica).await?;
        for note in process.notes() {
            tracing::info!(function = &*self.function, note, "A limit is not kept as stated.");
        }
        Ok(process)
    }

    /// From the start of a process to its end.
    async fn watch(&mut self, process: &Process, up: impl Future<Output = ()>) -> End {
        let starting = tokio::time::timeout(self.start_timeout, up);
        tokio::select! {
            exit = process.exited() => return self.exited(exit),
            time = stopped(&mut self.orders) => return self.stop(process, time).await,
            up = starting => match up {
                Ok(()) => self.shared.became_ready(&self.function, self.replica),
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
        self.logs.last_of(self.replica, LAST_LINES)
    }
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

/// Waits for the order to end, then for its requests to; answers how much of the time is left, nothing if it does not
/// even hear.
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
        // Nobody knows of the replica any more.
        Ok(Order::Run) | Err(_) => Duration::ZERO,
    })
}
