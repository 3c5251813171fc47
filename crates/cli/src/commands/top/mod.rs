//! `top`: a live view of a server. `model` and `view` are pure, `source` talks to the server, and this file to the
//! terminal.

mod model;
mod source;
mod view;

use super::Context;
use crate::args::Top;
use crate::client::Client;
use crate::colour;
use crate::exit::Usage;
use crate::output::Format;
use anyhow::bail;
use model::{Key, Model, Request};
use ratatui::backend::TestBackend;
use ratatui::buffer::Buffer;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEvent, KeyEventKind, KeyModifiers};
use ratatui::{DefaultTerminal, Terminal};
use source::{Reply, Source};
use std::io::{self, IsTerminal, Write};
use std::sync::mpsc::{self, Receiver, Sender, TryRecvError};
use std::time::Duration;

/// How often the screen looks for news from the server.
const LOOK: Duration = Duration::from_millis(50);
/// The size of a frame that is printed.
const WIDTH: u16 = 120;
const HEIGHT: u16 = 40;

pub fn run(mut context: Context, args: &Top) -> anyhow::Result<()> {
    if !matches!(context.format, Format::Table | Format::Wide) {
        return Err(Usage(
            "top prints a screen for people; for scripts use `klambda status -o json`".to_owned(),
        )
        .into());
    }
    if args.all_namespaces {
        context.client.look_everywhere();
    }
    let model = Model::new(title(&context.client), args.filter.clone());
    if args.once {
        return once(context.out, Source::new(context.client), model, args.interval);
    }
    if !io::stdout().is_terminal() || !io::stdin().is_terminal() {
        return Err(Usage("top needs a terminal; to print one frame, use --once".to_owned()).into());
    }
    live(Source::new(context.client), model, args.interval)
}

fn title(client: &Client) -> String {
    let namespace = if client.looks_everywhere() { "all namespaces" } else { client.namespace() };
    format!("klambda top   {}   {namespace}", client.base())
}

/// Two snapshots, because rates are differences.
fn once(out: &mut dyn Write, source: Source, mut model: Model, interval: Duration) -> anyhow::Result<()> {
    model.update(source.snapshot()?);
    std::thread::sleep(interval);
    model.update(source.snapshot()?);
    let mut screen = Terminal::new(TestBackend::new(WIDTH, HEIGHT))?;
    screen.draw(|frame| view::draw(frame, &model, false))?;
    write!(out, "{}", text_of(screen.backend().buffer()))?;
    Ok(())
}

/// The characters of a frame. Lines that hold only a border are left out.
fn text_of(buffer: &Buffer) -> String {
    let width = usize::from(buffer.area.width.max(1));
    let lines =
        buffer.content.chunks(width).map(|row| row.iter().map(|cell| cell.symbol()).collect::<String>());
    let is_empty = |line: &String| line.chars().all(|c| matches!(c, '│' | ' '));
    lines.filter(|line| !is_empty(line)).map(|line| line.trim_end().to_owned() + "\n").collect()
}

fn live(source: Source, mut model: Model, interval: Duration) -> anyhow::Result<()> {
    let (requests, received) = mpsc::channel();
    let (send, replies) = mpsc::channel();
    // Not joined: it may wait for a server that does not answer when the user quits.
    std::thread::spawn(move || source.run(interval, &received, &send));
    let mut terminal = ratatui::try_init()?;
    let result = follow(&mut terminal, &mut model, &requests, &replies);
    ratatui::try_restore()?;
    result
}

fn follow(
    terminal: &mut DefaultTerminal,
    model: &mut Model,
    requests: &Sender<Request>,
    replies: &Receiver<Reply>,
) -> anyhow::Result<()> {
    loop {
        terminal.draw(|frame| view::draw(frame, model, colour::is_enabled()))?;
        if event::poll(LOOK)?
            && let Event::Key(pressed) = event::read()?
            && let Some(key) = key_of(pressed)
            && let Some(request) = model.key(key)
        {
            if request == Request::Quit {
                return Ok(());
            }
            model.message = Some("…".to_owned());
            requests.send(request)?;
        }
        loop {
            match replies.try_recv() {
                Ok(reply) => take(model, reply),
                Err(TryRecvError::Empty) => break,
                Err(TryRecvError::Disconnected) => bail!("the thread that reads from the server ended"),
            }
        }
    }
}

fn take(model: &mut Model, reply: Reply) {
    match reply {
        Reply::Snapshot(snapshot) => model.update(*snapshot),
        Reply::Reason { title, text } => {
            model.message = None;
            model.inspect(title, &text);
        }
        Reply::Done(message) => model.message = Some(message),
        Reply::Failed(error) => model.message = Some(format!("error: {error}")),
    }
}

/// Ctrl-C does not reach the process as a signal while the terminal is raw.
fn key_of(event: KeyEvent) -> Option<Key> {
    if event.kind != KeyEventKind::Press {
        return None;
    }
    match event.code {
        KeyCode::Char('c') if event.modifiers.contains(KeyModifiers::CONTROL) => Some(Key::Interrupt),
        KeyCode::Char(c) => Some(Key::Char(c)),
        KeyCode::Up => Some(Key::Up),
        KeyCode::Down => Some(Key::Down),
        KeyCode::Enter => Some(Key::Enter),
        KeyCode::Esc => Some(Key::Escape),
        KeyCode::Backspace => Some(Key::Backspace),
        _ => None,
    }
}
