//! Short texts about a function or agent of the API.

use crate::output::{cell, counted, text};
use serde_json::Value;

/// The conditions of a function that is ready.
const NEEDED: [&str; 5] = ["SourceReady", "BuildReady", "DeployReady", "ServiceReady", "TriggersReady"];

/// The progress of the last applied version.
#[derive(Debug, PartialEq, Eq)]
pub enum Progress {
    Underway,
    Done,
    /// It will not become ready by itself.
    Failed(String),
}

pub fn progress(item: &Value) -> Progress {
    if !is_current(item) {
        return Progress::Underway;
    }
    if let Some(fault) = fault(item) {
        return Progress::Failed(fault);
    }
    let is_true = |name: &&str| condition(item, name).is_some_and(|condition| condition["status"] == "True");
    let done = phase(item) == Some("Ready") && NEEDED.iter().all(is_true);
    if done { Progress::Done } else { Progress::Underway }
}

/// Whether the status is of the current spec.
pub fn is_current(item: &Value) -> bool {
    item["status"]["observedGeneration"] == item["metadata"]["generation"]
}

pub fn phase(item: &Value) -> Option<&str> {
    item["status"]["phase"].as_str()
}

pub fn condition<'a>(item: &'a Value, name: &str) -> Option<&'a Value> {
    conditions(item).iter().find(|condition| condition["type"] == name)
}

pub fn conditions(item: &Value) -> &[Value] {
    item["status"]["conditions"].as_array().map_or(&[], Vec::as_slice)
}

/// Message and reason of the first condition that is false.
fn fault(item: &Value) -> Option<String> {
    let wrong = |name: &&str| condition(item, name).filter(|condition| condition["status"] == "False");
    let condition = NEEDED.iter().find_map(wrong)?;
    Some(format!("{} ({})", cell(condition, "/message"), cell(condition, "/reason")))
}

/// The reason of the first condition that is not true.
pub fn reason(item: &Value) -> String {
    let wrong = |name: &&str| condition(item, name).filter(|condition| condition["status"] != "True");
    NEEDED.iter().find_map(wrong).map_or_else(|| "-".to_owned(), |found| cell(found, "/reason"))
}

pub fn ready(item: &Value) -> String {
    let ready = item["status"]["serviceStatus"]["ready"] == true;
    if ready { "True" } else { "False" }.to_owned()
}

/// The language, or the type of the source if that includes the runtime.
pub fn runtime(item: &Value) -> String {
    match (text(item, "/spec/runtime/language"), text(item, "/spec/runtime/version")) {
        (Some(language), Some(version)) => format!("{language} {version}"),
        (Some(language), None) => language,
        _ => cell(item, "/spec/source/type"),
    }
}

/// The origin of the code.
pub fn source(item: &Value) -> String {
    let Some(kind) = text(item, "/spec/source/type") else { return "none yet".to_owned() };
    let of = |name: &str| text(item, &format!("/spec/source/{kind}/{name}"));
    let named = match kind.as_str() {
        "inline" => of("code").map(|code| counted(code.lines().count() as u64, "line")),
        "git" => of("url").map(|url| {
            [Some(url), of("ref"), of("path")].into_iter().flatten().collect::<Vec<_>>().join(" ")
        }),
        "folder" => of("path"),
        "image" => of("uri"),
        "url" => of("url"),
        _ => of("bucket").zip(of("key")).map(|(bucket, key)| format!("{bucket}/{key}")),
    };
    named.map_or_else(|| kind.clone(), |named| format!("{kind}: {named}"))
}

/// The source of a revision, with the first digits of its commit or digest.
pub fn revision_source(item: &Value) -> String {
    const DIGITS: usize = 10;
    let name = ["/commit", "/sourceDigest"].iter().find_map(|at| text(item, at));
    let is_built = !matches!(text(item, "/spec/source/type").as_deref(), Some("image" | "url") | None);
    let name = name.filter(|_| is_built).map(|name| format!(" @{}", name.get(..DIGITS).unwrap_or(&name)));
    format!("{}{}", source(item), name.unwrap_or_default())
}

/// The phase, with the serving generation if it is not the desired one, and with a failed build behind it.
pub fn phase_in_words(item: &Value) -> String {
    let phase = cell(item, "/status/phase");
    let failed = matches!(text(item, "/status/buildStatus/outcome").as_deref(), Some("failed" | "timeout"));
    match serves(item) {
        Some((serves, wants)) => format!("{phase} (serves {serves}, wants {wants})"),
        None if phase == "Ready" && failed => format!("{phase} (last build failed)"),
        None => phase,
    }
}

