//! Tokens and namespaces.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Token {
    /// Create a token and print it once
    Create(CreateToken),
    /// List tokens
    #[command(visible_alias = "list")]
    Get {
        name: Vec<String>,
        #[command(flatten)]
        limit: super::Limit,
    },
    /// Delete tokens; they stop working immediately
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct CreateToken {
    pub name: String,
    /// Role of the token
    #[arg(long, value_parser = ["viewer", "operator", "producer", "developer", "admin", "endpoint", "endpoint-admin"])]
    pub role: String,
    /// Webhook endpoint, for the roles endpoint and endpoint-admin
    #[arg(long, value_name = "NAME", conflicts_with_all = ["also", "all_namespaces"])]
    pub endpoint: Option<String>,
    /// More namespaces, in addition to -n
    #[arg(long, value_name = "NAME", num_args = 1..)]
    pub also: Vec<String>,
    /// All namespaces, including future ones
    #[arg(short = 'A', long, conflicts_with_all = ["namespace", "also"])]
    pub all_namespaces: bool,
    /// Expiry: a duration from now (90d) or RFC 3339 [default: never]
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
}

#[derive(Debug, Subcommand)]
pub enum Namespace {
    /// Create a namespace or change its limits
    Create(CreateNamespace),
    /// List namespaces
    #[command(visible_alias = "list")]
    Get { name: Vec<String> },
    /// Delete empty namespaces
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
}

/// Without a limit, only the limits of the server apply.
#[derive(Debug, Args)]
pub struct CreateNamespace {
    pub name: String,
    /// Maximum events accepted per second
    #[arg(long, value_name = "N")]
    pub events_per_second: Option<u64>,
    /// Maximum pending events of all subscriptions
    #[arg(long, value_name = "N")]
    pub backlog: Option<u64>,
    /// Maximum number of subscriptions, not counting those of functions
    #[arg(long, value_name = "N")]
    pub subscriptions: Option<u64>,
    /// Maximum number of functions and agents
    #[arg(long, value_name = "N")]
    pub functions: Option<u64>,
    /// What happens to events that do not match the schema of their type
    #[arg(long, value_parser = ["off", "flag", "reject"], default_value = "off")]
    pub schema_check: String,
    /// Change the limits of an existing namespace
    #[arg(long)]
    pub replace: bool,
}
