//! The content of a frame: the function, a row per order, and the story so far. Built from the state of the server and the
//! lines of the function.

use super::line::{Line, Tone};
use super::proof::{Claim, Entry, Outcome};
use super::script::{FUNCTION, Language, ORDERS, STEPS, Step};
use crate::function;
use crate::output::{cell, number, shorten, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// No line is longer.
pub const WIDTH: usize = 96;
/// The lines above the story.
pub const HEAD: usize = ORDERS.len() + 3;
const NAME_WIDTH: usize = 11;
const CELL_WIDTH: usize = 5;
const COMMAND_COLUMN: usize = 36;
const ERROR_CHARS_MAX: usize = 42;

pub struct Scene {
    language: Language,
    /// As the API shows it; null before it is applied.
    function: Value,
    /// Lanes that are not idle.
    lanes: Vec<Value>,
    /// The events that the server accepted.
    accepted: BTreeSet<Step>,
    journal: Vec<Entry>,
    story: Vec<Line>,
}

/// The state of one step of an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mark {
    NotThere,
    Missing,
    Waits,
    Runs,
    Fails,
    Parked,
    Done,
}

impl Scene {
    pub fn new(language: Language) -> Scene {
        let (function, lanes, accepted) = (Value::Null, Vec::new(), BTreeSet::new());
        Scene { language, function, lanes, accepted, journal: Vec::new(), story: Vec::new() }
    }

    pub fn see(&mut self, function: Value, lanes: Vec<Value>, journal: Vec<Entry>) {
        (self.function, self.lanes, self.journal) = (function, lanes, journal);
    }

    pub fn accept(&mut self, step: Step) {
        self.accepted.insert(step);
    }

    /// A new part of the story: what happens, and the command for it.
    pub fn begin(&mut self, what: &str, command: &str) {
        let number =
            self.story.iter().filter(|line| line.pieces.first().is_some_and(|piece| piece.0 == Tone::Strong));
        let title = format!("{} {what}", number.count() + 1);
        let line = Line::of(Tone::Strong, title).to(COMMAND_COLUMN);
        self.story.push(line.with(Tone::Dim, format!("$ klambda {command}")));
    }

    pub fn say(&mut self, tone: Tone, text: impl Into<String>) {
        self.story.push(Line::of(Tone::Plain, "  ").with(tone, text));
    }

    pub fn claim(&mut self, claim: &Claim) {
        let (tone, mark) = if claim.holds { (Tone::Good, "✓") } else { (Tone::Bad, "✗") };
        self.story
            .push(Line::of(Tone::Plain, "  ").with(tone, mark).with(Tone::Plain, format!(" {}", claim.text)));
    }

    pub fn story(&self) -> &[Line] {
        &self.story
    }

    pub fn frame(&self) -> Vec<Line> {
        let mut lines = vec![self.title(), legend()];
        lines.extend((0..ORDERS.len()).map(|order| self.row(order)));
        lines.push(Line::default());
        lines.extend(self.story.iter().cloned());
        lines
    }

    fn title(&self) -> Line {
        let line = Line::of(Tone::Strong, format!("function {FUNCTION}"))
            .with(Tone::Dim, format!("  {}  ", self.language.name()));
        let Some(phase) = text(&self.function, "/status/phase") else { return line };
        let tone = match phase.as_str() {
            "Ready" => Tone::Good,
            "Failed" => Tone::Bad,
            _ => Tone::Waits,
        };
        let (replicas, version) = (
            number(&self.function, "/status/serviceStatus/replicas"),
            number(&self.function, "/metadata/generation"),
        );
        line.with(tone, phase).with(Tone::Dim, format!("  version {version}, {replicas} running"))
    }

    /// An order: its steps in the order of events, and the reason why its lane waits.
    pub fn row(&self, order: usize) -> Line {
        let mut line = Line::of(Tone::Plain, ORDERS[order]).to(NAME_WIDTH);
        for sequence in 1..=STEPS.len() as u64 {
            let mark = self.mark(Step { order, sequence });
            let column = line.width() + CELL_WIDTH;
            let number = if mark == Mark::NotThere { String::new() } else { format!(" {sequence}") };
            line = line.with(mark.tone(), format!("{}{number}", mark.sign())).to(column);
        }
        let (tone, words) = self.state(order);
        line.with(tone, words)
    }

