//! The whole server: opens the folder, recovers, serves, and ends in order.

use crate::api::{About, Api, Gate, Inner, Turns};
use crate::auth::{Access, Issued, LoadError, keep_keys};
use crate::config::Config;
use crate::front::{self, Front, signals};
use crate::functions::limits::Limiter;
use crate::functions::watch::Requests;
use crate::routes;
use crate::shutdown::Shutdown;
use crate::{telemetry, tokens};
use klambda_control::{Control, Options, StartError};
use klambda_core::time::Millis;
use klambda_core::{binding, breaker};
use klambda_dispatch::client;
use klambda_dispatch::history::History;
use klambda_dispatch::runner::{Clock, Handle, Runner, StoreFailed};
use klambda_dispatch::workers::EVENT_INTERVAL;
use klambda_dispatch::{Engine, Failure};
use klambda_functions::plan;
use klambda_local::platform;
use klambda_store::real_disk::{self, RealDisk};
use klambda_store::{log, recovery};
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{self, Runtime};
use tokio::task::{JoinError, JoinHandle};

/// How long functions have to end if all before has taken all of the time: longer than it takes to kill them.
const FUNCTIONS_END: Duration = Duration::from_secs(10);

/// A server that runs. It ends in order when it is stopped; dropped, it goes on until its runtime ends.
pub struct Server {
    address: SocketAddr,
    url: String,
    data_folder: String,
    report: recovery::Report,
    shutdown: Shutdown,
    access: Arc<Access>,
    serving: JoinHandle<()>,
    running: JoinHandle<Result<(), StoreFailed>>,
    handle: Handle,
    control: Control,
    shutdown_timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Folder(#[from] real_disk::Error),
    #[error(transparent)]
    Front(#[from] front::Error),
    #[error("the data folder {folder} cannot be used: {source}")]
    Store { folder: String, source: Failure },
    #[error("there is no randomness to be had: {0}")]
    Randomness(getrandom::Error),
    #[error(transparent)]
    StoreFailed(#[from] StoreFailed),
    #[error(transparent)]
    Functions(#[from] StartError),
    #[error(transparent)]
    Tokens(#[from] LoadError),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Who gets how many threads, beside those for syncs and chores: producers, REST and the engine, and deliveries.
struct Threads {
    front: usize,
    deliveries: usize,
}

/// Half for each side, at least one: with two cores a second thread for one side costs more than it brings.
fn threads(config: &Config) -> Threads {
    let threads = match config.threads {
        0 => std::thread::available_parallelism().map_or(1, usize::from),
        threads => threads,
    };
    let deliveries = (threads / 2).max(1);
    Threads { front: threads.saturating_sub(deliveries).max(1), deliveries }
}

pub fn runtime(config: &Config) -> io::Result<Runtime> {
    let Threads { front, .. } = threads(config);
    let mut builder = match front {
        1 => runtime::Builder::new_current_thread(),
        _ => runtime::Builder::new_multi_thread(),
    };
    if front > 1 {
        builder.worker_threads(front);
    }
    builder.event_interval(EVENT_INTERVAL).enable_all().thread_name("klambda").build()
}

/// Serves until it is told to stop by a signal.
pub async fn run(config: Config) -> Result<(), Error> {
    telemetry::init(&config.log);
    hide();
    let server = Server::start(config).await?;
    let listening = tokio::spawn(signals(server.shutdown.clone(), Arc::clone(&server.access)));
    greet(&server)?;
    let ended = server.ended().await;
    listening.abort();
    Ok(ended?)
}

/// Functions run as the same user. They must not read this process's environment and memory through `/proc`.
fn hide() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "Functions may be able to read the environment of this server.");
    }
}

/// Where commands look for a server that they are not told of.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

fn greet(server: &Server) -> io::Result<()> {
    let recovered = match (server.report.records, server.report.cut) {
        (0, None) => String::new(),
        (records, None) => format!(" ({records} records read back)"),
        (records, Some((_, bytes))) => {
            format!(" ({records} records read back; an unfinished write of {bytes} bytes was cut off)")
        }
    };
    let mut out = io::stdout().lock();
    writeln!(out, "klambda {} listens on {}", env!("CARGO_PKG_VERSION"), server.url)?;
    writeln!(out, "its data is in {}{recovered}", server.data_folder)?;
    let klambda = match server.url.as_str() {
        DEFAULT_URL => "klambda".to_owned(),
        url => format!("klambda --server {url}"),
    };
    writeln!(out, "try: {klambda} apply -f examples/orders.yaml")?;
    writeln!(out, "     {klambda} event send --type order.placed --key order-42 --data '{{\"total\": 7}}'")?;
    writeln!(out, "     {klambda} status")?;
    out.flush()
}

impl Server {
    /// Answers when the engine has recovered and events are accepted.
    pub async fn start(config: Config) -> Result<Server, Error> {
        // The folder first: of a second server on it the first thing to say is who holds it.
        let disk = RealDisk::open(&config.data)?;
        let front = Front::open(&config)?;
        let (address, url, stats, held) = (front.address(), front.url(), front.stats(), front.held());
        let (access, shutdown) = (front.access(), Shutdown::new());
        let gate = Gate::default();
        let resources = routes::router(gate.clone());
        let serving = tokio::spawn(front.serve(gate.clone(), resources, shutdown.clone()));

        let data_folder = absolute(&config.data);
        let clock = Clock::new();
        let opened = open_engine(disk, &config, clock.now(), &data_folder).await;
        let (engine, report) = opened.inspect_err(|_| shutdown.cut())?;
        log_recovery(&report);
        let history = History::new(engine.reader());
        let clock = clock.not_before(engine.now());
        let control =
            Control::new(control_options(&config, &url), clock, platform::open(machine_options(&config)));
        control.load(&engine).inspect_err(|_| shutdown.cut())?;
        let issued = Issued::load(&engine, clock, config.limits.tokens);
        access.load(issued.inspect_err(|_| shutdown.cut())?);
        let (client, deliveries) = (client_options(&config), threads(&config).deliveries);
        let functions = Arc::new(control.clone());
        let (runner, handle) = Runner::with_functions(engine, client, clock, deliveries, functions)?;
        let running = tokio::spawn(runner.run());
        control.start(handle.clone()).await;
        let api = Api::new(Inner {
            handle: handle.clone(),
            clock,
            control: control.clone(),
            limiter: Limiter::new(&config),
            requests: Requests::default(),
            metric_functions: config.limits.metric_functions,
            history,
            limits: event_limits(&config),
            unversioned: Default::default(),
            shutdown: shutdown.clone(),
            access: Arc::clone(&access),
            stats,
            held,
            about: About { started: Instant::now(), data_folder: data_folder.clone(), url: url.clone() },
            turns: Turns::default(),
        });
        tokio::spawn(tokens::keep_uses(api.clone()));
        tokio::spawn(keep_keys(Arc::clone(&access), shutdown.clone()));
        gate.open(api);
        Ok(Server {
            address,
            url,
            data_folder,
            report,
            shutdown,
            access,
            serving,
            running,
            handle,
            control,
            shutdown_timeout: config.delivery.shutdown_timeout,
        })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }

    pub fn url(&self) -> &str {
        &self.url
    }

    pub fn report(&self) -> &recovery::Report {
        &self.report
    }

    /// Asks it to end: nothing new is begun, what is open may finish.
    pub fn stop(&self) {
        self.shutdown.request();
    }

    /// Waits for the end: of a `stop` or a signal, in order, or of a failed store, at once.
    pub async fn ended(mut self) -> Result<(), StoreFailed> {
        tokio::select! {
            () = self.shutdown.requested() => {}
            ended = &mut self.running => {
                // Nothing can be answered any more: whoever is connected learns it from the closed connection.
                self.shutdown.cut();
                return outcome(ended);
            }
        }
        tracing::info!("Stopping: what is open may finish.");
        let deadline = Instant::now() + self.shutdown_timeout;
        // Requests first, since they are answered by the engine; then deliveries, for as long as there is time.
        let _ = (&mut self.serving).await;
        tokio::select! {
            () = tokens::store_uses(&self.access, &self.handle) => {}
            () = self.shutdown.cut_off() => {}
        }
        self.handle.stop(deadline.saturating_duration_since(Instant::now()));
        let ended = tokio::select! {
            ended = &mut self.running => ended,
            () = self.shutdown.cut_off() => {
                self.handle.stop(Duration::ZERO);
                (&mut self.running).await
            }
        };
        self.end_functions(deadline).await;
        tracing::info!("Stopped.");
        outcome(ended)
    }

    /// They are asked to end, then killed. Whatever keeps one from ending does not keep this program: they end with it.
    async fn end_functions(&self, deadline: Instant) {
        let time = deadline.saturating_duration_since(Instant::now()).max(FUNCTIONS_END);
        let was_cut = self.shutdown.is_cut();
        tokio::select! {
            () = self.control.stop() => {}
            () = tokio::time::sleep(time) => tracing::warn!("Functions did not end in time."),
            () = self.shutdown.cut_off(), if !was_cut => {}
        }
    }
}

/// A task that panics never gets here in the program itself: the panic ends the process.
fn outcome(ended: Result<Result<(), StoreFailed>, JoinError>) -> Result<(), StoreFailed> {
    ended.unwrap_or_else(|error| Err(StoreFailed(format!("the engine ended: {error}"))))
}

async fn open_engine(
    disk: RealDisk,
    config: &Config,
    now: Millis,
    folder: &str,
) -> Result<(Engine, recovery::Report), Error> {
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).map_err(Error::Randomness)?;
    let (disk, options) = (Arc::new(disk), engine_config(config));
    let opened = tokio::task::spawn_blocking(move || Engine::open(disk, options, now, seed)).await;
    let opened = opened.map_err(io::Error::other)?;
    opened.map_err(|source| Error::Store { folder: folder.to_owned(), source })
}

fn log_recovery(report: &recovery::Report) {
    match report.cut {
        None => tracing::info!(records = report.records, "Recovered."),
        Some((at, bytes)) => {
            tracing::warn!(
                records = report.records,
                at = at.0,
                bytes,
                "Recovered; an unfinished write was cut off."
            );
        }
    }
}

fn absolute(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.to_string_lossy().into_owned()
}

fn engine_config(config: &Config) -> klambda_dispatch::Config {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let memory = usize::try_from(config.memory).unwrap_or(usize::MAX);
    let breaker = &config.delivery.breaker;
    klambda_dispatch::Config {
        memory_bytes: memory,
        log: log::Options {
            segment_bytes: config.store.segment_bytes,
            reserve_bytes: config.store.reserve_bytes,
            tail_bytes: memory / 16,
        },
        concurrency: u32::try_from(config.limits.concurrency).unwrap_or(u32::MAX),
        unsent_bytes_max: config.limits.held_bytes / 4,
        retention_age_ms: ms(config.retention.age),
        retention_bytes: config.retention.bytes,
        marks_max: config.idempotency.max_marks,
        subscriptions_max: config.limits.subscriptions,
        namespaces_max: config.limits.namespaces,
        breaker: breaker::Limits {
            consecutive: breaker.consecutive,
            ratio: breaker.ratio,
            calls_min: breaker.minimum_calls,
            window_ms: ms(breaker.window),
            half_open_after_ms: ms(breaker.half_open_after),
        },
        strategies: config.replay.strategies.iter().map(|(kind, how)| (kind.clone(), *how)).collect(),
        metric_types_max: config.limits.metric_types,
        ..klambda_dispatch::Config::default()
    }
}

fn client_options(config: &Config) -> client::Options {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    client::Options {
        connect_timeout_ms: ms(config.delivery.connect_timeout),
        pool_idle_ms: ms(config.delivery.pool_idle),
        ..client::Options::default()
    }
}

/// Also when the file was replaced since the start.
const OWN_PROGRAM: &str = "/proc/self/exe";

fn machine_options(config: &Config) -> platform::Options {
    let helper = vec![OWN_PROGRAM.into(), "child".into()];
    // Builds and functions have working folders of their own: a relative path would lead elsewhere from there.
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    let mut options = platform::Options::new(data.join("functions"), helper);
    let functions = &config.functions;
    options.secrets = functions.secrets.clone();
    options.builds_max = functions.builds;
    options.replicas_max = functions.replicas;
    options.start_timeout = functions.start_timeout;
    options.drain = functions.drain;
    options.fetch.time = functions.fetch_timeout;
    options.cache = platform::cache::Limits { bytes: functions.cache_bytes, age: functions.cache_age };
    options
}

fn control_options(config: &Config, url: &str) -> Options {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let functions = &config.functions;
    let limits = plan::Limits {
        tries_max: functions.tries,
        tries_within_ms: ms(functions.tries_within),
        // The fleet knows the cause sooner: this is for what it never says.
        start_ms_max: ms(functions.start_timeout.saturating_mul(2)),
        drain_ms_max: ms(functions.drain),
        ..plan::Limits::default()
    };
    Options {
        functions_max: functions.max,
        limits,
        start_timeout: functions.start_timeout,
        named_max: config.limits.metric_functions,
        url: url.to_owned(),
    }
}

fn event_limits(config: &Config) -> binding::Limits {
    binding::Limits {
        batch_events_max: config.limits.batch_events,
        event_bytes_max: config.limits.event_bytes,
        attributes_max: config.limits.attributes,
        attribute_bytes_max: config.limits.attribute_bytes,
        may_lack_identity: false,
    }
}
