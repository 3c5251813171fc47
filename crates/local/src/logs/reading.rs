//! Reads a log: first its files, then memory, which has the lines that are not in a file, then new lines.
//!
//! Files are read twice: to find where the selected lines begin, and to pass them on piece by piece. So any number of lines
//! needs little memory. A line that cannot be read is skipped.

use super::files::{self, Series};
use super::ring::{self, Follower, Logs};
use super::writer::Snapshot;
use klambda_core::time::Millis;
use klambda_functions::logs::{Line, Part, Query, Stream};
use klambda_functions::platform::{self, Pending};
use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Longer lines are not from us.
const LINE_BYTES_MAX: u64 = 256 << 10;
const BATCH_BYTES: usize = 64 << 10;
/// What a line needs besides its text.
const LINE_BYTES: usize = 200;
/// Time limit for the writer. After it only memory is read.
const SNAPSHOT_WITHIN: Duration = Duration::from_secs(5);

pub struct Reading(State);

enum State {
    LogRequest(Box<LogRequest>),
    Files(Box<Selection>),
    Memory(Vec<Line>, Option<Following>),
    Ended,
}

struct LogRequest {
    logs: Arc<Logs>,
    query: Query,
    live: Vec<u64>,
}

/// The selected lines, and what comes after them.
struct Selection {
    files: VecDeque<Span>,
    reader: Option<Lines>,
    filter: Filter,
    memory: Vec<Line>,
    following: Option<Following>,
}

struct Following {
    filter: Filter,
    follower: Follower,
}

impl Reading {
    pub fn new(logs: Arc<Logs>, query: Query, live: Vec<u64>) -> Reading {
        Reading(State::LogRequest(Box::new(LogRequest { logs, query, live })))
    }

    async fn next(&mut self) -> Option<Vec<Line>> {
        loop {
            self.0 = match std::mem::replace(&mut self.0, State::Ended) {
                State::LogRequest(asked) => State::Files(blocking(move || Box::new(asked.find())).await?),
                State::Files(mut found) => {
                    let (lines, found) = blocking(move || (found.batch(), found)).await?;
                    if !lines.is_empty() {
                        self.0 = State::Files(found);
                        return Some(lines);
                    }
                    State::Memory(found.memory, found.following)
                }
                State::Memory(lines, following) if !lines.is_empty() => {
                    self.0 = State::Memory(Vec::new(), following);
                    return Some(lines);
                }
                State::Memory(_, Some(mut following)) => {
                    let lines = following.follower.next_all().await?;
                    State::Memory(following.filter.of(&lines), Some(following))
                }
                State::Memory(_, None) | State::Ended => return None,
            }
        }
    }
}

impl platform::Logs for Reading {
    fn next(&mut self) -> Pending<'_, Option<Vec<Line>>> {
        Box::pin(Reading::next(self))
    }
}

impl LogRequest {
    fn find(self) -> Selection {
        let filter = self.filter();
        let (past, next) = self.past(filter.since);
        let is_live = |line: &Line| line.replica.is_some_and(|replica| self.live.contains(&replica));
        let selected = match self.query.part {
            Part::Replicas => Some(filter.clone()),
            // One replica, or one build: that of the last line.
            Part::Previous | Part::Build => {
                let last = past.last(|line| filter.selects(line) && !is_live(line));
                last.map(|last| filter.only_from(last))
            }
        };
        let (files, memory) = match &selected {
            Some(filter) => past.tail(filter, self.query.tail),
            None => (VecDeque::new(), Vec::new()),
        };
        let follower = || Following { follower: self.logs.follow_from(next), filter };
        let following = self.query.follow.then(follower);
        Selection { files, reader: None, filter: selected.unwrap_or_default(), memory, following }
    }

    fn filter(&self) -> Filter {
        let oldest =
            self.logs.queue.as_ref().map_or(Millis::ZERO, |queue| ring::now() - queue.limits.age_ms());
        Filter {
            is_build: self.query.part == Part::Build,
            since: self.query.since.unwrap_or_default().max(oldest),
            generation: self.query.generation,
            event_id: self.query.event_id.clone(),
            ..Filter::default()
        }
    }

    /// The lines so far, and the number of the next.
    fn past(&self, since: Millis) -> (Past, u64) {
        let series = if self.query.part == Part::Build { Series::Build } else { Series::Replicas };
        let queue = self.logs.queue.as_ref();
        let snapshot = queue.and_then(|queue| queue.snapshot(&self.logs, series, SNAPSHOT_WITHIN));
        let next = snapshot.as_ref().map_or(0, |snapshot| snapshot.next);
        let files = snapshot.map(|snapshot| spans(&snapshot, since)).unwrap_or_default();
        let memory = self.logs.from(next);
        let next = memory.last().map_or(next, |last| last.number + 1);
        (Past { files, memory }, next)
    }
}

impl Selection {
    /// The next lines of the files. None are left if it is empty.
    fn batch(&mut self) -> Vec<Line> {
        let (mut lines, mut bytes) = (Vec::new(), 0);
        while bytes < BATCH_BYTES {
            let Some(reader) = &mut self.reader else {
                let Some(span) = self.files.pop_front() else { break };
                self.reader = Lines::open(&span).ok();
                continue;
            };
            match reader.next() {
                Some((_, Some(line))) if self.filter.selects(&line) => {
                    bytes += line.text.len() + LINE_BYTES;
                    lines.push(line);
                }
                Some(_) => {}
                None => self.reader = None,
            }
        }
        lines
    }
}

