//! The requests of `get`, and how it filters and sorts the answers.

use super::Group;
use crate::args::{Filter, Get};
use crate::client::Client;
use crate::commands::for_each;
use crate::exit::{NotFound, Usage};
use crate::jsonpath::Path;
use crate::kind::{Kind, compare};
use crate::labels::Selector;
use crate::resource::{self, Resource, Wanted};
use crate::route::Route;
use anyhow::Context as _;
use serde_json::Value;

pub struct Query {
    lists: Vec<List>,
    named: Vec<Resource>,
    source: Option<String>,
    labels: Option<Selector>,
    sort_by: Option<String>,
    is_sorted: bool,
}

/// One list of the server.
struct List {
    kind: Kind,
    route: Route,
    /// The parameter that takes `next` of the last page.
    cursor: &'static str,
    after: Option<u64>,
    limit: usize,
}

impl Query {
    pub fn new(args: &Get) -> Result<Query, Usage> {
        let Targets { kinds, named, lanes_of } = targets(args)?;
        let of_named = named.iter().map(|one| one.kind);
        let asked: Vec<Kind> = kinds.iter().copied().chain(of_named).collect();
        check_flags(args, &asked)?;
        let lists = kinds.into_iter().map(|kind| list(args, kind, lanes_of.as_deref())).collect();
        let source = args.events.source.clone();
        let (labels, sort_by) = (args.selector.clone(), args.sort_by.clone());
        let query = Query { lists, named, source, labels, sort_by, is_sorted: args.lanes.sort.is_some() };
        asked.iter().try_for_each(|kind| query.check_order(*kind))?;
        Ok(query)
    }

    pub fn simple(kind: Kind, named: Vec<Resource>, limit: usize) -> Query {
        let list = List { kind, route: kind.route(), cursor: "cursor", after: None, limit };
        let lists = if named.is_empty() { vec![list] } else { Vec::new() };
        Query { lists, named, source: None, labels: None, sort_by: None, is_sorted: false }
    }

    /// Everything at this route.
    pub fn list(kind: Kind, route: Route) -> Query {
        let mut query = Query::simple(kind, Vec::new(), 0);
        query.lists.iter_mut().for_each(|list| list.route = route.clone());
        query
    }

    pub fn dead_letters(filter: &Filter, limit: usize) -> Query {
        let mut query = Query::simple(Kind::DeadLetter, Vec::new(), limit);
        query.lists.iter_mut().for_each(|list| list.route = filtered(list.route.clone(), filter));
        query
    }

    /// One resource by name: printed by itself, not as a list.
    pub fn is_single(&self) -> bool {
        self.lists.is_empty() && self.named.len() == 1
    }

    /// Whether the server sorts the lanes.
    pub fn is_sorted(&self) -> bool {
        self.is_sorted
    }

    pub fn kinds(&self) -> impl Iterator<Item = Kind> {
        self.lists.iter().map(|list| list.kind).chain(self.named.iter().map(|one| one.kind))
    }

    /// The items that were found, and the last failure.
    pub fn fetch(&self, client: &Client) -> (Vec<Group>, Option<anyhow::Error>) {
        let mut groups: Vec<Group> = Vec::new();
        let lists = for_each(&self.lists, |list| {
            let page = client.list_from(&list.route, list.cursor, list.after, list.limit)?;
            groups.push(Group { kind: list.kind, items: page.items, more: page.more });
            Ok(())
        });
        let named = for_each(&self.named, |one| {
            let route =
                one.route().query_opt("source", self.source.as_ref().filter(|_| one.kind == Kind::Event));
            let found = match one.kind {
                Kind::Audit => audit_entry(client, one)?,
                _ => client.get(&route).with_context(|| one.to_string())?,
            };
            put(&mut groups, one.kind, found);
            Ok(())
        });
        match groups.iter_mut().try_for_each(|group| self.arrange(group)) {
            Ok(()) => (groups, lists.and(named).err()),
            Err(wrong_order) => (Vec::new(), Some(wrong_order.into())),
        }
    }

    fn arrange(&self, group: &mut Group) -> Result<(), Usage> {
        if let Some(labels) = &self.labels {
            group.items.retain(|item| labels.takes(&item["metadata"]["labels"]));
        }
        let Some(by) = &self.sort_by else { return Ok(()) };
        match (group.kind.order_by(by), Path::parse(by)) {
            (Some(order), _) => group.items.sort_by(order),
            (None, Ok(path)) => sort_by_path(group, by, &path)?,
            (None, Err(_)) => {}
        }
        Ok(())
    }

    /// A word is a column, unless it begins like a path.
    fn check_order(&self, kind: Kind) -> Result<(), Usage> {
        let Some(by) = &self.sort_by else { return Ok(()) };
        if by.starts_with(['.', '$', '{', '[']) {
            return Path::parse(by).map(|_| ()).map_err(|fault| Usage(format!("--sort-by: {fault}")));
        }
        match kind.order_by(by) {
            Some(_) => Ok(()),
            None => {
                let columns = kind.column_names().join(", ").to_lowercase();
                Err(Usage(format!(
                    "--sort-by: {} have no column {by:?}; columns: {columns}",
                    kind.plural_in_words()
                )))
            }
        }
    }
}

/// The list of audit entries is read from the newest to the oldest, so the entry is the first one before the next number.
fn audit_entry(client: &Client, entry: &Resource) -> anyhow::Result<Value> {
    let number: u64 = entry.name.parse().map_err(|_| Usage(format!("{entry}: the number is wrong")))?;
    let page = client.list_from(&Kind::Audit.route(), "cursor", Some(number.saturating_add(1)), 1)?;
    let found = page.items.into_iter().find(|item| item["number"] == number);
    found.ok_or_else(|| NotFound(format!("{entry} not found")).into())
}

