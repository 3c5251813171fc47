//! The alerts: rules that Prometheus loads, that fire in the state they describe, and that resolve after the commands of
//! their runbook. Needs `prometheus` and `prometheus-alertmanager`, so most of it is ignored by default.

mod cases;
mod instance;
mod monitor;
mod runbook;
mod small_disk;
#[path = "../support/mod.rs"]
mod support;

use cases::{Case, Setup};
use instance::Instance;
use monitor::Monitor;
use runbook::{Runbook, SECTIONS};
use serde_json::Value;
use small_disk::SmallDisk;
use std::collections::BTreeSet;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::{Duration, Instant};
use support::markdown::blocks;
use support::{KLAMBDA, read, repository};

const RULES: &str = "deploy/alerts/klambda.rules.yaml";

/// Alerts on series that no server of this version can produce on one machine, and why. promtool tests their rules on
/// synthetic series.
const SYNTHETIC: [(&str, &str); 9] = [
    ("SourceDisconnected", "there are no event sources yet"),
    ("DataDamaged", "needs a damaged disk"),
    ("ContainedPanic", "needs a bug"),
    ("HighReconciliationFailureRate", "needs a bug"),
    ("ReconcileQueueDepth", "the operator for Kubernetes exports it"),
    ("RabbitMQConsumerBacklog", "RabbitMQ exports it"),
    ("LinkerdHighErrorRate", "Linkerd exports it"),
    ("LinkerdHighLatency", "Linkerd exports it"),
    ("AIAgentInvestigationQueueDepth", "the agent exports it"),
];

fn printed(words: &[&str]) -> String {
    let output = Command::new(KLAMBDA).args(words).env_clear().output().expect("klambda");
    assert!(output.status.success(), "{words:?}: {output:?}");
    String::from_utf8(output.stdout).expect("text")
}

fn rules() -> Vec<Value> {
    let file: Value = serde_json::from_str(&printed(&["alerts", "-o", "json"])).expect("JSON");
    let groups = file["groups"].as_array().cloned().unwrap_or_default();
    groups.iter().flat_map(|group| group["rules"].as_array().cloned().unwrap_or_default()).collect()
}

fn names() -> BTreeSet<String> {
    rules().iter().map(|rule| rule["alert"].as_str().expect("a name").to_owned()).collect()
}

#[test]
fn the_committed_rules_are_those_of_the_program() {
    assert_eq!(read(RULES), printed(&["alerts"]), "run: klambda alerts > {RULES}");
    let resource: Value =
        serde_json::from_str(&printed(&["alerts", "--kubernetes", "-o", "json"])).expect("JSON");
    assert_eq!(resource["kind"], "PrometheusRule");
    assert_eq!(resource["spec"]["groups"][0]["rules"][0]["alert"], "EventOrderViolation");
    assert!(printed(&["alerts", "--scale", "0.02"]).contains("[6s]"));
    let wrong = Command::new(KLAMBDA).args(["alerts", "--scale", "0"]).output().expect("klambda");
    assert_eq!(wrong.status.code(), Some(2));
}

#[test]
fn every_alert_has_a_runbook_with_the_same_sections() {
    let folder = repository().join("docs/operations/runbooks");
    let files = std::fs::read_dir(folder).expect("the runbooks").map(|entry| entry.expect("a file").path());
    let pages: BTreeSet<String> = files
        .map(|file| file.file_stem().unwrap_or_default().to_string_lossy().into_owned())
        .filter(|name| name != "README")
        .collect();
    assert_eq!(pages, names());
    for name in pages {
        let text = read(&format!("docs/operations/runbooks/{name}.md"));
        for section in SECTIONS {
            assert!(text.contains(&format!("\n## {section}\n")), "{name} has no section {section}");
        }
        let is_synthetic = SYNTHETIC.iter().any(|(alert, _)| *alert == name);
        let has_commands = blocks(&text).iter().any(|block| block.language == "sh");
        assert_ne!(is_synthetic, has_commands, "{name}: only commands that a test runs");
    }
    for rule in rules() {
        for annotation in ["summary", "description", "runbook_url"] {
            assert!(rule["annotations"][annotation].as_str().is_some_and(|text| !text.is_empty()), "{rule}");
        }
    }
}

