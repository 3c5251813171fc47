//! Progress of long work. indicatif draws on stderr, and only if stderr is a terminal.

use indicatif::{ProgressBar, ProgressFinish, ProgressState, ProgressStyle};
use std::fmt::Write;
use std::time::Duration;

/// Work on a known number of things.
pub fn counting(what: &str, total: u64) -> ProgressBar {
    let bar = styled(ProgressBar::new(total), "{prefix} [{bar:40}] {pos}/{len} {rate} {msg}");
    bar.set_prefix(what.to_owned());
    bar
}

/// Work on a known number of bytes.
pub fn reading() -> ProgressBar {
    styled(ProgressBar::new(0), "{msg:7} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}")
}

/// A copy of unknown size.
pub fn copying() -> ProgressBar {
    ticking(styled(ProgressBar::no_length(), "{spinner} {bytes} copied, {bytes_per_sec}"))
}

/// Waiting for something, with a message that says for what.
pub fn waiting() -> ProgressBar {
    ticking(styled(ProgressBar::no_length(), "{spinner} {msg} ({elapsed})"))
}

/// A bar disappears when it is dropped: only the result of the command stays on the screen.
fn styled(bar: ProgressBar, template: &str) -> ProgressBar {
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style.progress_chars("=> ").with_key("rate", rate));
    }
    bar.with_finish(ProgressFinish::AndClear)
}

fn rate(state: &ProgressState, out: &mut dyn Write) {
    // The bar cannot report an error, and writing to a string has none.
    let _ = write!(out, "{:.0}/s", state.per_sec());
}

fn ticking(bar: ProgressBar) -> ProgressBar {
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A template with a mistake would silently fall back to the default style.
    #[test]
    fn bars_count_and_are_hidden_without_a_terminal() {
        for template in [
            "{prefix} [{bar:40}] {pos}/{len} {rate} {msg}",
            "{msg:7} [{bar:40}] {bytes}/{total_bytes} {bytes_per_sec}",
            "{spinner} {bytes} copied, {bytes_per_sec}",
            "{spinner} {msg} ({elapsed})",
        ] {
            assert!(ProgressStyle::with_template(template).is_ok(), "{template}");
        }
        let bar = counting("events", 3);
        bar.inc(2);
        assert_eq!((bar.position(), bar.length()), (2, Some(3)));
        assert_eq!(waiting().length(), None);
    }
}
