//! Tests of the documents: every command in them is run, and every name in them exists.

mod support;

use bytes::Bytes;
use klambda_core::event::{self, Data, Event};
use klambda_core::kinds;
use klambda_core::subscription::{Document, spec_schema};
use klambda_core::{event_type, webhook};
use klambda_functions::events::{ALIASES, command};
use klambda_functions::failure::Reason;
use klambda_functions::resource::{Form, Resource};
use klambda_server::config::{self, Config};
use klambda_server::problem::KINDS;
use klambda_server::routes::routes;
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::process::Command;
use support::generated::{section, table};
use support::markdown::{blocks, links, rows};
use support::process::{Server, agent};
use support::session::{follow, transcript_of};
use support::{KLAMBDA, eventually, read, repository};

// ---- commands -------------------------------------------------------------------------------------------------

#[test]
fn the_readme() {
    follow("README.md");
    let transcript = std::fs::read_to_string(transcript_of("README.md")).expect("a transcript of the tour");
    for block in
        blocks(&read("README.md")).iter().filter(|block| block.language == "sh" && !block.has("skip"))
    {
        let command = block.text.lines().next().unwrap_or_default();
        assert!(transcript.contains(command), "{command} is not in the transcript");
    }
}

#[test]
fn the_guide_on_sending() {
    follow("docs/guide/sending.md");
}

#[test]
fn the_guide_on_subscriptions() {
    follow("docs/guide/subscriptions.md");
}

#[test]
fn the_guide_on_sequences() {
    follow("docs/guide/sequences.md");
}

#[test]
fn the_guide_on_dead_letters() {
    follow("docs/guide/dead-letters.md");
}

#[test]
fn the_guide_on_namespaces() {
    follow("docs/guide/namespaces.md");
}

#[test]
fn the_guide_on_receiving() {
    follow("docs/guide/receiving.md");
}

#[test]
fn the_guide_on_functions() {
    follow("docs/guide/functions.md");
}

#[test]
fn the_guide_on_developing() {
    follow("docs/guide/develop.md");
}

#[test]
fn the_guide_on_secrets() {
    follow("docs/guide/secrets.md");
}

#[test]
fn the_guide_on_access() {
    follow("docs/guide/access.md");
}

#[test]
fn the_guide_on_webhooks() {
    follow("docs/guide/webhooks.md");
}

#[test]
fn the_reference_of_the_rest_api() {
    follow("docs/reference/rest.md");
}

#[test]
fn the_operations_guide() {
    follow("docs/operations/backup.md");
}

#[test]
fn the_recovery_guide() {
    follow("docs/operations/recovery.md");
}

/// A page with commands that no test above follows would never be run.
#[test]
fn every_page_with_commands_is_followed() {
    let own = read("crates/cli/tests/docs.rs");
    // The test of the alerts runs the commands of the runbooks.
    for page in pages().into_iter().filter(|page| !page.starts_with("docs/operations/runbooks/")) {
        let runs = |block: &support::markdown::Block| block.language == "sh" && !block.has("skip");
        if blocks(&read(&page)).iter().any(runs) {
            assert!(own.contains(&format!("follow(\"{page}\")")), "{page} has commands and is not followed");
        }
    }
}

// ---- names ----------------------------------------------------------------------------------------------------

#[test]
fn problems() {
    let rows = KINDS.iter().map(|kind| {
        vec![
            format!("`{}`", kind.slug),
            kind.status.as_u16().to_string(),
            kind.title.into(),
            kind.about.into(),
        ]
    });
    let head = ["type", "status", "title", "what it means and what to do"];
    section("docs/reference/problems.md", "problems", &table(&head, rows));
}

#[test]
fn settings() {
    section(
        "docs/reference/configuration.md",
        "default file",
        &format!("```yaml\n{}```", config::DEFAULT_FILE),
    );
}

#[test]
fn strategies() {
    let rows = kinds::TABLE
        .iter()
        .map(|(kind, strategy, why)| vec![format!("`{kind}`"), format!("`{strategy}`"), (*why).to_owned()]);
    section("docs/guide/dead-letters.md", "strategies", &table(&["type", "strategy", "because"], rows));
    let configured = Config::default().replay.strategies;
    let configured: BTreeMap<_, _> =
        configured.iter().map(|(kind, how)| (kind.as_str(), format!("{how:?}"))).collect();
    let documented = kinds::TABLE.iter().map(|(kind, how, _)| (*kind, format!("{how:?}"))).collect();
    assert_eq!(configured, documented, "the default configuration differs from the documented table");
}

