//! Who may do what.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Create a token and print it; it is not shown again
    Create(CreateToken),
    /// List tokens, or show those named
    Get {
        name: Vec<String>,
        #[command(flatten)]
        limit: super::Limit,
    },
    /// Delete tokens, which stop working at once
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct CreateToken {
    pub name: String,
    /// What the token allows
    #[arg(long, value_parser = ["viewer", "operator", "producer", "developer", "admin"])]
    pub role: String,
    /// Further namespaces that it is for, beside that of -n
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub also: Vec<String>,
    /// It is for all namespaces, also those created later
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "also"])]
    pub all_namespaces: bool,
    /// When it stops working: a duration from now (90d), or RFC 3339; default: never
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Namespace {
    /// Create a namespace, or change the limits of one
    Create(CreateNamespace),
    /// List namespaces, or show those named
    Get { name: Vec<String> },
    /// Delete namespaces that nothing is left in
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

/// Limits that are not given are none but those of the server.
#[derive(Debug, Args)]
pub struct CreateNamespace {
    pub name: String,
    /// Events that it takes in a second
    #[arg(long, value_name = "N")]
    pub events_per_second: Option<u64>,
    /// Events that may wait, over all its subscriptions
    #[arg(long, value_name = "N")]
    pub backlog: Option<u64>,
    /// Subscriptions it may have, those of functions aside
    #[arg(long, value_name = "N")]
    pub subscriptions: Option<u64>,
    /// Functions and agents it may have
    #[arg(long, value_name = "N")]
    pub functions: Option<u64>,
    /// Change one that is there
    #[arg(long)]
    pub replace: bool,
}
