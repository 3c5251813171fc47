//! Errors of a command: one line for people, an exit code for scripts.

use crate::client;
use klambda_core::os_error::without_codes;
use std::fmt;
use std::io;
use std::path::Path;
use std::process::ExitCode;

/// The command line or an input file is wrong. No request was sent.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Usage(pub String);

/// The store of a running server failed.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct StoreFailed(pub String);

/// There is no such resource.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct NotFound(pub String);

/// A resource with this name exists already.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct Conflict(pub String);

/// `diff` found differences and has printed them.
#[derive(Debug, thiserror::Error)]
#[error("there are differences")]
pub struct Differences;

/// The source of a function cannot be fetched, and a retry cannot help.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct FetchFailedForGood(pub String);

/// The policy of build Jobs knows this number.
pub const FETCH_FAILED_FOR_GOOD: u8 = 10;

impl Usage {
    pub fn file(file: &Path, error: &dyn fmt::Display) -> Usage {
        Usage(format!("{}: {error}", file.display()))
    }
}

/// Prints the error and returns the exit code. A closed pipe on stdout is no error.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS;
    }
    if !error.is::<Differences>() {
        print(error);
    }
    ExitCode::from(code(error))
}

pub fn print(error: &anyhow::Error) {
    eprintln!("error: {}", without_codes(&message(error)));
}

/// `function/nope not found in namespace default`: a missing resource is named once.
fn message(error: &anyhow::Error) -> String {
    let causes: Vec<&(dyn std::error::Error + 'static)> = error.chain().collect();
    if let [.., resource, problem] = causes.as_slice()
        && let Some(client::Error::Problem(problem)) = problem.downcast_ref()
        && let Some(rest) = problem.not_found()
    {
        let before = &causes[..causes.len() - 2];
        let before: String = before.iter().map(|cause| format!("{cause}: ")).collect();
        return format!("{before}{resource} not found{rest}");
    }
    format!("{error:#}")
}

pub fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) {
        return 2;
    }
    if error.chain().any(|cause| cause.is::<StoreFailed>()) {
        return klambda_crash::EXIT_STORE;
    }
    if error.chain().any(|cause| cause.is::<FetchFailedForGood>()) {
        return FETCH_FAILED_FOR_GOOD;
    }
    if error.chain().any(|cause| cause.is::<NotFound>()) {
        return 4;
    }
    if error.chain().any(|cause| cause.is::<Conflict>()) {
        return 5;
    }
    match error.chain().find_map(|cause| cause.downcast_ref::<client::Error>()) {
        Some(client::Error::Unreachable { .. } | client::Error::Tls { .. }) => 3,
        Some(client::Error::Problem(problem)) if problem.status == 404 => 4,
        Some(client::Error::Problem(problem)) if problem.status == 409 => 5,
        _ => 1,
    }
}

/// `klambda … | head` closes stdout early. Network errors never carry an `io::Error`, so this one comes from stdout.
pub fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let causes = &mut error.chain();
    causes.any(|cause| {
        let io = cause.downcast_ref::<io::Error>();
        io.is_some_and(|io| io.kind() == io::ErrorKind::BrokenPipe)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn a_missing_resource_is_named_once() {
        let problem = |slug: &str, detail: &str| {
            let body = json!({"type": format!("https://h/problems/{slug}"), "title": "T", "detail": detail});
            anyhow::Error::from(client::Error::Problem(client::Problem { status: 404, body }))
        };
        let missing = problem("not-found", "function nope not found in namespace default");
        assert_eq!(message(&missing), "function nope not found in namespace default");
        let named = missing.context("function/nope");
        assert_eq!(message(&named), "function/nope not found in namespace default");
        let nested =
            problem("not-found", "subscription \"a\" not found").context("subscription/a").context("apply");
        assert_eq!(message(&nested), "apply: subscription/a not found");
        assert_eq!(code(&nested), 4);
        let other = problem("conflict", "lane k not found").context("lane/a/k");
        assert_eq!(message(&other), "lane/a/k: T: lane k not found");
    }
}
