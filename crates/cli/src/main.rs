//! `klambda`: the server, and everything one does to it, in one binary.

mod args;
mod bench;
mod client;
mod commands;
mod demo;
mod exit;
mod function;
mod kind;
mod output;
mod route;
mod sse;
mod time;

use clap::Parser;
use std::process::ExitCode;

/// Events come and go on one thread and are freed on it: half the cost of the system's allocator.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    match commands::run(args::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
