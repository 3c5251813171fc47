//! Errors of a command: one line for people, an exit code for scripts.

use crate::client;
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

/// `diff` found differences and has printed them.
#[derive(Debug, thiserror::Error)]
#[error("there are differences")]
pub struct Differences;

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
    eprintln!("error: {}", without_os_codes(&format!("{error:#}")));
}

/// Removes ` (os error 2)` and the like: the words before it say the same.
fn without_os_codes(text: &str) -> String {
    let mut parts = text.split(" (os error ");
    let mut plain = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        match part.split_once(')') {
            Some((code, rest)) if code.bytes().all(|byte| byte.is_ascii_digit()) => plain.push_str(rest),
            _ => plain.extend([" (os error ", part]),
        }
    }
    plain
}

pub fn code(error: &anyhow::Error) -> u8 {
    if error.chain().any(|cause| cause.is::<Usage>()) {
        return 2;
    }
    if error.chain().any(|cause| cause.is::<StoreFailed>()) {
        return klambda_crash::EXIT_STORE;
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
    use super::without_os_codes;

    #[test]
    fn codes_of_the_operating_system_are_left_out() {
        for (text, plain) in [
            ("a: No such file or directory (os error 2)", "a: No such file or directory"),
            ("x (os error 13); y (os error 5)!", "x; y!"),
            ("the name (os error x) stays", "the name (os error x) stays"),
            ("nothing", "nothing"),
        ] {
            assert_eq!(without_os_codes(text), plain);
        }
    }
}
