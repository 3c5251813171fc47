//! The last output of a function, in memory only: a ring with limits on lines and bytes, read by pages or followed.

use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock};
use klambda_functions::platform::{self, Pending};
pub use klambda_functions::platform::{Line, Stream};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};
use tokio::io::{AsyncBufReadExt, AsyncRead, BufReader};
use tokio::sync::Notify;

#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    pub lines: usize,
    pub bytes: usize,
    /// Longer lines are truncated and marked.
    pub line_bytes: usize,
    /// How much is kept while nothing of the function runs.
    pub idle_bytes: usize,
}

impl Default for Bounds {
    fn default() -> Bounds {
        Bounds { lines: 1000, bytes: 256 << 10, line_bytes: 16 << 10, idle_bytes: 8 << 10 }
    }
}

/// The output of the replicas of one function, in order of arrival.
#[derive(Debug)]
pub struct Logs {
    bounds: Bounds,
    ring: Lock<Ring>,
    more: Notify,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Line>,
    bytes: usize,
    next: u64,
    closed: bool,
}

impl Logs {
    pub fn new(bounds: Bounds) -> Logs {
        Logs { bounds, ring: Lock::default(), more: Notify::new() }
    }

    pub fn push(&self, replica: u64, stream: Stream, text: &str) {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time = Millis(since.as_millis() as u64);
        let mut ring = self.ring();
        let number = ring.next;
        ring.next += 1;
        ring.bytes += text.len();
        ring.lines.push_back(Line { number, time, replica, stream, text: text.into() });
        ring.cut(self.bounds.lines, self.bounds.bytes);
        drop(ring);
        self.more.notify_waiters();
    }

    /// Nothing of the function runs: keep less.
    pub(crate) fn trim(&self) {
        let mut ring = self.ring();
        ring.cut(self.bounds.lines, self.bounds.idle_bytes);
        ring.lines.shrink_to_fit();
    }

    /// No more lines will come.
    pub(crate) fn close(&self) {
        self.ring().closed = true;
        self.more.notify_waiters();
    }

    /// The last lines, oldest first.
    pub fn last(&self, count: usize) -> Vec<Line> {
        let ring = self.ring();
        ring.lines.iter().skip(ring.lines.len().saturating_sub(count)).cloned().collect()
    }

    /// The last lines of one replica, as text.
    pub fn last_of(&self, replica: u64, count: usize) -> Vec<String> {
        let ring = self.ring();
        let own = ring.lines.iter().rev().filter(|line| line.replica == replica);
        let mut texts: Vec<String> = own.take(count).map(|line| line.text.clone()).collect();
        texts.reverse();
        texts
    }

    /// Reads from the last `past` lines on, and follows new ones.
    pub fn follow(self: &Arc<Logs>, past: usize) -> Follower {
        let next = self.ring().next.saturating_sub(past as u64);
        Follower { logs: self.clone(), next }
    }

    fn ring(&self) -> Guard<'_, Ring> {
        self.ring.lock()
    }

    /// Reads lines until the other side closes. Memory is bounded for any input.
    pub(crate) async fn read(self: Arc<Logs>, replica: u64, stream: Stream, from: impl AsyncRead + Unpin) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while let Ok(piece) = from.fill_buf().await {
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(piece.len(), |end| end + 1);
            let room = self.bounds.line_bytes.saturating_sub(line.len());
            let text = &piece[..end.unwrap_or(piece.len())];
            line.extend_from_slice(&text[..text.len().min(room + 1)]);
            from.consume(taken);
            if end.is_some() {
                self.push_bytes(replica, stream, &mut line);
            }
        }
        if !line.is_empty() {
            self.push_bytes(replica, stream, &mut line);
        }
    }

    fn push_bytes(&self, replica: u64, stream: Stream, line: &mut Vec<u8>) {
        let cut = line.len() > self.bounds.line_bytes;
        line.truncate(self.bounds.line_bytes);
        let text = String::from_utf8_lossy(line);
        match cut {
            true => self.push(replica, stream, &format!("{text}… (truncated)")),
            false => self.push(replica, stream, text.strip_suffix('\r').unwrap_or(&text)),
        }
        line.clear();
    }
}

impl Ring {
    fn cut(&mut self, lines: usize, bytes: usize) {
        while self.lines.len() > lines || self.bytes > bytes {
            let Some(oldest) = self.lines.pop_front() else { break };
            self.bytes -= oldest.text.len();
        }
    }
}

/// Reads a ring as it grows. A slow reader loses lines, and detects this by their numbers.
pub struct Follower {
    logs: Arc<Logs>,
    next: u64,
}

impl Follower {
    /// `None` once the function is deleted.
    pub async fn next(&mut self) -> Option<Line> {
        let logs = self.logs.clone();
        loop {
            let more = logs.more.notified();
            tokio::pin!(more);
            // From here on no notification is missed.
            more.as_mut().enable();
            match self.available() {
                Ok(line) => return Some(line),
                Err(true) => return None,
                Err(false) => more.await,
            }
        }
    }

    /// The next line, or whether no more will come.
    fn available(&mut self) -> Result<Line, bool> {
        let ring = self.logs.ring();
        let first = ring.lines.front().map_or(0, |line| line.number);
        let line = ring.lines.get((self.next.max(first) - first) as usize).ok_or(ring.closed)?.clone();
        self.next = line.number + 1;
        Ok(line)
    }
}

impl platform::Logs for Follower {
    fn ready(&mut self) -> Vec<Line> {
        std::iter::from_fn(|| self.available().ok()).collect()
    }

    fn next(&mut self) -> Pending<'_, Option<Line>> {
        Box::pin(Follower::next(self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(lines: &[Line]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[tokio::test]
    async fn the_ring_is_bounded_in_lines_bytes_and_line_length() {
        let logs = Arc::new(Logs::new(Bounds { lines: 3, bytes: 25, line_bytes: 8, idle_bytes: 8 }));
        logs.clone().read(1, Stream::Stdout, &b"one\r\ntwo\nthree\nfour\nfive"[..]).await;
        assert_eq!(texts(&logs.last(10)), ["three", "four", "five"]);
        logs.clone().read(1, Stream::Stderr, &b"123456789abc\nx\n"[..]).await;
        assert_eq!(texts(&logs.last(2)), ["12345678… (truncated)", "x"]);
        assert!(logs.ring().bytes <= 25);
        logs.trim();
        assert_eq!(texts(&logs.last(9)), ["x"]);
    }

    #[tokio::test]
    async fn a_follower_sees_what_came_before_and_after() {
        let logs = Arc::new(Logs::new(Bounds { lines: 4, ..Bounds::default() }));
        (0..3).for_each(|number| logs.push(1, Stream::Stdout, &number.to_string()));
        let mut follower = logs.follow(2);
        assert_eq!(follower.next().await.unwrap().text, "1");
        assert_eq!(follower.next().await.unwrap().text, "2");
        let waiting = tokio::spawn(async move { (follower.next().await, follower) });
        tokio::task::yield_now().await;
        logs.push(1, Stream::Stdout, "3");
        let (line, mut follower) = waiting.await.unwrap();
        assert_eq!(line.unwrap().text, "3");
        (4..20).for_each(|number| logs.push(1, Stream::Stdout, &number.to_string()));
        assert_eq!(follower.next().await.unwrap().number, 16, "the numbers show the lost lines");
        logs.close();
        let rest =
            [follower.next().await, follower.next().await, follower.next().await, follower.next().await];
        assert_eq!(rest.map(|line| line.map(|line| line.number)), [Some(17), Some(18), Some(19), None]);
    }
}
