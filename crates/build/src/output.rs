//! Keeps the last output lines of the build tools.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use tokio::io::{AsyncRead, AsyncReadExt};

const LINES_MAX: usize = 40;
const LINE_BYTES_MAX: usize = 500;

/// Gets every line that the tools print, as it is printed.
pub type Printed = Arc<dyn Fn(&str) + Send + Sync>;

#[derive(Clone, Default)]
pub(crate) struct Output(Arc<Written>);

#[derive(Default)]
struct Written {
    lines: Mutex<VecDeque<String>>,
    /// Bytes of all lines, including those that were dropped.
    bytes: AtomicU64,
    printed: Option<Printed>,
}

impl Output {
    pub(crate) fn new(printed: Option<Printed>) -> Output {
        Output(Arc::new(Written { printed, ..Written::default() }))
    }

    pub(crate) fn lines(&self) -> Vec<String> {
        self.0.lines.lock().unwrap_or_else(PoisonError::into_inner).iter().cloned().collect()
    }

    /// Grows with all output.
    pub(crate) fn written(&self) -> u64 {
        self.0.bytes.load(Ordering::Relaxed)
    }

    fn push(&self, line: &[u8]) {
        let text = String::from_utf8_lossy(line).trim_end().to_owned();
        if text.is_empty() {
            return;
        }
        if let Some(printed) = &self.0.printed {
            printed(&text);
        }
        let mut lines = self.0.lines.lock().unwrap_or_else(PoisonError::into_inner);
        if lines.len() == LINES_MAX {
            lines.pop_front();
        }
        lines.push_back(text);
    }

    /// Reads to the end. Long lines are truncated.
    pub(crate) async fn read(self, mut from: impl AsyncRead + Unpin) {
        let mut buffer = [0; 4096];
        let mut line = Vec::new();
        while let Ok(count @ 1..) = from.read(&mut buffer).await {
            self.0.bytes.fetch_add(count as u64, Ordering::Relaxed);
            for byte in &buffer[..count] {
                match byte {
                    b'\n' | b'\r' => {
                        self.push(&line);
                        line.clear();
                    }
                    byte if line.len() < LINE_BYTES_MAX => line.push(*byte),
                    _ => {}
                }
            }
        }
        self.push(&line);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn only_the_last_lines_are_kept() {
        let text: String = (0..100).map(|n| format!("{n}{}\n", "x".repeat(1000))).collect();
        let printed = Arc::new(AtomicU64::new(0));
        let counted = printed.clone();
        let count = move |_: &str| {
            counted.fetch_add(1, Ordering::Relaxed);
        };
        let output = Output::new(Some(Arc::new(count)));
        output.clone().read(text.as_bytes()).await;
        assert_eq!(printed.load(Ordering::Relaxed), 100);
        let lines = output.lines();
        assert_eq!(lines.len(), LINES_MAX);
        assert!(lines[0].starts_with("60x") && lines[39].starts_with("99x"));
        assert!(lines.iter().all(|line| line.len() == LINE_BYTES_MAX));
    }
}
