//! Secrets.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum Secret {
    /// Set keys of a secret; functions that use it restart with the new values
    Set(SetSecret),
    /// List secrets, without their values
    #[command(visible_alias = "get")]
    List {
        name: Vec<String>,
        /// List resources of all namespaces
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        #[command(flatten)]
        limit: super::Limit,
    },
    /// Show the keys of secrets and the functions that use them, without values
    Show {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// Delete secrets
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
        /// Delete a secret that functions use; they keep their values until the server restarts
        #[arg(long)]
        force: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Encrypt all secrets with a new key
    Rekey,
}

/// Other users can see values on the command line, and the shell remembers them: prefer --from-file or --stdin.
#[derive(Debug, Args)]
pub struct SetSecret {
    pub name: String,
    #[arg(value_name = "KEY=VALUE")]
    pub values: Vec<String>,
    /// The same as KEY=VALUE
    #[arg(long, value_name = "KEY=VALUE")]
    pub from_literal: Vec<String>,
    /// Read a value from a file; without a key, the name of the file is the key
    #[arg(long, value_name = "[KEY=]FILE")]
    pub from_file: Vec<String>,
    /// Read the value of this key from stdin, without the line break at its end
    #[arg(long, value_name = "KEY")]
    pub stdin: Option<String>,
    /// Remove this key
    #[arg(long, value_name = "KEY", conflicts_with = "replace")]
    pub remove: Vec<String>,
    /// Remove all keys that are not given
    #[arg(long)]
    pub replace: bool,
}
