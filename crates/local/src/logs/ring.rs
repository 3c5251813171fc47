//! The last output of a function in memory: a ring with limits on lines and bytes, which can be followed.

use super::writer::Queue;
use klambda_core::time::Millis;
use klambda_crash::{Guard, Lock};
use klambda_functions::logs::{Build, Line, Stream};
use serde::Deserialize;
use std::borrow::Cow;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
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

/// The output of one function and of its builds, in order of arrival.
#[derive(Debug)]
pub struct Logs {
    pub(super) name: Arc<str>,
    bounds: Bounds,
    ring: Lock<Ring>,
    more: Notify,
    pub(super) queue: Option<Arc<Queue>>,
    /// The number after the last line on disk. Only the writer sets it.
    pub(super) written: AtomicU64,
}

#[derive(Debug, Default)]
struct Ring {
    lines: VecDeque<Arc<Line>>,
    bytes: usize,
    next: u64,
    closed: bool,
}

/// A line before it has its place.
struct Printed<'a> {
    stream: Stream,
    replica: Option<u64>,
    generation: u64,
    build: Option<Build>,
    text: &'a str,
}

/// One replica as a writer of the log.
#[derive(Clone, Debug)]
pub struct Printer {
    pub logs: Arc<Logs>,
    pub replica: u64,
    pub generation: u64,
}

impl Logs {
    pub(super) fn new(name: Arc<str>, bounds: Bounds, queue: Option<Arc<Queue>>) -> Logs {
        Logs { name, bounds, ring: Lock::default(), more: Notify::new(), queue, written: AtomicU64::new(0) }
    }

    /// Adds a line of a build.
    pub fn push_build(self: &Arc<Logs>, generation: u64, build: &Build, text: &str) {
        let build = Some(build.clone());
        self.push(Printed { stream: Stream::Build, replica: None, generation, build, text });
    }

    fn push(self: &Arc<Logs>, printed: Printed<'_>) {
        let Printed { stream, replica, generation, build, text } = printed;
        let event_id = event_id(text);
        let mut ring = self.ring();
        let number = ring.next;
        // Inside the lock, so that numbers and times have the same order.
        let time = now();
        let line = Line { number, time, stream, replica, generation, build, event_id, text: text.into() };
        let line = Arc::new(line);
        ring.next += 1;
        ring.bytes += line.text.len();
        ring.lines.push_back(line.clone());
        ring.cut(self.bounds.lines, self.bounds.bytes);
        if let Some(queue) = &self.queue {
            queue.write(self, line);
        }
        drop(ring);
        self.more.notify_waiters();
    }

    /// Nothing of the function runs: keep less.
    pub(crate) fn trim(&self) {
        let mut ring = self.ring();
        ring.cut(self.bounds.lines, self.bounds.idle_bytes);
        ring.lines.shrink_to_fit();
    }

    pub(super) fn is_closed(&self) -> bool {
        self.ring().closed
    }

    /// No more lines will come.
    pub(crate) fn close(&self) {
        self.ring().closed = true;
        self.more.notify_waiters();
    }

    /// The last lines, oldest first.
    pub fn last(&self, count: usize) -> Vec<Arc<Line>> {
        let ring = self.ring();
        ring.lines.iter().skip(ring.lines.len().saturating_sub(count)).cloned().collect()
    }

    /// The lines from this number on.
    pub(super) fn from(&self, number: u64) -> Vec<Arc<Line>> {
        self.ring().lines.iter().filter(|line| line.number >= number).cloned().collect()
    }

    /// The last lines of one replica, as text.
    pub fn last_of(&self, replica: u64, count: usize) -> Vec<String> {
        let ring = self.ring();
        let own = ring.lines.iter().rev().filter(|line| line.replica == Some(replica));
        let mut texts: Vec<String> = own.take(count).map(|line| line.text.clone()).collect();
        texts.reverse();
        texts
    }

    /// Reads from the last `past` lines on, and follows new ones.
    pub fn follow(self: &Arc<Logs>, past: usize) -> Follower {
        let next = self.ring().next.saturating_sub(past as u64);
        Follower { logs: self.clone(), next }
    }

    /// Follows from this number on.
    pub(super) fn follow_from(self: &Arc<Logs>, next: u64) -> Follower {
        Follower { logs: self.clone(), next }
    }

    fn ring(&self) -> Guard<'_, Ring> {
        self.ring.lock()
    }
}

impl Printer {
    pub fn push(&self, stream: Stream, text: &str) {
        let (replica, generation) = (Some(self.replica), self.generation);
        self.logs.push(Printed { stream, replica, generation, build: None, text });
    }