#[test]
fn events_of_the_platform() {
    let page = read("docs/reference/events.md");
    let (sent, accepted) = page.split_once("## Commands").expect("two parts");
    for (kind, ..) in kinds::TABLE {
        assert!(sent.contains(&format!("| `{kind}` |")), "{kind} is not on the page");
    }
    let aliases = ALIASES.iter().map(|(alias, _)| *alias);
    for kind in kinds::TABLE.iter().map(|(kind, ..)| *kind).chain(aliases) {
        let data = Data { bytes: Bytes::from_static(b"{}"), form: event::Form::Json };
        let (id, source) = ("1".to_owned(), "/docs".to_owned());
        let event = Event { id, source, kind: kind.to_owned(), attributes: Vec::new(), data: Some(data) };
        let is_accepted = !matches!(command(&event, "default"), Ok(None));
        assert_eq!(accepted.contains(&format!("`{kind}`")), is_accepted, "{kind}");
    }
}

#[test]
fn commands() {
    let help = |words: &[&str]| {
        let mut command = Command::new(KLAMBDA);
        // The help shows values from the environment.
        command.args(words).arg("-h").env_clear();
        let output = command.output().expect("help");
        String::from_utf8(output.stdout).expect("text")
    };
    let whole = help(&[]);
    let options = Command::new(KLAMBDA).arg("options").env_clear().output().expect("options");
    let options = String::from_utf8(options.stdout).expect("text");
    let (global, codes) = options.split_once("Exit codes:").expect("exit codes");
    let global = global.trim_start_matches("Global options:");
    section("docs/reference/cli.md", "global", &format!("```text\n{}\n```", trimmed(global)));
    let mut text = format!("```text\n{}\n```\n", trimmed(&whole));
    text.push_str(&format!("\n## Exit codes\n\n```text\n{}\n```\n", trimmed(codes)));
    for command in subcommands(&whole).into_iter().chain(others(&whole)) {
        describe(&[&command], &help, &mut text);
    }
    section("docs/reference/cli.md", "commands", &text);
}

/// The commands that the help of the program only names, except those that this page describes elsewhere.
fn others(help: &str) -> Vec<String> {
    let (_, named) = help.split_once("Others:").expect("other commands");
    let named = named.split_once("\n\n").map_or(named, |(named, _)| named);
    let names = named.split(',').map(|name| name.trim().to_owned());
    names.filter(|name| name != "options" && name != "version").collect()
}

fn describe(words: &[&str], help: &dyn Fn(&[&str]) -> String, text: &mut String) {
    let said = help(words);
    let inner = subcommands(&said);
    if inner.is_empty() {
        let (own, global) = said.split_once("Global options:").unwrap_or((&said, ""));
        let after = global.split_once("\n\n").map(|(_, after)| after).unwrap_or_default();
        let own = trimmed(&format!("{own}{after}"));
        text.push_str(&format!("\n## `klambda {}`\n\n```text\n{own}\n```\n", words.join(" ")));
    }
    for command in inner {
        describe(&[words, &[command.as_str()]].concat(), help, text);
    }
}

/// Lines without the blanks at their ends.
fn trimmed(text: &str) -> String {
    let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
    lines.join("\n").trim_matches('\n').to_owned()
}

/// The commands listed under a heading like `Commands:` or `Server commands:`.
fn subcommands(help: &str) -> Vec<String> {
    let mut names = Vec::new();
    let mut is_listed = false;
    for line in help.lines().filter(|line| !line.is_empty()) {
        match line.strip_prefix("  ") {
            None => is_listed = line.to_lowercase().ends_with("commands:"),
            Some(entry) if is_listed && !entry.starts_with(' ') => {
                names.extend(entry.split_whitespace().next().map(str::to_owned));
            }
            Some(_) => {}
        }
    }
    names.retain(|name| name != "help");
    names
}