#[test]
#[ignore = "needs promtool and amtool"]
fn promtool_accepts_the_rules_and_their_tests() {
    let run = |program: &str, words: &[&str]| {
        let output =
            Command::new(program).args(words).current_dir(repository().join("deploy/alerts")).output();
        let output = output.unwrap_or_else(|error| panic!("{program}: {error}"));
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "{program} {words:?}: {text}");
    };
    run("promtool", &["check", "rules", "klambda.rules.yaml"]);
    run("promtool", &["test", "rules", "tests.yaml", "tests-cost.yaml"]);
    run("amtool", &["check-config", "alertmanager.yaml"]);
    let tests = read("deploy/alerts/tests.yaml") + &read("deploy/alerts/tests-cost.yaml");
    for name in names() {
        assert!(tests.contains(&format!("alertname=\"{name}\"")), "no test lets {name} fire");
    }
}

#[test]
#[ignore = "needs prometheus and prometheus-alertmanager; takes up to two and a half minutes"]
fn every_alert_fires_and_resolves() {
    let started = Instant::now();
    let folder = tempfile::tempdir().expect("a folder");
    let start = |name: &str, settings: &[(&'static str, &'static str)]| {
        let own = folder.path().join(name);
        Instance::start(&own, own.join("data"), settings)
    };
    for name in ["main", "cost"] {
        support::shell::share_cache(&folder.path().join(name).join("data/functions"));
    }
    let main = start(
        "main",
        &[("KLAMBDA_DELIVERY_BREAKER_HALF_OPEN_AFTER", "2s"), ("KLAMBDA_FUNCTIONS_RATE_LIMITS_DELETES", "5")],
    );
    let cost = start(
        "cost",
        &[
            ("KLAMBDA_COST_MONTHLY_BUDGET", "0.2"),
            ("KLAMBDA_COST_FUNCTION_DAY_LIMIT", "0.01"),
            ("KLAMBDA_COST_SERVER_MONTH", "0"),
        ],
    );
    let [slow, stopped] = ["slow", "stopped"].map(|name| start(name, &[]));
    let disk = SmallDisk::mount("24m");
    let full = disk.as_ref().map(|disk| full_disk_server(folder.path(), disk));
    let servers: Vec<&Instance> = [Some(&main), Some(&cost), Some(&slow), Some(&stopped), full.as_ref()]
        .into_iter()
        .flatten()
        .collect();
    let addresses: Vec<&str> = servers.iter().map(|server| server.address.as_str()).collect();
    let monitor = Monitor::start(folder.path(), &addresses, &scaled());

    let mut setups = cases::of_server(&main);
    setups.extend(cases::of_slow_target(&slow));
    setups.extend(cases::of_cost(&cost, &monitor));
    setups.push(cases::server_down(&stopped));
    match (&full, &disk) {
        (Some(full), Some(disk)) => setups.extend(cases::of_full_disk(full, disk)),
        _ => eprintln!(
            "skipped: the alerts of a full disk, because this process may not mount one; run it as root"
        ),
    }
    let fired = all(&monitor, setups);

    let mut expected = names();
    SYNTHETIC.iter().for_each(|(name, _)| assert!(expected.remove(*name), "{name} is no alert"));
    if full.is_none() {
        expected.retain(|name| {
            !["StoreFull", "DiskSpaceLow"].contains(&name.as_str()) && !name.starts_with("Accept")
        });
    }
    assert_eq!(fired, expected, "alerts without a case");
    for annotations in monitor.annotations() {
        let text = annotations.to_string();
        assert!(!text.contains("<no value>") && !text.contains("{{"), "{text}");
    }
    every_query_of_the_dashboards_has_data(&monitor);
    eprintln!("{} alerts fired and resolved in {} s", fired.len(), started.elapsed().as_secs());
}

/// The rules with short durations. Those of costs look at days and months, so they are shortened more.
fn scaled() -> String {
    let groups = |scale: &str| {
        let file: Value =
            serde_json::from_str(&printed(&["alerts", "-o", "json", "--scale", scale])).expect("JSON");
        file["groups"].as_array().cloned().unwrap_or_default()
    };
    let is_cost = |group: &Value| group["name"] == "klambda-cost";
    let mut all: Vec<Value> = groups("0.02").into_iter().filter(|group| !is_cost(group)).collect();
    let mut cost = groups("0.00003").into_iter().filter(is_cost).collect::<Vec<Value>>();
    cost.iter_mut().for_each(|group| group["interval"] = "600ms".into());
    all.extend(cost);
    serde_json::json!({ "groups": all }).to_string()
}

fn every_query_of_the_dashboards_has_data(monitor: &Monitor) {
    let dashboards: Value = serde_json::from_str(&printed(&["dashboards"])).expect("JSON");
    let mut count = 0;
    for panel in dashboards
        .as_array()
        .into_iter()
        .flatten()
        .flat_map(|board| board["panels"].as_array().into_iter().flatten())
    {
        let query = panel["targets"][0]["expr"].as_str().expect("a query").replace("$__rate_interval", "2m");
        let found = monitor.query(&query).unwrap_or_else(|error| panic!("{query}: {error}"));
        assert!(found.iter().any(|series| series["value"][1] != "NaN"), "{query} has no data: {found:?}");
        count += 1;
    }
    assert!(count > 50, "{count} panels");
}

