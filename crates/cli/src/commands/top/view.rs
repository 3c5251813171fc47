//! Draws the model. Pure: the same model gives the same screen.

use super::model::{Lane, Letter, Mode, Model, Snapshot};
use crate::colour::Level;
use crate::output::{counted, one_line};
use crate::time::span;
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Cell, Clear, Paragraph, Row, Table, TableState};
use std::time::Duration;
use unicode_width::UnicodeWidthStr;

/// States in the order in which they matter.
const STATES: [&str; 6] = ["parked", "gap", "retrying", "paused", "running", "open"];
/// Rows of the table of dead letters, with its title and header.
const LETTERS_ROWS_MAX: u16 = 8;
const COLUMN_WIDTH_MAX: usize = 32;
const SPACING: u16 = 3;
const KEYS: &str = "↑↓ select   enter why   r resume   s skip   p replay   / filter   o order   q quit";

pub fn draw(frame: &mut Frame, model: &Model, has_colour: bool) {
    let letters = letters_rows(&model.snapshot);
    let heights =
        [Constraint::Length(4), Constraint::Fill(1), Constraint::Length(letters), Constraint::Length(1)];
    let [head, lanes, dead, foot] = Layout::vertical(heights).areas(frame.area());
    frame.render_widget(Paragraph::new(summary(model, has_colour)), head);
    draw_lanes(frame, lanes, model, has_colour);
    if letters > 0 {
        draw_letters(frame, dead, &model.snapshot);
    }
    frame.render_widget(Paragraph::new(footer(model)), foot);
    if let Mode::Inspect { title, lines, scroll } = &model.mode {
        draw_popup(frame, title, lines, *scroll);
    }
}

fn letters_rows(snapshot: &Snapshot) -> u16 {
    match snapshot.letters.len() {
        0 => 0,
        count => u16::try_from(count).unwrap_or(u16::MAX).saturating_add(2).min(LETTERS_ROWS_MAX),
    }
}

fn summary(model: &Model, has_colour: bool) -> Vec<Line<'static>> {
    let snapshot = &model.snapshot;
    let rate = |rate: Option<f64>| rate.map_or_else(|| "-".to_owned(), |rate| format!("{rate:.0}/s"));
    let uptime = snapshot.uptime.map(|uptime| format!("   up {}", age(uptime))).unwrap_or_default();
    let counts = format!(
        "Events: in {}   out {}   pending {}   in flight {}   dead letters {}",
        rate(model.rates.accepted),
        rate(model.rates.delivered),
        snapshot.pending,
        snapshot.in_flight,
        snapshot.dead_letters
    );
    vec![
        Line::styled(format!("{}{uptime}", model.title), Style::new().add_modifier(Modifier::BOLD)),
        Line::raw(counts),
        states(snapshot, has_colour),
        attention(snapshot, has_colour),
    ]
}

fn states(snapshot: &Snapshot, has_colour: bool) -> Line<'static> {
    let mut spans = vec![Span::raw("Lanes:  ")];
    for state in STATES {
        let count = snapshot.states.get(state).copied().unwrap_or(0);
        let style = if count > 0 { style(state, has_colour) } else { Style::new() };
        spans.push(Span::styled(format!("{state} {count}   "), style));
    }
    Line::from(spans)
}

/// The line about lanes and dead letters that need manual action.
fn attention(snapshot: &Snapshot, has_colour: bool) -> Line<'static> {
    let parked = snapshot.states.get("parked").copied().unwrap_or(0);
    if parked == 0 && snapshot.dead_letters == 0 {
        return Line::raw("Manual action: none needed");
    }
    let mut parts = Vec::new();
    if parked > 0 {
        parts.push(format!("{} parked (resume, skip or replay)", counted(parked, "lane")));
    }
    if snapshot.dead_letters > 0 {
        parts.push(counted(snapshot.dead_letters, "dead letter"));
    }
    Line::styled(format!("Manual action: {}", parts.join(", ")), style("parked", has_colour))
}

