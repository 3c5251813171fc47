//! Where the picture goes: drawn over and over in a terminal, told line by line elsewhere, and kept for a file.

use super::line::Line;
use super::scene::{Scene, WIDTH};
use super::script::ORDERS;
use std::io::Write;
use std::time::{Duration, Instant};

/// Lines that a picture may have in the end.
const HEIGHT_MAX: u16 = 34;

pub struct Screen<'a> {
    out: &'a mut dyn Write,
    manner: Manner,
    started: Instant,
    kept: Option<Vec<Frame>>,
}

/// What was to be seen from a moment on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Frame {
    pub at: Duration,
    pub lines: Vec<Line>,
}

enum Manner {
    /// How many lines of the last picture are to be drawn over, and whether in colour.
    Drawn { height: usize, colour: bool },
    /// How much of the story was told, and what was said of each order.
    Told { lines: usize, states: [String; ORDERS.len()] },
}

impl<'a> Screen<'a> {
    pub fn new(out: &'a mut dyn Write, plain: bool, keep: bool) -> Screen<'a> {
        let manner = if plain || !fits() {
            Manner::Told { lines: 0, states: Default::default() }
        } else {
            Manner::Drawn { height: 0, colour: std::env::var_os("NO_COLOR").is_none() }
        };
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
            Manner::Drawn { height, colour } => draw(self.out, &frame, height, *colour)?,
            Manner::Told { lines, states } => tell(self.out, scene, lines, states)?,
        }
        Ok(self.out.flush()?)
    }

    /// All that was to be seen, if it was to be kept.
    pub fn frames(self) -> Vec<Frame> {
        self.kept.unwrap_or_default()
    }

    /// Whether someone watches, now or later.
    pub fn takes_time(&self) -> bool {
        self.kept.is_some() || matches!(self.manner, Manner::Drawn { .. })
    }
}

/// Whether there is a terminal, and room in it.
fn fits() -> bool {
    use std::io::IsTerminal;
    let stdout = std::io::stdout();
    let size = rustix::termios::tcgetwinsize(&stdout);
    stdout.is_terminal()
        && size.is_ok_and(|size| size.ws_row > HEIGHT_MAX && usize::from(size.ws_col) >= WIDTH)
}

fn draw(out: &mut dyn Write, frame: &[Line], height: &mut usize, colour: bool) -> anyhow::Result<()> {
    let mut text = String::new();
    if *height > 0 {
        text.push_str(&format!("\x1b[{height}A"));
    }
    for line in frame {
        let line = if colour { line.ansi() } else { line.plain() };
        text.push_str(&format!("\x1b[2K{line}\r\n"));
    }
    out.write_all(text.as_bytes())?;
    *height = frame.len();
    Ok(())
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
