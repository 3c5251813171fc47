//! The developer loop: a new function, the function while one works on it, one call of it.

use clap::Args;
use std::path::PathBuf;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Language {
    Nodejs,
    Python,
    Go,
}

#[derive(Debug, Args)]
pub struct Init {
    /// Language of the function
    pub language: Language,
    /// New or empty folder
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Name of the function [default: the name of the folder]
    #[arg(long, value_name = "NAME")]
    pub name: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Starts a server of its own with temporary data, which Ctrl-C ends. It uses no saved context and no
KLAMBDA_ variable, and rejects --server, --context and --namespace.")]
pub struct Dev {
    /// Folder with function.yaml and the code
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Listen address [default: a free port of 127.0.0.1]
    #[arg(long, value_name = "ADDRESS:PORT")]
    pub listen: Option<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Prints the answer to stdout and the log to stderr. --timeout limits the call, spec.build.timeout the build.

Examples:
  klambda run --data '{\"name\": \"Ada\"}'
  klambda run orders --event event.json --timeout 5s")]
pub struct Run {
    /// Folder with function.yaml and the code
    #[arg(value_name = "DIR", default_value = ".")]
    pub folder: PathBuf,
    /// Data of the event, as JSON
    #[arg(short, long, value_name = "JSON", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// File with the data of the event, in any format; - for stdin
    #[arg(long, value_name = "FILE|-", conflicts_with = "data")]
    pub data_file: Option<PathBuf>,
    /// File with the whole event, a CloudEvent in JSON; - for stdin
    #[arg(long, value_name = "FILE|-", conflicts_with_all = ["data", "data_file", "event_type"])]
    pub event: Option<PathBuf>,
    /// Type of the event
    #[arg(long = "type", value_name = "TYPE", default_value = "lambda.function.invoked")]
    pub event_type: String,
}
