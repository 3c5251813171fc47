//! What parses and what does not.

use super::*;
use clap::CommandFactory;

fn parse(line: &str) -> Result<Cli, clap::Error> {
    Cli::try_parse_from(std::iter::once("klambda").chain(line.split_whitespace()))
}

#[test]
fn the_grammar_is_consistent() {
    Cli::command().debug_assert();
}

#[test]
fn every_documented_form_parses() {
    for line in [
        "serve",
        "serve --listen 127.0.0.1:0 --data d --memory 64Mi --config c.yaml --token-file t --allow-host a --allow-host b",
        "serve --tls-cert c --tls-key k --log-format json --log-level info,klambda_store=debug",
        "apply -f a.yaml -f - -o json",
        "apply -f a.yaml -n shop",
        "get functions",
        "get fn hello other -n shop -o yaml",
        "get agents -A -o wide --limit 0",
        "describe function hello -n shop",
        "describe agent watcher",
        "delete function a b --wait",
        "delete agent a -n shop",
        "wait function hello --for=Ready --timeout 1m",
        "wait agent a b --for condition=BuildReady -n shop",
        "init nodejs",
        "init go orders --name orders-2",
        "dev",
        "dev orders --listen 127.0.0.1:0",
        "run",
        "run orders --data {} --type order.placed --timeout 5s",
        "run --data-file -",
        "run --event event.json",
        "invoke hello",
        "invoke agent/watcher --data {} --content-type application/json --type order.paid -n shop",
        "logs hello -f --tail 10",
        "logs function hello",
        "logs a agent/b --since 10m --event e --generation 3 -f",
        "logs -l app=shop --build",
        "logs hello -p --since 2026-01-01T00:00:00Z",
        "invoke agent watcher --data 1",
        "rebuild hello agent/watcher",
        "rebuild function hello",
        "history function hello other -n shop",
        "history agent watcher -o json",
        "rollback function hello",
        "rollback fn hello --to 3",
        "demo",
        "demo --plain --svg demo.svg --language nodejs",
        "demo --ui",
        "get subs",
        "get sub orders -o yaml",
        "get lanes --subscription orders --state parked --sort depth",
        "get lane orders order-42",
        "get dlq --since 2h --until 2026-01-01T00:00:00Z --reason late --limit 0",
        "get dl orders.1042",
        "get replays",
        "get ev e1 --source /shop",
        "get events --after 17 --type order.paid",
        "--server http://h:1 describe lane orders order-42",
        "describe deadletter orders.1042",
        "describe event e1 --source /shop",
        "delete subscription orders --drain",
        "delete deadletter a b",
        "delete -f a.yaml --yes",
        "get",
        "get all -o name",
        "get fn/a sub/b -w",
        "get functions -l app=x --sort-by age -o jsonpath={.items}",
        "get subs -o custom-columns=NAME:.metadata.name",
        "apply -f a.yaml --dry-run",
        "apply -f a.yaml --dry-run=server --prune --all",
        "apply -f a.yaml --wait --prune -l app=x --yes",
        "diff -f a.yaml",
        "edit subscription/orders",
        "edit function hello",
        "explain subscription.spec.retry",
        "version",
        "options",
        "lane purge lane/orders/k --yes",
        "delete replay r1",
        "event send --type t --key k --data {} --attribute a=b --attribute c=d --count 3 --sequence 7",
        "event send --type t --data -",
        "event send -f events.jsonl",
        "event tail --type order.* --after 0 --limit 3",
        "event receive",
        "event receive --listen 127.0.0.1:0 --status 503 --status-file s --fail-key a --fail-key b --delay 5ms --count 3",
        "namespace create shop --events-per-second 100 --backlog 1000 --subscriptions 5 --functions 2",
        "namespace create shop --replace",
        "ns get shop",
        "namespaces delete shop other",
        "get namespaces -o wide",
        "get -A lanes",
        "get events -A",
        "lane resume orders k -n shop",
        "token create ci --role producer -n shop --also billing --expires 90d",
        "token create root --role admin -A -o json",
        "token get",
        "get audit -n shop --limit 10",
        "get audit -A -o json",
        "token get ci -o yaml",
        "token delete ci other",
        "lane resume orders k",
        "lane skip orders k --yes",
        "lane reset orders k --expected 42",
        "dlq replay --subscription orders --id a b --dry-run --rate 10 --parallelism 2",
        "dlq replay --all --wait=false",
        "dlq purge --key k -y",
        "dlq edit orders.7",
        "dlq edit orders.7 --from-file - --replay",
        "subscription pause orders",
        "sub resume orders",
        "status --timeout 2s",
        "backup b.tar",
        "check data",
        "-o json check data",
        "bench",
        "config",
        "bench -o json --rounds 3",
        "-o json bench",
        "completion zsh",
    ] {
        parse(line).unwrap_or_else(|error| panic!("{line}: {error}"));
    }
}

#[test]
fn what_makes_no_sense_is_refused() {
    for line in [
        "get functions -A -n shop",
        "describe",
        "wait function hello --for=Happy",
        "init cobol",
        "run --event e.json --data {}",
        "run --event e.json --type t",
        "run --data {} --data-file d",
        "invoke pod/hello",
        "invoke hello --content-type text/plain",
        "logs hello --tail 0",
        "logs",
        "logs hello -l app=shop",
        "logs hello --since yesterday",
        "logs hello --previous --follow",
        "logs hello --previous --build",
        "logs hello --build --event e",
        "demo --language cobol",
        "demo --ui --svg demo.svg",
        "apply -f a --prune",
        "apply -f a --all",
        "apply -f a --dry-run --wait",
        "get subs -l a!!",
        "delete subscription x -f a.yaml",
        "edit",
        "edit a b c",
        "delete subscription orders --drain --discard",
        "event send",
        "event send -f x --type t",
        "event send --type t --attribute nothing",
        "event send --type t --count 0",
        "event receive --status 99",
        "event receive --delay soon",
        "lane pause orders k --expected 4",
        "lane reset orders k",
        "get dlq --since yesterday",
        "dlq edit",
        "dlq edit orders.7 orders.8",
        "status --timeout soon",
        "status --timeout 0",
        "status -o xml",
    ] {
        let error = parse(line).expect_err(line);
        assert_eq!(error.exit_code(), 2, "{line}");
    }
}

#[test]
fn a_kind_before_names_is_the_kind_of_all_of_them() {
    let names = |line: &str| {
        let Command::Rebuild(args) = parse(line).expect("it parses").command else { panic!("no rebuild") };
        let text = |one: Reference| match one.kind {
            Some(kind) => format!("{kind:?}/{}", one.name),
            None => one.name,
        };
        args.functions.references().into_iter().map(text).collect::<Vec<_>>()
    };
    assert_eq!(names("rebuild a agent/b"), ["a", "Agent/b"]);
    assert_eq!(names("rebuild function a b"), ["Function/a", "Function/b"]);
    assert_eq!(names("rebuild agents a function/b"), ["Agent/a", "Function/b"]);
    assert_eq!(names("rebuild function"), ["function"], "alone it is a name");
}
