//! The live view.

use crate::time::parse_timeout;
use clap::Args;
use std::time::Duration;

#[derive(Debug, Args)]
pub struct Top {
    /// Print one frame and exit
    #[arg(long)]
    pub once: bool,
    /// Time between two updates
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = parse_timeout)]
    pub interval: Duration,
    /// Show the lanes of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Show only lanes whose subscription or key contains this text
    #[arg(long, value_name = "TEXT", default_value = "")]
    pub filter: String,
}
