//! The recording as an SVG: it plays once, at the original speed, and stays at the last frame.
//!
//! A line that stays the same over several frames is written once. A viewer without animation shows the end.

use super::line::{Line, Tone};
use super::scene::WIDTH;
use super::screen::Frame;
use std::fmt::Write;
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

const COLUMN: f64 = 8.4;
const ROW: f64 = 19.0;
const MARGIN: f64 = 18.0;

pub fn picture(frames: &[Frame]) -> String {
    let rows = frames.iter().map(|frame| frame.lines.len()).max().unwrap_or(0);
    let (width, height) = (WIDTH as f64 * COLUMN + 2.0 * MARGIN, rows as f64 * ROW + 2.0 * MARGIN);
    let mut svg = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width:.0} {height:.0}\" width=\"{width:.0}\" height=\"{height:.0}\">\n\
         <title>klambda demo</title>\n\
         <style>text{{font:14px ui-monospace,'DejaVu Sans Mono',Menlo,Consolas,monospace;white-space:pre;fill:#d8dee9}}\
         .strong{{fill:#fff;font-weight:bold}}.dim{{fill:#7b8494}}.good{{fill:#7fd962}}.waits{{fill:#ffcc66}}.bad{{fill:#ff6b6b}}</style>\n\
         <rect width=\"100%\" height=\"100%\" rx=\"8\" fill=\"#14181f\"/>\n"
    );
    for row in 0..rows {
        for shown in shown(frames, row) {
            write_line(&mut svg, row, &shown);
        }
    }
    svg.push_str("</svg>\n");
    svg
}

/// A line of one row, from when to when.
struct Shown<'a> {
    line: &'a Line,
    from: Duration,
    until: Option<Duration>,
}

fn shown(frames: &[Frame], row: usize) -> Vec<Shown<'_>> {
    let mut all: Vec<Shown> = Vec::new();
    let mut current: Option<(&Line, Duration)> = None;
    for frame in frames {
        let line = frame.lines.get(row).filter(|line| !line.plain().is_empty());
        if current.map(|(line, _)| line) == line {
            continue;
        }
        if let Some((line, from)) = current.take() {
            all.push(Shown { line, from, until: Some(frame.at) });
        }
        current = line.map(|line| (line, frame.at));
    }
    all.extend(current.map(|(line, from)| Shown { line, from, until: None }));
    all
}

fn write_line(svg: &mut String, row: usize, shown: &Shown) {
    let y = MARGIN + ROW * (row as f64 + 0.8);
    // Writing to a string cannot fail.
    let hidden = if shown.until.is_some() { " visibility=\"hidden\"" } else { "" };
    let _ = write!(svg, "<text y=\"{y:.1}\"{hidden}>");
    let mut column = 0;
    for (tone, text) in &shown.line.pieces {
        if !text.trim().is_empty() {
            // Blanks at the start are not shown everywhere.
            let blanks = text.width() - text.trim_start().width();
            let x = MARGIN + (column + blanks) as f64 * COLUMN;
            let _ = write!(svg, "<tspan x=\"{x:.1}\"{}>{}</tspan>", class(*tone), escaped(text.trim()));
        }
        column += text.width();
    }
    let from = shown.from.as_secs_f64();
    let _ = match shown.until {
        Some(until) => {
            let length = (until - shown.from).as_secs_f64();
            write!(
                svg,
                "<set attributeName=\"visibility\" to=\"visible\" begin=\"{from:.2}s\" dur=\"{length:.2}s\"/>"
            )
        }
        None => {
            write!(svg, "<set attributeName=\"visibility\" to=\"hidden\" begin=\"0s\" dur=\"{from:.2}s\"/>")
        }
    };
    svg.push_str("</text>\n");
}

fn class(tone: Tone) -> &'static str {
    match tone {
        Tone::Plain => "",
        Tone::Strong => " class=\"strong\"",
        Tone::Dim => " class=\"dim\"",
        Tone::Good => " class=\"good\"",
        Tone::Waits => " class=\"waits\"",
        Tone::Bad => " class=\"bad\"",
    }
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_that_stays_is_written_once_and_the_last_is_seen_without_animation() {
        let frame = |ms, lines: &[&str]| {
            let lines = lines.iter().map(|text| Line::of(Tone::Good, *text)).collect();
            Frame { at: Duration::from_millis(ms), lines }
        };
        let svg = picture(&[frame(0, &["same", "a<b"]), frame(500, &["same", "then", "more"])]);
        assert_eq!(svg.matches(">same<").count(), 1);
        assert!(svg.contains(
            "a&lt;b</tspan><set attributeName=\"visibility\" to=\"visible\" begin=\"0.00s\" dur=\"0.50s\"/>"
        ));
        assert!(svg.contains(
            "then</tspan><set attributeName=\"visibility\" to=\"hidden\" begin=\"0s\" dur=\"0.50s\"/>"
        ));
        assert_eq!(svg.matches(" visibility=\"hidden\">").count(), 1);
    }
}
