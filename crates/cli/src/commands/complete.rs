//! `__complete`: candidates for the last word of a command line, for the completion scripts.

use crate::args::{self, Cli, Complete};
use crate::client::Client;
use crate::contexts::Connection;
use crate::kind::Kind;
use crate::resource::encoded;
use clap::{Arg, FromArgMatches};
use std::io::Write;
use std::time::Duration;

const NAMES_MAX: usize = 200;
/// A shell waits for the candidates.
const TIMEOUT: Duration = Duration::from_secs(2);

/// Prints nothing where there is nothing to offer; the shell then offers files.
pub fn run(out: &mut dyn Write, args: &Complete) -> anyhow::Result<()> {
    let Some((current, before)) = args.words.split_last() else { return Ok(()) };
    let mut root = args::command();
    root.build();
    let place = Place::find(&root, before);
    let mut candidates = place.candidates(&Server { words: before }, current);
    candidates.retain(|candidate| candidate.starts_with(current.as_str()));
    candidates.dedup();
    candidates.iter().try_for_each(|candidate| writeln!(out, "{candidate}"))?;
    Ok(())
}

/// Where in the grammar the current word is.
struct Place<'a> {
    command: &'a clap::Command,
    /// Names of the subcommands that lead here.
    path: Vec<&'a str>,
    positionals: Vec<&'a str>,
    /// The option whose value the current word is.
    option: Option<&'a Arg>,
}

impl<'a> Place<'a> {
    fn find(root: &'a clap::Command, words: &'a [String]) -> Place<'a> {
        let mut place = Place { command: root, path: Vec::new(), positionals: Vec::new(), option: None };
        words.iter().for_each(|word| place.step(word));
        place
    }

    fn step(&mut self, word: &'a str) {
        if self.option.take().is_some() {
            return;
        }
        if word.starts_with('-') {
            self.option = option_with_value(self.command, word);
        } else if let Some(command) = self.command.find_subcommand(word) {
            self.path.push(command.get_name());
            self.command = command;
        } else {
            self.positionals.push(word);
        }
    }

    fn candidates(&self, server: &Server, current: &str) -> Vec<String> {
        if let Some(option) = self.option {
            return option_values(option, server);
        }
        if current.starts_with('-') {
            return flags(self.command);
        }
        let visible = self.command.get_subcommands().filter(|command| !command.is_hide_set());
        let commands: Vec<String> = visible.map(|command| command.get_name().to_owned()).collect();
        if commands.is_empty() { self.arguments(server, current) } else { commands }
    }

    fn arguments(&self, server: &Server, current: &str) -> Vec<String> {
        let first = self.positionals.first().copied();
        match (self.path.as_slice(), first) {
            (["get" | "describe" | "delete" | "wait" | "edit"], Some(kind)) if !kind.contains('/') => {
                self.named_after(kind, server)
            }
            (["get" | "describe" | "delete" | "wait" | "edit"], _) => resources(server, current),
            (["invoke" | "logs" | "rebuild"], _) => {
                let agents = server.names(Kind::Agent).into_iter().map(|name| format!("agent/{name}"));
                server.names(Kind::Function).into_iter().chain(agents).collect()
            }
            (["lane", _], None) | (["subscription", _], _) => server.names(Kind::Subscription),
            (["lane", _], Some(subscription)) => server.keys(subscription),
            (["webhook", verb], _) if *verb != "create" => server.names(Kind::Webhook),
            (["dlq", "show" | "edit"], _) => server.names(Kind::DeadLetter),
            (["namespace", "get" | "delete"], _) => server.names(Kind::Namespace),
            (["token", "get" | "delete"], _) => server.names(Kind::Token),
            (["secret", "set" | "show" | "delete"], _) => server.names(Kind::Secret),
            (["explain"], _) => {
                let kinds = ["function", "agent", "subscription", "webhook", "eventtype"];
                kinds.map(|kind| format!("{kind}.spec")).to_vec()
            }
            _ => self.command.get_positionals().flat_map(possible_values).collect(),
        }
    }

    /// `TYPE NAME…`, where a lane is a subscription and a key.
    fn named_after(&self, kind: &str, server: &Server) -> Vec<String> {
        match (Kind::parse(kind), self.positionals.get(1)) {
            (Some(Kind::Lane), None) => server.names(Kind::Subscription),
            (Some(Kind::Lane), Some(subscription)) => server.keys(subscription),
            (Some(kind), _) => server.names(kind),
            (None, _) => Vec::new(),
        }
    }
}

