//! The whole server: opens the folder, recovers, serves, and shuts down in order.

use crate::api::{About, Api, ApiState, Connections, Gate, Intake, Metering, Secrets, Turns};
use crate::auth::{Access, LoadError, keep_keys, set_mark};
use crate::config::{Config, Isolation, LogFormat};
use crate::cost::Meter;
use crate::event_types::catalogue::Catalogue;
use crate::frontend::{self, Frontend, signals};
use crate::functions::limits::Limiter;
use crate::functions::watch::Requests;
use crate::routes;
use crate::secrets::vault::Vault;
use crate::shutdown::Shutdown;
use crate::{secrets, telemetry, tokens, traces, webhooks};
use klambda_control::{Control, Options, StartError};
use klambda_core::time::Millis;
use klambda_core::trace::Sampler;
use klambda_core::{binding, breaker};
use klambda_dispatch::client;
use klambda_dispatch::history::History;
use klambda_dispatch::runner::{Clock, Handle, Runner, StoreFailed};
use klambda_dispatch::traces::Tracer;
use klambda_dispatch::workers::EVENT_INTERVAL;
use klambda_dispatch::{Engine, Failure};
use klambda_functions::plan;
use klambda_local::{logs, platform};
use klambda_outbound as outbound;
use klambda_store::real_disk::{self, RealDisk};
use klambda_store::{log, recovery};
use klambda_traces::Export;
use rustix::process::{DumpableBehavior, set_dumpable_behavior};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::runtime::{self, Runtime};
use tokio::task::{JoinError, JoinHandle};

/// Minimum time for functions to stop if the rest of the shutdown took all of the time. Killing them takes less.
const FUNCTIONS_END: Duration = Duration::from_secs(10);
/// How long the last traces may take.
const TRACES_END: Duration = Duration::from_secs(3);

