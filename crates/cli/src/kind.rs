//! The things the API knows by name, and the columns that show them.

use crate::function::{error, ready, reason, runtime, source, target};
use crate::output::{Table, cell, number, shorten, text};
use crate::time::{age_of, relative};
use klambda_core::time::Millis;
use serde_json::Value;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Function,
    Agent,
    Subscription,
    Lane,
    DeadLetter,
    Replay,
    Event,
    Namespace,
    Token,
    Audit,
}

const ERROR_CHARS_MAX: usize = 60;

impl Kind {
    pub fn word(self) -> &'static str {
        match self {
            Kind::Function => "function",
            Kind::Agent => "agent",
            Kind::Subscription => "subscription",
            Kind::Lane => "lane",
            Kind::DeadLetter => "deadletter",
            Kind::Replay => "replay",
            Kind::Event => "event",
            Kind::Namespace => "namespace",
            Kind::Token => "token",
            Kind::Audit => "audit",
        }
    }

    /// `kind/name`, as `-o name` prints it.
    pub fn name_of(self, item: &Value) -> String {
        let name = match self {
            Kind::Function | Kind::Agent | Kind::Subscription | Kind::Namespace => {
                cell(item, "/metadata/name")
            }
            Kind::Lane => format!("{}/{}", cell(item, "/subscription"), cell(item, "/key")),
            Kind::DeadLetter | Kind::Replay => cell(item, "/id"),
            Kind::Event => cell(item, "/event/id"),
            Kind::Token => cell(item, "/name"),
            Kind::Audit => cell(item, "/number"),
        };
        format!("{}/{name}", self.word())
    }

    pub fn table(self, items: &[Value], shown: Shown, now: Millis) -> Table {
        let (narrow, more) = self.columns();
        let only_if = |columns: &'static [Column], wanted: bool| columns.iter().filter(move |_| wanted);
        let columns: Vec<&Column> =
            only_if(NAMESPACE, shown.namespaces).chain(narrow).chain(only_if(more, shown.wide)).collect();
        let mut table = Table::new(&columns.iter().map(|column| column.0).collect::<Vec<_>>());
        for item in items {
            table.row(columns.iter().map(|column| column.1.show(item, now)).collect());
        }
        table
    }

    fn columns(self) -> (&'static [Column], &'static [Column]) {
        match self {
            Kind::Function | Kind::Agent => (FUNCTION, FUNCTION_WIDE),
            Kind::Subscription => (SUBSCRIPTION, SUBSCRIPTION_WIDE),
            Kind::Lane => (LANE, LANE_WIDE),
            Kind::DeadLetter => (DEAD_LETTER, DEAD_LETTER_WIDE),
            Kind::Replay => (REPLAY, REPLAY_WIDE),
            Kind::Event => (EVENT, EVENT_WIDE),
            Kind::Namespace => (NAMESPACES, NAMESPACES_WIDE),
            Kind::Token => (TOKEN, TOKEN_WIDE),
            Kind::Audit => (AUDIT, AUDIT_WIDE),
        }
    }
}

/// Which columns there are beside the usual ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    pub wide: bool,
    /// Things of several namespaces are in one table.
    pub namespaces: bool,
}

