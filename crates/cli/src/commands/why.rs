//! Why a lane waits, and what to do about it.

use super::describe::duration_of;
use crate::function::error;
use crate::output::{Sheet, Table, cell, counted, number, text};
use crate::time::{age_of, fixed, relative};
use klambda_core::namespace;
use klambda_core::time::Millis;
use serde_json::Value;
use std::io::Write;

pub fn lane(out: &mut dyn Write, lane: &Value, now: Millis) -> anyhow::Result<()> {
    facts(lane, now).write(out)?;
    let advice = advice(lane);
    if !advice.is_empty() {
        writeln!(out, "What to do:")?;
    }
    let width = advice.iter().map(|(command, _)| command.chars().count()).max().unwrap_or(0);
    for (command, effect) in &advice {
        writeln!(out, "  {command:<width$}   {effect}")?;
    }
    timeline(lane, now).map_or(Ok(()), |table| {
        writeln!(out, "Timeline:")?;
        table.write(out, "  ")
    })?;
    Ok(())
}

fn facts(lane: &Value, now: Millis) -> Sheet {
    let mut sheet = Sheet::default();
    let since = text(lane, "/since");
    let age = since.as_deref().map(|at| format!(" for {} (since {at})", age_of(Some(at), now)));
    sheet.line_opt("Namespace", other_namespace(lane));
    sheet.line("Subscription", cell(lane, "/subscription"));
    sheet.line("Key", cell(lane, "/key"));
    sheet.line("State", format!("{}{}", cell(lane, "/state"), age.unwrap_or_default()));
    sheet.line("Why", reason(lane, now));
    sheet.line_opt("Waiting for", text(lane, "/waitsFor"));
    sheet.line("Depth", number(lane, "/depth"));
    if lane["head"].is_object() {
        sheet.line("First event", head(lane));
        sheet.line_opt("Edited", edited(&lane["head"], now));
        sheet.line("Attempts", number(lane, "/head/attempts"));
        sheet.line_opt("Last error", text(lane, "/head/lastError").map(|said| error(&said)));
        sheet.line_opt("Next attempt", text(lane, "/head/nextAttempt").map(|at| relative(&at, now)));
    }
    sheet.line_opt("Lane sequence", text(lane, "/laneSequence"));
    sheet.line_opt("Expected sequence", text(lane, "/expectedSequence"));
    sheet.line_opt("Missing", missing(lane));
    sheet.line_opt("Timeout", text(lane, "/gap/until").map(|at| format!("{at} ({})", relative(&at, now))));
    sheet.line("Buffered", number(lane, "/buffered"));
    sheet.line_opt("Timed-out gaps", gaps(lane));
    sheet
}

/// Who edited a dead letter, when, and how often.
pub fn edited(item: &Value, now: Millis) -> Option<String> {
    let at = text(item, "/editedAt")?;
    let times = counted(number(item, "/edits"), "edit");
    Some(format!("{at} ({}) by {}, {times}", relative(&at, now), cell(item, "/editedBy")))
}

/// A sentence for each state of a lane.
fn reason(lane: &Value, now: Millis) -> String {
    let behind = number(lane, "/depth").saturating_sub(1);
    let said = || text(lane, "/head/lastError").map(|said| error(&said));
    let error = || said().unwrap_or_else(|| "no error was recorded".to_owned());
    match lane["state"].as_str() {
        Some("open") if number(lane, "/depth") == 0 => "no events are pending".to_owned(),
        Some("open") => "the next event waits for a free delivery slot or for the target".to_owned(),
        Some("running") => "the first event is being delivered".to_owned(),
        Some("retrying") => {
            let is_ahead = |at: &String| Millis::parse_rfc3339(at).is_some_and(|at| at > now);
            let next = text(lane, "/head/nextAttempt").filter(is_ahead);
            let next = next.map(|at| format!("; next attempt {}", relative(&at, now)));
            let next = next.or_else(|| text(lane, "/waitsFor").map(|what| format!("; waiting for {what}")));
            format!("delivery of the first event failed ({}){}", error(), next.unwrap_or_default())
        }
        Some("gap") => {
            let what =
                missing(lane).unwrap_or_else(|| format!("sequence {}", cell(lane, "/expectedSequence")));
            match number(lane, "/buffered") {
                1 => format!("waiting for {what}; 1 later event is on hold"),
                held => format!("waiting for {what}; {held} later events are on hold"),
            }
        }
        Some("parked") if is_at_gap(lane) => {
            format!("{} did not arrive in time; manual action is needed", missing(lane).unwrap_or_default())
        }
        Some("parked") => {
            let attempts = counted(number(lane, "/head/attempts"), "attempt");
            let behind = match behind {
                0 => String::new(),
                1 => "; 1 event is pending behind it".to_owned(),
                more => format!("; {more} events are pending behind it"),
            };
            format!("the first event failed after {attempts} ({}){behind}", error())
        }
        Some("paused") if is_subscription_paused(lane) => "its subscription is paused".to_owned(),
        Some("paused") => "the lane was paused with `klambda lane pause`".to_owned(),
        other => format!("the state is {}", other.unwrap_or("unknown")),
    }
}