/// The serving and the desired generation, if they differ.
pub fn serves(item: &Value) -> Option<(u64, u64)> {
    let service = &item["status"]["serviceStatus"];
    let serves = service["generation"].as_u64().filter(|_| service["ready"] == true)?;
    let wants = item["metadata"]["generation"].as_u64()?;
    (serves != wants).then_some((serves, wants))
}

/// The error of a delivery. An error that a function threw is JSON, often cut off; type and message are enough.
pub fn error(text: &str) -> String {
    let Some((status, body)) = text.split_once(": {") else { return text.to_owned() };
    let member = |name: &str| {
        let (_, rest) = body.split_once(&format!("\"{name}\":"))?;
        serde_json::Deserializer::from_str(rest).into_iter::<String>().next()?.ok()
    };
    match member("error").is_none().then(|| member("message")).flatten() {
        Some(message) => {
            format!("{status}: {}: {message}", member("type").unwrap_or_else(|| "Error".to_owned()))
        }
        None => text.to_owned(),
    }
}

/// The events that a trigger accepts.
pub fn trigger(trigger: &Value) -> String {
    let exact = |name: &str| text(trigger, &format!("/filter/{name}")).map(|value| format!("{name} {value}"));
    let exact: Vec<String> = ["type", "source"].into_iter().filter_map(exact).collect();
    match (exact.is_empty(), &trigger["filters"]) {
        (false, _) => exact.join(", "),
        (true, Value::Null) => "every event".to_owned(),
        (true, filters) => filters.to_string(),
    }
}

/// The target of a subscription.
pub fn target(subscription: &Value) -> String {
    match text(subscription, "/spec/target/function/name") {
        Some(name) => format!("function {}/{name}", cell(subscription, "/spec/target/function/namespace")),
        None => cell(subscription, "/spec/target/url"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn with(phase: &str, observed: u64, of: impl Fn(&str) -> &'static str) -> Value {
        let conditions: Vec<Value> = NEEDED
            .iter()
            .map(|name| json!({"type": name, "status": of(name), "reason": "Word", "message": "A sentence."}))
            .collect();
        json!({"metadata": {"generation": 2},
            "status": {"phase": phase, "observedGeneration": observed, "conditions": conditions}})
    }

    #[test]
    fn done_means_what_was_asked_for_last() {
        let all = |_: &str| "True";
        assert_eq!(progress(&with("Ready", 2, all)), Progress::Done);
        assert_eq!(progress(&with("Ready", 1, all)), Progress::Underway);
        let building = |name: &str| if name == "BuildReady" { "Unknown" } else { "True" };
        assert_eq!(progress(&with("Ready", 2, building)), Progress::Underway);
        let broken = |name: &str| if name == "BuildReady" { "False" } else { "True" };
        assert_eq!(progress(&with("Ready", 2, broken)), Progress::Failed("A sentence. (Word)".to_owned()));
        assert_eq!(reason(&with("Ready", 2, broken)), "Word");
        assert_eq!(reason(&with("Ready", 2, all)), "-");
    }

    #[test]
    fn what_a_function_threw_is_told_in_short() {
        let thrown =
            r#"HTTP 500: {"error": {"type": "TypeError", "message": "no \"x\"", "stack": "Traceback (mo…"#;
        assert_eq!(error(thrown), "HTTP 500: TypeError: no \"x\"");
        for other in [
            "HTTP 500",
            "HTTP 500: {\"title\": \"a\"}",
            "cannot connect to {",
            "HTTP 500: {\"error\": {\"message\": \"cut…",
        ] {
            assert_eq!(error(other), other);
        }
    }

    #[test]
    fn sources_and_targets() {
        assert_eq!(
            trigger(&json!({"broker": "b", "filter": {"type": "a", "source": "/s"}})),
            "type a, source /s"
        );
        assert_eq!(trigger(&json!({"broker": "b"})), "every event");
        assert_eq!(trigger(&json!({"filters": [{"exact": {"type": "a"}}]})), r#"[{"exact":{"type":"a"}}]"#);
        let from = |source: Value| super::source(&json!({"spec": {"source": source}}));
        assert_eq!(from(json!({"type": "inline", "inline": {"code": "a\nb\n"}})), "inline: 2 lines");
        assert_eq!(
            from(json!({"type": "git", "git": {"url": "https://h/r", "path": "p"}})),
            "git: https://h/r p"
        );
        assert_eq!(from(json!({"type": "s3", "s3": {"bucket": "b", "key": "k.zip"}})), "s3: b/k.zip");
        assert_eq!(source(&json!({"spec": {}})), "none yet");
        let target = |target: Value| super::target(&json!({"spec": {"target": target}}));
        assert_eq!(
            target(json!({"function": {"namespace": "default", "name": "hello"}})),
            "function default/hello"
        );
        assert_eq!(target(json!({"url": "http://h/"})), "http://h/");
    }
}
