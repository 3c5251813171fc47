//! One file per verb, or per noun that has verbs of its own.

mod apply;
mod backup;
mod check;
mod completion;
mod compose;
mod config;
mod crd;
mod delete;
mod describe;
mod dlq;
mod event;
mod function;
mod get;
mod lane;
mod logs;
mod namespace;
mod receive;
mod serve;
mod status;
mod subscription;
mod tail;
mod token;
mod wait;
mod why;

pub use receive::parse_status;

use crate::args::{Cli, Command, Event};
use crate::bench;
use crate::client::{self, Client};
use crate::demo;
use crate::exit;
use crate::output::Format;
use anyhow::bail;
use std::io::{self, BufRead, IsTerminal, Write};

/// What every command needs: whom to ask, and how and where to print.
pub struct Context<'a> {
    pub client: Client,
    /// As it was given, if it was.
    pub namespace: Option<String>,
    pub format: Format,
    pub out: &'a mut dyn Write,
}

pub fn run(cli: Cli) -> anyhow::Result<()> {
    let mut out = io::BufWriter::new(io::stdout());
    let result = run_to(cli, &mut out);
    // What was found is printed even if the rest failed.
    let flushed = out.flush();
    result.and(flushed.map_err(Into::into))
}

fn run_to(cli: Cli, out: &mut dyn Write) -> anyhow::Result<()> {
    let context = |out| -> anyhow::Result<Context> {
        let namespace = cli.global.namespace.clone();
        Ok(Context { client: Client::new(&cli.global)?, namespace, format: cli.global.output, out })
    };
    match &cli.command {
        Command::Serve(args) => serve::run(args, cli.global.token_file.as_deref()),
        Command::Apply(args) => apply::run(&mut context(out)?, args),
        Command::Get(what) => get::run(&mut context(out)?, what),
        Command::Describe(what) => describe::run(&mut context(out)?, what),
        Command::Delete(what) => delete::run(&mut context(out)?, what),
        Command::Wait(what) => wait::run(&mut context(out)?, what),
        Command::Invoke(args) => function::invoke(&mut context(out)?, args),
        Command::Logs(args) => logs::run(&mut context(out)?, args),
        Command::Rebuild(args) => function::rebuild(&mut context(out)?, args),
        Command::Event(Event::Send(args)) => event::send(&mut context(out)?, args),
        Command::Event(Event::Tail(args)) => tail::run(&mut context(out)?, args),
        Command::Event(Event::Receive(args)) => receive::run(out, cli.global.output, args),
        Command::Lane(action) => lane::run(&mut context(out)?, action),
        Command::Dlq(action) => dlq::run(&mut context(out)?, action),
        Command::Subscription(action) => subscription::run(&mut context(out)?, action),
        Command::Namespace(action) => namespace::run(&mut context(out)?, action),
        Command::Token(action) => token::run(&mut context(out)?, action),
        Command::Status => status::run(&mut context(out)?),
        Command::Backup(args) => backup::run(&mut context(out)?, args),
        Command::Check(args) => check::run(out, cli.global.output, args),
        Command::Bench(args) => run_bench(args, cli.global.output),
        Command::Demo(args) => demo::run(out, args),
        Command::Config => config::run(out),
        Command::Crd => crd::run(out, cli.global.output),
        Command::Completion(args) => completion::run(out, args),
    }
}

fn run_bench(args: &bench::Args, format: Format) -> anyhow::Result<()> {
    let mut args = args.clone();
    args.output = match format {
        Format::Json => bench::Output::Json,
        Format::Yaml | Format::Name => {
            return Err(exit::Usage("bench prints -o table or -o json".to_owned()).into());
        }
        Format::Table | Format::Wide => bench::Output::Table,
    };
    bench::run(args)
}

/// Does the same to each. One failure does not stop the others; a server that is gone, or a reader that is, does.
/// The last failure is the result, those before it are printed.
fn for_each<T>(
    items: impl IntoIterator<Item = T>,
    mut act: impl FnMut(T) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut failure: Option<anyhow::Error> = None;
    for item in items {
        let Err(error) = act(item) else { continue };
        let fatal = is_unreachable(&error) || exit::is_broken_pipe(&error);
        if let Some(earlier) = failure.replace(error) {
            exit::print(&earlier);
        }
        if fatal {
            break;
        }
    }
    failure.map_or(Ok(()), Err)
}

pub fn is_unreachable(error: &anyhow::Error) -> bool {
    use client::Error;
    matches!(error.downcast_ref(), Some(Error::Unreachable { .. } | Error::PlainHttp { .. }))
}

/// Asks before something is thrown away, if there is a person to ask.
fn confirm(question: &str, yes: bool) -> anyhow::Result<()> {
    if yes || !io::stdin().is_terminal() {
        return Ok(());
    }
    eprint!("{question} [y/N] ");
    let mut answer = String::new();
    io::stdin().lock().read_line(&mut answer)?;
    if !matches!(answer.trim().to_lowercase().as_str(), "y" | "yes") {
        bail!("not done");
    }
    Ok(())
}

#[cfg(test)]
mod tests;
