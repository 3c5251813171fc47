//! The resource types: their names, and how lists show them.

mod columns;

pub use columns::compare;

use crate::output::{Sheet, Table, text};
use crate::resource::encoded;
use crate::route::Route;
use columns::{Column, NAMESPACE, TYPED, columns};
use klambda_core::time::Millis;
use serde_json::Value;
use std::cmp::Ordering;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Kind {
    Function,
    Agent,
    Subscription,
    Webhook,
    EventType,
    Lane,
    DeadLetter,
    Replay,
    Event,
    Namespace,
    Token,
    Secret,
    Audit,
    Revision,
}

/// A type with its singular, plural and short names.
type Names = (Kind, &'static str, &'static str, &'static [&'static str]);

const NAMES: [Names; 14] = [
    (Kind::Function, "function", "functions", &["fn", "lf", "lambdafunction", "lambdafunctions"]),
    (Kind::Agent, "agent", "agents", &["la", "lambdaagent", "lambdaagents"]),
    (Kind::Subscription, "subscription", "subscriptions", &["sub", "subs"]),
    (Kind::Webhook, "webhook", "webhooks", &["wh", "webhookendpoint", "webhookendpoints"]),
    (Kind::EventType, "eventtype", "eventtypes", &["et", "event-type", "event-types"]),
    (Kind::Lane, "lane", "lanes", &[]),
    (Kind::DeadLetter, "deadletter", "deadletters", &["dl", "dlq"]),
    (Kind::Replay, "replay", "replays", &[]),
    (Kind::Event, "event", "events", &["ev"]),
    (Kind::Namespace, "namespace", "namespaces", &["ns"]),
    (Kind::Token, "token", "tokens", &[]),
    (Kind::Secret, "secret", "secrets", &[]),
    (Kind::Audit, "audit", "audit", &[]),
    (Kind::Revision, "revision", "revisions", &[]),
];

/// The types that commands take. `klambda history` lists revisions, which belong to one function.
fn listed() -> impl Iterator<Item = &'static Names> {
    NAMES.iter().filter(|names| names.0 != Kind::Revision)
}

impl Kind {
    /// What `get all` lists.
    pub const MAIN: [Kind; 3] = [Kind::Function, Kind::Agent, Kind::Subscription];

    pub fn all() -> impl Iterator<Item = Kind> {
        listed().map(|names| names.0)
    }

    pub fn word(self) -> &'static str {
        NAMES[self as usize].1
    }

    pub fn plural(self) -> &'static str {
        NAMES[self as usize].2
    }

    /// The plural in a sentence.
    pub fn plural_in_words(self) -> &'static str {
        match self {
            Kind::DeadLetter => "dead letters",
            Kind::EventType => "event types",
            Kind::Audit => "audit entries",
            other => other.plural(),
        }
    }

    /// By its singular, plural or short name.
    pub fn parse(word: &str) -> Option<Kind> {
        let is_named = |names: &&Names| names.1 == word || names.2 == word || names.3.contains(&word);
        listed().find(is_named).map(|names| names.0)
    }

    /// Every word that `parse` takes.
    pub fn words() -> impl Iterator<Item = &'static str> {
        listed().flat_map(|names| [names.1, names.2].into_iter().chain(names.3.iter().copied()))
    }

    pub fn runs_code(self) -> bool {
        matches!(self, Kind::Function | Kind::Agent)
    }

    /// Whether pending events wait for it.
    pub fn has_backlog(self) -> bool {
        matches!(self, Kind::Subscription | Kind::Webhook)
    }

    /// Where the list is.
    pub fn route(self) -> Route {
        match self {
            Kind::Function => Route::new(&["lambda", "functions"]),
            Kind::Agent => Route::new(&["lambda", "agents"]),
            Kind::Webhook => Route::new(&["webhooks", "endpoints"]),
            Kind::EventType => Route::new(&["event-types"]),
            Kind::DeadLetter => Route::new(&["dlq"]),
            Kind::Replay => Route::new(&["dlq", "replays"]),
            other => Route::new(&[other.plural()]),
        }
    }

    /// `type/name`, as `-o name` prints it. `resource::parse` reads it back.
    pub fn name_of(self, item: &Value) -> String {
        format!("{}/{}", self.word(), encoded(&self.bare_name_of(item)))
    }

    /// The name without its type. A lane is named by subscription and key.
    pub fn bare_name_of(self, item: &Value) -> String {
        let at = |pointer| text(item, pointer).unwrap_or_default();
        match self {
            Kind::Function
            | Kind::Agent
            | Kind::Subscription
            | Kind::Webhook
            | Kind::EventType
            | Kind::Namespace => at("/metadata/name"),
            Kind::Lane => format!("{}/{}", at("/subscription"), at("/key")),
            Kind::DeadLetter | Kind::Replay => at("/id"),
            Kind::Event => at("/event/id"),
            Kind::Token | Kind::Secret => at("/name"),
            Kind::Audit | Kind::Revision => at("/number"),
        }
    }

    pub fn table(self, items: &[Value], shown: Shown, now: Millis) -> Table {
        let columns = self.shown_columns(shown);
        let mut table = Table::new(&columns.iter().map(|column| column.0).collect::<Vec<_>>());
        for item in items {
            table.row(columns.iter().map(|column| self.cell(column, item, shown, now)).collect());
        }
        table
    }

    fn cell(self, column: &Column, item: &Value, shown: Shown, now: Millis) -> String {
        match shown.types && column.0 == TYPED[0].0 {
            true => self.name_of(item),
            false => column.show(item, now),
        }
    }

    fn shown_columns(self, shown: Shown) -> Vec<&'static Column> {
        let (narrow, more) = columns(self);
        let namespaces = if shown.namespaces { NAMESPACE } else { &[] };
        let typed = if shown.types { TYPED } else { &[] };
        let more = if shown.wide { more } else { &[] };
        let is_wanted = |column: &&Column| !(shown.types && ["NAME", "ID"].contains(&column.0));
        let own = narrow.iter().chain(more).filter(is_wanted);
        namespaces.iter().chain(typed).chain(own).collect()
    }

    /// The cells of a row that do not change just because time passes.
    pub fn fingerprint(self, item: &Value) -> Vec<String> {
        let columns = self.shown_columns(Shown { wide: true, namespaces: true, types: false });
        let lasting = columns.into_iter().filter(|column| !column.is_time());
        lasting.map(|column| column.show(item, Millis(0))).collect()
    }

    /// How a column orders two items; `None` if there is no such column.
    pub fn order_by(self, name: &str) -> Option<impl Fn(&Value, &Value) -> Ordering + use<>> {
        let columns = self.shown_columns(Shown { wide: true, namespaces: true, types: false });
        let column = columns.into_iter().find(|column| column.0.eq_ignore_ascii_case(name))?;
        Some(|a: &Value, b: &Value| column.compare(a, b))
    }

    pub fn column_names(self) -> Vec<&'static str> {
        let shown = Shown { wide: true, namespaces: false, types: false };
        self.shown_columns(shown).into_iter().map(|column| column.0).collect()
    }

    /// Every column on a line of its own.
    pub fn sheet(self, item: &Value, now: Millis) -> Sheet {
        let mut sheet = Sheet::default();
        for column in self.shown_columns(Shown { wide: true, namespaces: false, types: false }) {
            sheet.line(&sentence_case(column.0), column.show(item, now));
        }
        sheet
    }
}

