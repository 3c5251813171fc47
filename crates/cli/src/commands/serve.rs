//! `serve`: the server itself.

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
    // What is not text cannot be a setting.
    let environment = std::env::vars_os()
        .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)));
    let config = Config::from_sources(args.config.as_deref(), environment, overrides)
        .map_err(|error| Usage(error.to_string()))?;
    klambda_crash::install();
    let runtime = klambda_server::runtime(&config)?;
    let served = runtime.block_on(klambda_server::run(config));
    // Whatever still blocks (a copy nobody reads, a name that does not resolve) ends with the process.
    runtime.shutdown_background();
    served.map_err(|error| match error {
        klambda_server::serve::Error::StoreFailed(_) => StoreFailed(error.to_string()).into(),
        // Its message names its cause already.
        error => anyhow::Error::msg(error.to_string()),
    })
}