fn head(lane: &Value) -> String {
    let of = |at| cell(lane, at);
    let (id, event_type, source) = (of("/head/id"), of("/head/type"), of("/head/source"));
    format!("{id}, {event_type} from {source}, at position {}", of("/head/position"))
}

/// A lane that is parked at a gap has no first event. A lane whose first event failed may have a gap further back.
fn is_at_gap(lane: &Value) -> bool {
    lane["gap"].is_object() && !lane["head"].is_object()
}

fn missing(lane: &Value) -> Option<String> {
    let range = lane.pointer("/gap/missing")?.as_array()?;
    match (range.first(), range.last()) {
        (Some(from), Some(to)) if from == to => Some(format!("sequence {from}")),
        (Some(from), Some(to)) => Some(format!("sequences {from} to {to}")),
        _ => None,
    }
}

/// The newest gaps that timed out.
fn gaps(lane: &Value) -> Option<String> {
    const SHOWN: usize = 5;
    let gaps = lane["gaps"].as_array().filter(|gaps| !gaps.is_empty())?;
    let range = |gap: &Value| match (number(gap, "/from"), number(gap, "/to")) {
        (from, to) if from == to => from.to_string(),
        (from, to) => format!("{from} to {to}"),
    };
    let mut said: Vec<String> = gaps.iter().rev().take(SHOWN).map(range).collect();
    let more = gaps.len().saturating_sub(SHOWN);
    said.extend((more > 0).then(|| format!("and {more} more")));
    let forgotten =
        text(lane, "/gapsForgottenUpTo").map(|to| format!("; older ones up to {to} are not kept"));
    Some(format!("sequence {}{}", said.join(", "), forgotten.unwrap_or_default()))
}

fn is_subscription_paused(lane: &Value) -> bool {
    lane["waitsFor"].as_str().is_some_and(|what| what.contains("subscription is paused"))
}

fn advice(lane: &Value) -> Vec<(String, &'static str)> {
    let name = format!("{} {}", quoted(&cell(lane, "/subscription")), quoted(&cell(lane, "/key")));
    let flag = namespace_flag(lane);
    let act = |action: &str, effect| (format!("klambda lane {action} {name}{flag}"), effect);
    match lane["state"].as_str() {
        Some("parked") if is_at_gap(lane) => vec![
            act("resume", "wait for the missing sequence once more"),
            act("skip", "continue without the missing sequence"),
        ],
        Some("parked") => vec![
            act("resume", "retry the first event"),
            act("skip", "continue without the first event, which stays a dead letter"),
        ],
        Some("gap") => vec![act("skip", "continue now without the missing sequence")],
        Some("retrying") => vec![act("resume", "retry the first event now")],
        Some("paused") if is_subscription_paused(lane) => {
            let name = quoted(&cell(lane, "/subscription"));
            vec![(
                format!("klambda subscription resume {name}{flag}"),
                "continue deliveries of all its lanes",
            )]
        }
        Some("paused") => vec![act("resume", "continue deliveries")],
        _ => Vec::new(),
    }
}

/// The namespace, unless it is the default one.
pub fn other_namespace(item: &Value) -> Option<String> {
    text(item, "/namespace").filter(|name| name != namespace::DEFAULT)
}

/// For suggested commands, so that they work in the namespace of the item.
pub fn namespace_flag(item: &Value) -> String {
    other_namespace(item).map(|name| namespace::flag(&name)).unwrap_or_default()
}

