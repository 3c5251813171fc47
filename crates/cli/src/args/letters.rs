//! Dead letters as files.

use super::{Filter, Limit};
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct ListLetters {
    pub id: Vec<String>,
    #[command(flatten)]
    pub filter: Filter,
    #[command(flatten)]
    pub limit: Limit,
}

#[derive(Debug, Args)]
pub struct Export {
    #[command(flatten)]
    pub filter: Filter,
    /// Only these dead letters
    #[arg(long = "id", value_name = "ID", num_args = 1.., conflicts_with_all = [
        "subscription", "key", "event_type", "reason", "since", "until",
    ])]
    pub ids: Vec<String>,
}

#[derive(Debug, Args)]
pub struct Import {
    /// File that dlq export wrote; - reads stdin
    #[arg(short, long = "filename", value_name = "FILE|-")]
    pub filename: PathBuf,
    /// Print what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
}

#[derive(Debug, Args)]
pub struct EditLetter {
    pub id: String,
    /// Read the event from a file instead, as JSON; - reads stdin
    #[arg(long, value_name = "FILE|-")]
    pub from_file: Option<PathBuf>,
    /// Replay the dead letter after the edit
    #[arg(long)]
    pub replay: bool,
}
