//! Logs to standard error, as text or as JSON lines.

use crate::config::{Log, LogFormat};
use std::io::{self, IsTerminal};
use tracing_subscriber::EnvFilter;

/// Starts logging for the whole process. `RUST_LOG` overrides the configured level. A second call has no effect.
pub fn init(log: &Log) {
    let filter = EnvFilter::try_from_default_env().unwrap_or_else(|_| EnvFilter::new(&log.level));
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr);
    // An error means that logging is already set up, for example in a test that starts two servers.
    let _ = match log.format {
        LogFormat::Pretty => builder.with_target(false).with_ansi(io::stderr().is_terminal()).try_init(),
        LogFormat::Json => builder.json().flatten_event(true).with_current_span(false).try_init(),
    };
}

/// Checks that [`init`] understands `level`: a level, or directives such as `info,klambda_store=debug`.
pub fn check_level(level: &str) -> Result<(), String> {
    // An unknown word would be taken for the name of a module, and disable logging.
    let is_level =
        |word: &str| !word.is_empty() && word.parse::<tracing::level_filters::LevelFilter>().is_ok();
    match level.split(',').map(str::trim).find(|part| !part.contains('=') && !is_level(part)) {
        Some(word) => Err(format!(
            "`{word}` is not a log level: use off, error, warn, info, debug, trace, or directives such as info,klambda_store=debug"
        )),
        None => EnvFilter::try_new(level).map(drop).map_err(|error| error.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn levels_are_checked_word_by_word() {
        for good in ["info", "WARN", "off", "info,klambda_store=debug", "klambda_dispatch=trace"] {
            assert_eq!(check_level(good), Ok(()), "{good}");
        }
        for bad in ["inof", "info,verbose", "", "klambda=loud"] {
            assert!(check_level(bad).is_err(), "{bad}");
        }
    }
}
