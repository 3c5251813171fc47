//! The grammar: kubectl's verbs for resources, and a noun with verbs of its own for what runs.

mod access;
mod cluster;
mod context;
mod develop;
mod files;
mod functions;
mod help;
mod letters;
mod observing;
mod resources;
mod running;
mod secrets;
mod top;
mod webhooks;

pub use access::*;
pub use cluster::*;
pub use context::*;
pub use develop::*;
pub use files::*;
pub use functions::*;
pub use help::{command, options};
pub use letters::*;
pub use observing::*;
pub use resources::*;
pub use running::*;
pub use secrets::*;
pub use top::*;
pub use webhooks::*;

use crate::bench;
use crate::colour;
use crate::demo;
use crate::output::Format;
use crate::time::{self, Moment};
use clap::{Args, Parser, Subcommand};
use klambda_core::outcome::Reason;
use std::path::PathBuf;
use std::time::Duration;

/// Event-driven functions with ordered delivery per key
#[derive(Debug, Parser)]
#[command(name = "klambda", version, max_term_width = 110)]
#[command(arg_required_else_help = true)]
pub struct Cli {
    #[command(flatten)]
    pub global: Global,
    #[command(subcommand)]
    pub command: Command,
}

#[derive(Debug, Args)]
#[command(next_help_heading = "Global options")]
pub struct Global {
    /// Server URL [default: from the context, or http://127.0.0.1:8080]
    #[arg(long, global = true, env = "KLAMBDA_SERVER", hide_env_values = true, value_name = "URL")]
    pub server: Option<String>,
    /// Context to use instead of the current one
    #[arg(long, global = true, env = "KLAMBDA_CONTEXT", hide_env_values = true, value_name = "NAME")]
    pub context: Option<String>,
    /// File with the bearer token
    #[arg(long, global = true, env = "KLAMBDA_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the trusted CA certificates (PEM)
    #[arg(long, global = true, env = "KLAMBDA_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// Namespace [default: default]
    #[arg(
        short,
        long,
        global = true,
        env = "KLAMBDA_NAMESPACE",
        hide_env_values = true,
        value_name = "NAME"
    )]
    pub namespace: Option<String>,
    /// Time limit for a request, or for --wait
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = time::parse_timeout)]
    pub timeout: Duration,
    /// Output: table, wide, json, yaml, name, jsonpath=TEMPLATE or custom-columns=SPEC
    #[arg(short, long, global = true, value_name = "FORMAT", default_value = "table", value_parser = Format::parse)]
    pub output: Format,
    /// When to colour tables
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value_t = colour::When::Auto)]
    pub color: colour::When,
}

/// The global options that the environment can set.
pub const ENVIRONMENT: [&str; 5] = ["server", "context", "token_file", "ca_file", "namespace"];

