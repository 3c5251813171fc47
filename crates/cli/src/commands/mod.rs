//! One file per verb, or per noun with verbs of its own.

mod alerts;
pub mod apply;
mod backup;
mod check;
mod complete;
mod completion;
pub mod compose;
mod config;
mod context;
mod cost;
mod crd;
mod dashboards;
mod delete;
mod describe;
mod diff;
mod dlq;
mod edit;
mod event;
mod explain;
mod fetch;
mod function;
mod get;
mod lane;
mod letter_edit;
mod letters;
pub mod logs;
pub mod manifest;
mod namespace;
mod operator;
mod prune;
mod receive;
mod revisions;
mod secret;
mod serve;
mod status;
mod subscription;
mod tail;
mod token;
mod top;
mod upgrade_check;
mod version;
mod wait;
mod webhook;
mod why;

pub use receive::parse_status;

use crate::args::{self, Cli, Command, Event};
use crate::bench;
use crate::client::{self, Client};
use crate::colour;
use crate::contexts::Connection;
use crate::demo;
use crate::develop;
use crate::exit;
use crate::output::Format;
use std::io::{self, Write};

/// What every command needs: the server, and how and where to print.
pub struct Context<'a> {
    pub client: Client,
    /// The namespace, if the command line or the environment names one.
    pub namespace: Option<String>,
    pub format: Format,
    pub out: &'a mut dyn Write,
}

pub fn run(cli: Cli) -> anyhow::Result<()> {
    colour::init(cli.global.color);
    let mut out = io::BufWriter::new(Stdout(io::stdout()));
    let result = run_to(cli, &mut out);
    // Output up to a failure is printed as well.
    let flushed = out.flush();
    result.and(flushed.map_err(Into::into))
}

/// Errors of stdout say so, because their cause is elsewhere than that of other errors.
struct Stdout(io::Stdout);

impl Write for Stdout {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.write(bytes).map_err(of_stdout)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush().map_err(of_stdout)
    }
}

fn of_stdout(error: io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("cannot write to stdout: {error}"))
}

fn run_to(cli: Cli, out: &mut dyn Write) -> anyhow::Result<()> {
    let context = |out| -> anyhow::Result<Context> {
        let namespace = cli.global.namespace.clone();
        let client = Client::new(Connection::new(&cli.global)?)?;
        Ok(Context { client, namespace, format: cli.global.output, out })
    };
    match &cli.command {
        Command::Serve(args) => serve::run(args, cli.global.token_file.as_deref()),
        Command::Apply(args) => apply::run(&mut context(out)?, args),
        Command::Diff(args) => diff::run(&mut context(out)?, args),
        Command::Get(args) => get::run(&mut context(out)?, args),
        Command::Describe(args) => describe::run(&mut context(out)?, args),
        Command::Edit(args) => edit::run(&mut context(out)?, args),
        Command::Delete(args) => delete::run(&mut context(out)?, args),
        Command::Wait(args) => wait::run(&mut context(out)?, args),
        Command::Explain(args) => explain::run(out, args),
        Command::Init(args) => develop::init::run(out, args),
        Command::Dev(args) => develop::dev::run(&cli.global, args),
        Command::Run(args) => develop::once::run(out, &cli.global, args),
        Command::Invoke(args) => function::invoke(&mut context(out)?, args),
        Command::Logs(args) => logs::run(&mut context(out)?, args),
        Command::Rebuild(args) => function::rebuild(&mut context(out)?, args),
        Command::History(of) => revisions::history(&mut context(out)?, of),
        Command::Rollback(of) => revisions::rollback(&mut context(out)?, of),
        Command::Event(Event::Send(args)) => event::send(&mut context(out)?, args),
        Command::Event(Event::Tail(args)) => tail::run(&mut context(out)?, args),
        Command::Event(Event::Show { id, source }) => event::show(&mut context(out)?, id, source.as_deref()),
        Command::Event(Event::Receive(args)) => receive::run(out, cli.global.output, args),
        Command::Lane(action) => lane::run(&mut context(out)?, action),
        Command::Dlq(action) => dlq::run(&mut context(out)?, action),
        Command::Subscription(action) => subscription::run(&mut context(out)?, action),
        Command::Webhook(action) => webhook::run(&mut context(out)?, action),
        Command::Namespace(action) => namespace::run(&mut context(out)?, action),
        Command::Token(action) => token::run(&mut context(out)?, action),
        Command::Secret(action) => secret::run(&mut context(out)?, action),
        Command::Status => status::run(&mut context(out)?),
        Command::Cost => cost::run(&mut context(out)?),
        Command::Top(args) => top::run(context(out)?, args),
        Command::Context(action) => context::run(out, &cli.global, action),
        Command::Backup(args) => backup::run(&mut context(out)?, args),
        Command::Check(args) => check::run(out, cli.global.output, args),
        Command::UpgradeCheck(args) => upgrade_check::run(out, cli.global.output, args),
        Command::Bench(args) => run_bench(args, cli.global.output),
        Command::Demo(args) => demo::run(out, args),
        Command::Config => config::run(out),
        Command::Crd => crd::run(out, cli.global.output),
        Command::Operator(args) => operator::run(args, cli.global.token_file.as_deref()),
        Command::Fetch(args) => fetch::run(args),
        Command::Alerts(args) => alerts::run(out, cli.global.output, args),
        Command::Dashboards(args) => dashboards::run(out, cli.global.output, args),
        Command::Completion(args) => completion::run(out, args),
        Command::Complete(args) => complete::run(out, args),
        Command::Version => version::run(&mut context(out)?),
        Command::Options => Ok(out.write_all(args::options().as_bytes())?),
    }
}

fn run_bench(args: &bench::Args, format: Format) -> anyhow::Result<()> {
    let mut args = args.clone();
    args.output = match format {
        Format::Json => bench::Output::Json,
        Format::Yaml | Format::Name | Format::Extract(_) => {
            return Err(exit::Usage("bench prints -o table or -o json".to_owned()).into());
        }
        Format::Table | Format::Wide => bench::Output::Table,
    };
    bench::run(args)
}

/// Acts on every item. A failure does not stop the others, unless the server or the reader of the output is gone.
/// Returns the last failure and prints the earlier ones.
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
    matches!(error.downcast_ref(), Some(Error::Unreachable { .. } | Error::Tls { .. }))
}

#[cfg(test)]
mod tests;
