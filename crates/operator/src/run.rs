//! The operator as a whole: connects, watches, competes for the lease, and serves metrics.

use crate::cache::Cache;
use crate::cluster::Cluster;
use crate::config::Config;
use crate::controller::Controller;
use crate::emit::Emitter;
use crate::lease;
use crate::metrics::Metrics;
use crate::reconcile::Reconciler;
use crate::watch::{CHANGES_MAX, Watches};
use crate::{installed, kinds};
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::service::service_fn;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use kube::Client;
use kube::config::{KubeConfigOptions, Kubeconfig};
use std::convert::Infallible;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};

#[derive(Clone, Debug)]
pub struct Options {
    pub config: Config,
    /// `None` means the service account of the pod, or the default file.
    pub kubeconfig: Option<PathBuf>,
    /// Where to serve `/metrics`, `/healthz` and `/readyz`.
    pub metrics: SocketAddr,
    pub lease: lease::Options,
    /// A bearer token for the dispatcher.
    pub dispatcher_token: Option<String>,
}

#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("could not read the kubeconfig: {0}")]
    Kubeconfig(String),
    #[error("could not connect to the cluster: {0}")]
    Connect(String),
    #[error("could not listen on {address} for metrics: {why}")]
    Listen { address: SocketAddr, why: String },
    #[error(transparent)]
    Emit(#[from] crate::emit::Error),
}

/// Runs until `stop` fires. Open reconciles end, and the lease is given up.
pub async fn run(options: Options, stop: watch::Receiver<bool>) -> Result<(), Error> {
    let client = connect(&options).await?;
    let address = options.metrics;
    let listener = TcpListener::bind(address).await;
    let listener = listener.map_err(|error| Error::Listen { address, why: error.to_string() })?;
    let (cluster, cache) = (Cluster::new(client.clone()), Arc::new(Cache::default()));
    let (metrics, config) = (Arc::new(Metrics::default()), Arc::new(options.config));
    tracing::info!(
        lease = options.lease.name,
        identity = options.lease.identity,
        kinds = kinds::Kind::ALL.len(),
        metrics = %listener.local_addr().unwrap_or(address),
        "Operator started"
    );
    let (changed, changes) = mpsc::channel(CHANGES_MAX);
    let (leads, leading) = watch::channel(false);
    let reconciler = Arc::new(Reconciler {
        cluster: cluster.clone(),
        cache: cache.clone(),
        config: config.clone(),
        emitter: Emitter::new(options.dispatcher_token)?,
        metrics: metrics.clone(),
        identity: options.lease.identity.clone(),
    });
    let watches = Watches::new(client.clone(), cache.clone(), config, changed.clone());
    let serving = tokio::spawn(serve(listener, metrics.clone(), cluster.clone()));
    let following = tokio::spawn(installed::run(client, cache.clone(), changed));
    let controller = Controller { reconciler, cache, metrics, watches, changes, leading, stop: stop.clone() };
    let (stop_lease, stopped) = watch::channel(false);
    let electing = tokio::spawn(lease::run(cluster, options.lease, leads, stopped));
    Box::pin(controller.run()).await;
    // The lease goes last: nobody else acts before the open reconciles have ended.
    stop_lease.send_replace(true);
    let _ = tokio::time::timeout(Duration::from_secs(5), electing).await;
    serving.abort();
    following.abort();
    Ok(())
}

async fn connect(options: &Options) -> Result<Client, Error> {
    let config = match &options.kubeconfig {
        Some(path) => {
            let file = Kubeconfig::read_from(path).map_err(|error| Error::Kubeconfig(error.to_string()))?;
            let options = KubeConfigOptions::default();
            kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(|error| Error::Kubeconfig(error.to_string()))?
        }
        None => kube::Config::infer().await.map_err(|error| Error::Kubeconfig(error.to_string()))?,
    };
    let client = Client::try_from(config).map_err(|error| Error::Connect(error.to_string()))?;
    client.apiserver_version().await.map_err(|error| Error::Connect(error.to_string()))?;
    Ok(client)
}

/// Connections that are served at a time.
const CONNECTIONS_MAX: usize = 64;
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

async fn serve(listener: TcpListener, metrics: Arc<Metrics>, cluster: Cluster) {
    let slots = Arc::new(tokio::sync::Semaphore::new(CONNECTIONS_MAX));
    loop {
        let Ok(slot) = slots.clone().acquire_owned().await else { return };
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(100)).await;
            continue;
        };
        let (metrics, cluster) = (metrics.clone(), cluster.clone());
        tokio::spawn(async move {
            let answer = service_fn(|request: Request<Incoming>| {
                let response = respond(request.uri().path(), &metrics, &cluster);
                async move { Ok::<_, Infallible>(response) }
            });
            let connection =
                hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(stream), answer);
            let _ = tokio::time::timeout(REQUEST_TIMEOUT, connection).await;
            drop(slot);
        });
    }
}

fn respond(path: &str, metrics: &Metrics, cluster: &Cluster) -> Response<Full<Bytes>> {
    let (status, text) = match path {
        "/metrics" => (StatusCode::OK, metrics.text(cluster.counts())),
        "/healthz" => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" if metrics.is_ready() => (StatusCode::OK, "ok\n".to_owned()),
        "/readyz" => (StatusCode::SERVICE_UNAVAILABLE, "waiting for the first lists\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "use /metrics, /healthz or /readyz\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    response
}