#[derive(Debug, Subcommand)]
pub enum Command {
    /// List resources
    Get(Get),
    /// Show details of a resource
    Describe(Describe),
    /// Create or update resources from files
    Apply(Apply),
    /// Show what apply would change
    Diff(Diff),
    /// Edit a resource in an editor
    Edit(Edit),
    /// Delete resources or cancel replays
    Delete(Delete),
    /// Wait until a function or agent is ready
    Wait(Wait),
    /// Show the fields of a resource type
    Explain(Explain),
    /// Create a function in a new folder
    Init(Init),
    /// Run a function and build it again after every change
    Dev(Dev),
    /// Build a function and call it once, without a server
    Run(Run),
    /// Call a function and print its answer
    Invoke(Invoke),
    /// Print the logs of functions and their builds
    #[command(alias = "log")]
    Logs(Logs),
    /// Fetch and build a function again
    Rebuild(Rebuild),
    /// List the revisions of a function or agent
    History(History),
    /// Serve an earlier revision of a function or agent again
    Rollback(Rollback),
    /// Send events, follow them, or run a test receiver
    #[command(subcommand, alias = "events", visible_alias = "ev")]
    Event(Event),
    /// Resume, skip, pause, purge or reset a lane
    #[command(subcommand, alias = "lanes")]
    Lane(Lane),
    /// List, show, edit, replay, purge, export or import dead letters
    #[command(subcommand, visible_aliases = ["dl", "deadletter"], alias = "deadletters")]
    Dlq(Dlq),
    /// List, pause or resume subscriptions
    #[command(subcommand, visible_alias = "sub", aliases = ["subs", "subscriptions"])]
    Subscription(Subscription),
    /// Create, test, rotate or read webhook endpoints
    #[command(subcommand, visible_alias = "wh", alias = "webhooks")]
    Webhook(Webhook),
    /// Create, list or delete namespaces
    #[command(subcommand, visible_alias = "ns", alias = "namespaces")]
    Namespace(Namespace),
    /// Create, list or delete access tokens
    #[command(subcommand, alias = "tokens")]
    Token(Token),
    /// Set, list or delete secrets
    #[command(subcommand, alias = "secrets")]
    Secret(Secret),
    /// Run the server
    Serve(Serve),
    /// Show the health and load of the server
    Status,
    /// Show what functions, builds and storage cost
    Cost,
    /// Watch rates, lanes and dead letters live
    Top(Top),
    /// Save servers and tokens under names
    #[command(subcommand, visible_alias = "ctx", alias = "contexts")]
    Context(ContextCommand),
    /// Back up a running server
    Backup(Backup),
    /// Verify order and completeness of a data folder
    Check(Check),
    /// Check whether this version can open a data folder
    UpgradeCheck(UpgradeCheck),
    /// Measure throughput and latency on this machine
    Bench(bench::Args),
    /// Watch ordering, a failure and a replay in one minute
    Demo(demo::Args),
    /// Print the default configuration file
    Config,
    /// Print the Kubernetes custom resource definitions
    Crd,
    /// Run functions and agents on Kubernetes
    Operator(Box<Operator>),
    /// Fetch the source of a function, to build an image of it
    Fetch(Fetch),
    /// Print the alerting rules for Prometheus
    Alerts(Alerts),
    /// Print the dashboards for Grafana, or write them to a folder
    Dashboards(Dashboards),
    /// Print a shell completion script
    Completion(Completion),
    /// Show the client and server versions
    Version,
    /// List the options that all commands accept, and the exit codes
    Options,
    /// Candidates for the last word, one per line
    #[command(name = "__complete", hide = true)]
    Complete(Complete),
}

/// Every flag is also a setting of the configuration file and an environment variable; see `klambda config`.
#[derive(Debug, Args)]
pub struct Serve {
    /// Listen address [default: 127.0.0.1:8080] [env: KLAMBDA_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// Data folder [default: ./data] [env: KLAMBDA_DATA]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Memory for the index and buffers [default: 128Mi] [env: KLAMBDA_MEMORY]
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// Configuration file (YAML)
    #[arg(long, env = "KLAMBDA_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Certificate chain (PEM); enables https
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// Private key of the certificate (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Additional host name that clients use; can be repeated
    #[arg(long, value_name = "HOST[:PORT]")]
    pub allow_host: Vec<String>,
    /// Log format: pretty or json
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// Log level: off, error, warn, info, debug, trace, or directives like info,klambda_store=debug
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Debug, Args)]
pub struct Limit {
    /// Maximum number of results (0 = no limit)
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub limit: usize,
}

/// Selects dead letters by their properties.
#[derive(Debug, Default, Args)]
pub struct Filter {
    /// Only this subscription
    #[arg(long)]
    pub subscription: Option<String>,
    /// Only this key
    #[arg(long)]
    pub key: Option<String>,
    /// Only this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Only this failure reason
    #[arg(long, value_parser = Reason::ALL.map(Reason::name))]
    pub reason: Option<String>,
    /// Only failed at or after this time: RFC 3339, or a duration ago (2h)
    #[arg(long, value_name = "TIME", value_parser = time::parse_moment)]
    pub since: Option<Moment>,
    /// Only failed before this time: RFC 3339, or a duration ago (2h)
    #[arg(long, value_name = "TIME", value_parser = time::parse_moment)]
    pub until: Option<Moment>,
}

#[derive(Debug, Default, Args)]
pub struct Selector {
    #[command(flatten)]
    pub filter: Filter,
    /// Only these dead letters
    #[arg(long = "id", value_name = "ID", num_args = 1..)]
    pub ids: Vec<String>,
    /// Every dead letter of the namespace; purge keeps those that block a lane, unless --holders is given
    #[arg(long, conflicts_with_all = ["subscription", "key", "event_type", "reason", "since", "until", "ids"])]
    pub all: bool,
}

#[cfg(test)]
mod tests;
