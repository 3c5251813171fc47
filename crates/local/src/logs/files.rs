//! The files of a log. Each is named after the time of its first line, in milliseconds. When a file is full or old, a new
//! one begins, and the oldest is removed.
//!
//! Builds have their own files, so that a function that prints much does not push out how it was built.

use klambda_core::time::Millis;
use klambda_functions::logs::{Line, Stream};
use std::fs::{DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

/// For each function.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    pub bytes: u64,
    pub age: Duration,
}

impl Limits {
    pub fn age_ms(self) -> u64 {
        u64::try_from(self.age.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Default for Limits {
    fn default() -> Limits {
        Limits { bytes: 16 << 20, age: Duration::from_secs(7 * 86_400) }
    }
}

/// Number of files of a series.
const FILES: usize = 4;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Series {
    Replicas,
    Build,
}

impl Series {
    pub const ALL: [Series; 2] = [Series::Replicas, Series::Build];

    pub fn of(stream: Stream) -> Series {
        match stream {
            Stream::Stdout | Stream::Stderr => Series::Replicas,
            Stream::Build => Series::Build,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Series::Replicas => "run-",
            Series::Build => "build-",
        }
    }

    /// Builds get an eighth.
    fn file_bytes(self, bytes: u64) -> u64 {
        let share = match self {
            Series::Replicas => bytes - bytes / 8,
            Series::Build => bytes / 8,
        };
        share / FILES as u64
    }
}

/// One file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Part {
    pub started: Millis,
    pub bytes: u64,
}

pub fn path(folder: &Path, series: Series, part: Part) -> PathBuf {
    folder.join(format!("{}{:016}.jsonl", series.prefix(), part.started.0))
}

/// The files of a series, oldest first.
pub fn list(folder: &Path, series: Series) -> Vec<Part> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    let part = |entry: std::fs::DirEntry| {
        let name = entry.file_name().into_string().ok()?;
        let digits = name.strip_prefix(series.prefix())?.strip_suffix(".jsonl")?;
        Some(Part { started: Millis(digits.parse().ok()?), bytes: entry.metadata().ok()?.len() })
    };
    let mut parts: Vec<Part> = entries.filter_map(part).collect();
    parts.sort();
    parts
}

/// Removes the files whose last line is older than this. Returns whether none is left.
pub fn remove_before(folder: &Path, series: Series, time: Millis) -> bool {
    let parts = list(folder, series);
    let is_old = |index: usize, part: Part| match parts.get(index + 1) {
        // Every line is older than the first of the next file.
        Some(next) => next.started <= time,
        None => written_at(&path(folder, series, part)).is_some_and(|written| written < time),
    };
    let left = parts.iter().enumerate().filter(|(index, part)| {
        !(is_old(*index, **part) && std::fs::remove_file(path(folder, series, **part)).is_ok())
    });
    left.count() == 0
}

fn written_at(path: &Path) -> Option<Millis> {
    let modified = path.metadata().ok()?.modified().ok()?;
    let since = modified.duration_since(std::time::UNIX_EPOCH).ok()?;
    Some(Millis(since.as_millis() as u64))
}

/// Appends to the files of a series.
pub struct Appender {
    folder: PathBuf,
    series: Series,
    file_bytes: u64,
    file_age_ms: u64,
    parts: Vec<Part>,
    file: Option<File>,
}

impl Appender {
    pub fn open(folder: PathBuf, series: Series, limits: Limits) -> Appender {
        let parts = list(&folder, series);
        let file_bytes = series.file_bytes(limits.bytes);
        let file_age_ms = limits.age_ms() / FILES as u64;
        Appender { folder, series, file_bytes, file_age_ms, parts, file: None }
    }

    pub fn parts(&self) -> &[Part] {
        &self.parts
    }

    /// Writes lines, and counts those that are on disk.
    pub fn append(&mut self, lines: &[Arc<Line>], written: &mut usize) -> io::Result<()> {
        while let Some(first) = lines.get(*written) {
            self.open_file(first.time)?;
            let (text, count) = fill(&lines[*written..], self.room());
            if count > 0 {
                self.write(&text)?;
                *written += count;
            } else if self.newest().bytes > 0 {
                self.begin(first.time)?;
            } else {
                return Err(io::Error::other("the line is longer than a file of the log may be"));
            }
        }
        Ok(())
    }

    fn newest(&self) -> Part {
        self.parts.last().copied().unwrap_or(Part { started: Millis::ZERO, bytes: 0 })
    }

    fn room(&self) -> u64 {
        self.file_bytes.saturating_sub(self.newest().bytes)
    }

    /// Opens the newest file, or begins one if that is old.
    fn open_file(&mut self, now: Millis) -> io::Result<()> {
        if self.file.as_ref().is_some_and(is_removed) {
            (self.file, self.parts) = (None, list(&self.folder, self.series));
        }
        let Some(newest) = self.parts.last().filter(|part| now.since(part.started) < self.file_age_ms) else {
            return self.begin(now);
        };
        if self.file.is_none() {
            let path = path(&self.folder, self.series, *newest);
            let mut file = OpenOptions::new().read(true).append(true).open(path)?;
            // The program was killed or the disk was full within a line: the next line must not continue it.
            if !ends_with_line(&mut file)? {
                file.write_all(b"\n")?;
            }
            let bytes = file.metadata()?.len();
            self.file = Some(file);
            if let Some(newest) = self.parts.last_mut() {
                newest.bytes = bytes;
            }
        }
        Ok(())
    }

    /// Begins a file, and removes the oldest if there are too many.
    fn begin(&mut self, now: Millis) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        // The clock may go back, the order of files may not.
        let started = self.parts.last().map_or(now, |last| now.max(last.started + 1));
        let part = Part { started, bytes: 0 };
        let path = path(&self.folder, self.series, part);
        self.file = Some(OpenOptions::new().append(true).create_new(true).mode(0o600).open(path)?);
        self.parts.push(part);
        while self.parts.len() > FILES {
            let oldest = self.parts.remove(0);
            std::fs::remove_file(self::path(&self.folder, self.series, oldest))?;
        }
        Ok(())
    }

    fn write(&mut self, text: &[u8]) -> io::Result<()> {
        let (Some(file), Some(part)) = (&mut self.file, self.parts.last_mut()) else { return Ok(()) };
        let wrote = file.write_all(text);
        match wrote {
            Ok(()) => part.bytes += text.len() as u64,
            // Lines that count as lost must not be there. If they cannot be removed, they stay.
            Err(_) => drop(file.set_len(part.bytes)),
        }
        wrote
    }
}

/// Somebody has removed it, for example to make room.
fn is_removed(file: &File) -> bool {
    file.metadata().is_ok_and(|metadata| metadata.nlink() == 0)
}

fn ends_with_line(file: &mut File) -> io::Result<bool> {
    if file.metadata()?.len() == 0 {
        return Ok(true);
    }
    let mut last = [0];
    file.seek(SeekFrom::End(-1))?;
    file.read_exact(&mut last)?;
    Ok(last == *b"\n")
}

/// As many lines as fit, and how many these are.
fn fill(lines: &[Arc<Line>], room: u64) -> (Vec<u8>, usize) {
    let mut text = Vec::new();
    for (count, line) in lines.iter().enumerate() {
        let before = text.len();
        if serde_json::to_writer(&mut text, &**line).is_err() {
            continue;
        }
        text.push(b'\n');
        if text.len() as u64 > room {
            text.truncate(before);
            return (text, count);
        }
    }
    (text, lines.len())
}
