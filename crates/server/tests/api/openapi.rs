//! The description of the API against the routes themselves.

use crate::world::World;
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Routes that take what they know and ignore the rest, or answer before they look at parameters.
const WITHOUT_CHECK: [&str; 4] = ["/healthz", "/health", "/readyz", "/metrics"];

/// A route rejects a parameter that it does not know, and lists those that it knows.
#[tokio::test]
async fn every_route_has_the_parameters_that_are_described() {
    let world = World::new().await;
    let document = world.get("/api/v1/openapi.json").await.json();
    let mut checked = 0;
    for (path, methods) in document["paths"].as_object().unwrap() {
        for (method, operation) in methods.as_object().unwrap() {
            if WITHOUT_CHECK.contains(&path.as_str()) {
                continue;
            }
            let address = format!("{}?zzzzzzzzzzzzzzzz=1", address(path, operation));
            let answer = world.ask(&method.to_uppercase(), &address, &[], "").await;
            assert_eq!(answer.status, 400, "{method} {path}: {answer:?}");
            assert_eq!(known(&answer.json()), described(operation), "{method} {path}: {answer:?}");
            checked += 1;
        }
    }
    assert!(checked > 70, "{checked}");
}

fn address(path: &str, operation: &Value) -> String {
    let mut address = path.to_owned();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let (name, example) = (parameter["name"].as_str().unwrap(), parameter["example"].as_str());
        address = address.replace(&format!("{{{name}}}"), example.unwrap_or_default());
    }
    address
}

/// From the message: `unknown parameter … expected one of a, b`.
fn known(problem: &Value) -> BTreeSet<String> {
    let faults = problem["faults"].as_array().cloned().unwrap_or_default();
    let unknown = faults.iter().filter(|fault| fault["path"] == "zzzzzzzzzzzzzzzz");
    let message = unknown.filter_map(|fault| fault["message"].as_str()).next().unwrap_or_default();
    match message.split_once("expected one of ") {
        Some((_, names)) => names.split(", ").map(str::to_owned).collect(),
        None if message.contains("has no parameters") => BTreeSet::new(),
        None => panic!("no list of parameters in {problem}"),
    }
}

fn described(operation: &Value) -> BTreeSet<String> {
    let parameters = operation["parameters"].as_array().into_iter().flatten();
    let of_query =
        parameters.filter(|parameter| parameter["in"] == "query" && parameter["name"] != json!("namespace"));
    of_query.map(|parameter| parameter["name"].as_str().unwrap().to_owned()).collect()
}