#[derive(Clone, Default)]
struct Filter {
    is_build: bool,
    since: Millis,
    generation: Option<u64>,
    event_id: Option<String>,
    /// Only this replica, and only this build.
    replica: Option<u64>,
    build_started: Option<Millis>,
}

impl Filter {
    fn selects(&self, line: &Line) -> bool {
        let started = line.build.as_ref().map(|build| build.started);
        (line.stream == Stream::Build) == self.is_build
            && line.time >= self.since
            && self.generation.is_none_or(|generation| line.generation == generation)
            && (self.event_id.is_none() || line.event_id == self.event_id)
            && (self.replica.is_none() || line.replica == self.replica)
            && (self.build_started.is_none() || started == self.build_started)
    }

    fn only_from(&self, line: Line) -> Filter {
        let build_started = line.build.map(|build| build.started);
        Filter { replica: line.replica, build_started, ..self.clone() }
    }

    fn of(&self, lines: &[Arc<Line>]) -> Vec<Line> {
        lines.iter().filter(|line| self.selects(line)).map(|line| Line::clone(line)).collect()
    }
}

/// The lines on disk and, after them, in memory.
struct Past {
    /// Oldest first.
    files: VecDeque<Span>,
    memory: Vec<Arc<Line>>,
}

/// A part of a file.
struct Span {
    path: PathBuf,
    from: u64,
    to: u64,
}

impl Past {
    fn last(&self, is_it: impl Fn(&Line) -> bool) -> Option<Line> {
        if let Some(line) = self.memory.iter().rev().find(|line| is_it(line)) {
            return Some(Line::clone(line));
        }
        let newest_first = self.files.iter().rev();
        newest_first
            .filter_map(|span| Lines::open(span).ok())
            .find_map(|lines| lines.filter_map(|(_, line)| line).filter(|line| is_it(line)).last())
    }

    /// The files from where the last selected lines begin, and the selected lines in memory.
    fn tail(mut self, filter: &Filter, tail: Option<usize>) -> (VecDeque<Span>, Vec<Line>) {
        let mut memory = filter.of(&self.memory);
        let Some(tail) = tail else { return (self.files, memory) };
        memory.drain(..memory.len().saturating_sub(tail));
        let mut missing = tail - memory.len();
        let mut files = VecDeque::new();
        while missing > 0
            && let Some(mut span) = self.files.pop_back()
        {
            let starts = last_starts(&span, filter, missing);
            missing -= starts.len();
            span.from = starts.front().copied().unwrap_or(span.to);
            files.push_front(span);
        }
        (files, memory)
    }
}

/// Where the last selected lines of a file start.
fn last_starts(span: &Span, filter: &Filter, count: usize) -> VecDeque<u64> {
    let mut starts = VecDeque::new();
    for (start, line) in Lines::open(span).into_iter().flatten() {
        if line.is_some_and(|line| filter.selects(&line)) {
            starts.push_back(start);
            if starts.len() > count {
                starts.pop_front();
            }
        }
    }
    starts
}

/// The files, without those whose lines are all older than `since`.
fn spans(snapshot: &Snapshot, since: Millis) -> VecDeque<Span> {
    let parts = &snapshot.parts;
    let is_needed = |index: &usize| parts.get(index + 1).is_none_or(|next| next.started >= since);
    let span = |index: usize| {
        let path = files::path(&snapshot.folder, snapshot.series, parts[index]);
        Span { path, from: 0, to: parts[index].bytes }
    };
    (0..parts.len()).filter(is_needed).map(span).collect()
}

/// The lines of a part of a file, with the place where each starts. `None` is a line that cannot be read.
struct Lines {
    file: BufReader<io::Take<File>>,
    place: u64,
    line: Vec<u8>,
}

impl Lines {
    fn open(span: &Span) -> io::Result<Lines> {
        let mut file = File::open(&span.path)?;
        file.seek(SeekFrom::Start(span.from))?;
        let file = BufReader::with_capacity(BATCH_BYTES, file.take(span.to.saturating_sub(span.from)));
        Ok(Lines { file, place: span.from, line: Vec::new() })
    }

    /// Reads one line, at most this long.
    fn read(&mut self) -> usize {
        self.line.clear();
        let read = self.file.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut self.line).unwrap_or(0);
        self.place += read as u64;
        read
    }
}

impl Iterator for Lines {
    type Item = (u64, Option<Line>);

    fn next(&mut self) -> Option<(u64, Option<Line>)> {
        let start = self.place;
        if self.read() == 0 {
            return None;
        }
        if self.line.ends_with(b"\n") {
            return Some((start, serde_json::from_slice(&self.line).ok()));
        }
        // Too long, or the last line is torn.
        while self.read() > 0 && !self.line.ends_with(b"\n") {}
        Some((start, None))
    }
}

/// `None` if the runtime shuts down.
async fn blocking<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Option<T> {
    tokio::task::spawn_blocking(work).await.ok()
}
