//! Verbs for resources, which are named `TYPE/NAME` or `TYPE NAME`.

use super::{Filter, Goal, Limit, parse_goal};
use crate::kind::Kind;
use crate::labels;
use clap::Args;
use std::path::PathBuf;

macro_rules! types {
    () => {
        "\
Resource types (short names):
  functions (fn), agents, subscriptions (sub), webhooks (wh), eventtypes (et),
  lanes, deadletters (dl, dlq), replays, events (ev), namespaces (ns), tokens,
  secrets, audit"
    };
}

const GET_EXAMPLES: &str = concat!(
    types!(),
    "
  all = functions, agents and subscriptions (the default)

Examples:
  klambda get functions -l team=shop --sort-by age
  klambda get subscription/orders function/hello -o yaml
  klambda get lane orders order-42
  klambda get lanes --subscription orders --state parked
  klambda get subs -w
  klambda get all -o name | xargs klambda describe
  klambda get fn -o jsonpath='{.items[*].metadata.name}'"
);

#[derive(Debug, Args)]
#[command(after_help = GET_EXAMPLES)]
pub struct Get {
    /// TYPE, TYPE NAME..., or TYPE/NAME...
    #[arg(value_name = "TYPE[/NAME]")]
    pub resources: Vec<String>,
    /// List resources of all namespaces
    #[arg(short = 'A', long, conflicts_with = "namespace")]
    pub all_namespaces: bool,
    /// Print changes until interrupted
    #[arg(short, long)]
    pub watch: bool,
    /// Only functions and agents with these labels: key=value,key!=value,key in (a,b)
    #[arg(short = 'l', long, value_name = "LABELS", value_parser = labels::Selector::parse)]
    pub selector: Option<labels::Selector>,
    /// Sort by a column name or a JSONPath
    #[arg(long, value_name = "COLUMN|PATH")]
    pub sort_by: Option<String>,
    #[command(flatten)]
    pub limit: Limit,
    #[command(
        flatten,
        next_help_heading = "Filters for dead letters (--subscription: also lanes, --type: also events)"
    )]
    pub filter: Filter,
    #[command(flatten)]
    pub lanes: LaneFilter,
    #[command(flatten)]
    pub events: EventFilter,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Filters for lanes")]
pub struct LaneFilter {
    /// Only lanes in this state
    #[arg(long, value_parser = ["open", "running", "retrying", "gap", "parked", "paused"])]
    pub state: Option<String>,
    /// Sort on the server and list the first 100
    #[arg(long, value_parser = ["depth", "age", "rate"])]
    pub sort: Option<String>,
}

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Filters for events")]
pub struct EventFilter {
    /// Source of the named events, when their ids are ambiguous
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
    /// List events after this position, oldest first [default: newest first]
    #[arg(long, value_name = "POSITION")]
    pub after: Option<u64>,
}

#[derive(Debug, Args)]
#[command(after_help = types!())]
pub struct Describe {
    /// TYPE NAME..., or TYPE/NAME...; a lane is lane/SUBSCRIPTION/KEY
    #[arg(value_name = "TYPE/NAME", required = true)]
    pub resources: Vec<String>,
    /// Source of the event, when its id is ambiguous
    #[arg(long, value_name = "SOURCE")]
    pub source: Option<String>,
}

impl Describe {
    pub fn of(kind: Kind, names: &[String]) -> Describe {
        let resources = std::iter::once(kind.word().to_owned()).chain(names.iter().cloned()).collect();
        Describe { resources, source: None }
    }
}

#[derive(Debug, Args)]
#[command(after_help = "\
Resource types: function, agent, subscription, webhook, eventtype, deadletter, replay, namespace,
token, secret.
Functions and agents deliver their pending events before they are deleted.
Deleting a dead letter that blocks a lane unblocks the lane.")]
pub struct Delete {
    /// TYPE NAME..., or TYPE/NAME...
    #[arg(value_name = "TYPE/NAME", required_unless_present = "filename", conflicts_with = "filename")]
    pub resources: Vec<String>,
    /// Delete the resources in these files
    #[arg(short, long, value_name = "FILE|DIR|-")]
    pub filename: Vec<PathBuf>,
    /// Subscriptions: deliver pending events first
    #[arg(long, conflicts_with = "discard")]
    pub drain: bool,
    /// Subscriptions: drop pending events
    #[arg(long)]
    pub discard: bool,
    /// Functions and agents: return when they are gone; draining can take 30s
    #[arg(long)]
    pub wait: bool,
    /// Do not ask for confirmation
    #[arg(short, long)]
    pub yes: bool,
}

#[derive(Debug, Args)]
pub struct Wait {
    /// TYPE NAME..., or TYPE/NAME...
    #[arg(value_name = "TYPE/NAME", required = true)]
    pub resources: Vec<String>,
    /// Ready (the last applied version serves), Deleted, a phase, or a condition like BuildReady
    #[arg(long = "for", value_name = "STATE", default_value = "Ready", value_parser = parse_goal)]
    pub goal: Goal,
}

#[derive(Debug, Args)]
#[command(after_help = "\
The editor is $KLAMBDA_EDITOR, $EDITOR or vi.
Resource types: function, agent, subscription, webhook, eventtype, namespace.")]
pub struct Edit {
    /// TYPE NAME or TYPE/NAME
    #[arg(value_name = "TYPE/NAME", required = true, num_args = 1..=2)]
    pub resources: Vec<String>,
}

#[derive(Debug, Args)]
#[command(after_help = "\
Resource types: function, agent, subscription, webhook, eventtype.

Examples:
  klambda explain subscription.spec.retry
  klambda explain function.spec.source --recursive")]
pub struct Explain {
    /// A type and the path of a field, like subscription.spec.retry
    #[arg(value_name = "TYPE[.FIELD]...")]
    pub path: String,
    /// Show all fields below
    #[arg(long)]
    pub recursive: bool,
}