/// The table has every field of the schema and no other, with its default and its bounds, and the example is a valid
/// document that says each of them.
#[test]
fn fields_of_a_subscription() {
    let full = |example: &Value| {
        Document::parse(example).unwrap_or_else(|faults| panic!("{faults:?}")).to_json()["spec"].take()
    };
    // The server's own subscriptions have them; documents of people do not.
    let of_server = ["target.function", "target.endpoint"];
    fields("docs/reference/subscription.md", &spec_schema().published(), full, &of_server);
}

#[test]
fn fields_of_a_webhook_endpoint() {
    let full = |example: &Value| {
        webhook::Document::parse(example).unwrap_or_else(|faults| panic!("{faults:?}")).to_json()["spec"]
            .take()
    };
    fields("docs/reference/webhook.md", &webhook::spec_schema().published(), full, &[]);
}

#[test]
fn fields_of_an_event_type() {
    let full = |example: &Value| {
        event_type::Document::parse(example).unwrap_or_else(|faults| panic!("{faults:?}")).to_json()["spec"]
            .take()
    };
    fields("docs/reference/event-type.md", &event_type::spec_schema().published(), full, &[]);
}

fn fields(page: &str, schema: &Value, full: impl Fn(&Value) -> Value, of_server: &[&str]) {
    let text = read(page);
    let example = blocks(&text).into_iter().find(|block| block.language == "yaml").expect("an example");
    let example: Value = serde_saphyr::from_str(&example.text).expect("YAML");
    let full = full(&example);

    let rows = rows(&text);
    let documented: BTreeMap<&str, &[String]> = rows
        .iter()
        .filter(|row| row.len() == 4)
        .map(|row| (row[0].trim_matches('`'), row.as_slice()))
        .collect();
    let is_part = |path: &str, name: &str| path == name || path.starts_with(&format!("{name}."));
    let mut fields = BTreeMap::new();
    schema_fields("", schema, &mut fields);
    for (path, field) in &fields {
        let Some(row) = documented.get(path.as_str()) else {
            assert!(documented.keys().any(|name| is_part(path, name)), "{path} is not in the table");
            continue;
        };
        if let Some(default) = field.get("default") {
            let said = default.as_str().map_or_else(|| default.to_string(), str::to_owned);
            assert_eq!(row[1].trim_matches('`'), said, "the default of {path}");
        }
        if let Some(bounds) = bounds(field) {
            assert!(row[2].starts_with(&bounds), "{path} may be {bounds}, and the table says {}", row[2]);
        }
    }
    let mut used = BTreeMap::new();
    leaves("", &full, &mut used);
    for name in documented.keys() {
        assert!(fields.keys().any(|path| is_part(path, name)), "{name} is in the table, but is no field");
        let in_example = of_server.contains(name) || used.keys().any(|path| is_part(path, name));
        assert!(in_example, "{name} is in the table, but not in the example");
    }
}

/// Every field of a schema that has none inside.
fn schema_fields(path: &str, schema: &Value, found: &mut BTreeMap<String, Value>) {
    let Some(properties) = schema["properties"].as_object() else {
        found.insert(path.to_owned(), schema.clone());
        return;
    };
    for (name, property) in properties {
        let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        schema_fields(&path, property, found);
    }
}

/// The values of a field, from a table.
fn bounds(field: &Value) -> Option<String> {
    if let Some(words) = field["enum"].as_array() {
        let words = words.iter().filter_map(Value::as_str).map(|word| format!("`{word}`"));
        return Some(words.collect::<Vec<_>>().join(", "));
    }
    if field["type"] == "integer" {
        return Some(format!("{} to {}", field["minimum"], field["maximum"]));
    }
    let (_, amounts) = field["description"].as_str()?.rsplit_once("Between ")?;
    Some(amounts.trim_end_matches('.').replace(" and ", " to "))
}

