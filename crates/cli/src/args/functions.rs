//! Functions and agents: what names them, and what one does to them while they run.

use clap::Args;

#[derive(Debug, Args)]
pub struct GetFunction {
    pub name: Vec<String>,
    #[command(flatten)]
    pub limit: super::Limit,
}

#[derive(Debug, Args)]
pub struct FunctionNames {
    #[arg(required = true)]
    pub name: Vec<String>,
}

#[derive(Debug, Args)]
pub struct DeleteFunction {
    #[command(flatten)]
    pub names: FunctionNames,
    /// Come back when they are gone: what waits for them may take 30s
    #[arg(long)]
    pub wait: bool,
}

#[derive(Debug, clap::Subcommand)]
pub enum Wait {
    /// Wait for functions, for as long as --timeout says
    #[command(visible_aliases = ["functions", "fn"])]
    Function(WaitFor),
    /// Wait for agents, for as long as --timeout says
    #[command(visible_alias = "agents")]
    Agent(WaitFor),
}

#[derive(Debug, Args)]
pub struct WaitFor {
    #[command(flatten)]
    pub names: FunctionNames,
    /// Ready (what was applied last serves), Deleted, a phase, or a condition like BuildReady
    #[arg(long = "for", value_name = "STATE", default_value = "Ready", value_parser = parse_goal)]
    pub goal: Goal,
}

/// What is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Goal {
    /// Everything that was asked for last is done, and it serves.
    Ready,
    Deleted,
    Phase(String),
    /// A condition that is true of what was asked for last.
    Condition(String),
}

#[derive(Debug, Args)]
pub struct Invoke {
    /// A function or agent; function/NAME or agent/NAME says which
    #[arg(value_name = "NAME", value_parser = parse_reference)]
    pub name: Reference,
    /// The data itself, or the file that holds it; - is stdin
    #[arg(short, long, value_name = "TEXT|@FILE|-", allow_hyphen_values = true)]
    pub data: Option<String>,
    /// Default: application/json if the data is JSON, else text/plain or application/octet-stream
    #[arg(long, value_name = "TYPE", requires = "data")]
    pub content_type: Option<String>,
    /// The type of the event that the handler is given; default: the server's
    #[arg(long = "type", value_name = "TYPE")]
    pub event_type: Option<String>,
}

#[derive(Debug, Args)]
pub struct Logs {
    /// A function or agent; function/NAME or agent/NAME says which
    #[arg(value_name = "NAME", value_parser = parse_reference)]
    pub name: Reference,
    /// Go on with what is written from now on
    #[arg(short, long)]
    pub follow: bool,
    /// Begin with the last so many lines; default: 100
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub tail: Option<u64>,
}

#[derive(Debug, Args)]
pub struct Rebuild {
    /// Functions or agents; function/NAME, or the kind before all names, says which
    #[arg(value_name = "NAME", required = true, value_parser = parse_reference)]
    name: Vec<Reference>,
}

impl Rebuild {
    /// A kind that stands first is no name, unless it stands alone.
    pub fn names(&self) -> Vec<Reference> {
        let kind = match self.name.as_slice() {
            [Reference { kind: None, name }, _, ..] => Runs::parse(name),
            _ => None,
        };
        let names = self.name.iter().skip(usize::from(kind.is_some()));
        names.map(|name| Reference { kind: name.kind.or(kind), name: name.name.clone() }).collect()
    }
}

/// The two kinds that run code.
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

/// One of them by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reference {
    /// Where it is not said, it is a function, or else an agent.
    pub kind: Option<Runs>,
    pub name: String,
}

fn parse_reference(text: &str) -> Result<Reference, String> {
    let (kind, name) = match text.split_once('/') {
        None => (None, text),
        Some((word, name)) => {
            let kind = Runs::parse(word).ok_or_else(|| format!("{word} is neither function nor agent"))?;
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

fn parse_goal(text: &str) -> Result<Goal, String> {
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
