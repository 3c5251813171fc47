//! Contexts: servers that have a name.

use clap::{Args, Subcommand};

#[derive(Debug, Subcommand)]
pub enum ContextCommand {
    /// Save a server under a name: --server, --namespace, --ca-file and the token
    Add(AddContext),
    /// Make a context the current one
    Use { name: String },
    /// List contexts; a star marks the current one
    #[command(visible_alias = "get")]
    List,
    /// Show a context [default: the current one]
    Show { name: Option<String> },
    /// Delete contexts and their tokens
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
    },
}

#[derive(Debug, Args)]
pub struct AddContext {
    pub name: String,
    /// Read the token from stdin
    #[arg(long, conflicts_with = "token_file")]
    pub token_stdin: bool,
    /// Overwrite a context of this name
    #[arg(long)]
    pub replace: bool,
}