    /// A remark about an order, if there is one.
    pub fn state(&self, order: usize) -> (Tone, String) {
        if self.is_done(order) {
            return (Tone::Good, "done".to_owned());
        }
        let Some(lane) = self.lane(order) else { return (Tone::Plain, String::new()) };
        let error = || failure(&cell(lane, "/head/lastError"));
        match lane["state"].as_str() {
            Some("parked") if lane["head"].is_object() => (Tone::Bad, format!("parked: {}", error())),
            Some("retrying") => (Tone::Waits, format!("retrying: {}", error())),
            Some("gap") => (Tone::Waits, format!("gap: waits for {}", cell(lane, "/expectedSequence"))),
            Some("parked") => (Tone::Bad, "parked: a gap".to_owned()),
            _ => (Tone::Plain, String::new()),
        }
    }

    pub fn is_done(&self, order: usize) -> bool {
        (1..=STEPS.len() as u64).all(|sequence| self.mark(Step { order, sequence }) == Mark::Done)
    }

    pub fn lane_is(&self, order: usize, state: &str) -> bool {
        self.lane(order).is_some_and(|lane| lane["state"] == state)
    }

    fn lane(&self, order: usize) -> Option<&Value> {
        self.lanes.iter().find(|lane| lane["key"] == ORDERS[order])
    }

    fn mark(&self, step: Step) -> Mark {
        let wrote =
            |outcome| self.journal.iter().any(|entry| entry.id == step.id() && entry.outcome == outcome);
        if wrote(Outcome::Handled) {
            return Mark::Done;
        }
        let lane = self.lane(step.order);
        let state = lane.and_then(|lane| lane["state"].as_str());
        let is_head = lane.is_some_and(|lane| lane["head"]["id"] == step.id().as_str());
        match state {
            Some("parked") if is_head => Mark::Parked,
            Some("retrying") if is_head => Mark::Fails,
            Some("running") if is_head => Mark::Runs,
            Some("gap") if lane.is_some_and(|lane| number(lane, "/expectedSequence") == step.sequence) => {
                Mark::Missing
            }
            _ if self.accepted.contains(&step) => Mark::Waits,
            _ => Mark::NotThere,
        }
    }
}

/// The legend.
fn legend() -> Line {
    let marks = [Mark::Waits, Mark::Runs, Mark::Done, Mark::Missing, Mark::Fails, Mark::Parked];
    marks.into_iter().fold(Line::default().to(NAME_WIDTH), |line, mark| {
        line.with(mark.tone(), mark.sign()).with(Tone::Dim, format!(" {}   ", mark.word()))
    })
}

/// Without the prefix: the status already shows that the handler failed.
fn failure(last_error: &str) -> String {
    let words = function::error(last_error);
    shorten(words.strip_prefix("HTTP 500: ").unwrap_or(&words), ERROR_CHARS_MAX)
}

impl Mark {
    fn word(self) -> &'static str {
        match self {
            Mark::NotThere => "not sent",
            Mark::Missing => "missing",
            Mark::Waits => "waits",
            Mark::Runs => "runs",
            Mark::Fails => "tried again",
            Mark::Parked => "parked",
            Mark::Done => "done",
        }
    }

    fn sign(self) -> &'static str {
        match self {
            Mark::NotThere => "·",
            Mark::Missing => "?",
            Mark::Waits => "○",
            Mark::Runs => "●",
            Mark::Fails => "↻",
            Mark::Parked => "✗",
            Mark::Done => "✓",
        }
    }

    fn tone(self) -> Tone {
        match self {
            Mark::NotThere => Tone::Dim,
            Mark::Waits => Tone::Plain,
            Mark::Missing | Mark::Fails => Tone::Waits,
            Mark::Runs => Tone::Strong,
            Mark::Parked => Tone::Bad,
            Mark::Done => Tone::Good,
        }
    }
}