/// A running server. It shuts down in order when stopped. If dropped, it runs until its runtime ends.
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
    traces: Option<Export>,
    shutdown_timeout: Duration,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error(transparent)]
    Folder(#[from] real_disk::Error),
    #[error(transparent)]
    Frontend(#[from] frontend::Error),
    #[error("could not open the data folder {folder}: {source}")]
    Store { folder: String, source: Failure },
    #[error("no random source available: {0}")]
    Randomness(getrandom::Error),
    #[error(transparent)]
    StoreFailed(#[from] StoreFailed),
    #[error(transparent)]
    Functions(#[from] StartError),
    #[error(transparent)]
    Tokens(#[from] LoadError),
    #[error(transparent)]
    Secrets(#[from] secrets::OpenError),
    #[error(transparent)]
    Traces(#[from] klambda_traces::Error),
    #[error("{0}")]
    Io(#[from] io::Error),
}

/// Number of threads besides those for syncs and chores: for producers, REST and the engine; and for deliveries.
struct Threads {
    front: usize,
    deliveries: usize,
}

/// Half for each side, at least one. With two cores, a second thread for one side costs more than it gains.
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

/// Serves until a signal stops it.
pub async fn run(config: Config) -> Result<(), Error> {
    telemetry::init(&config.log);
    hide_memory();
    let log_format = config.log.format;
    let server = Server::start(config).await?;
    let listening = tokio::spawn(signals(server.shutdown.clone(), Arc::clone(&server.access)));
    announce(&server, log_format)?;
    let ended = server.ended().await;
    listening.abort();
    Ok(ended?)
}

/// Functions run as the same user. They must not read the environment and memory of this process through `/proc`.
fn hide_memory() {
    if let Err(error) = set_dumpable_behavior(DumpableBehavior::NotDumpable) {
        tracing::warn!(%error, "Could not protect the environment of the server from functions");
    }
}

/// The default server of CLI commands.
const DEFAULT_URL: &str = "http://127.0.0.1:8080";

/// Tells the user that the server is up. With JSON logs this is a log line, so that tools need to parse only JSON.
fn announce(server: &Server, format: LogFormat) -> io::Result<()> {
    match format {
        LogFormat::Pretty => greet(server, &mut io::stdout().lock()),
        LogFormat::Json => {
            let version = env!("CARGO_PKG_VERSION");
            tracing::info!(version, url = server.url, data_folder = server.data_folder, "Server started");
            Ok(())
        }
    }
}

fn greet(server: &Server, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "klambda {} listens on {}", env!("CARGO_PKG_VERSION"), server.url)?;
    writeln!(out, "data folder: {}{}", server.data_folder, recovered(&server.report))?;
    let klambda = match server.url.as_str() {
        DEFAULT_URL => "klambda".to_owned(),
        url => format!("klambda --server {url}"),
    };
    writeln!(out, "try: {klambda} apply -f examples/orders.yaml")?;
    writeln!(out, "     {klambda} event send --type order.placed --key order-42 --data '{{\"total\": 7}}'")?;
    writeln!(out, "     {klambda} status")?;
    out.flush()
}

fn recovered(report: &recovery::Report) -> String {
    let records = match report.records {
        1 => "1 record".to_owned(),
        records => format!("{records} records"),
    };
    match report.cut {
        None if report.records == 0 => String::new(),
        None => format!(" ({records} recovered)"),
        Some((_, bytes)) => format!(" ({records} recovered; removed an incomplete write of {bytes} bytes)"),
    }
}

impl Server {
    /// Returns when the engine has recovered and accepts events.
    pub async fn start(config: Config) -> Result<Server, Error> {
        // Open the folder first: if another server uses it, that is the first error to report.
        let disk = RealDisk::open(&config.data)?;
        let vault = Arc::new(Vault::open(&config)?);
        let front = Frontend::open(&config)?;
        let traces = traces::start(&config.traces)?;
        let tracer = traces.as_ref().map(|export| export.tracer().clone());
        let (address, url, stats, held) = (front.address(), front.url(), front.stats(), front.held());
        let (access, shutdown) = (front.access(), Shutdown::new());
        let gate = Gate::default();
        let resources = routes::router(gate.clone());
        let serving = tokio::spawn(front.serve(gate.clone(), resources, shutdown.clone()));

        let data_folder = absolute(&config.data);
        let clock = Clock::new();
        let sampler = tracer.as_ref().map(|tracer| *tracer.sampler());
        let opened = open_engine(disk, engine_config(&config, sampler), clock.now(), &data_folder).await;
        let (engine, report) = opened.inspect_err(|_| shutdown.cut())?;
        log_recovery(&report);
        let history = History::new(engine.reader());
        let clock = clock.not_before(engine.now());
        vault.load(&engine).inspect_err(|_| shutdown.cut())?;
        let types = Arc::new(Catalogue::new(config.limits.event_types, config.limits.metric_types));
        let loaded = types.load(&engine).inspect_err(|_| shutdown.cut());
        loaded.map_err(|source| Error::Store { folder: data_folder.clone(), source })?;
        let loaded = access.load(&engine, clock, config.limits.tokens);
        let lacks_mark = loaded.inspect_err(|_| shutdown.cut())?;
        let outbound = config.guard(access.is_open());
        let machine = machine_options(&config, Arc::clone(&vault), outbound.clone());
        let control_options = control_options(&config, &url, outbound.clone(), tracer.clone());
        let control = Control::new(control_options, clock, platform::open(machine));
        control.load(&engine).inspect_err(|_| shutdown.cut())?;
        warn_of_developers(&access, &config);
        if !access.is_open() {
            control.close();
        }
        let (client, deliveries) = (client_options(&config), threads(&config).deliveries);
        let providers = client::Providers {
            functions: Arc::new(control.clone()),
            secrets: vault.clone(),
            checks: types.clone(),
            outbound,
            tracer,
        };
        let outgoing = client::Client::with_providers(client, providers.clone());
        let (runner, handle) = Runner::with_providers(engine, client, clock, deliveries, providers)?;
        let running = tokio::spawn(runner.run());
        vault.start(handle.clone());
        types.start(handle.clone());
        if lacks_mark {
            set_mark(&handle).await;
        }
        control.start(handle.clone()).await;
        let api = Api::new(ApiState {
            handle: handle.clone(),
            clock,
            control: control.clone(),
            limiter: Limiter::new(&config),
            requests: Requests::default(),
            metering: Metering {
                functions: config.limits.metric_functions,
                meter: Meter::new(config.cost.clone()),
            },
            history,
            intake: Intake { limits: event_limits(&config), unversioned: Default::default(), types },
            shutdown: shutdown.clone(),
            access: Arc::clone(&access),
            connections: Connections { stats, held, outgoing },
            about: About { started: Instant::now(), data_folder: data_folder.clone(), url: url.clone() },
            turns: Turns::default(),
            traces: traces.clone(),
            secrets: Secrets { folder: config.functions.secrets.clone(), vault },
        });
        tokio::spawn(secrets::resume_rekey(api.clone()));
        tokio::spawn(tokens::keep_uses(api.clone()));
        tokio::spawn(webhooks::keep_tidy(api.clone()));
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
            traces,
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

    /// Requests shutdown: nothing new starts, open requests may finish.
    pub fn stop(&self) {
        self.shutdown.request();
    }

    /// Waits for the end: after `stop` or a signal in order, after a store failure immediately.
    pub async fn ended(mut self) -> Result<(), StoreFailed> {
        tokio::select! {
            () = self.shutdown.requested() => {}
            ended = &mut self.running => {
                // No request can be answered any more. Clients notice by the closed connection.
                self.shutdown.cut();
                return outcome(ended);
            }
        }
        tracing::info!("Shutting down; draining in-flight requests");
        let deadline = Instant::now() + self.shutdown_timeout;
        // First requests, because the engine answers them; then deliveries, in the remaining time.
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
        if let Some(traces) = &self.traces {
            traces.end(TRACES_END).await;
        }
        tracing::info!("Server stopped");
        outcome(ended)
    }

    /// Asks functions to stop, then kills them. A function that does not stop does not delay the exit: it ends with this program.
    async fn end_functions(&self, deadline: Instant) {
        let time = deadline.saturating_duration_since(Instant::now()).max(FUNCTIONS_END);
        let was_cut = self.shutdown.is_cut();
        tokio::select! {
            () = self.control.stop() => {}
            () = tokio::time::sleep(time) => tracing::warn!("Functions did not stop in time"),
            () = self.shutdown.cut_off(), if !was_cut => {}
        }
    }
}

/// A panic in a task does not reach this code, because it ends the process.
fn outcome(ended: Result<Result<(), StoreFailed>, JoinError>) -> Result<(), StoreFailed> {
    ended.unwrap_or_else(|error| Err(StoreFailed(format!("the engine stopped: {error}"))))
}

async fn open_engine(
    disk: RealDisk,
    options: klambda_dispatch::Config,
    now: Millis,
    folder: &str,
) -> Result<(Engine, recovery::Report), Error> {
    let mut seed = [0; 16];
    getrandom::fill(&mut seed).map_err(Error::Randomness)?;
    let disk = Arc::new(disk);
    let opened = tokio::task::spawn_blocking(move || Engine::open(disk, options, now, seed)).await;
    let opened = opened.map_err(io::Error::other)?;
    opened.map_err(|source| Error::Store { folder: folder.to_owned(), source })
}

fn log_recovery(report: &recovery::Report) {
    match report.cut {
        None => tracing::info!(records = report.records, "Log recovered"),
        Some((at, bytes)) => {
            tracing::warn!(
                records = report.records,
                at = at.0,
                bytes,
                "Log recovered; removed an incomplete write"
            );
        }
    }
}

/// If no token is required, every client is an admin, so no warning is needed.
fn warn_of_developers(access: &Access, config: &Config) {
    if !access.is_open() && config.functions.isolation == Isolation::None {
        tracing::warn!(
            "Functions run as the user of the server, so the role developer is equivalent to admin. To refuse code, \
             set functions.isolation to required"
        );
    }
}

fn absolute(folder: &Path) -> String {
    let whole = folder.canonicalize().unwrap_or_else(|_| folder.to_owned());
    whole.to_string_lossy().into_owned()
}

fn engine_config(config: &Config, sampler: Option<Sampler>) -> klambda_dispatch::Config {
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
        deliveries_max: config.limits.webhook_deliveries as u64,
        sampler,
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

/// Works even if the file was replaced since the start.
const OWN_PROGRAM: &str = "/proc/self/exe";

fn machine_options(config: &Config, vault: Arc<Vault>, outbound: outbound::Guard) -> platform::Options {
    let helper = vec![OWN_PROGRAM.into(), "child".into()];
    // Builds and functions have other working directories, so a relative path would be wrong there.
    let data = std::path::absolute(&config.data).unwrap_or_else(|_| config.data.clone());
    let mut options = platform::Options::new(data.join("functions"), helper);
    let functions = &config.functions;
    options.secrets = functions.secrets.clone();
    options.stored_secrets = Some(vault);
    options.isolation_required = functions.isolation == Isolation::Required;
    options.builds_max = functions.builds;
    options.replicas_max = functions.replicas;
    options.start_timeout = functions.start_timeout;
    options.drain = functions.drain;
    options.fetch.time = functions.fetch_timeout;
    options.outbound = outbound;
    options.cache = platform::cache::Limits { bytes: functions.cache_bytes, age: functions.cache_age };
    options.logs = logs::Limits { bytes: functions.log_bytes, age: functions.log_age };
    options
}

fn control_options(config: &Config, url: &str, outbound: outbound::Guard, tracer: Option<Tracer>) -> Options {
    let ms = |duration: Duration| u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    let functions = &config.functions;
    let limits = plan::Limits {
        tries_max: functions.tries,
        tries_within_ms: ms(functions.tries_within),
        // The fleet reports failures sooner. This is only a fallback.
        start_ms_max: ms(functions.start_timeout.saturating_mul(2)),
        revisions_max: functions.revisions,
        drain_ms_max: ms(functions.drain),
        ..plan::Limits::default()
    };
    Options {
        functions_max: functions.max,
        limits,
        start_timeout: functions.start_timeout,
        named_max: config.limits.metric_functions,
        url: url.to_owned(),
        outbound,
        tracer,
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
