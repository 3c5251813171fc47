//! From a document to JSON, with every default filled in.

use super::header::header_json;
use super::{
    API_VERSION, Backlog, DeadLetters, Document, From, KIND, Named, Ordering, OrderingPolicy, Retry, Spec,
    Start, Target, Tls,
};
use crate::filter;
use crate::key::{SequenceSource, Source};
use crate::quantity::{format_bytes, format_duration_ms};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Secrets {
    Hidden,
    Shown,
}

pub(super) fn document(document: &Document, secrets: Secrets) -> Value {
    json!({
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": { "namespace": document.namespace, "name": document.name },
        "spec": spec(&document.spec, secrets),
    })
}

fn spec(spec: &Spec, secrets: Secrets) -> Value {
    let mut object = json!({
        "filters": filter::list_json(&spec.filters),
        "target": target(&spec.target, secrets),
        "from": from(spec.from),
        "ordering": spec.ordering.name(),
        "retry": retry(&spec.retry),
        "concurrency": spec.concurrency,
        "idempotency": { "ttl": format_duration_ms(spec.idempotency_ttl_ms) },
        "sequenceTtl": format_duration_ms(spec.sequence_ttl_ms),
        "backlog": backlog(&spec.backlog),
        "deadLetters": dead_letters(&spec.dead_letters),
        "paused": spec.paused,
    });
    if spec.ordering == Ordering::Ordered {
        object["orderingPolicy"] = policy(&spec.policy);
    }
    object
}

fn target(target: &Target, secrets: Secrets) -> Value {
    let target = match target {
        Target::Function(function) => {
            return json!({ "function": { "namespace": function.namespace, "name": function.name } });
        }
        Target::Url(target) => target,
    };
    let hide = secrets == Secrets::Hidden;
    let mut object = json!({ "url": target.url, "protocol": target.protocol.name() });
    if !target.headers.is_empty() {
        let headers =
            target.headers.iter().map(|(name, value)| (name.clone(), header_json(name, value, hide)));
        object["headers"] = headers.collect::<Map<_, _>>().into();
    }
    if target.tls != Tls::default() {
        object["tls"] = tls(&target.tls);
    }
    object
}

fn tls(tls: &Tls) -> Value {
    let files = [("caFile", &tls.ca_file), ("certFile", &tls.cert_file), ("keyFile", &tls.key_file)];
    let named = files.into_iter().filter_map(|(name, file)| Some((name.to_owned(), json!(file.as_ref()?))));
    named.collect::<Map<_, _>>().into()
}

fn from(from: From) -> Value {
    match from {
        From::Latest => json!("latest"),
        From::Earliest => json!("earliest"),
        From::Time(time) => json!(time.rfc3339()),
    }
}

fn policy(policy: &OrderingPolicy) -> Value {
    let mut object = json!({
        "strict": policy.strict,
        "gap": { "timeout": format_duration_ms(policy.gap_timeout_ms), "action": policy.gap_action.name() },
        "buffer": { "maxEvents": policy.buffer_events_max, "maxBytes": format_bytes(policy.buffer_bytes_max) },
        "onFailure": policy.on_failure.name(),
    });
    match &policy.key {
        Source::Default => {}
        Source::Attribute(name) => object["key"] = json!({ "attribute": name }),
        Source::Pointer(pointer) => object["key"] = json!({ "pointer": pointer.as_str() }),
    }
    let start = start(policy.start);
    match &policy.sequence {
        None => {}
        Some(SequenceSource::Attribute(name)) => {
            object["sequence"] = json!({ "attribute": name, "start": start })
        }
        Some(SequenceSource::Pointer(pointer)) => {
            object["sequence"] = json!({ "pointer": pointer.as_str(), "start": start });
        }
    }
    object
}

fn start(start: Start) -> Value {
    match start {
        Start::Auto => json!("auto"),
        Start::First => json!("first"),
        Start::At(sequence) => json!(sequence),
    }
}

fn retry(retry: &Retry) -> Value {
    json!({
        "attempts": retry.attempts.map_or(json!("unlimited"), |attempts| json!(attempts)),
        "backoff": format_duration_ms(retry.backoff_ms),
        "maxBackoff": format_duration_ms(retry.max_backoff_ms),
        "timeout": format_duration_ms(retry.timeout_ms),
    })
}

fn backlog(backlog: &Backlog) -> Value {
    json!({
        "maxEvents": backlog.events_max,
        "maxBytes": format_bytes(backlog.bytes_max),
        "maxAge": format_duration_ms(backlog.age_max_ms),
        "onFull": backlog.on_full.name(),
    })
}

fn dead_letters(letters: &DeadLetters) -> Value {
    json!({
        "maxEvents": letters.events_max,
        "ttl": format_duration_ms(letters.ttl_ms),
        "overflow": letters.overflow.name(),
    })
}