struct Column(&'static str, Show);

/// How a column reads its cell, from the JSON pointer given.
enum Show {
    Text(&'static str),
    TextOr(&'static str, &'static str),
    Count(&'static str),
    Age(&'static str),
    Relative(&'static str),
    Error(&'static str),
    Words(fn(&Value) -> String),
    Key,
    Data,
}

impl Show {
    fn show(&self, item: &Value, now: Millis) -> String {
        match self {
            Show::Text(at) => cell(item, at),
            Show::TextOr(at, otherwise) => text(item, at).unwrap_or_else(|| (*otherwise).to_owned()),
            Show::Count(at) => number(item, at).to_string(),
            Show::Age(at) => age_of(text(item, at).as_deref(), now),
            Show::Relative(at) => text(item, at).map_or_else(|| "-".to_owned(), |at| relative(&at, now)),
            Show::Error(at) => shorten(&error(&cell(item, at)), ERROR_CHARS_MAX),
            Show::Words(say) => say(item),
            Show::Key => key_of(&item["event"]),
            Show::Data => shorten(&data_of(&item["event"]), ERROR_CHARS_MAX),
        }
    }
}

/// The key an event has where no subscription says otherwise.
pub fn key_of(event: &Value) -> String {
    let named = ["/partitionkey", "/subject"].iter().find_map(|at| text(event, at));
    named.unwrap_or_else(|| "-".to_owned())
}

pub fn data_of(event: &Value) -> String {
    match (&event["data"], &event["data_base64"]) {
        (Value::Null, Value::String(encoded)) => format!("{} characters of base64", encoded.len()),
        (Value::Null, _) => "-".to_owned(),
        (Value::String(text), _) => text.clone(),
        (json, _) => json.to_string(),
    }
}

use Show::{Age, Count, Data, Error, Key, Relative, Text, TextOr, Words};

const NAMESPACE: &[Column] = &[Column("NAMESPACE", Words(namespace))];

/// Where a thing lives: documents say it among their metadata.
fn namespace(item: &Value) -> String {
    text(item, "/metadata/namespace").unwrap_or_else(|| cell(item, "/namespace"))
}

const NAMESPACES: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("SUBSCRIPTIONS", Count("/status/subscriptions")),
    Column("WAITING", Count("/status/waiting")),
    Column("DEAD", Count("/status/deadLetters")),
    Column("AGE", Age("/metadata/createdAt")),
];
const NAMESPACES_WIDE: &[Column] = &[
    Column("MAX-EVENTS/S", Text("/spec/limits/eventsPerSecond")),
    Column("MAX-BACKLOG", Text("/spec/limits/backlog")),
    Column("MAX-SUBSCRIPTIONS", Text("/spec/limits/subscriptions")),
    Column("MAX-FUNCTIONS", Text("/spec/limits/functions")),
];

const FUNCTION: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("RUNTIME", Words(runtime)),
    Column("PHASE", Text("/status/phase")),
    Column("READY", Words(ready)),
    Column("REPLICAS", Count("/status/serviceStatus/replicas")),
    Column("ORDERING", TextOr("/spec/ordering", "unordered")),
    Column("URL", Text("/status/serviceStatus/url")),
    Column("AGE", Age("/metadata/creationTimestamp")),
];
const FUNCTION_WIDE: &[Column] = &[
    Column("HANDLER", Text("/spec/runtime/handler")),
    Column("SOURCE", Words(source)),
    Column("GENERATION", Count("/metadata/generation")),
    Column("VERSION", Text("/status/serviceStatus/version")),
    Column("REASON", Words(reason)),
];

const SUBSCRIPTION: &[Column] = &[
    Column("NAME", Text("/metadata/name")),
    Column("ORDERING", TextOr("/spec/ordering", "unordered")),
    Column("TARGET", Words(target)),
    Column("WAITING", Count("/status/waiting")),
    Column("INFLIGHT", Count("/status/inFlight")),
    Column("PARKED", Count("/status/parked")),
    Column("DEAD", Count("/status/deadLetters")),
    Column("PHASE", Text("/status/phase")),
    Column("AGE", Age("/metadata/createdAt")),
];
const SUBSCRIPTION_WIDE: &[Column] = &[
    Column("DELIVERED", Count("/status/delivered")),
    Column("OLDEST", Age("/status/oldest")),
    Column("RETRYING", Count("/status/lanes/retrying")),
    Column("GAPS", Count("/status/lanes/gap")),
    Column("BREAKER", Text("/status/breaker/state")),
];

const LANE: &[Column] = &[
    Column("SUBSCRIPTION", Text("/subscription")),
    Column("KEY", Text("/key")),
    Column("STATE", Text("/state")),
    Column("DEPTH", Count("/depth")),
    Column("SINCE", Age("/since")),
    Column("WAITS-FOR", Text("/waitsFor")),
];
const LANE_WIDE: &[Column] = &[
    Column("HEAD", Text("/head/id")),
    Column("ATTEMPTS", Text("/head/attempts")),
    Column("NEXT-ATTEMPT", Relative("/head/nextAttempt")),
    Column("EXPECTED", Text("/expectedSequence")),
    Column("BUFFERED", Count("/buffered")),
    Column("LAST-ERROR", Error("/head/lastError")),
];

const DEAD_LETTER: &[Column] = &[
    Column("ID", Text("/id")),
    Column("SUBSCRIPTION", Text("/subscription")),
    Column("KEY", Text("/key")),
    Column("REASON", Text("/reason")),
    Column("ATTEMPTS", Count("/attempts")),
    Column("AGE", Age("/failedAt")),
    Column("LAST-ERROR", Error("/lastError")),
];
const DEAD_LETTER_WIDE: &[Column] = &[
    Column("TYPE", Text("/type")),
    Column("SOURCE", Text("/source")),
    Column("EVENT", Text("/eventId")),
    Column("POSITION", Text("/position")),
    Column("HOLDS-LANE", Text("/holdsLane")),
];

const REPLAY: &[Column] = &[
    Column("ID", Text("/id")),
    Column("STATE", Text("/state")),
    Column("SELECTED", Count("/selected")),
    Column("REPLAYED", Count("/replayed")),
    Column("FAILED", Count("/failed")),
    Column("SKIPPED", Count("/skipped")),
    Column("AGE", Age("/createdAt")),
];
const REPLAY_WIDE: &[Column] = &[
    Column("KEYS", Count("/keys")),
    Column("VIOLATIONS", Count("/orderViolations")),
    Column("DUPLICATES", Count("/duplicates")),
    Column("RATE", Text("/ratePerSecond")),
    Column("PARALLELISM", Text("/parallelism")),
    Column("FINISHED", Relative("/finishedAt")),
];

const EVENT: &[Column] = &[
    Column("POSITION", Text("/position")),
    Column("TYPE", Text("/event/type")),
    Column("SOURCE", Text("/event/source")),
    Column("ID", Text("/event/id")),
    Column("KEY", Key),
    Column("AGE", Age("/acceptedAt")),
];
const EVENT_WIDE: &[Column] = &[
    Column("SEQUENCE", Text("/event/sequence")),
    Column("CONTENT-TYPE", Text("/event/datacontenttype")),
    Column("DATA", Data),
];

const TOKEN: &[Column] = &[
    Column("NAME", Text("/name")),
    Column("ROLE", Text("/role")),
    Column("NAMESPACES", Words(namespaces)),
    Column("EXPIRES", Relative("/expiresAt")),
    Column("LAST-USED", Relative("/lastUsedAt")),
    Column("AGE", Age("/createdAt")),
];
const TOKEN_WIDE: &[Column] = &[Column("CREATED-BY", Text("/createdBy"))];

const AUDIT: &[Column] = &[
    Column("TIME", Text("/time")),
    Column("WHO", Text("/who")),
    Column("VERB", Text("/verb")),
    Column("KIND", Text("/kind")),
    Column("NAME", Text("/name")),
];
const AUDIT_WIDE: &[Column] = &[Column("FROM", Text("/from")), Column("NUMBER", Text("/number"))];

/// Names with commas between them, or `*`.
fn namespaces(token: &Value) -> String {
    match token["namespaces"].as_array() {
        Some(names) => names.iter().filter_map(Value::as_str).collect::<Vec<_>>().join(","),
        None => cell(token, "/namespaces"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(kind: Kind, item: Value, wide: bool) -> String {
        let now = Millis::parse_rfc3339("2026-01-01T00:03:12Z").expect("a time");
        let mut out = Vec::new();
        kind.table(&[item], Shown { wide, namespaces: false }, now).write(&mut out, "").expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_subscription() {
        let item = json!({"metadata": {"name": "orders", "createdAt": "2026-01-01T00:00:00Z"},
            "spec": {"ordering": "ordered", "target": {"url": "http://127.0.0.1:9000/"}},
            "status": {"phase": "active", "waiting": 3, "inFlight": 1, "parked": 1, "deadLetters": 2}});
        assert_eq!(
            shown(Kind::Subscription, item.clone(), false),
            "NAME     ORDERING   TARGET                   WAITING   INFLIGHT   PARKED   DEAD   PHASE    AGE\n\
             orders   ordered    http://127.0.0.1:9000/   3         1          1        2      active   3m12s\n"
        );
        assert!(shown(Kind::Subscription, item.clone(), true).contains("BREAKER"));
        assert_eq!(Kind::Subscription.name_of(&item), "subscription/orders");
    }

    #[test]
    fn a_function() {
        let item = json!({"metadata": {"name": "hello", "namespace": "shop", "creationTimestamp": "2026-01-01T00:00:00Z"},
            "spec": {"ordering": "ordered", "runtime": {"language": "go"}},
            "status": {"phase": "Ready", "serviceStatus": {"ready": true, "replicas": 2, "url": "http://h/"}}});
        assert_eq!(
            shown(Kind::Function, item.clone(), false),
            "NAME    RUNTIME   PHASE   READY   REPLICAS   ORDERING   URL         AGE\n\
             hello   go        Ready   True    2          ordered    http://h/   3m12s\n"
        );
        assert!(shown(Kind::Agent, item.clone(), true).contains("REASON"));
        let across = Kind::Function.table(&[item], Shown { wide: false, namespaces: true }, Millis(0));
        let mut out = Vec::new();
        across.write(&mut out, "").expect("written");
        assert!(out.starts_with(b"NAMESPACE   NAME"));
    }

    #[test]
    fn a_lane_without_a_head() {
        let item = json!({"subscription": "orders", "key": "a/b", "state": "open", "since": "2026-01-01T00:03:00Z",
            "waitsFor": null, "depth": 0, "head": null});
        let text = shown(Kind::Lane, item.clone(), true);
        assert!(text.starts_with("SUBSCRIPTION   KEY   STATE   DEPTH   SINCE   WAITS-FOR   HEAD"), "{text}");
        assert!(text.contains("orders         a/b   open    0       12s     -           -"), "{text}");
        assert_eq!(Kind::Lane.name_of(&item), "lane/orders/a/b");
    }
}
