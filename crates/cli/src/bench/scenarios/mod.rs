//! The scenarios, one file each, and the alternating rounds that several share.

mod alternating;
mod backlog;
mod backlogged;
mod batch;
mod functions;
mod idle;
mod keys;
mod latency;
mod machine;
mod page;
mod poison;
mod restart;
mod slow;
mod subscriptions;
mod throughput;
mod traces;
mod turns;
mod webhooks;

use clap::ValueEnum;

use super::Args;
use super::report::Report;
use super::rig::Rig;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Scenario {
    /// As fast as it goes: 1,000 keys, an instant target, 256 producers
    Throughput,
    /// 100 keys, a target that takes 10 ms
    #[value(name = "slow-10ms")]
    Slow10ms,
    /// 1,000 keys, a target that takes 100 ms
    #[value(name = "slow-100ms")]
    Slow100ms,
    /// What one key that always fails costs the other 10,000
    Poison,
    /// 1,000 events per second: end to end, and from one acknowledgement to the key's next delivery
    Latency,
    /// 100 events per request against one
    Batch,
    /// A million keys, one event each
    Keys,
    /// Millions of events that wait, then drain
    Backlog,
    /// Time to ready with a million events waiting, after kill -9
    Restart,
    /// Memory with ten million idle lanes
    Idle,
    /// One busy subscription among 10,000 that want other events
    Subscriptions,
    /// What recording a tenth of all traces costs
    Traces,
    /// The lane machine alone, without disk or network
    Machine,
    /// What ten open pages cost the events
    Page,
    /// Functions, all three below
    Functions,
    /// A hello function called from zero replicas, beside a bare server started by hand
    FunctionsCold,
    /// Calls to a function that runs, beside calls to a bare server
    FunctionsWarm,
    /// A thousand functions applied at once
    FunctionsScale,
    /// Webhook endpoints, all five below
    Webhooks,
    /// Signed calls of an endpoint, beside those of a plain subscription
    WebhooksSigned,
    /// What a dead and a slow endpoint cost 100 others
    WebhooksIsolation,
    /// Reading the feed of an endpoint
    WebhooksFeed,
    /// What 10,000 idle endpoints cost: memory, and one busy subscription among them
    WebhooksIdle,
    /// Memory with ten million events in the feed of an endpoint
    WebhooksRetained,
    /// Every one of them
    All,
}

pub type Runner = fn(&Rig, &Args) -> anyhow::Result<Report>;

const EVERY: [(Scenario, &str, Runner); 22] = [
    (Scenario::Throughput, "throughput", throughput::run),
    (Scenario::Slow10ms, "slow-10ms", slow::run_10ms),
    (Scenario::Slow100ms, "slow-100ms", slow::run_100ms),
    (Scenario::Poison, "poison", poison::run),
    (Scenario::Latency, "latency", latency::run),
    (Scenario::Batch, "batch", batch::run),
    (Scenario::Keys, "keys", keys::run),
    (Scenario::Backlog, "backlog", backlog::run),
    (Scenario::Restart, "restart", restart::run),
    (Scenario::Idle, "idle", idle::run),
    (Scenario::Subscriptions, "subscriptions", subscriptions::run),
    (Scenario::Traces, "traces", traces::run),
    (Scenario::Machine, "machine", machine::run),
    (Scenario::Page, "page", page::run),
    (Scenario::FunctionsCold, "functions-cold", functions::cold::run),
    (Scenario::FunctionsWarm, "functions-warm", functions::warm::run),
    (Scenario::FunctionsScale, "functions-scale", functions::scale::run),
    (Scenario::WebhooksSigned, "webhooks-signed", webhooks::run_signed),
    (Scenario::WebhooksIsolation, "webhooks-isolation", webhooks::run_isolation),
    (Scenario::WebhooksFeed, "webhooks-feed", webhooks::run_feed),
    (Scenario::WebhooksIdle, "webhooks-idle", webhooks::run_idle),
    (Scenario::WebhooksRetained, "webhooks-retained", webhooks::run_retained),
];

/// The scenarios asked for, each once, in the order above.
pub fn chosen(asked: &[Scenario]) -> impl Iterator<Item = (&'static str, Runner)> {
    let wanted = move |scenario: Scenario| match asked {
        [] => scenario == Scenario::Throughput,
        _ => asked.iter().any(|asked| asked.means(scenario)),
    };
    EVERY.into_iter().filter(move |(scenario, ..)| wanted(*scenario)).map(|(_, name, runner)| (name, runner))
}

impl Scenario {
    fn means(self, scenario: Scenario) -> bool {
        use Scenario::{All, Functions, FunctionsCold, FunctionsScale, FunctionsWarm};
        use Scenario::{
            Webhooks, WebhooksFeed, WebhooksIdle, WebhooksIsolation, WebhooksRetained, WebhooksSigned,
        };
        let parts: &[Scenario] = match self {
            Functions => &[FunctionsCold, FunctionsWarm, FunctionsScale],
            Webhooks => &[WebhooksSigned, WebhooksIsolation, WebhooksFeed, WebhooksIdle, WebhooksRetained],
            _ => &[],
        };
        self == scenario || self == All || parts.contains(&scenario)
    }
}