    /// Reads lines until the other side closes. Memory is bounded for any input.
    pub(crate) async fn read(self, stream: Stream, from: impl AsyncRead + Unpin) {
        let mut from = BufReader::new(from);
        let mut line = Vec::new();
        while let Ok(piece) = from.fill_buf().await {
            if piece.is_empty() {
                break;
            }
            let end = piece.iter().position(|byte| *byte == b'\n');
            let taken = end.map_or(piece.len(), |end| end + 1);
            let room = self.logs.bounds.line_bytes.saturating_sub(line.len());
            let text = &piece[..end.unwrap_or(piece.len())];
            line.extend_from_slice(&text[..text.len().min(room + 1)]);
            from.consume(taken);
            if end.is_some() {
                self.push_bytes(stream, &mut line);
            }
        }
        if !line.is_empty() {
            self.push_bytes(stream, &mut line);
        }
    }

    fn push_bytes(&self, stream: Stream, line: &mut Vec<u8>) {
        let line_bytes = self.logs.bounds.line_bytes;
        let cut = line.len() > line_bytes;
        line.truncate(line_bytes);
        let text = String::from_utf8_lossy(line);
        match cut {
            true => self.push(stream, &format!("{text}… (truncated)")),
            false => self.push(stream, text.strip_suffix('\r').unwrap_or(&text)),
        }
        line.clear();
    }
}

/// The event that a line is about. The loggers of the wrappers write it.
fn event_id(text: &str) -> Option<String> {
    #[derive(Deserialize)]
    struct Logged<'a> {
        #[serde(borrow)]
        event_id: Cow<'a, str>,
    }
    if !text.starts_with('{') || !text.contains("\"event_id\"") {
        return None;
    }
    let logged: Logged = serde_json::from_str(text).ok()?;
    Some(logged.event_id.into_owned())
}

pub(super) fn now() -> Millis {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Millis(since.as_millis() as u64)
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
    pub async fn next(&mut self) -> Option<Arc<Line>> {
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

    /// All lines that are available, at least one. `None` once the function is deleted.
    pub(super) async fn next_all(&mut self) -> Option<Vec<Arc<Line>>> {
        let first = self.next().await?;
        let more = std::iter::from_fn(|| self.available().ok());
        Some(std::iter::once(first).chain(more).collect())
    }

    /// The next line, or whether no more will come.
    fn available(&mut self) -> Result<Arc<Line>, bool> {
        let ring = self.logs.ring();
        let first = ring.lines.front().map_or(0, |line| line.number);
        let line = ring.lines.get((self.next.max(first) - first) as usize).ok_or(ring.closed)?.clone();
        self.next = line.number + 1;
        Ok(line)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn logs(bounds: Bounds) -> Arc<Logs> {
        Arc::new(Logs::new("default/f".into(), bounds, None))
    }

    fn printer(logs: &Arc<Logs>) -> Printer {
        Printer { logs: logs.clone(), replica: 1, generation: 1 }
    }

    fn texts(lines: &[Arc<Line>]) -> Vec<&str> {
        lines.iter().map(|line| line.text.as_str()).collect()
    }

    #[tokio::test]
    async fn the_ring_is_bounded_in_lines_bytes_and_line_length() {
        let logs = logs(Bounds { lines: 3, bytes: 25, line_bytes: 8, idle_bytes: 8 });
        printer(&logs).read(Stream::Stdout, &b"one\r\ntwo\nthree\nfour\nfive"[..]).await;
        assert_eq!(texts(&logs.last(10)), ["three", "four", "five"]);
        printer(&logs).read(Stream::Stderr, &b"123456789abc\nx\n"[..]).await;
        assert_eq!(texts(&logs.last(2)), ["12345678… (truncated)", "x"]);
        assert!(logs.ring().bytes <= 25);
        logs.trim();
        assert_eq!(texts(&logs.last(9)), ["x"]);
    }

    #[tokio::test]
    async fn a_follower_sees_what_came_before_and_after() {
        let logs = logs(Bounds { lines: 4, ..Bounds::default() });
        let print = |number: u64| printer(&logs).push(Stream::Stdout, &number.to_string());
        (0..3).for_each(print);
        let mut follower = logs.follow(2);
        assert_eq!(follower.next().await.unwrap().text, "1");
        assert_eq!(follower.next().await.unwrap().text, "2");
        let waiting = tokio::spawn(async move { (follower.next().await, follower) });
        tokio::task::yield_now().await;
        print(3);
        let (line, mut follower) = waiting.await.unwrap();
        assert_eq!(line.unwrap().text, "3");
        (4..20).for_each(print);
        assert_eq!(follower.next().await.unwrap().number, 16, "the numbers show the lost lines");
        logs.close();
        let rest = follower.next_all().await.unwrap();
        assert_eq!(rest.iter().map(|line| line.number).collect::<Vec<_>>(), [17, 18, 19]);
        assert_eq!(follower.next_all().await, None);
    }

    #[test]
    fn the_event_of_a_line_is_what_the_loggers_say() {
        assert_eq!(
            event_id(r#"{"level":"info","event_id":"e-1","n":{"event_id":2}}"#).as_deref(),
            Some("e-1")
        );
        for other in [r#"event_id"#, r#"{"event_id":7}"#, r#"{"event_id":"x""#, r#"{"n":{"event_id":"x"}}"#] {
            assert_eq!(event_id(other), None, "{other}");
        }
    }
}