/// `LAST-USED` as `Last used`.
fn sentence_case(header: &str) -> String {
    let (first, rest) = header.split_at(1);
    format!("{first}{}", rest.to_lowercase().replace('-', " "))
}

/// Which columns are shown beside the usual ones.
#[derive(Clone, Copy, Debug, Default)]
pub struct Shown {
    pub wide: bool,
    /// Items of several namespaces are in one table.
    pub namespaces: bool,
    /// Tables of several types follow each other, so names carry their type.
    pub types: bool,
}

/// The key of an event in subscriptions that do not define another one.
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

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn shown(kind: Kind, item: Value, wide: bool) -> String {
        let now = Millis::parse_rfc3339("2026-01-01T00:03:12Z").expect("a time");
        let mut out = Vec::new();
        kind.table(&[item], Shown { wide, ..Shown::default() }, now).write(&mut out, "").expect("written");
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
        let mut behind = item.clone();
        behind["metadata"]["generation"] = 4.into();
        behind["status"]["serviceStatus"]["generation"] = 3.into();
        assert!(shown(Kind::Function, behind, false).contains("Ready (serves 3, wants 4)"));
        let mut rebuilt = item.clone();
        rebuilt["status"]["buildStatus"]["outcome"] = "failed".into();
        assert!(shown(Kind::Function, rebuilt, false).contains("Ready (last build failed)"));
        assert!(shown(Kind::Agent, item.clone(), true).contains("REASON"));
        let across = Kind::Function.table(&[item], Shown { namespaces: true, ..Shown::default() }, Millis(0));
        let mut out = Vec::new();
        across.write(&mut out, "").expect("written");
        assert!(out.starts_with(b"NAMESPACE   NAME"));
    }

    #[test]
    fn a_revision() {
        let item = json!({"number": 2, "generation": 3, "serving": true, "appliedBy": "token/ci",
            "createdAt": "2026-01-01T00:00:00Z", "commit": "0123456789abcdef", "sourceDigest": "ffff",
            "spec": {"source": {"type": "git", "git": {"url": "https://h/r"}}}});
        assert_eq!(
            shown(Kind::Revision, item, false),
            "REVISION   GENERATION   SERVING   SOURCE                         APPLIED-BY   AGE\n\
             2          3            yes       git: https://h/r @0123456789   token/ci     3m12s\n"
        );
        assert_eq!(Kind::parse("revisions"), None, "revisions belong to one function");
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

    #[test]
    fn every_type_has_its_own_names() {
        for (at, kind) in Kind::all().enumerate() {
            assert_eq!(kind as usize, at, "{kind:?} is at another place in the table");
            assert_eq!(Kind::parse(kind.word()), Some(kind));
            assert_eq!(Kind::parse(kind.plural()), Some(kind));
        }
        let mut words: Vec<&str> = Kind::words().collect();
        words.sort_unstable();
        words.dedup();
        assert_eq!(words.len(), Kind::words().count() - 1, "only audit is its own plural");
    }

    #[test]
    fn columns_order_items() {
        let item =
            |waiting: u64, at: &str| json!({"metadata": {"createdAt": at}, "status": {"waiting": waiting}});
        let (old, new) = (item(10, "2026-01-01T00:00:00Z"), item(9, "2026-01-02T00:00:00Z"));
        let order = |name: &str| Kind::Subscription.order_by(name).expect(name)(&old, &new);
        assert_eq!(order("waiting"), Ordering::Greater, "10 is more than 9");
        assert_eq!(order("AGE"), Ordering::Greater, "the old one has the greater age");
        assert!(Kind::Subscription.order_by("colour").is_none());
    }
}
