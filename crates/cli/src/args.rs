//! The grammar: kubectl's verbs for what has a name, noun and verb for what one does to running things.

mod access;
mod functions;
mod running;

pub use access::*;
pub use functions::*;
pub use running::*;

use crate::bench;
use crate::demo;
use crate::output::Format;
use crate::time::{self, Moment};
use clap::{Args, Parser, Subcommand};
use klambda_core::outcome::Reason;
use std::path::PathBuf;
use std::time::Duration;

const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  the operation failed: the server said no, a check found violations, a replay had failures
  2  the command line or an input file is wrong
  3  the server cannot be reached
  4  not found
  5  conflict
 70  `serve` only: a panic ended the server
 74  `serve` only: the store failed";

/// Event-driven functions that keep their order: every key of every subscription is a FIFO lane.
#[derive(Debug, Parser)]
#[command(name = "klambda", version, after_help = EXIT_CODES, max_term_width = 110)]
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
    /// The server to talk to
    #[arg(
        long,
        global = true,
        env = "KLAMBDA_SERVER",
        value_name = "URL",
        default_value = "http://127.0.0.1:8080"
    )]
    pub server: String,
    /// File that holds the bearer token
    #[arg(long, global = true, env = "KLAMBDA_TOKEN_FILE", value_name = "FILE")]
    pub token_file: Option<PathBuf>,
    /// File with the certificates (PEM) to trust for https instead of the public ones
    #[arg(long, global = true, env = "KLAMBDA_CA_FILE", value_name = "FILE")]
    pub ca_file: Option<PathBuf>,
    /// The namespace of what is asked for [default: default]
    #[arg(
        short,
        long,
        global = true,
        env = "KLAMBDA_NAMESPACE",
        hide_env_values = true,
        value_name = "NAME"
    )]
    pub namespace: Option<String>,
    /// How long to wait for an answer
    #[arg(long, global = true, value_name = "DURATION", default_value = "30s", value_parser = time::parse_timeout)]
    pub timeout: Duration,
    /// How to print
    #[arg(short, long, global = true, value_enum, value_name = "FORMAT", default_value_t = Format::Table)]
    pub output: Format,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Run the server
    Serve(Serve),
    /// Create or change what the files describe
    Apply(Apply),
    /// List what there is
    Get(GetWhat),
    /// Tell everything about one thing, in words
    #[command(subcommand)]
    Describe(Describe),
    /// Remove what has a name, or stop a replay
    #[command(subcommand)]
    Delete(Delete),
    /// Wait until a function or agent is what it should be
    #[command(subcommand)]
    Wait(Wait),
    /// Call a function and print what it returns
    Invoke(Invoke),
    /// Print what a function writes
    #[command(alias = "log")]
    Logs(Logs),
    /// Fetch and build a function again
    Rebuild(Rebuild),
    /// Send events, or watch them arrive
    #[command(subcommand, alias = "events", visible_alias = "ev")]
    Event(Event),
    /// Steer one lane of a subscription
    #[command(subcommand, alias = "lanes")]
    Lane(Lane),
    /// Replay or purge dead letters
    #[command(subcommand, visible_aliases = ["dl", "deadletter"], alias = "deadletters")]
    Dlq(Dlq),
    /// Pause or resume a whole subscription
    #[command(subcommand, visible_alias = "sub", aliases = ["subs", "subscriptions"])]
    Subscription(Subscription),
    /// Create, list or delete namespaces, in which everything lives
    #[command(subcommand, visible_alias = "ns", alias = "namespaces")]
    Namespace(Namespace),
    /// Create, list or delete tokens, which say who may do what
    #[command(subcommand, alias = "tokens")]
    Token(Token),
    /// How the server is doing
    Status,
    /// Copy the data of a running server
    Backup(Backup),
    /// Prove from a data folder that order, no loss and no double acknowledgement hold
    Check(Check),
    /// Measure this machine: rates, latencies, CPU and memory, beside a bare ceiling
    Bench(bench::Args),
    /// See a function, its lanes, a failure and a replay, in one terminal in under a minute
    Demo(demo::Args),
    /// Print the whole default configuration, commented
    Config,
    /// Print the custom resource definitions for a Kubernetes cluster, as YAML or with -o json as JSON
    Crd,
    /// Print the completion script for a shell
    Completion(Completion),
}

