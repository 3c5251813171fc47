//! Webhook endpoints.

use crate::time::{Moment, parse_moment};
use clap::{Args, Subcommand};
use std::time::Duration;

#[derive(Debug, Subcommand)]
pub enum Webhook {
    /// Create an endpoint and print its signing secret once
    Create(CreateWebhook),
    /// List endpoints
    #[command(visible_alias = "list")]
    Get {
        name: Vec<String>,
        /// List resources of all namespaces
        #[arg(short = 'A', long, conflicts_with = "namespace")]
        all_namespaces: bool,
        #[command(flatten)]
        limit: super::Limit,
    },
    /// Show details of endpoints
    Describe {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// Send events to disabled endpoints again, in order
    Enable {
        #[arg(required = true)]
        name: Vec<String>,
        /// Skip events that were accepted before this time, or this long ago
        #[arg(long, value_name = "TIME|DURATION", value_parser = parse_moment)]
        from: Option<Moment>,
    },
    /// Stop sending events to endpoints; events keep their order and wait
    Disable {
        #[arg(required = true)]
        name: Vec<String>,
    },
    /// Create a new signing secret and print it once
    Rotate {
        name: String,
        /// How long the previous secret signs too [default: 24h]
        #[arg(long, value_name = "DURATION")]
        overlap: Option<String>,
    },
    /// Call an endpoint once with a signed test event
    Test { name: String },
    /// Delete endpoints, with their secrets and tokens
    Delete {
        #[arg(required = true)]
        name: Vec<String>,
        /// Deliver pending events first
        #[arg(long)]
        drain: bool,
        /// Drop pending events
        #[arg(long, conflicts_with = "drain")]
        discard: bool,
        /// Do not ask for confirmation
        #[arg(short, long)]
        yes: bool,
    },
    /// Read the events of an endpoint as it receives them
    Events(WebhookEvents),
    /// List the latest attempts to call an endpoint, newest first
    Deliveries(Deliveries),
    /// Send one event to an endpoint again
    Resend {
        name: String,
        /// The eventId, as in the feed and in deliveries
        #[arg(value_name = "EVENT-ID")]
        event: String,
    },
    /// Resend events that failed since a given time
    Recover(Recover),
    /// Create a temporary token for the receiver to manage its endpoint
    Link {
        name: String,
        /// How long it is valid, at most 24h [default: 1h]
        #[arg(long, value_name = "DURATION")]
        expires: Option<String>,
    },
}

#[derive(Debug, Args)]
pub struct CreateWebhook {
    pub name: String,
    /// Where to send events
    #[arg(long, value_name = "URL")]
    pub url: String,
    /// Event types: exact, or a prefix followed by * [default: all]
    #[arg(long, value_name = "TYPE", num_args = 1.., value_delimiter = ',')]
    pub types: Vec<String>,
    /// Workflow of an event: an attribute, or a JSON pointer into its data
    #[arg(long, value_name = "ATTRIBUTE|/POINTER")]
    pub workflow_key: Option<String>,
    /// Send events in any order
    #[arg(long, conflicts_with = "workflow_key")]
    pub unordered: bool,
    /// Header with a value from a secret; can be repeated
    #[arg(long = "header", value_name = "NAME=SECRET/KEY")]
    pub headers: Vec<String>,
    /// Sign with Ed25519 instead of HMAC-SHA256
    #[arg(long)]
    pub ed25519: bool,
    /// Send up to this many events of a workflow in one call
    #[arg(long, value_name = "EVENTS", conflicts_with = "unordered")]
    pub batch: Option<u32>,
    /// Maximum size of the body of such a call, such as 256Ki [default: 1Mi]
    #[arg(long, value_name = "SIZE", requires = "batch")]
    pub batch_bytes: Option<String>,
    /// Secret with the certificate that identifies this server to the endpoint (keys tls.crt and tls.key)
    #[arg(long, value_name = "SECRET")]
    pub client_certificate: Option<String>,
    /// Secret with the certificates to trust instead of those of the machine [default key: ca.crt]
    #[arg(long, value_name = "SECRET[/KEY]")]
    pub ca: Option<String>,
}

#[derive(Debug, Args)]
pub struct WebhookEvents {
    /// Endpoint [default: the token's own, or the only one]
    pub name: Option<String>,
    /// Continue after this event id or cursor [default: the oldest event]
    #[arg(long, value_name = "EVENT-ID|CURSOR")]
    pub since: Option<String>,
    /// Only events of this workflow
    #[arg(long, value_name = "ID")]
    pub workflow: Option<String>,
    /// Wait for new events
    #[arg(short, long)]
    pub follow: bool,
    /// Maximum number of events [default: no limit]
    #[arg(long, value_name = "N")]
    pub limit: Option<usize>,
}

#[derive(Debug, Args)]
pub struct Deliveries {
    pub name: String,
    /// Wait for new attempts
    #[arg(short, long)]
    pub watch: bool,
    /// Only failed attempts
    #[arg(long)]
    pub failed: bool,
    /// Only attempts of this workflow
    #[arg(long, value_name = "ID")]
    pub workflow: Option<String>,
    /// Only attempts of this event
    #[arg(long, value_name = "EVENT-ID")]
    pub event: Option<String>,
    /// Only attempts since this time, or this long ago
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_moment)]
    pub since: Option<Moment>,
    /// Maximum number of attempts
    #[arg(long, value_name = "N", default_value_t = 100)]
    pub limit: usize,
}

#[derive(Debug, Args)]
pub struct Recover {
    pub name: String,
    /// Events that failed since this time, or this long ago
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_moment)]
    pub since: Moment,
    /// Events that failed before this time
    #[arg(long, value_name = "TIME|DURATION", value_parser = parse_moment)]
    pub until: Option<Moment>,
    /// Only events of this workflow
    #[arg(long, value_name = "ID")]
    pub workflow: Option<String>,
    /// Show what would be sent, and send nothing
    #[arg(long)]
    pub dry_run: bool,
    /// Wait until everything was sent
    #[arg(short, long)]
    pub wait: bool,
}

/// How long one request waits for events.
pub const POLL: Duration = Duration::from_secs(20);
