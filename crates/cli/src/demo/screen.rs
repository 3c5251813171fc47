//! Output of the demo: a terminal is redrawn, other outputs get lines, and a recording keeps every frame.

use super::line::Line;
use super::scene::{HEAD, Scene};
use super::script::ORDERS;
use std::io::{IsTerminal, Write};
use std::time::{Duration, Instant};

/// A smaller terminal gets lines instead.
const ROWS_MIN: usize = 16;
const COLUMNS_MIN: usize = 72;

pub struct Screen<'a> {
    out: &'a mut dyn Write,
    manner: Manner,
    started: Instant,
    kept: Option<Vec<Frame>>,
}

/// A frame, and when it was shown.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub at: Duration,
    pub lines: Vec<Line>,
}

enum Manner {
    Drawn(Drawing),
    /// The number of printed parts of the story, and the last line of each order.
    Told {
        lines: usize,
        states: [String; ORDERS.len()],
    },
}

/// A terminal, and the frame on it that the next one replaces.
struct Drawing {
    rows: usize,
    columns: usize,
    colour: bool,
    last: Vec<Line>,
}

impl<'a> Screen<'a> {
    pub fn new(out: &'a mut dyn Write, plain: bool, keep: bool) -> Screen<'a> {
        let told = || Manner::Told { lines: 0, states: Default::default() };
        let manner = Drawing::in_terminal().filter(|_| !plain).map_or_else(told, Manner::Drawn);
        Screen { out, manner, started: Instant::now(), kept: keep.then(Vec::new) }
    }

    pub fn show(&mut self, scene: &Scene) -> anyhow::Result<()> {
        let frame = scene.frame();
        if let Some(kept) = &mut self.kept
            && kept.last().is_none_or(|last| last.lines != frame)
        {
            kept.push(Frame { at: self.started.elapsed(), lines: frame.clone() });
        }
        match &mut self.manner {
            Manner::Drawn(drawing) => drawing.draw(self.out, &frame)?,
            Manner::Told { lines, states } => tell(self.out, scene, lines, states)?,
        }
        Ok(self.out.flush()?)
    }

    /// Prints the state of every order, for outputs that are not redrawn.
    pub fn sum_up(&mut self, scene: &Scene) -> anyhow::Result<()> {
        if let Manner::Told { .. } = self.manner {
            self.show(scene)?;
            for order in 0..ORDERS.len() {
                writeln!(self.out, "    {}", scene.row(order).plain())?;
            }
        }
        Ok(())
    }

    /// All frames, if they were recorded.
    pub fn frames(self) -> Vec<Frame> {
        self.kept.unwrap_or_default()
    }

    /// Whether there is a terminal or a recording.
    pub fn takes_time(&self) -> bool {
        self.kept.is_some() || matches!(self.manner, Manner::Drawn(_))
    }
}

impl Drawing {
    /// `None` without a terminal, or if it is too small.
    fn in_terminal() -> Option<Drawing> {
        let stdout = std::io::stdout();
        let size = rustix::termios::tcgetwinsize(&stdout).ok().filter(|_| stdout.is_terminal())?;
        let (rows, columns) = (usize::from(size.ws_row), usize::from(size.ws_col));
        let colour = std::env::var_os("NO_COLOR").is_none();
        let fits = rows >= ROWS_MIN && columns >= COLUMNS_MIN;
        fits.then_some(Drawing { rows, columns, colour, last: Vec::new() })
    }

    fn draw(&mut self, out: &mut dyn Write, frame: &[Line]) -> anyhow::Result<()> {
        let frame = self.fitted(frame);
        if frame == self.last {
            return Ok(());
        }
        let mut text = String::new();
        if !self.last.is_empty() {
            text.push_str(&format!("\x1b[{}A", self.last.len()));
        }
        for line in &frame {
            let line = if self.colour { line.ansi() } else { line.plain() };
            text.push_str(&format!("\x1b[2K{line}\r\n"));
        }
        out.write_all(text.as_bytes())?;
        self.last = frame;
        Ok(())
    }

    /// The lines above the story, and the end of the story. Lines are cut, because a wrapped line could not be redrawn.
    fn fitted(&self, frame: &[Line]) -> Vec<Line> {
        let (head, story) = frame.split_at(HEAD.min(frame.len()));
        let room = self.rows.saturating_sub(HEAD + 1);
        let story = &story[story.len().saturating_sub(room)..];
        head.iter().chain(story).map(|line| line.clip(self.columns - 1)).collect()
    }
}

fn tell(
    out: &mut dyn Write,
    scene: &Scene,
    told: &mut usize,
    states: &mut [String; ORDERS.len()],
) -> anyhow::Result<()> {
    for line in &scene.story()[*told..] {
        writeln!(out, "{}", line.plain())?;
    }
    *told = scene.story().len();
    for (order, before) in states.iter_mut().enumerate() {
        let (_, state) = scene.state(order);
        if state != *before {
            if !state.is_empty() {
                writeln!(out, "    {}", scene.row(order).plain())?;
            }
            *before = state;
        }
    }
    Ok(())
}
