//! Verbs for functions and agents.

use crate::exit::Usage;
use crate::{labels, time};
use clap::Args;

/// What `wait` waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// The last applied version is built, deployed and serves.
    Ready,
    Deleted,
    Phase(String),
    /// A condition of the last applied version is true.
    Condition(String),
}

#[derive(Debug, Args)]
pub struct Invoke {
    #[command(flatten)]
    pub name: OneName,
    /// Data, @FILE, or - for stdin
    #[arg(short, long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Content type [default: application/json for JSON, else text/plain or application/octet-stream]
    #[arg(long, value_name = "TYPE", requires = "data")]
    pub content_type: Option<String>,
    /// Type of the event that the handler gets [default: lambda.function.invoked]
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
}

#[derive(Clone, Debug, Default, Args)]
pub struct Logs {
    /// NAME..., function/NAME..., agent/NAME..., or TYPE NAME...
    #[arg(value_name = "NAME", required_unless_present = "selector", value_parser = parse_reference)]
    name: Vec<Reference>,
    /// Functions and agents with these labels instead of names
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = labels::Selector::parse, conflicts_with = "name")]
    pub selector: Option<labels::Selector>,
    /// Keep printing new lines
    #[arg(short, long, conflicts_with = "previous")]
    pub follow: bool,
    /// Number of earlier lines to print [default: 100, or all if another option selects lines]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub tail: Option<u64>,
    /// Lines since then: a duration before now, or an RFC 3339 time
    #[arg(long, value_name = "TIME", value_parser = parse_since)]
    pub since: Option<String>,
    /// Output of the last build
    #[arg(long, conflicts_with = "previous")]
    pub build: bool,
    /// Output of the last replica that has ended
    #[arg(short, long)]
    pub previous: bool,
    /// Lines about this event, if the function logs its id
    #[arg(long, value_name = "ID", conflicts_with = "build")]
    pub event: Option<String>,
    /// Lines of this generation of the spec
    #[arg(long, value_name = "N")]
    pub generation: Option<u64>,
}

impl Logs {
    /// Keeps printing new lines.
    pub fn following() -> Logs {
        Logs { follow: true, ..Logs::default() }
    }

    pub fn references(&self) -> Vec<Reference> {
        references(&self.name)
    }
}

/// The server counts a duration back from its own time.
fn parse_since(text: &str) -> Result<String, String> {
    time::parse_moment(text).map(|_| text.to_owned())
}

#[derive(Debug, Args)]
pub struct Rebuild {
    #[command(flatten)]
    pub functions: SomeNames,
}

/// Functions and agents on the command line.
#[derive(Debug, Args)]
pub struct SomeNames {
    /// NAME..., function/NAME..., or TYPE NAME...
    #[arg(value_name = "NAME", required = true, value_parser = parse_reference)]
    name: Vec<Reference>,
}

impl SomeNames {
    pub fn references(&self) -> Vec<Reference> {
        references(&self.name)
    }
}

#[derive(Debug, Args)]
pub struct History {
    #[command(flatten)]
    pub functions: SomeNames,
}

#[derive(Debug, Args)]
pub struct Rollback {
    #[command(flatten)]
    pub name: OneName,
    /// Number of the revision to serve [default: the previous revision]
    #[arg(long, value_name = "REVISION", value_parser = clap::value_parser!(u64).range(1..))]
    pub to: Option<u64>,
}

/// A function or agent on the command line.
#[derive(Debug, Args)]
pub struct OneName {
    /// NAME, function/NAME, agent/NAME, or TYPE NAME
    #[arg(value_name = "NAME", required = true, num_args = 1..=2, value_parser = parse_reference)]
    name: Vec<Reference>,
}

impl OneName {
    pub fn reference(&self) -> Result<Reference, Usage> {
        let mut found = references(&self.name);
        match (found.pop(), found.is_empty()) {
            (Some(one), true) => Ok(one),
            _ => Err(Usage("name one function or agent: NAME, TYPE/NAME or TYPE NAME".to_owned())),
        }
    }
}

/// A type in front of names is their type. Alone it is a name.
fn references(words: &[Reference]) -> Vec<Reference> {
    let kind = match words {
        [Reference { kind: None, name }, _, ..] => Runs::parse(name),
        _ => None,
    };
    let names = words.iter().skip(usize::from(kind.is_some()));
    names.map(|name| Reference { kind: name.kind.or(kind), name: name.name.clone() }).collect()
}

/// The types that run code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Runs {
    Function,
    Agent,
}

impl Runs {
    fn parse(word: &str) -> Option<Runs> {
        match word {
            "function" | "functions" | "fn" => Some(Runs::Function),
            "agent" | "agents" => Some(Runs::Agent),
            _ => None,
        }
    }
}

/// A function or agent by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// `None` is a function, or an agent if there is no such function.
    pub kind: Option<Runs>,
    pub name: String,
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    let (kind, name) = match text.split_once('/') {
        None => (None, text),
        Some((word, name)) => {
            let kind = Runs::parse(word)
                .ok_or_else(|| format!("{word:?} is not a type that runs code; use function or agent"))?;
            (Some(kind), name)
        }
    };
    match name.is_empty() || name.contains('/') {
        true => Err("expected NAME, function/NAME or agent/NAME".to_owned()),
        false => Ok(Reference { kind, name: name.to_owned() }),
    }
}

const PHASES: [&str; 5] = ["Pending", "Building", "Deploying", "Failed", "Deleting"];
const CONDITIONS: [&str; 8] = [
    "SourceReady",
    "BuildReady",
    "DeployReady",
    "ServiceReady",
    "BrokerReady",
    "TriggersReady",
    "DLQReady",
    "AIAgentReady",
];

pub fn parse_goal(text: &str) -> Result<Goal, String> {
    let word = text.strip_prefix("condition=").unwrap_or(text);
    let named = |names: &[&str]| {
        names.iter().find(|name| name.eq_ignore_ascii_case(word)).map(|name| (*name).to_owned())
    };
    match word.to_ascii_lowercase().as_str() {
        "ready" => Ok(Goal::Ready),
        "deleted" | "delete" => Ok(Goal::Deleted),
        _ => named(&PHASES).map(Goal::Phase).or_else(|| named(&CONDITIONS).map(Goal::Condition)).ok_or_else(
            || format!("expected Ready, Deleted, {} or {}", PHASES.join(", "), CONDITIONS.join(", ")),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_say_its_kind() {
        let kind = |text| parse_reference(text).map(|reference| (reference.kind, reference.name));
        assert_eq!(kind("hello"), Ok((None, "hello".to_owned())));
        assert_eq!(kind("fn/hello"), Ok((Some(Runs::Function), "hello".to_owned())));
        assert_eq!(kind("agent/watcher"), Ok((Some(Runs::Agent), "watcher".to_owned())));
        for wrong in ["", "agent/", "pod/x", "agent/a/b"] {
            assert!(kind(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn goals() {
        assert_eq!(parse_goal("ready"), Ok(Goal::Ready));
        assert_eq!(parse_goal("condition=buildready"), Ok(Goal::Condition("BuildReady".to_owned())));
        assert_eq!(parse_goal("Failed"), Ok(Goal::Phase("Failed".to_owned())));
        assert_eq!(parse_goal("deleted"), Ok(Goal::Deleted));
        assert!(parse_goal("happy").is_err());
    }
}
