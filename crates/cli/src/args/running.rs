//! What one does to running things: a noun, then its own verbs.

use super::Selector;
use crate::commands::parse_status;
use clap::{Args, Subcommand};
use hyper::StatusCode;
use klambda_core::quantity::parse_duration_ms;
use std::path::PathBuf;
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum Event {
    /// Send one event, many alike, or those of a file
    Send(Send),
    /// Watch events arrive
    Tail(Tail),
    /// Be a target to try things with: show what is delivered, answer as told
    Receive(Receive),
}

#[derive(Debug, Args)]
pub struct Send {
    /// Send the CloudEvents of this file: JSON, one, a batch, or one per line; - is stdin
    #[arg(short, long = "filename", value_name = "FILE|-", conflicts_with_all = [
        "event_type", "source", "id", "key", "subject", "sequence", "data", "content_type", "attribute", "count",
    ])]
    pub filename: Option<PathBuf>,
    /// The event's type, like order.paid
    #[arg(long = "type", value_name = "TYPE", required_unless_present = "filename")]
    pub event_type: Option<String>,
    /// Who sends it
    #[arg(long, default_value = "/klambda")]
    pub source: String,
    /// Its id; default: a random one. With --count, -1, -2, … follow it
    #[arg(long)]
    pub id: Option<String>,
    /// Sets partitionkey, which names the lane
    #[arg(long)]
    pub key: Option<String>,
    /// What it is about; also the key where there is no partitionkey
    #[arg(long)]
    pub subject: Option<String>,
    /// The producer's sequence; with --count, that of the first event
    #[arg(long, value_name = "N")]
    pub sequence: Option<u64>,
    /// The data itself, or the file that holds it; - is stdin
    #[arg(short, long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Default: application/json if the data is JSON, else text/plain or application/octet-stream
    #[arg(long, value_name = "TYPE", requires = "data")]
    pub content_type: Option<String>,
    /// Another attribute, as often as needed
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = name_and_value)]
    pub attribute: Vec<(String, String)>,
    /// Send so many
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u64).range(1..))]
    pub count: u64,
}

#[derive(Debug, Args)]
pub struct Tail {
    /// Only events of this type; with a star, a pattern: 'order.*'
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
    /// Start behind this position, 0 for the oldest kept; default: what comes from now on
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub limit: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Receive {
    /// Where to listen
    #[arg(long, value_name = "ADDRESS", default_value = "127.0.0.1:9000")]
    pub listen: String,
    /// What to answer
    #[arg(long, value_name = "STATUS", default_value = "200", value_parser = parse_status)]
    pub status: StatusCode,
    /// Read the answer from this file for every event, so that it can be changed: 500, or 500 KEY for one key
    #[arg(long, value_name = "FILE")]
    pub status_file: Option<PathBuf>,
    /// Answer events of this key 500, whatever else is said; as often as needed
    #[arg(long, value_name = "KEY")]
    pub fail_key: Vec<String>,
    /// Take this long for every event
    #[arg(long, value_name = "DURATION", default_value = "0ms", value_parser = parse_delay)]
    pub delay: Duration,
    /// End after so many events
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,
}

#[derive(Debug, Subcommand)]
pub enum Lane {
    /// Try the head again with fresh attempts, lift a pause, or wait one more timeout for a gap
    Resume(LaneName),
    /// Let the lane go on without its head, which stays a dead letter, or without the missing sequence
    Skip(Confirmed),
    /// Throw away everything that waits in the lane
    Purge(Confirmed),
    /// Start nothing new in the lane
    Pause(LaneName),
    /// Set the sequence that the producer should send next
    Reset {
        #[command(flatten)]
        lane: LaneName,
        /// The sequence to expect next
        #[arg(long, value_name = "N")]
        expected: u64,
    },
}

#[derive(Debug, Args)]
pub struct LaneName {
    pub subscription: String,
    pub key: String,
}

#[derive(Debug, Args)]
pub struct Confirmed {
    #[command(flatten)]
    pub lane: LaneName,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Dlq {
    /// Deliver dead letters again, in the order of their lanes
    Replay(Replay),
    /// Throw dead letters away
    Purge(Purge),
}

#[derive(Debug, Args)]
pub struct Replay {
    #[command(flatten)]
    pub selector: Selector,
    /// Say what would be replayed, and do nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Events per second
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub rate: Option<u64>,
    /// Lanes at once
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub parallelism: Option<u64>,
    /// Wait for the end and print the report
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, action = clap::ArgAction::Set,
          default_value = "true", default_missing_value = "true")]
    pub wait: bool,
}

#[derive(Debug, Args)]
pub struct Purge {
    #[command(flatten)]
    pub selector: Selector,
    /// Also those that hold a lane, which then goes on without them
    #[arg(long)]
    pub holders: bool,
    /// Do not ask
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Subcommand)]
pub enum Subscription {
    /// Start no new deliveries; events are still accepted
    Pause {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// Go on delivering
    Resume {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct Backup {
    /// A .tar file to write, or a folder to make; neither may exist
    #[arg(value_name = "FILE.tar|DIR")]
    pub path: PathBuf,
}

#[derive(Debug, Args)]
pub struct Check {
    /// The data folder of a stopped server, or a copy
    #[arg(value_name = "DIR")]
    pub folder: PathBuf,
}

#[derive(Debug, Args)]
pub struct Completion {
    pub shell: clap_complete::Shell,
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