/// A wrong field or type fails the compiler of TypeScript with the types of Grafana.
#[test]
#[ignore = "needs npm packages @grafana/schema and typescript in the testbed"]
fn the_dashboards_have_the_types_of_grafana() {
    let given = std::env::var_os("KLAMBDA_TESTBED").map(std::path::PathBuf::from);
    let testbed = given.unwrap_or_else(|| repository().join("target/testbed"));
    let folder = tempfile::tempdir_in(&testbed).expect("a folder");
    let check = |dashboards: &str| {
        let file = folder.path().join("dashboards.ts");
        let text = format!(
            "import type {{ Dashboard }} from '@grafana/schema';\nexport const all: Dashboard[] = {dashboards};\n"
        );
        std::fs::write(&file, text).expect("written");
        let mut tsc = Command::new(testbed.join("node_modules/.bin/tsc"));
        tsc.args([
            "--noEmit",
            "--strict",
            "--skipLibCheck",
            "--module",
            "esnext",
            "--moduleResolution",
            "bundler",
        ]);
        let output = tsc.arg(&file).output().expect("tsc");
        (output.status.success(), String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let dashboards = printed(&["dashboards"]);
    assert_eq!(check(&dashboards), (true, String::new()));
    let (is_accepted, _) = check(&dashboards.replacen("\"editable\": true", "\"editable\": \"yes\"", 1));
    assert!(!is_accepted, "the types are not checked");
}

fn full_disk_server(folder: &Path, disk: &SmallDisk) -> Instance {
    let settings = [
        ("KLAMBDA_MEMORY", "16Mi"),
        ("KLAMBDA_LIMITS_BODY_BYTES", "1Mi"),
        ("KLAMBDA_STORE_SEGMENT_BYTES", "4Mi"),
        ("KLAMBDA_STORE_RESERVE_BYTES", "1Mi"),
    ];
    Instance::start(&folder.join("full"), disk.folder().join("data"), &settings)
}

/// Runs all cases side by side and returns the names of their alerts.
fn all<'a>(monitor: &Monitor, setups: Vec<Setup<'a>>) -> BTreeSet<String> {
    std::thread::scope(|scope| {
        let running: Vec<_> = setups.into_iter().map(|setup| scope.spawn(|| run(monitor, setup()))).collect();
        let names = running
            .into_iter()
            .map(|case| case.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
        names.map(str::to_owned).collect()
    })
}

fn run(monitor: &Monitor, case: Case<'_>) -> &'static str {
    let Case { alert, labels, variables, mut trouble, mut repair } = case;
    let runbook = Runbook::new(alert, variables);
    let fires = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            for n in 0.. {
                trouble(n);
                std::thread::sleep(Duration::from_millis(300));
                if fires.load(SeqCst) {
                    break;
                }
            }
        });
        let firing = Ending(&fires);
        monitor.wait(alert, "firing", &labels);
        runbook.see(monitor);
        drop(firing);
    });
    repair();
    runbook.fix();
    monitor.wait(alert, "resolved", &labels);
    runbook.prove();
    alert
}

/// Ends the trouble, also when the test fails.
struct Ending<'a>(&'a AtomicBool);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

#[test]
fn the_access_log_has_every_request_and_no_secret() {
    let folder = tempfile::tempdir().expect("a folder");
    let settings = [("KLAMBDA_LOG_ACCESS", "true"), ("KLAMBDA_LOG_FORMAT", "json")];
    let server = Instance::start(folder.path(), folder.path().join("data"), &settings);
    server.klambda("default", &["event", "send", "--type", "a"]);
    let secret = "do-not-log-this";
    let request = support::process::agent().get(format!("{}/api/v1/none?token={secret}", server.url()));
    request.header("x-secret", secret).call().expect("an answer");
    let log = support::eventually("two requests are logged", || {
        let log = std::fs::read_to_string(folder.path().join("serve.log")).expect("a log");
        let has = |path: &str, status: u16| {
            let mut lines = log.lines().filter_map(|line| serde_json::from_str::<Value>(line).ok());
            lines.any(|line| line["message"] == "Request" && line["path"] == path && line["status"] == status)
        };
        if has("/api/v1/events", 202) && has("/api/v1/none", 404) {
            Ok(log.clone())
        } else {
            Err(log.clone())
        }
    });
    assert!(!log.contains(secret), "{log}");
}