/// Types, or names behind `TYPE/`.
fn resources(server: &Server, current: &str) -> Vec<String> {
    match current.split_once('/') {
        Some((word, _)) => {
            let names = Kind::parse(word).map(|kind| server.names(kind)).unwrap_or_default();
            names.into_iter().map(|name| format!("{word}/{name}")).collect()
        }
        None => {
            Kind::all().flat_map(|kind| [kind.plural().to_owned(), format!("{}/", kind.word())]).collect()
        }
    }
}

fn option_with_value<'a>(command: &'a clap::Command, word: &str) -> Option<&'a Arg> {
    let is_named = |arg: &&Arg| match word.strip_prefix("--") {
        Some(long) => arg.get_long() == Some(long),
        None => arg.get_short() == word.chars().last(),
    };
    command.get_arguments().find(is_named).filter(|arg| arg.get_action().takes_values())
}

fn option_values(option: &Arg, server: &Server) -> Vec<String> {
    match option.get_id().as_str() {
        "namespace" | "also" => server.names(Kind::Namespace),
        "subscription" => server.names(Kind::Subscription),
        "endpoint" => server.names(Kind::Webhook),
        "output" => ["table", "wide", "json", "yaml", "name", "jsonpath=", "custom-columns="]
            .map(str::to_owned)
            .to_vec(),
        _ => possible_values(option),
    }
}

fn possible_values(arg: &Arg) -> Vec<String> {
    arg.get_possible_values().into_iter().map(|value| value.get_name().to_owned()).collect()
}

fn flags(command: &clap::Command) -> Vec<String> {
    let visible = command.get_arguments().filter(|arg| !arg.is_hide_set());
    visible.filter_map(Arg::get_long).map(|long| format!("--{long}")).collect()
}

/// Asks the server that the command line names.
struct Server<'a> {
    words: &'a [String],
}

impl Server<'_> {
    fn names(&self, kind: Kind) -> Vec<String> {
        let names = self.list(&kind.route()).into_iter().map(|item| encoded(&kind.bare_name_of(&item)));
        names.collect()
    }

    fn keys(&self, subscription: &str) -> Vec<String> {
        let lanes = self.list(&Kind::Lane.route().query("subscription", subscription));
        lanes.iter().filter_map(|lane| lane["key"].as_str().map(str::to_owned)).collect()
    }

    /// An error means that there is nothing to offer.
    fn list(&self, route: &crate::route::Route) -> Vec<serde_json::Value> {
        let page = self
            .client()
            .and_then(|client| Ok(client.list_from(route, "cursor", None::<&str>, NAMES_MAX)?));
        page.map(|page| page.items).unwrap_or_default()
    }

    /// The global options of the line, as any other command reads them.
    fn client(&self) -> anyhow::Result<Client> {
        let root = args::command();
        let mut line = vec!["klambda".to_owned(), "version".to_owned()];
        let mut words = self.words.iter();
        while let Some(word) = words.next() {
            let (name, value) =
                word.split_once('=').map_or((word.as_str(), None), |(name, value)| (name, Some(value)));
            let Some(option) = Some(name)
                .filter(|name| name.starts_with('-'))
                .and_then(|name| option_with_value(&root, name))
            else {
                continue;
            };
            let Some(value) = value.map(str::to_owned).or_else(|| words.next().cloned()) else { break };
            line.push(format!("--{}={value}", option.get_long().unwrap_or_default()));
        }
        let matches = root.try_get_matches_from(line)?;
        let mut global = Cli::from_arg_matches(&matches)?.global;
        global.timeout = global.timeout.min(TIMEOUT);
        Client::new(Connection::new(&global)?)
    }
}
