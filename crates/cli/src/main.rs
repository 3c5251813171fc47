//! `klambda`: the server, and everything one does to it, in one binary.

mod args;
mod bench;
mod client;
mod commands;
mod exit;
mod kind;
mod output;
mod route;
mod sse;
mod time;

use clap::Parser;
use std::process::ExitCode;

fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