/// Each flag is also a setting of the file and a variable; `klambda config` prints them all.
#[derive(Debug, Args)]
pub struct Serve {
    /// Where to listen [default: 127.0.0.1:8080] [env: KLAMBDA_LISTEN]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
    /// The data folder [default: ./data] [env: KLAMBDA_DATA]
    #[arg(long, value_name = "DIR")]
    pub data: Option<PathBuf>,
    /// Memory for index and buffers [default: 128Mi] [env: KLAMBDA_MEMORY]
    #[arg(long, value_name = "BYTES")]
    pub memory: Option<String>,
    /// The configuration file (YAML)
    #[arg(long, env = "KLAMBDA_CONFIG", value_name = "FILE")]
    pub config: Option<PathBuf>,
    /// Certificate chain (PEM), to serve https
    #[arg(long, value_name = "FILE")]
    pub tls_cert: Option<PathBuf>,
    /// The certificate's key (PEM)
    #[arg(long, value_name = "FILE")]
    pub tls_key: Option<PathBuf>,
    /// Another name this server is called by, as often as needed
    #[arg(long, value_name = "HOST[:PORT]")]
    pub allow_host: Vec<String>,
    /// How to log: pretty or json
    #[arg(long, value_name = "FORMAT")]
    pub log_format: Option<String>,
    /// What to log: off, error, warn, info, debug, trace, or directives
    #[arg(long, value_name = "LEVEL")]
    pub log_level: Option<String>,
}

#[derive(Debug, Args)]
pub struct Apply {
    /// YAML (several documents with ---) or JSON; a folder means every .yaml, .yml and .json in it; - is stdin
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub filename: Vec<PathBuf>,
    /// Throw away what waits in a subscription whose ordering, key or sequence changes, instead of delivering it first
    #[arg(long)]
    pub discard: bool,
}

#[derive(Debug, Args)]
pub struct GetWhat {
    /// Those of every namespace
    #[arg(short = 'A', long, global = true, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    #[command(subcommand)]
    pub what: Get,
}

#[derive(Debug, Subcommand)]
pub enum Get {
    /// Functions and how they are doing
    #[command(visible_aliases = ["functions", "fn"], aliases = ["lambdafunction", "lambdafunctions"])]
    Function(GetFunction),
    /// Agents and how they are doing
    #[command(visible_alias = "agents", aliases = ["lambdaagent", "lambdaagents"])]
    Agent(GetFunction),
    /// Subscriptions and what waits in them
    #[command(visible_aliases = ["subscriptions", "sub", "subs"])]
    Subscription { name: Vec<String> },
    /// Lanes that have something to do, and idle ones that are still in memory
    #[command(visible_alias = "lanes")]
    Lane(GetLane),
    /// Dead letters
    #[command(visible_aliases = ["deadletters", "dl", "dlq"])]
    Deadletter(GetDeadLetter),
    /// Replays of dead letters
    #[command(visible_alias = "replays")]
    Replay { id: Vec<String> },
    /// Events in the log
    #[command(visible_aliases = ["events", "ev"])]
    Event(GetEvent),
    /// Namespaces and what is in them
    #[command(visible_aliases = ["namespaces", "ns"])]
    Namespace { name: Vec<String> },
    /// Who changed what, the newest first
    Audit(Limit),
}

#[derive(Debug, Args)]
pub struct GetLane {
    /// Only lanes of this subscription
    #[arg(value_name = "SUBSCRIPTION", conflicts_with = "of")]
    pub subscription: Option<String>,
    /// Only the lane of this key
    pub key: Option<String>,
    /// Only lanes of this subscription
    #[arg(long = "subscription", id = "of", value_name = "SUBSCRIPTION")]
    pub of: Option<String>,
    /// Only lanes in this state
    #[arg(long, value_parser = ["open", "running", "retrying", "gap", "parked", "paused"])]
    pub state: Option<String>,
    /// Order by; the server answers the first 100 of a sorted list
    #[arg(long, value_parser = ["depth", "age", "rate"])]
    pub sort: Option<String>,
    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, Args)]