/// Items without the path come first, but a path that no item has is a mistake.
fn sort_by_path(group: &mut Group, by: &str, path: &Path) -> Result<(), Usage> {
    if !group.items.is_empty() && group.items.iter().all(|item| path.find(item).is_empty()) {
        return Err(Usage(format!("--sort-by: no {} has {by}; see -o json", group.kind.word())));
    }
    group.items.sort_by(|a, b| {
        let first = |item| path.find(item).first().copied();
        compare(first(a), first(b))
    });
    Ok(())
}

struct Targets {
    kinds: Vec<Kind>,
    named: Vec<Resource>,
    /// The subscription whose lanes are listed.
    lanes_of: Option<String>,
}

fn targets(args: &Get) -> Result<Targets, Usage> {
    let lanes_of = args.filter.subscription.clone();
    let named = match resource::parse(&args.resources)? {
        Wanted::Kinds(mut kinds) => {
            // `get all -l` lists the types that have labels.
            if args.selector.is_some() && args.resources.first().is_none_or(|word| word == "all") {
                kinds.retain(|kind| kind.runs_code());
            }
            return Ok(Targets { kinds, named: Vec::new(), lanes_of });
        }
        Wanted::Named(named) => named,
    };
    let keyless = named.iter().find(|one| one.kind == Kind::Lane && one.lane().is_none());
    match (keyless, named.len()) {
        // `get lane orders` lists the lanes of the subscription.
        (Some(lane), 1) if lanes_of.is_none() => {
            Ok(Targets { kinds: vec![Kind::Lane], lanes_of: Some(lane.name.clone()), named: Vec::new() })
        }
        (Some(lane), _) => Err(Usage(format!("{lane}: the key is missing; use lane/SUBSCRIPTION/KEY"))),
        (None, _) => Ok(Targets { kinds: Vec::new(), named, lanes_of }),
    }
}

fn list(args: &Get, kind: Kind, subscription: Option<&str>) -> List {
    let route = match kind {
        Kind::Lane => kind
            .route()
            .query_opt("subscription", subscription)
            .query_opt("state", args.lanes.state.as_ref())
            .query_opt("sort", args.lanes.sort.as_ref()),
        Kind::DeadLetter => filtered(kind.route(), &args.filter),
        Kind::Event => kind
            .route()
            .query_opt("type", args.filter.event_type.as_ref())
            .query_opt("order", args.events.after.is_none().then_some("desc")),
        _ => kind.route(),
    };
    // Pages of events follow each other by position.
    let cursor = match (kind, args.events.after) {
        (Kind::Event, Some(_)) => "after",
        (Kind::Event, None) => "before",
        _ => "cursor",
    };
    List { kind, route, cursor, after: args.events.after, limit: args.limit.limit }
}

pub fn filtered(route: Route, filter: &Filter) -> Route {
    route
        .query_opt("subscription", filter.subscription.as_ref())
        .query_opt("key", filter.key.as_ref())
        .query_opt("type", filter.event_type.as_ref())
        .query_opt("reason", filter.reason.as_ref())
        .query_opt("since", filter.since.as_ref().map(|moment| &moment.0))
        .query_opt("until", filter.until.as_ref().map(|moment| &moment.0))
}

fn put(groups: &mut Vec<Group>, kind: Kind, item: Value) {
    match groups.iter_mut().find(|group| group.kind == kind) {
        Some(group) => group.items.push(item),
        None => groups.push(Group { kind, items: vec![item], more: false }),
    }
}

/// A flag that does not apply to a type is an error: ignored, it would list too much.
fn check_flags(args: &Get, asked: &[Kind]) -> Result<(), Usage> {
    use Kind::{Agent, DeadLetter, Event, Function, Lane};
    let (filter, lanes, events) = (&args.filter, &args.lanes, &args.events);
    let flags: [(&str, bool, &[Kind]); 11] = [
        ("-l", args.selector.is_some(), &[Function, Agent]),
        ("--subscription", filter.subscription.is_some(), &[Lane, DeadLetter]),
        ("--key", filter.key.is_some(), &[DeadLetter]),
        ("--type", filter.event_type.is_some(), &[DeadLetter, Event]),
        ("--reason", filter.reason.is_some(), &[DeadLetter]),
        ("--since", filter.since.is_some(), &[DeadLetter]),
        ("--until", filter.until.is_some(), &[DeadLetter]),
        ("--state", lanes.state.is_some(), &[Lane]),
        ("--sort", lanes.sort.is_some(), &[Lane]),
        ("--source", events.source.is_some(), &[Event]),
        ("--after", events.after.is_some(), &[Event]),
    ];
    for (flag, _, kinds) in flags.into_iter().filter(|(_, is_given, _)| *is_given) {
        let Some(other) = asked.iter().find(|kind| !kinds.contains(kind)) else { continue };
        let kinds: Vec<&str> = kinds.iter().map(|kind| kind.plural_in_words()).collect();
        let why = if flag == "-l" { "have no labels" } else { "have no such filter" };
        return Err(Usage(format!(
            "{flag}: {} {why}; it works with {}",
            other.plural_in_words(),
            kinds.join(" and ")
        )));
    }
    match asked.contains(&Event) && args.watch {
        true => Err(Usage("events are not watched with get; use klambda event tail".to_owned())),
        false => Ok(()),
    }
}