/// The documents are valid, say every field of the tables and no other, and the defaults are those of one that says little.
#[test]
fn fields_of_a_function() {
    let text = read("docs/reference/function.md");
    let yaml = blocks(&text).into_iter().filter(|block| block.language == "yaml");
    let documents = yaml.flat_map(|block| serde_saphyr::from_multiple::<Value>(&block.text).expect("YAML"));
    let mut used = BTreeMap::new();
    for document in documents {
        let faults = Resource::parse(&document, Form::Manifest).err();
        assert!(faults.is_none(), "{faults:?}");
        leaves("", &document["spec"], &mut used);
    }
    let mut documented = BTreeMap::new();
    let fields = text.split("\n## Status\n").next().unwrap_or_default();
    for row in rows(fields) {
        let [names, default, _] = row.as_slice() else { panic!("{row:?} has not three cells") };
        for name in names.split(", ").map(|name| name.trim_matches('`')) {
            let of_source = used.contains_key(&format!("source.{name}")) || name.ends_with("Ref");
            let path = if of_source { format!("source.{name}") } else { name.to_owned() };
            documented.insert(path, default.trim_matches('`').to_owned());
        }
    }
    let is_part = |path: &str, name: &str| path == name || path.starts_with(&format!("{name}."));
    for path in documented.keys() {
        assert!(used.keys().any(|used| is_part(used, path)), "{path} is in a table, but in no document");
    }
    for path in used.keys() {
        assert!(
            documented.keys().any(|name| is_part(path, name)),
            "{path} is in a document, but in no table"
        );
    }
    let minimal = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "LambdaFunction", "metadata": {"name": "a"},
        "spec": {"source": {"type": "inline", "inline": {"code": "x"}}, "runtime": {"language": "go"}}});
    let minimal = Resource::parse(&minimal, Form::Manifest).expect("valid").to_json();
    let mut defaults = BTreeMap::new();
    leaves("", &minimal["spec"], &mut defaults);
    for said in ["source.type", "source.inline.code", "runtime.language"] {
        defaults.remove(said);
    }
    for (path, value) in defaults {
        let shown = documented.get(&path).unwrap_or_else(|| panic!("{path} is in no table"));
        assert_eq!(*shown, value.as_str().map_or_else(|| value.to_string(), str::to_owned), "{path}");
    }
}

#[test]
fn reasons_of_conditions() {
    let rows = Reason::ALL.iter().map(|reason| {
        let again = if reason.may_pass() { "yes" } else { "no" };
        vec![format!("`{}`", reason.name()), again.to_owned(), format!("{}.", reason.advice())]
    });
    let head = ["reason", "tried again by itself", "what to do"];
    section("docs/reference/function.md", "reasons", &table(&head, rows));
}

fn leaves(path: &str, value: &Value, found: &mut BTreeMap<String, Value>) {
    match value {
        Value::Object(members) => members.iter().for_each(|(name, value)| {
            let path = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
            leaves(&path, value, found);
        }),
        other => drop(found.insert(path.to_owned(), other.clone())),
    }
}

#[test]
fn resources() {
    let wanted: BTreeSet<&str> =
        routes().iter().map(|route| route.path).filter(|path| *path != "/health").collect();
    let text = read("docs/reference/rest.md");
    let codes = support::markdown::codes(&text);
    let paths = codes.iter().filter_map(|code| code.split_once(' ')).filter_map(|(method, path)| {
        let is_method = ["GET", "PUT", "POST", "DELETE"].contains(&method);
        is_method.then(|| path.split('?').next().unwrap_or(path))
    });
    let documented: BTreeSet<&str> = paths.collect();
    let missing: Vec<_> = wanted.difference(&documented).collect();
    assert!(missing.is_empty(), "not in docs/reference/rest.md: {missing:?}");
    let actions = ["/api/v1/subscriptions/{name}/pause"];
    let unknown: Vec<_> = documented.difference(&wanted).filter(|path| !actions.contains(path)).collect();
    assert!(unknown.is_empty(), "in docs/reference/rest.md, but not in the server: {unknown:?}");
}

#[test]
fn needs_of_resources() {
    let rows = routes()
        .into_iter()
        .map(|route| vec![format!("`{} {}`", route.method, route.path), route.need.to_string()]);
    section("docs/reference/access.md", "routes", &table(&["address", "needs"], rows));
}

// ---- metrics --------------------------------------------------------------------------------------------------

