//! The thread that writes log files, and the queue before it.

use super::files::{self, Appender, Limits, Part, Series};
use super::ring::{self, Logs};
use klambda_crash::Point;
use klambda_functions::logs::Line;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{self, Receiver, RecvTimeoutError, Sender, SyncSender};
use std::time::{Duration, Instant};

/// Memory for lines that wait for the disk.
const QUEUE_BYTES: usize = 4 << 20;
/// What a line needs besides its text.
const LINE_BYTES: usize = 200;
/// Number of messages that are handled together.
const AT_ONCE: usize = 4096;
/// Number of files that stay open.
const OPEN_MAX: usize = 128;
/// Old files are removed this often, or more often if the age limit is short.
const SWEEP_EVERY: Duration = Duration::from_secs(3600);
/// Least time between two warnings about lost lines.
const WARN_EVERY: Duration = Duration::from_secs(60);

/// The way to the writer. It ends when the last queue is dropped.
#[derive(Debug)]
pub struct Queue {
    messages: Sender<Message>,
    counts: Arc<Counts>,
    pub limits: Limits,
}

#[derive(Debug, Default)]
struct Counts {
    waiting_bytes: AtomicUsize,
    dropped: AtomicU64,
}

enum Message {
    Line(Arc<Logs>, Arc<Line>),
    Snapshot(Arc<Logs>, Series, SyncSender<Snapshot>),
    Settle(SyncSender<()>),
    Forget(Arc<str>),
}

/// The files of a log up to a line.
pub struct Snapshot {
    pub folder: PathBuf,
    pub series: Series,
    /// Oldest first.
    pub parts: Vec<Part>,
    /// The number of the first line that is not in them.
    pub next: u64,
}

/// `known` are the functions that exist, as `namespace/name`. The logs of others are removed.
pub fn start(folder: PathBuf, limits: Limits, known: HashSet<PathBuf>) -> io::Result<Queue> {
    let (messages, received) = mpsc::channel();
    let counts = Arc::new(Counts::default());
    let writer = Writer {
        folder,
        limits,
        counts: counts.clone(),
        waiting: HashMap::new(),
        open: HashMap::new(),
        warned_at: None,
    };
    std::thread::Builder::new().name("klambda-logs".into()).spawn(move || writer.run(&received, &known))?;
    Ok(Queue { messages, counts, limits })
}