fn timeline(lane: &Value, now: Millis) -> Option<Table> {
    let steps = lane["timeline"].as_array().filter(|steps| !steps.is_empty())?;
    let names = ["AGE", "AT", "STEP", "POSITION", "EVENT", "STATUS", "DURATION", "DETAIL"];
    let mut table = Table::new(&names);
    for step in steps {
        let at = ["/step", "/position", "/id", "/status"];
        let mut row = vec![age_of(text(step, "/at").as_deref(), now), fixed(&cell(step, "/at"))];
        row.extend(at.map(|at| cell(step, at)));
        let detail = text(step, "/detail").or_else(|| text(step, "/answer"));
        row.extend([duration_of(step), detail.map_or_else(|| "-".to_owned(), |detail| error(&detail))]);
        table.row(row);
    }
    Some(table)
}

/// Quotes a word for a shell, so that a suggested command can be copied.
pub fn quoted(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@,+=".contains(c);
    if !text.is_empty() && !text.starts_with('-') && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", crate::output::one_line(text).replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn told(value: Value) -> String {
        let now = Millis::parse_rfc3339("2026-01-01T00:03:12Z").expect("a time");
        let mut out = Vec::new();
        lane(&mut out, &value, now).expect("written");
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn a_paused_subscription_is_named_not_its_lane() {
        let text = told(json!({"subscription": "orders", "key": "k", "state": "paused", "depth": 1,
            "waitsFor": "manual action: subscription is paused (klambda subscription resume orders)"}));
        assert!(text.contains("its subscription is paused") && !text.contains("lane pause"), "{text}");
        assert!(text.contains("  klambda subscription resume orders   continue"), "{text}");
    }

    #[test]
    fn a_parked_lane_says_why_and_what_to_do() {
        let text = told(json!({"subscription": "orders", "key": "it's 42", "state": "parked",
            "since": "2026-01-01T00:00:00Z", "waitsFor": "a person: resume, skip or replay", "depth": 3, "laneSequence": 7,
            "head": {"id": "e7", "source": "/shop", "type": "order.paid", "position": 1042, "attempts": 5,
                "lastError": "503 Service Unavailable", "nextAttempt": null},
            "gap": {"missing": [9, 9], "until": null}, "buffered": 0,
            "timeline": [{"at": "2026-01-01T00:00:00Z", "step": "parked", "position": 1042, "id": "e7"}]}));
        for line in [
            "State:          parked for 3m12s (since 2026-01-01T00:00:00Z)",
            "Why:            the first event failed after 5 attempts (503 Service Unavailable); 2 events are pending behind it",
            "Waiting for:    a person: resume, skip or replay",
            "First event:    e7, order.paid from /shop, at position 1042",
            r"  klambda lane resume orders 'it'\''s 42'   retry the first event",
            "  3m12s   2026-01-01T00:00:00.000Z   parked   1042       e7      -        -          -",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}\nnot in\n{text}");
        }
    }

    #[test]
    fn a_gap_names_what_is_missing() {
        let text = told(
            json!({"subscription": "orders", "key": "k", "state": "gap", "since": "2026-01-01T00:03:00Z",
            "depth": 0, "expectedSequence": 42, "buffered": 2, "head": null,
            "gap": {"missing": [42, 43], "until": "2026-01-01T00:03:30Z"}}),
        );
        assert!(text.contains("waiting for sequences 42 to 43; 2 later events are on hold"), "{text}");
        assert!(text.contains("2026-01-01T00:03:30Z (in 18s)"), "{text}");
        assert!(text.contains("klambda lane skip orders k"), "{text}");
    }

    #[test]
    fn commands_that_are_shown_work_where_the_lane_is() {
        let lane = |namespace: &str| {
            told(json!({"namespace": namespace, "subscription": "orders", "key": "k", "state": "parked",
                "since": "2026-01-01T00:03:00Z", "depth": 1, "buffered": 0, "head": null}))
        };
        assert!(lane("shop").contains("klambda lane resume orders k -n shop "), "{}", lane("shop"));
        assert!(lane("shop").contains("Namespace:"));
        assert!(!lane("default").contains("-n ") && !lane("default").contains("Namespace"));
    }
}