pub struct GetDeadLetter {
    pub id: Vec<String>,
    #[command(flatten)]
    pub filter: Filter,
    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, Args)]
pub struct GetEvent {
    pub id: Vec<String>,
    /// The source of the events named, when ids alone do not say which
    #[arg(long, requires = "id")]
    pub source: Option<String>,
    /// Only events of this type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Start behind this position
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, Args)]
pub struct Limit {
    /// List at most so many, 0 for all
    #[arg(long, value_name = "N", default_value_t = 500)]
    pub limit: usize,
}

/// What narrows a set of dead letters down, apart from naming them.
#[derive(Debug, Default, Args)]
pub struct Filter {
    /// Only of this subscription
    #[arg(long)]
    pub subscription: Option<String>,
    /// Only of this key
    #[arg(long)]
    pub key: Option<String>,
    /// Only of this event type
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Only failed for this reason
    #[arg(long, value_parser = Reason::ALL.map(Reason::name))]
    pub reason: Option<String>,
    /// Only failed at or after: RFC 3339, or a duration ago (2h)
    #[arg(long, value_name = "TIME", value_parser = time::parse_moment)]
    pub since: Option<Moment>,
    /// Only failed before: RFC 3339, or a duration ago (2h)
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
    /// Every dead letter
    #[arg(long, conflicts_with_all = ["subscription", "key", "event_type", "reason", "since", "until", "ids"])]
    pub all: bool,
}

#[derive(Debug, Subcommand)]
pub enum Describe {
    /// A function: how far it is and why, its last build, what waits for it
    #[command(visible_aliases = ["functions", "fn"], aliases = ["lambdafunction", "lambdafunctions"])]
    Function(FunctionNames),
    /// An agent: the same
    #[command(visible_alias = "agents", aliases = ["lambdaagent", "lambdaagents"])]
    Agent(FunctionNames),
    /// A subscription: what it is, what waits, what its target does
    #[command(visible_aliases = ["subscriptions", "sub", "subs"])]
    Subscription {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// A lane: why it waits, and what has happened in it
    #[command(visible_alias = "lanes")]
    Lane { subscription: String, key: String },
    /// A dead letter: the event and what went wrong
    #[command(visible_aliases = ["deadletters", "dl", "dlq"])]
    Deadletter {
        #[arg(required = true)]
        id: Vec<String>,
    },
    /// A replay: how far it is, and its report
    #[command(visible_alias = "replays")]
    Replay {
        #[arg(required = true)]
        id: Vec<String>,
    },
    /// An event: what became of it in every subscription
    #[command(visible_aliases = ["events", "ev"])]
    Event {
        id: String,
        /// The event's source, when its id alone does not say which
        #[arg(long)]
        source: Option<String>,
    },
}

#[derive(Debug, Subcommand)]
pub enum Delete {
    /// Delete functions; what waits for them is delivered first
    #[command(visible_aliases = ["functions", "fn"], aliases = ["lambdafunction", "lambdafunctions"])]
    Function(DeleteFunction),
    /// Delete agents; what waits for them is delivered first
    #[command(visible_alias = "agents", aliases = ["lambdaagent", "lambdaagents"])]
    Agent(DeleteFunction),
    /// Delete subscriptions
    #[command(visible_aliases = ["subscriptions", "sub", "subs"])]
    Subscription {
        #[arg(required = true)]
        name: Vec<String>,
        /// Deliver what waits first
        #[arg(long, conflicts_with = "discard")]
        drain: bool,
        /// Throw away what waits
        #[arg(long)]
        discard: bool,
    },
    /// Delete dead letters; one that holds a lane lets the lane go on
    #[command(visible_aliases = ["deadletters", "dl", "dlq"])]
    Deadletter {
        #[arg(required = true)]
        id: Vec<String>,
    },
    /// Stop replays
    #[command(visible_alias = "replays")]
    Replay {
        #[arg(required = true)]
        id: Vec<String>,
    },
}

#[cfg(test)]
mod tests;
