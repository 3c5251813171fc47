//! Functions through the public interface: manifests in, plans out, run against a small model of a platform.
#![expect(clippy::unwrap_used, reason = "a failed test may panic")]

mod cases;
mod definitions;
mod events;
mod manifests;
mod platform;
mod random;
mod revisions;
mod secrets;
mod writes;

use klambda_core::time::Millis;
use klambda_functions::resource::{Form, Resource};
use klambda_functions::write::{self, Birth};
use serde_json::{Value, json};

fn birth(now: u64) -> Birth {
    Birth { uid: "uid-1".to_owned(), random: 7, now: Millis(now) }
}

fn inline(code: &str) -> Value {
    json!({
        "apiVersion": "lambda.knative.io/v1alpha1",
        "kind": "LambdaFunction",
        "metadata": { "name": "hello" },
        "spec": {
            "source": { "type": "inline", "inline": { "code": code } },
            "runtime": { "language": "nodejs" },
            "triggers": [{ "filter": { "type": "order.placed" } }],
        },
    })
}

fn git(url: &str) -> Value {
    let mut value = inline("");
    value["spec"]["source"] = json!({ "type": "git", "git": { "url": url } });
    value
}

fn created(value: &Value) -> Resource {
    write::create(value, Form::Manifest, birth(1000)).unwrap()
}
