//! How a run ends: one line for the person, one code for the script.

use crate::client;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The command line or an input file is wrong: nothing was asked of the server.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The server's store failed while it ran.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreFailed(pub String);

impl Usage {
    pub fn file(file: &Path, error: &dyn fmt::Display) -> Usage {
        Usage(format!("{}: {error}", file.display()))
    }
}

/// Says what went wrong, unless nobody reads any more, and picks the exit code.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    print(error);
    ExitCode::from(code(error))
}

pub fn print(error: &anyhow::Error) {
    eprintln!("error: {error:#}");
}

pub fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) {
        return 2;
    }
    if error.chain().any(|cause| cause.is::<StoreFailed>()) {
        return klambda_crash::EXIT_STORE;
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<client::Error>()) {
        Some(client::Error::Unreachable { .. } | client::Error::PlainHttp { .. }) => 3,
        Some(client::Error::Problem(problem)) if problem.status == 404 => 4,
        Some(client::Error::Problem(problem)) if problem.status == 409 => 5,
        _ => 1,
    }
}

/// `klambda … | head`: whoever read our output has seen enough. Network errors never carry an `io::Error`, so this is stdout.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let causes = &mut error.chain();
    causes.any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}
