//! Nouns with verbs of their own.

use super::{EditLetter, Export, Import, ListLetters, Selector};
use crate::commands::parse_status;
use crate::exit::Usage;
use crate::kind::Kind;
use crate::resource::{self, Resource};
use clap::{Args, Subcommand};
use hyper::StatusCode;
use klambda_core::quantity::parse_duration_ms;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum Event {
    /// Send events from flags or from a file
    Send(Send),
    /// Print events as they arrive
    Tail(Tail),
    /// Show an event and what happened to it in every subscription
    Show {
        id: String,
        /// Source of the event, when its id is ambiguous
        #[arg(long, value_name = "SOURCE")]
        source: Option<String>,
    },
    /// Run a test receiver that prints deliveries
    Receive(Receive),
}

#[derive(Debug, Args)]
pub struct Send {
    /// File with CloudEvents in JSON: one event, a batch, or one per line; - for stdin
    #[arg(short, long = "filename", value_name = "FILE|-", conflicts_with_all = [
        "event_type", "source", "id", "key", "subject", "sequence", "data", "content_type", "attribute", "count",
    ])]
    pub filename: Option<PathBuf>,
    /// Event type, like order.paid
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "filename")]
    pub event_type: Option<String>,
    /// Event source
    #[arg(long, default_value = "/klambda")]
    pub source: String,
    /// Event id [default: random]; --count appends -1, -2, …
    #[arg(long)]
    pub id: Option<String>,
    /// Key of the lane (attribute partitionkey)
    #[arg(long)]
    pub key: Option<String>,
    /// Event subject; also the key if --key is not given and the subscription does not set spec.key
    #[arg(long)]
    pub subject: Option<String>,
    /// Sequence of the producer; with --count, of the first event
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// Data, @FILE, or - for stdin
    #[arg(short, long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Content type [default: application/json for JSON, else text/plain or application/octet-stream]
    #[arg(long, value_name = "TYPE", requires = "data")]
    pub content_type: Option<String>,
    /// Additional attribute; can be repeated
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub attribute: Vec<(String, String)>,
    /// Number of events
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
}

#[derive(Debug, Args)]
pub struct Tail {
    /// Only this event type; may be a pattern like 'order.*'
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Start after this position (0 = oldest event) [default: new events only]
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
    /// Stop after this number of events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Receive {
    /// Listen address
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub listen: String,
    /// Response status
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = parse_status)]
    pub status: StatusCode,
    /// File that is read for each event and holds the response status: 500, or 500 KEY for one key
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    /// Respond with status 500 to events of this key; can be repeated
    #[arg(long, value_name = "KEY")]
    pub fail_key: Vec<String>,
    /// Delay of each response
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_delay)]
    pub delay: Duration,
    /// Stop after this number of events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
    /// Do not print the bodies of events
    #[arg(long)]
    pub no_body: bool,
}

#[derive(Debug, Subcommand)]
pub enum Lane {
    /// Retry the first event, end a pause, or wait for a sequence gap once more
    Resume(LaneName),
    /// Continue without the first event, which stays a dead letter, or without the missing sequence
    Skip(Confirmed),
    /// Drop all pending events of the lane
    Purge(Confirmed),
    /// Start no new deliveries in the lane
    Pause(LaneName),
    /// Set the sequence that the lane expects next
    Reset {
        #[command(flatten)]
        lane: LaneName,
        /// Next expected sequence
        #[arg(long, value_name = "N")]
        expected: u64,
    },
}

#[derive(Debug, Args)]
pub struct LaneName {
    /// The subscription, or lane/SUBSCRIPTION/KEY
    #[arg(value_name = "SUBSCRIPTION")]
    lane: String,
    key: Option<String>,
}

impl LaneName {
    pub fn resource(&self) -> Result<Resource, Usage> {
        if let Some(key) = &self.key {
            return Ok(Resource::new(Kind::Lane, &format!("{}/{key}", self.lane)));
        }
        let wrong =
            |what| Usage(format!("{}: {what}; use SUBSCRIPTION KEY or lane/SUBSCRIPTION/KEY", self.lane));
        if !self.lane.contains('/') {
            return Err(wrong("the key is missing"));
        }
        match resource::named(std::slice::from_ref(&self.lane))?.pop() {
            Some(lane) if lane.kind == Kind::Lane => Ok(lane),
            _ => Err(wrong("this is not a lane")),
        }
    }
}

#[derive(Debug, Args)]
pub struct Confirmed {
    #[command(flatten)]
    pub lane: LaneName,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Dlq {
    /// List dead letters
    #[command(visible_alias = "get")]
    List(ListLetters),
    /// Show dead letters with their events
    Show {
        #[arg(required = true)]
        id: Vec<String>,
    },
    /// Correct the event of a dead letter in $EDITOR; its place stays the same
    Edit(EditLetter),
    /// Deliver dead letters again, in order
    Replay(Replay),
    /// Drop dead letters
    Purge(Purge),
    /// Write dead letters to stdout, one JSON object per line
    Export(Export),
    /// Send exported dead letters again as events; the server skips events that it still knows
    Import(Import),
}

#[derive(Debug, Args)]
pub struct Replay {
    #[command(flatten)]
    pub selector: Selector,
    /// Show what would be replayed, without replaying
    #[arg(long)]
    pub dry_run: bool,
    /// Events per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Number of lanes that are replayed in parallel
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub parallelism: Option<u64>,
    /// Wait for the end of the replay and print its report
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set,
          default_value = "true", default_missing_value = "true")]
    pub wait: bool,
}

#[derive(Debug, Args)]
pub struct Purge {
    #[command(flatten)]
    pub selector: Selector,
    /// Include dead letters that block a lane; the lane continues without them
    #[arg(long)]
    pub holders: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Subscription {
    /// List subscriptions
    #[command(visible_alias = "list")]
    Get {
        name: Vec<String>,
        /// List resources of all namespaces
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        #[command(flatten)]
        limit: super::Limit,
    },
    /// Stop deliveries; events are still accepted
    Pause {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// Continue deliveries
    Resume {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct Backup {
    /// New .tar file, new folder, or - to write a tar file to stdout
    #[arg(value_name = "FILE.tar|DIR|-")]
    pub path: PathBuf,
    /// Include the key file of secrets; without it the secrets in the copy cannot be read
    #[arg(long)]
    pub with_key: bool,
}

#[derive(Debug, Args)]
pub struct Check {
    /// Data folder of a stopped server, or a copy of it
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Key file of secrets [default: secrets.key in the folder]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 0 if this version can open the folder. Changes nothing. If a server uses the folder, \
only the format and the key file are checked."
)]
pub struct UpgradeCheck {
    /// Data folder
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
    /// Key file of secrets [default: secrets.key in the folder]
    #[arg(long, value_name = "FILE")]
    pub key_file: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Completion {
    pub shell: Shell,
}

#[derive(Clone, Copy, Debug, clap::ValueEnum)]
pub enum Shell {
    Bash,
    Zsh,
    Fish,
}

#[derive(Debug, Args)]
pub struct Complete {
    /// The words of the command line behind `klambda`; the last one is completed
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    pub words: Vec<String>,
}

fn name_and_value(text: &str) -> Result<(String, String), String> {
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok((name.to_owned(), value.to_owned())),
        _ => Err("expected NAME=VALUE".to_owned()),
    }
}

fn parse_delay(text: &str) -> Result<Duration, String> {
    parse_duration_ms(text).map(Duration::from_millis)
}
