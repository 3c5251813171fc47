//! `klambda`: the server and its command line, in one binary.

mod alerts;
mod args;
mod bench;
mod client;
mod colour;
mod commands;
mod confirm;
mod contexts;
mod dashboards;
mod demo;
mod develop;
mod exit;
mod function;
mod jsonpath;
mod kind;
mod labels;
mod output;
mod own_server;
mod progress;
mod resource;
mod route;
mod sse;
mod time;
mod tls;
mod unified;

use clap::FromArgMatches;
use std::process::ExitCode;

/// One thread allocates and frees most events. mimalloc halves the cost of that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Internal: the server runs itself with this word as the parent process of a function.
const CHILD: &str = "child";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == CHILD) {
        klambda_local::child::main(words);
    }
    match commands::run(parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}

fn parse() -> args::Cli {
    let mut command = args::command();
    // Clap does not do this if variables of the environment set options.
    if std::env::args_os().len() < 2 {
        eprint!("{}", command.render_help());
        std::process::exit(2);
    }
    let matches = command.get_matches_mut();
    args::Cli::from_arg_matches(&matches).unwrap_or_else(|error| error.format(&mut command).exit())
}