fn draw_lanes(frame: &mut Frame, area: Rect, model: &Model, has_colour: bool) {
    let visible = model.visible();
    let mut title = format!(" Lanes, {} first ", model.order.word());
    if !model.filter.is_empty() || model.mode == Mode::Filter {
        title.push_str(&format!("- filter: {} ", one_line(&model.filter)));
    }
    if visible.is_empty() {
        let text = Paragraph::new("no busy lanes").block(Block::bordered().title(title));
        return frame.render_widget(text, area);
    }
    let cells: Vec<[String; 6]> = visible.iter().map(|lane| lane_cells(lane)).collect();
    let names = ["SUBSCRIPTION", "KEY", "STATE", "DEPTH", "OLDEST", "WAITS-FOR"];
    let widths = widths(&names, &cells);
    let rows = cells.into_iter().map(|cells| {
        let state = style(&cells[2], has_colour);
        Row::new(cells.into_iter().enumerate().map(move |(n, text)| match n {
            2 => Cell::new(text).style(state),
            _ => Cell::new(text),
        }))
    });
    let table = Table::new(rows, widths)
        .header(header(names))
        .column_spacing(SPACING)
        .row_highlight_style(Style::new().add_modifier(Modifier::REVERSED))
        .highlight_symbol("> ")
        .block(Block::bordered().title(title));
    frame.render_stateful_widget(table, area, &mut TableState::new().with_selected(model.selected()));
}

fn draw_letters(frame: &mut Frame, area: Rect, snapshot: &Snapshot) {
    let cells: Vec<[String; 5]> = snapshot.letters.iter().map(letter_cells).collect();
    let names = ["  ID", "KEY", "REASON", "AGE", "LAST-ERROR"];
    let widths = widths(&names, &cells);
    let shown = snapshot.letters.len() as u64;
    let title = match snapshot.dead_letters > shown {
        true => format!("Dead letters ({shown} of {})", snapshot.dead_letters),
        false => "Dead letters".to_owned(),
    };
    let [line, rest] = Layout::vertical([Constraint::Length(1), Constraint::Fill(1)]).areas(area);
    frame.render_widget(Paragraph::new(title), line);
    let rows = cells.into_iter().map(Row::new);
    let table = Table::new(rows, widths).header(header(names)).column_spacing(SPACING);
    frame.render_widget(table, rest);
}

fn lane_cells(lane: &Lane) -> [String; 6] {
    let oldest = lane.oldest.map_or_else(|| "-".to_owned(), age);
    let [subscription, key, waits_for] =
        [&lane.id.subscription, &lane.id.key, &lane.waits_for].map(|text| one_line(text));
    [subscription, key, lane.state.clone(), lane.depth.to_string(), oldest, waits_for]
}

fn letter_cells(letter: &Letter) -> [String; 5] {
    let age = letter.age.map_or_else(|| "-".to_owned(), age);
    let text = |text: &str| one_line(text);
    [
        format!("  {}", text(&letter.id)),
        text(&letter.lane.key),
        text(&letter.reason),
        age,
        text(&letter.error),
    ]
}

/// Columns as wide as their longest cell, up to a limit. People type ids into other commands, so ids are not cut. The
/// last column gets the rest.
fn widths<const N: usize>(names: &[&str; N], rows: &[[String; N]]) -> [Constraint; N] {
    std::array::from_fn(|column| {
        let cells = rows.iter().map(|row| row[column].width()).chain([names[column].width()]);
        let width_max = if names[column].trim() == "ID" { usize::MAX } else { COLUMN_WIDTH_MAX };
        let width = cells.max().unwrap_or(0).min(width_max);
        match column + 1 == N {
            true => Constraint::Fill(1),
            false => Constraint::Length(u16::try_from(width).unwrap_or(u16::MAX)),
        }
    })
}

