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
use std::io::IsTerminal;
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
    let matches = command.try_get_matches_from_mut(std::env::args_os()).unwrap_or_else(|error| refuse(error));
    args::Cli::from_arg_matches(&matches).unwrap_or_else(|error| refuse(error.format(&mut command)))
}

/// Prints a mistake on the command line, or help, and ends.
fn refuse(error: clap::Error) -> ! {
    let error = without_environment(error);
    let styled = error.render();
    let text = match std::io::stderr().is_terminal() {
        true => styled.ansi().to_string(),
        false => styled.to_string(),
    };
    match in_words(&text) {
        Some(text) if error.use_stderr() => {
            eprint!("{text}");
            std::process::exit(error.exit_code());
        }
        _ => error.exit(),
    }
}

/// Clap shows options that come from the environment in the usage line, as if they had to be given. Without the
/// environment, the usage is that of the command.
fn without_environment(error: clap::Error) -> clap::Error {
    if !error.use_stderr() {
        return error;
    }
    let plain = |arg: clap::Arg| arg.env(None::<&str>);
    let command =
        args::ENVIRONMENT.iter().fold(args::command(), |command, name| command.mut_arg(name, plain));
    command
        .try_get_matches_from(std::env::args_os())
        .err()
        .filter(|other| other.kind() == error.kind())
        .unwrap_or(error)
}

/// Replaces what the standard library says about a wrong number.
fn in_words(text: &str) -> Option<String> {
    const FAULTS: [(&str, &str); 3] = [
        ("invalid digit found in string", "expected a whole number"),
        ("cannot parse integer from empty string", "expected a whole number"),
        ("number too large to fit in target type", "the number is too large"),
    ];
    let (fault, words) = FAULTS.iter().find(|(fault, _)| text.contains(fault))?;
    Some(text.replace(fault, words))
}
