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

/// The first word by which the server starts itself again, between it and a function. It is not for people.
const CHILD: &str = "child";

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    if words.next().is_some_and(|word| word == CHILD) {
        klambda_local::child::main(words);
    }
    match commands::run(args::Cli::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => exit::report(&error),
    }
}
