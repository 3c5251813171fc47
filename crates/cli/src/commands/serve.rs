//! `serve`: runs the server.

use crate::args::Serve;
use crate::exit::{StoreFailed, Usage};
use klambda_server::config::{Config, Overrides};
use std::path::Path;

pub fn run(args: &Serve, token_file: Option<&Path>) -> anyhow::Result<()> {
    let overrides = Overrides {
        listen: args.listen.clone(),
        data: args.data.clone(),
        memory: args.memory.clone(),
        token_file: token_file.map(Path::to_owned),
        tls_cert: args.tls_cert.clone(),
        tls_key: args.tls_key.clone(),
        allow_hosts: args.allow_host.clone(),
        log_format: args.log_format.clone(),
        log_level: args.log_level.clone(),
    };
    // Settings are text: other variables are ignored.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let config = Config::from_sources(args.config.as_deref(), environment, overrides)
        .map_err(|error| Usage(error.to_string()))?;
    klambda_crash::install();
    let runtime = klambda_server::runtime(&config)?;
    let served = runtime.block_on(klambda_server::run(config));
    // Does not wait for blocked threads, such as a backup that nobody reads or a slow DNS lookup.
    runtime.shutdown_background();
    served.map_err(|error| match error {
        klambda_server::serve::Error::StoreFailed(_) => StoreFailed(error.to_string()).into(),
        // As text, because the message includes its cause.
        error => anyhow::Error::msg(error.to_string()),
    })
}
