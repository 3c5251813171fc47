//! `operator`: reconciles functions and agents on Kubernetes.

use crate::args::{BaseImages, Operator};
use crate::exit::Usage;
use klambda_operator::config::{Build, Config};
use klambda_operator::{lease, run};
use klambda_server::config::{Log, LogFormat};
use klambda_server::telemetry;
use std::path::Path;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

pub fn run(args: &Operator, token_file: Option<&Path>) -> anyhow::Result<()> {
    telemetry::check_level(&args.log_level).map_err(Usage)?;
    let format = if args.log_format == "json" { LogFormat::Json } else { LogFormat::Pretty };
    telemetry::init(&Log { format, level: args.log_level.clone(), access: false });
    klambda_crash::install();
    let options = run::Options {
        config: config(args),
        kubeconfig: args.kubeconfig.clone(),
        metrics: args.metrics,
        lease: lease::Options {
            namespace: args.lease_namespace.clone(),
            name: args.lease.clone(),
            identity: identity(args)?,
        },
        dispatcher_token: token_file.map(token).transpose()?,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    runtime.block_on(async {
        let (stop, stopped) = watch::channel(false);
        let mut terminate = signal(SignalKind::terminate())?;
        let mut interrupt = signal(SignalKind::interrupt())?;
        tokio::spawn(async move {
            tokio::select! {
                _ = terminate.recv() => {}
                _ = interrupt.recv() => {}
            }
            tracing::info!("Shutting down; finishing open reconciles");
            stop.send_replace(true);
        });
        run::run(options, stopped).await.map_err(anyhow::Error::from)
    })
}

fn config(args: &Operator) -> Config {
    let BaseImages { node_image, python_image, go_image, static_image } = args.images.clone();
    Config {
        namespaces: args.namespaces.clone(),
        cluster_domain: args.cluster_domain.clone(),
        dispatcher: args.dispatcher.clone(),
        emits: !args.no_events,
        build: Build {
            fetch_image: args.fetch_image.clone(),
            builder_image: args.builder_image.clone(),
            registry: args.registry.clone(),
            pull_registry: args.pull_registry.clone(),
            insecure: args.insecure_registry,
            push_secret: args.push_secret.clone(),
            node_image,
            python_image,
            go_image,
            static_image,
        },
        broker_class: args.broker_class.clone(),
        linkerd: args.linkerd,
        ..Config::default()
    }
}

/// Two processes on one host must differ, and so must a pod after its restart.
fn identity(args: &Operator) -> anyhow::Result<String> {
    let name = match &args.identity {
        Some(name) => name.clone(),
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    Ok(format!("{name}_{:016x}", getrandom::u64()?))
}

fn token(path: &Path) -> anyhow::Result<String> {
    let text = std::fs::read_to_string(path)
        .map_err(|error| Usage(format!("could not read the token file {}: {error}", path.display())))?;
    Ok(text.trim().to_owned())
}