impl Queue {
    /// Never waits.
    pub fn write(&self, logs: &Arc<Logs>, line: Arc<Line>) {
        let bytes = line.text.len() + LINE_BYTES;
        let before = self.counts.waiting_bytes.fetch_add(bytes, Ordering::Relaxed);
        if before + bytes > QUEUE_BYTES || self.messages.send(Message::Line(logs.clone(), line)).is_err() {
            self.counts.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
            self.counts.dropped.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn forget(&self, function: Arc<str>) {
        let _ = self.messages.send(Message::Forget(function));
    }

    pub fn dropped(&self) -> u64 {
        self.counts.dropped.load(Ordering::Relaxed)
    }

    /// Waits until earlier lines are written. `None` if the disk does not respond in time.
    pub fn snapshot(&self, logs: &Arc<Logs>, series: Series, within: Duration) -> Option<Snapshot> {
        let (answer, answered) = mpsc::sync_channel(1);
        self.messages.send(Message::Snapshot(logs.clone(), series, answer)).ok()?;
        answered.recv_timeout(within).ok()
    }

    pub fn settle(&self, within: Duration) {
        let (answer, answered) = mpsc::sync_channel(1);
        if self.messages.send(Message::Settle(answer)).is_ok() {
            let _ = answered.recv_timeout(within);
        }
    }
}

type Key = (Arc<str>, Series);

struct Writer {
    folder: PathBuf,
    limits: Limits,
    counts: Arc<Counts>,
    waiting: HashMap<Key, (Arc<Logs>, Vec<Arc<Line>>)>,
    open: HashMap<Key, Appender>,
    warned_at: Option<Instant>,
}

impl Writer {
    fn run(mut self, messages: &Receiver<Message>, known: &HashSet<PathBuf>) {
        self.remove_unknown(known);
        let every = (self.limits.age / 8).clamp(Duration::from_secs(1), SWEEP_EVERY);
        let mut sweep_at = Instant::now();
        loop {
            if sweep_at <= Instant::now() {
                self.sweep();
                sweep_at = Instant::now() + every;
            }
            match messages.recv_timeout(sweep_at.saturating_duration_since(Instant::now())) {
                Ok(first) => {
                    Point::Logs.pass();
                    let more = messages.try_iter().take(AT_ONCE);
                    std::iter::once(first).chain(more).for_each(|message| self.handle(message));
                    self.write_all();
                }
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return,
            }
        }
    }

    fn handle(&mut self, message: Message) {
        match message {
            Message::Line(logs, line) => {
                let key = (logs.name.clone(), Series::of(line.stream));
                self.waiting.entry(key).or_insert_with(|| (logs, Vec::new())).1.push(line);
            }
            Message::Snapshot(logs, series, answer) => {
                self.write_all();
                let _ = answer.try_send(self.snapshot(&logs, series));
            }
            Message::Settle(answer) => {
                self.write_all();
                let _ = answer.try_send(());
            }
            Message::Forget(function) => {
                self.write_all();
                self.open.retain(|(name, _), _| *name != function);
                remove(&self.folder.join(&*function));
            }
        }
    }

    fn snapshot(&self, logs: &Logs, series: Series) -> Snapshot {
        let folder = self.folder.join(&*logs.name);
        let open = self.open.get(&(logs.name.clone(), series));
        let parts = open.map_or_else(|| files::list(&folder, series), |open| open.parts().to_vec());
        Snapshot { folder, series, parts, next: logs.written.load(Ordering::Relaxed) }
    }

    fn write_all(&mut self) {
        for (key, (logs, lines)) in std::mem::take(&mut self.waiting) {
            self.write(key, &logs, &lines);
        }
        if self.open.len() > OPEN_MAX {
            self.open.clear();
        }
    }

    fn write(&mut self, key: Key, logs: &Logs, lines: &[Arc<Line>]) {
        let (limits, folder) = (self.limits, &self.folder);
        let open = self
            .open
            .entry(key)
            .or_insert_with_key(|key| Appender::open(folder.join(&*key.0), key.1, limits));
        let mut written = 0;
        let appended = open.append(lines, &mut written);
        if let Some(last) = lines[..written].last() {
            logs.written.fetch_max(last.number + 1, Ordering::Relaxed);
        }
        let bytes: usize = lines.iter().map(|line| line.text.len() + LINE_BYTES).sum();
        self.counts.waiting_bytes.fetch_sub(bytes, Ordering::Relaxed);
        self.counts.dropped.fetch_add((lines.len() - written) as u64, Ordering::Relaxed);
        if let Err(error) = appended {
            self.note_failure(&logs.name, &error);
        }
    }

    /// The counter shows every lost line, the log of the server only that there are some.
    fn note_failure(&mut self, function: &Arc<str>, error: &io::Error) {
        if self.warned_at.is_none_or(|at| at.elapsed() >= WARN_EVERY) {
            tracing::warn!(%error, function = &**function, "Could not store logs of functions; lines are dropped");
            self.warned_at = Some(Instant::now());
        }
        // The next write looks at the files again.
        self.open.retain(|(name, _), _| name != function);
    }

    fn sweep(&mut self) {
        self.open.clear();
        let before = ring::now() - self.limits.age_ms();
        for folder in folders(&self.folder).iter().flat_map(|namespace| folders(namespace)) {
            let is_empty = Series::ALL.map(|series| files::remove_before(&folder, series, before));
            if is_empty == [true, true] {
                // Only if nothing else is in it.
                let _ = std::fs::remove_dir(&folder);
            }
        }
    }

    fn remove_unknown(&self, known: &HashSet<PathBuf>) {
        for folder in folders(&self.folder).iter().flat_map(|namespace| folders(namespace)) {
            if folder.strip_prefix(&self.folder).is_ok_and(|name| !known.contains(name)) {
                remove(&folder);
            }
        }
    }
}

fn folders(folder: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}

/// Removes the folder of a function, and that of its namespace if it was the last.
fn remove(folder: &Path) {
    match std::fs::remove_dir_all(folder) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(%error, path = %folder.display(), "Could not remove the logs of a deleted function");
        }
        _ => {}
    }
    if let Some(namespace) = folder.parent() {
        let _ = std::fs::remove_dir(namespace);
    }
}