#[test]
fn metrics() {
    let folder = tempfile::tempdir().expect("a folder");
    let server = Server::with(folder.path(), &[("KLAMBDA_FUNCTIONS_RATE_LIMITS_DELETES", "1")]);
    count_something(&server.url);
    let text = eventually("every metric has a sample", || {
        let text = scrape(&server.url);
        let mut bare = families(&text).into_iter().filter(|family| !family.sampled);
        bare.next().map_or(Ok(text.clone()), |family| Err(format!("{} has none", family.name)))
    });
    let rows = families(&text).into_iter().map(|family| {
        let labels: Vec<String> = family.labels.iter().map(|label| format!("`{label}`")).collect();
        vec![format!("`{}`", family.name), family.kind, labels.join(", "), family.help]
    });
    section("docs/reference/metrics.md", "metrics", &table(&["metric", "type", "labels", "meaning"], rows));
    for name in named_metrics() {
        let known = families(&text).iter().any(|family| name == family.name || is_part(&name, family));
        assert!(known, "the documents name the metric {name}, which the server does not have");
    }
}

/// Histograms have parts of their own name.
fn is_part(name: &str, family: &Family) -> bool {
    family.kind == "histogram"
        && ["_bucket", "_sum", "_count"].iter().any(|end| name == format!("{}{end}", family.name))
}

/// Words of the documents that can only be metrics.
fn named_metrics() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    // The runbook of an alert for a later version, and the operator, which has metrics of its own.
    let is_other = |page: &str| page.ends_with("/SourceDisconnected.md") || page.ends_with("/cluster.md");
    for page in pages().into_iter().filter(|page| page.starts_with("docs/") && !is_other(page)) {
        let text = read(&page);
        let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let is_metric = |word: &&str| {
            let ours = ["klambda_", "operator_", "event_", "events_", "cloudevents_", "duplicate_"];
            ours.iter().any(|start| word.starts_with(start)) && !word.ends_with('_')
        };
        found.extend(words.filter(is_metric).map(str::to_owned));
    }
    // Crates, files and members of log lines have names of this kind, too.
    let others = [
        "klambda_store",
        "klambda_dispatch",
        "event_codec",
        "event_id",
        "event_sequence",
        "event_source",
        "event_type",
    ];
    found.retain(|word| !others.contains(&word.as_str()));
    found
}

struct Family {
    name: String,
    kind: String,
    help: String,
    labels: BTreeSet<String>,
    sampled: bool,
}

fn families(text: &str) -> Vec<Family> {
    let mut families: Vec<Family> = Vec::new();
    for line in text.lines() {
        if let Some((name, help)) = line.strip_prefix("# HELP ").and_then(|rest| rest.split_once(' ')) {
            let (kind, labels) = (String::new(), BTreeSet::new());
            families.push(Family { name: name.into(), kind, help: help.into(), labels, sampled: false });
        } else if let (Some(rest), Some(family)) = (line.strip_prefix("# TYPE "), families.last_mut()) {
            family.kind = rest.split(' ').nth(1).unwrap_or_default().to_owned();
        } else if let Some(family) = families.last_mut() {
            family.sampled = true;
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.split_once('}'))
                .map_or("", |(inner, _)| inner);
            let names = labels.split("\",").filter_map(|label| label.split_once('=')).map(|(name, _)| name);
            family.labels.extend(names.filter(|name| *name != "le").map(str::to_owned));
        }
    }
    families
}

fn scrape(url: &str) -> String {
    let mut answer = agent().get(format!("{url}/metrics")).call().expect("metrics");
    answer.body_mut().read_to_string().expect("text")
}

