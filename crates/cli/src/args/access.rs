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
    /// A namespace it is for, as often as needed
    #[arg(short, long, value_name = "NAME", default_value = "default")]
    pub namespace: Vec<String>,
    /// It is for all namespaces, also those created later
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// When it stops working: a duration from now (90d), or RFC 3339; default: never
    #[arg(long, value_name = "TIME")]
    pub expires: Option<String>,
}
