//! Colours the states in tables, on terminals only.

use std::borrow::Cow;
use std::io::IsTerminal;
use std::sync::OnceLock;

/// When tables are coloured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum When {
    /// On a terminal, unless NO_COLOR is set
    #[default]
    Auto,
    Always,
    Never,
}

static ENABLED: OnceLock<bool> = OnceLock::new();

/// Decides once for the whole run.
pub fn init(when: When) {
    let is_set = |name| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    let is_dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
    let is_plain = is_set("NO_COLOR") || is_dumb;
    let _ = ENABLED.set(decide(when, is_plain, std::io::stdout().is_terminal()));
}

pub fn is_enabled() -> bool {
    ENABLED.get().copied().unwrap_or(false)
}

fn decide(when: When, is_plain: bool, is_terminal: bool) -> bool {
    match when {
        When::Always => true,
        When::Never => false,
        When::Auto => is_terminal && !is_plain,
    }
}

/// How urgent a state is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Level {
    Good,
    Waiting,
    Bad,
}

impl Level {
    pub fn of(state: &str) -> Option<Level> {
        match state {
            "parked" | "failed" | "Failed" | "deadLetter" | "rejected" => Some(Level::Bad),
            "retrying" | "gap" | "pending" | "paused" | "behind" | "catchingUp" | "draining" | "buffered"
            | "stopped" | "Pending" | "Building" | "Deploying" | "Deleting" | "False" => Some(Level::Waiting),
            "ready" | "ok" | "active" | "open" | "running" | "delivered" | "succeeded" | "Ready" | "True" => {
                Some(Level::Good)
            }
            _ => None,
        }
    }

    fn code(self) -> &'static str {
        match self {
            Level::Good => "32",
            Level::Waiting => "33",
            Level::Bad => "31",
        }
    }
}

/// Columns that hold a state. Other columns hold names and keys of users, which may be any word.
const COLUMNS: [&str; 5] = ["STATE", "PHASE", "READY", "FATE", "STATUS"];

/// The cell of a table, with its colour if it has one.
pub fn paint<'a>(column: &str, cell: &'a str, is_enabled: bool) -> Cow<'a, str> {
    let level = Level::of(cell).filter(|_| is_enabled && COLUMNS.contains(&column));
    match level {
        Some(level) => format!("\u{1b}[{}m{cell}\u{1b}[0m", level.code()).into(),
        None => cell.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn colours_are_for_terminals_unless_the_flag_decides() {
        assert!(decide(When::Auto, false, true));
        assert!(!decide(When::Auto, true, true), "NO_COLOR");
        assert!(!decide(When::Auto, false, false), "a pipe");
        assert!(decide(When::Always, true, false));
        assert!(!decide(When::Never, false, true));
    }

    #[test]
    fn only_states_are_coloured() {
        assert_eq!(paint("STATE", "parked", true), "\u{1b}[31mparked\u{1b}[0m");
        assert_eq!(paint("STATE", "gap", true), "\u{1b}[33mgap\u{1b}[0m");
        assert_eq!(paint("PHASE", "Ready", true), "\u{1b}[32mReady\u{1b}[0m");
        assert_eq!(paint("STATE", "parked", false), "parked");
        assert_eq!(paint("KEY", "parked", true), "parked");
        assert_eq!(paint("STATE", "STATE", true), "STATE");
    }
}