/// Two dead letters where one is kept, so that everything that is counted by reason has been; a function, and requests
/// that are too many.
fn count_something(url: &str) {
    let code = json!({"type": "inline", "inline": {"code": "exports.handler = () => ({});"}});
    let spec =
        json!({"source": code, "runtime": {"language": "nodejs"}, "triggers": [{"filter": {"type": "t"}}]});
    let function = json!({"metadata": {"name": "f"}, "spec": spec});
    let posted =
        agent().post(format!("{url}/api/v1/lambda/functions")).send_json(&function).expect("an answer");
    assert_eq!(posted.status(), 202);
    for _ in 0..2 {
        agent().delete(format!("{url}/api/v1/lambda/functions/none")).call().expect("an answer");
    }
    let document = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "a"},
        "spec": {"target": {"url": "http://127.0.0.1:9/"}, "ordering": "ordered",
            "orderingPolicy": {"key": {"attribute": "partitionkey"}}, "deadLetters": {"maxEvents": 1}}});
    let put = agent().put(format!("{url}/api/v1/subscriptions/a")).send_json(&document).expect("an answer");
    assert_eq!(put.status(), 201);
    let endpoint = json!({"name": "partner", "url": "http://127.0.0.1:9/", "types": ["none"]});
    let posted =
        agent().post(format!("{url}/api/v1/webhooks/endpoints")).send_json(&endpoint).expect("an answer");
    assert_eq!(posted.status(), 201);
    let event_type = json!({"apiVersion": "lambda.knative.io/v1alpha1", "kind": "EventType", "metadata": {"name": "t"},
        "spec": {"schema": {"type": "object"}}});
    let put = agent().put(format!("{url}/api/v1/event-types/t")).send_json(&event_type).expect("an answer");
    assert_eq!(put.status(), 201);
    let check = json!({"spec": {"schemaCheck": "flag"}});
    let put = agent().put(format!("{url}/api/v1/namespaces/default")).send_json(&check).expect("an answer");
    assert_eq!(put.status(), 200);
    for id in ["1", "2"] {
        let event = json!({"specversion": "1.0", "type": "t", "source": "/s", "id": id});
        let sent = agent()
            .post(format!("{url}/api/v1/events"))
            .content_type("application/cloudevents+json")
            .send(event.to_string())
            .expect("an answer");
        assert_eq!(sent.status(), 202);
    }
}

// ---- links and paths ------------------------------------------------------------------------------------------

#[test]
fn links_lead_somewhere() {
    for page in pages() {
        let folder = Path::new(&page).parent().unwrap_or(Path::new("")).to_owned();
        for link in links(&read(&page)).iter().filter(|link| !link.contains("://")) {
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() {
                repository().join(&page)
            } else {
                repository().join(&folder).join(path)
            };
            assert!(target.exists(), "{page}: {link} leads nowhere");
            if !anchor.is_empty() {
                let text = std::fs::read_to_string(&target).expect("a page");
                assert!(
                    text.lines().any(|line| anchor_of(line) == anchor),
                    "{page}: {link} has no such heading"
                );
            }
        }
    }
}

/// The anchor of a heading.
fn anchor_of(line: &str) -> String {
    let heading = line.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.map(|c| if c == ' ' { '-' } else { c }).collect()
}

/// Every file of the code is named in the map of it, and every path there exists.
#[test]
fn the_architecture_names_every_file() {
    let text = read("ARCHITECTURE.md");
    for named in support::markdown::codes(&text).iter().filter(|code| code.starts_with("crates/")) {
        assert!(repository().join(named).exists(), "ARCHITECTURE.md: {named} does not exist");
    }
    for name in ["core", "store", "dispatch", "functions", "build", "local", "control", "server", "cli"] {
        let map = text.split_once(&format!("### `crates/{name}`")).expect("a part of the map").1;
        let map = map.split("\n### ").next().unwrap_or_default();
        for entry in std::fs::read_dir(repository().join(format!("crates/{name}/src"))).expect("a folder") {
            let file = entry.expect("an entry").file_name().into_string().expect("a name");
            let stem = file.trim_end_matches(".rs");
            let is_module = file.ends_with(".rs") && !["lib", "main"].contains(&stem);
            assert!(
                !is_module || map.contains(&format!("`{stem}")),
                "ARCHITECTURE.md does not name {file} of {name}"
            );
        }
    }
}

/// All pages, from the repository's folder.
fn pages() -> Vec<String> {
    let mut pages: Vec<String> =
        ["README.md", "ARCHITECTURE.md", "docs/README.md"].map(str::to_owned).to_vec();
    for folder in ["docs/guide", "docs/reference", "docs/operations", "docs/operations/runbooks"] {
        for entry in std::fs::read_dir(repository().join(folder)).expect("a folder") {
            let name = entry.expect("an entry").file_name().into_string().expect("a name");
            pages.extend(name.ends_with(".md").then(|| format!("{folder}/{name}")));
        }
    }
    pages.sort();
    pages
}
