//! Verbs for files of resources.

use crate::labels;
use clap::Args;
use std::path::PathBuf;

#[derive(Debug, Args)]
pub struct Files {
    /// YAML or JSON file, folder (all .yaml, .yml and .json files in it), or - for stdin
    #[arg(short, long = "filename", value_name = "FILE|DIR|-", required = true)]
    pub filename: Vec<PathBuf>,
}

#[derive(Debug, Args)]
pub struct Apply {
    #[command(flatten)]
    pub files: Files,
    /// Validate on the server and show what would change, without changing anything
    #[arg(long, value_name = "server", num_args = 0..=1, require_equals = true, default_missing_value = "server",
          value_parser = ["server"])]
    dry_run: Option<String>,
    /// Wait until the functions and agents are ready
    #[arg(long, conflicts_with = "dry_run")]
    pub wait: bool,
    /// When ordering, key or sequence of a subscription change: drop pending events instead of delivering them first
    #[arg(long)]
    pub discard: bool,
    #[command(flatten)]
    pub prune: Prune,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

impl Apply {
    pub fn is_dry_run(&self) -> bool {
        self.dry_run.is_some()
    }
}

#[derive(Debug, Args)]
pub struct Prune {
    /// Delete functions and agents that were applied earlier and are not in the files; needs --all or -l
    #[arg(long, requires = "scope")]
    pub prune: bool,
    /// Prune with these labels: key=value,key!=value,key in (a,b)
    #[arg(short = 'l', long, group = "scope", value_name = "LABELS", requires = "prune",
          value_parser = labels::Selector::parse)]
    pub selector: Option<labels::Selector>,
    /// Prune in all namespaces that the files name
    #[arg(long, group = "scope", requires = "prune")]
    pub all: bool,
}

#[derive(Debug, Args)]
#[command(after_help = "Exits with 0 if nothing would change, and with 1 if something would.")]
pub struct Diff {
    #[command(flatten)]
    pub files: Files,
}
