//! Why a version does not run: a reason, a message and the last log lines.

use crate::process::Exit;
use klambda_core::time::Millis;
use serde::{Deserialize, Serialize};
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub enum Reason {
    CrashLoop,
    Crashed,
    HandlerNotFound,
    SyntaxError,
    LoadError,
    NeverAnswered,
    NotResponding,
    OutOfMemory,
    StartFailed,
    NoContainerEngine,
    ImageNotFound,
}

#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error, Serialize)]
#[error("{message}")]
pub struct Failure {
    pub reason: Reason,
    pub message: String,
    pub exit_code: Option<i32>,
    pub last_lines: Vec<String>,
}

/// Number of log lines that are kept with a failure.
pub const LAST_LINES: usize = 20;

/// The exit code (`EX_CONFIG`) of a wrapper that cannot load its handler.
const EXIT_NOT_LOADED: i32 = 78;

/// How a replica ended.
#[derive(Debug)]
pub enum End {
    /// It was stopped on purpose.
    Stopped,
    Exited {
        exit: Exit,
        last_lines: Vec<String>,
    },
    NeverAnswered {
        last_lines: Vec<String>,
    },
    NotResponding {
        last_lines: Vec<String>,
    },
    NotStarted {
        reason: Reason,
        message: String,
    },
}

/// The line that a wrapper prints before it exits with the code above.
#[derive(Deserialize)]
struct NotLoaded {
    reason: String,
    #[serde(default)]
    message: String,
}

impl Failure {
    /// The failure that this end means, and whether a restart can help soon.
    pub fn of(end: End) -> Option<(Failure, bool)> {
        Some(match end {
            End::Stopped => return None,
            End::Exited { exit, last_lines } => match exit.code {
                Some(EXIT_NOT_LOADED) => (not_loaded(last_lines), false),
                Some(crate::child::EXIT_NOT_FOUND) => (not_found(last_lines), false),
                _ => (crashed(exit, last_lines), true),
            },
            End::NeverAnswered { last_lines } => {
                let message =
                    "the process did not answer GET /healthz within its start timeout; check its log".into();
                (Failure { reason: Reason::NeverAnswered, message, exit_code: None, last_lines }, false)
            }
            End::NotResponding { last_lines } => {
                let message =
                    "the process stopped responding, even to GET /healthz, for longer than the call timeout; \
                               find the code that blocks it"
                        .into();
                (Failure { reason: Reason::NotResponding, message, exit_code: None, last_lines }, true)
            }
            End::NotStarted { reason, message } => {
                (Failure { reason, message, exit_code: None, last_lines: Vec::new() }, false)
            }
        })
    }

    /// A line for the log of the function, in the format of the wrappers.
    pub fn log_line(&self, function: &str) -> String {
        let (namespace, name) = function.split_once('/').unwrap_or(("default", function));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_millis() as u64);
        serde_json::json!({
            "time": Millis(now).rfc3339(),
            "level": "error",
            "message": format!("Replica ended: {}", self.message),
            "function": name,
            "namespace": namespace,
            "reason": self.reason,
        })
        .to_string()
    }

    /// The same failure, as the last of several in a row.
    pub fn in_a_loop(mut self, ends: u32) -> Failure {
        if self.reason == Reason::Crashed {
            self.reason = Reason::CrashLoop;
        }
        self.message = format!("{ends} times in a row, {}", self.message);
        self
    }
}

fn crashed(exit: Exit, last_lines: Vec<String>) -> Failure {
    let (reason, advice) = match exit.out_of_memory.is_some() {
        true => (Reason::OutOfMemory, "raise resources.limits.memory or use less memory"),
        false => (Reason::Crashed, "check its last log lines"),
    };
    Failure { reason, message: format!("the process {exit}; {advice}"), exit_code: exit.code, last_lines }
}

fn not_found(last_lines: Vec<String>) -> Failure {
    let said = last_lines.last().cloned().unwrap_or_else(|| "the program was not found".into());
    let message = format!("{said}; install the program or choose another runtime");
    let exit_code = Some(crate::child::EXIT_NOT_FOUND);
    Failure { reason: Reason::StartFailed, message, exit_code, last_lines }
}

fn not_loaded(last_lines: Vec<String>) -> Failure {
    let said = last_lines.iter().rev().find_map(|line| serde_json::from_str::<NotLoaded>(line).ok());
    let (reason, message) = match said {
        Some(said) => (named(&said.reason), said.message),
        None => (Reason::LoadError, "the handler could not be loaded; check the last log lines".into()),
    };
    Failure { reason, message, exit_code: Some(EXIT_NOT_LOADED), last_lines }
}

fn named(reason: &str) -> Reason {
    match reason {
        "HandlerNotFound" => Reason::HandlerNotFound,
        "SyntaxError" => Reason::SyntaxError,
        _ => Reason::LoadError,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_wrapper_says_why_it_could_not_load() {
        let line = r#"{"level":"error","reason":"SyntaxError","message":"line 3: unexpected }"}"#;
        let exit = Exit { code: Some(78), signal: None, out_of_memory: None };
        let end = End::Exited { exit, last_lines: vec!["x".into(), line.into(), "Bye.".into()] };
        let (failure, again) = Failure::of(end).unwrap();
        assert_eq!((failure.reason, failure.message.as_str()), (Reason::SyntaxError, "line 3: unexpected }"));
        assert!(!again);
    }
}