fn header<const N: usize>(names: [&'static str; N]) -> Row<'static> {
    Row::new(names).style(Style::new().add_modifier(Modifier::BOLD))
}

fn footer(model: &Model) -> String {
    match (&model.mode, &model.message) {
        (Mode::Ask(action, lane), _) => one_line(&format!("{} [y/N]", action.question(lane))),
        (Mode::Filter, _) => format!("filter: {}_   enter keep   esc clear", one_line(&model.filter)),
        (Mode::Inspect { .. }, _) => "↑↓ scroll   any other key closes".to_owned(),
        (Mode::List, Some(message)) => one_line(message),
        (Mode::List, None) => KEYS.to_owned(),
    }
}

fn draw_popup(frame: &mut Frame, title: &str, lines: &[String], scroll: usize) {
    let screen = frame.area();
    let area = Rect {
        x: screen.x + 2,
        y: screen.y + 2,
        width: screen.width.saturating_sub(4),
        height: screen.height.saturating_sub(4),
    };
    let lines: Vec<Line> = lines.iter().skip(scroll).map(|line| Line::raw(one_line(line))).collect();
    frame.render_widget(Clear, area);
    frame.render_widget(Paragraph::new(lines).block(Block::bordered().title(one_line(title))), area);
}

fn style(state: &str, has_colour: bool) -> Style {
    let colour = match Level::of(state).filter(|_| has_colour) {
        Some(Level::Bad) => Color::Red,
        Some(Level::Waiting) => Color::Yellow,
        Some(Level::Good) => Color::Green,
        None => return Style::new(),
    };
    Style::new().fg(colour)
}

fn age(age: Duration) -> String {
    span(u64::try_from(age.as_millis()).unwrap_or(u64::MAX))
}

#[cfg(test)]
mod tests {
    use super::super::model::tests::{lane, snapshot};
    use super::super::model::{Key, LaneId, Model};
    use super::*;
    use ratatui::Terminal;
    use ratatui::backend::TestBackend;
    use std::collections::BTreeMap;

    fn drawn(model: &Model, has_colour: bool) -> (String, TestBackend) {
        let mut terminal = Terminal::new(TestBackend::new(100, 20)).expect("a screen");
        terminal.draw(|frame| draw(frame, model, has_colour)).expect("drawn");
        let backend = terminal.backend().clone();
        (super::super::text_of(backend.buffer()), backend)
    }

    fn model() -> Model {
        let mut model = Model::new("klambda top   http://h:1".into(), String::new());
        model.update(snapshot(1, Vec::new()));
        let mut next =
            snapshot(2, vec![lane("order-1", "parked", 3, 192), lane("order-2", "retrying", 1, 5)]);
        next.states = BTreeMap::from([("parked".into(), 1), ("retrying".into(), 1)]);
        (next.pending, next.dead_letters, next.uptime) = (4, 9, Some(Duration::from_secs(300)));
        let id = LaneId { namespace: "default".into(), subscription: "orders".into(), key: "order-1".into() };
        next.letters = vec![Letter {
            id: "orders-of-all-shops-in-the-whole-country.7".into(),
            lane: id,
            reason: "rejected".into(),
            age: Some(Duration::from_secs(192)),
            error: "500\u{1b}[31m".into(),
        }];
        model.update(next);
        model
    }

    #[test]
    fn a_frame_shows_rates_lanes_and_dead_letters() {
        let (text, _) = drawn(&model(), false);
        for part in [
            "klambda top   http://h:1   up 5m",
            "Events: in 100/s   out 50/s   pending 4   in flight 0   dead letters 9",
            "Lanes:  parked 1   gap 0   retrying 1",
            "Manual action: 1 lane parked (resume, skip or replay), 9 dead letters",
            "Lanes, most urgent first",
            "> orders",
            "order-1",
            "3m12s",
            "Dead letters (1 of 9)",
            "orders-of-all-shops-in-the-whole-country.7",
            "500\\u{1b}[31m",
            "q quit",
        ] {
            assert!(text.contains(part), "{part}\nnot in\n{text}");
        }
    }

    #[test]
    fn parked_lanes_are_red_unless_colours_are_off() {
        let has_red =
            |backend: &TestBackend| backend.buffer().content.iter().any(|cell| cell.fg == Color::Red);
        assert!(has_red(&drawn(&model(), true).1));
        assert!(!has_red(&drawn(&model(), false).1));
    }

    #[test]
    fn questions_filters_and_reasons_are_shown() {
        let mut model = model();
        model.key(Key::Char('s'));
        assert!(drawn(&model, false).0.contains("blocks lane order-1 of orders? [y/N]"));
        model.key(Key::Char('n'));
        assert!(drawn(&model, false).0.contains("cancelled"));
        model.inspect("lane order-1".into(), "Why:  its head failed");
        let text = drawn(&model, false).0;
        assert!(text.contains("Why:  its head failed") && text.contains("any other key closes"), "{text}");
        model.key(Key::Escape);
        "/zzz".chars().for_each(|c| drop(model.key(Key::Char(c))));
        let text = drawn(&model, false).0;
        assert!(text.contains("no busy lanes") && text.contains("filter: zzz"), "{text}");
    }

    #[test]
    fn a_small_screen_is_no_error() {
        for (width, height) in [(1, 1), (20, 5), (3, 30)] {
            let mut terminal = Terminal::new(TestBackend::new(width, height)).expect("a screen");
            let mut model = model();
            terminal.draw(|frame| draw(frame, &model, true)).expect("drawn");
            model.inspect("t".into(), "x");
            terminal.draw(|frame| draw(frame, &model, true)).expect("drawn");
        }
    }
}
