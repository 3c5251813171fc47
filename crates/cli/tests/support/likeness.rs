//! Compares the output of a command with a document. Times, ages, sizes, random ids and blanks may differ.
//!
//! In the document, `…` matches anything: alone on a line any lines, within a line any text.

use serde_json::Value;

/// Returns the difference, if there is one.
pub fn difference(shown: &str, printed: &str) -> Option<String> {
    let shown: Vec<String> = normal(shown);
    let printed: Vec<String> = normal(printed);
    if fits(&shown, &printed) {
        return None;
    }
    Some(format!("shown:\n  {}\nprinted:\n  {}", shown.join("\n  "), printed.join("\n  ")))
}

/// The same, anywhere in the output.
pub fn difference_within(shown: &str, printed: &str) -> Option<String> {
    difference(&format!("…\n{shown}\n…"), printed)
}

/// The same for JSON: `"…"` matches any value; sizes, durations and rates are not compared.
pub fn difference_of_json(shown: &str, printed: &str) -> Option<String> {
    let parsed = |text: &str| serde_json::from_str::<Value>(text).map_err(|error| format!("{error}: {text}"));
    match (parsed(shown), parsed(printed)) {
        (Ok(shown), Ok(printed)) => value_difference("", &shown, &printed),
        (Err(error), _) | (_, Err(error)) => Some(error),
    }
}

fn value_difference(path: &str, shown: &Value, printed: &Value) -> Option<String> {
    let differ = || Some(format!("{path}:\n  shown {shown}\n  printed {printed}"));
    let varies = ["Bytes", "Ms", "Seconds", "PerSecond"].iter().any(|end| path.ends_with(end));
    match (shown, printed) {
        (Value::String(any), _) if any == "…" => None,
        (Value::Number(_), Value::Number(_)) if varies => None,
        (Value::String(a), Value::String(b)) if line_fits(&masked(a), &masked(b)) => None,
        (Value::Array(a), Value::Array(b)) if a.len() == b.len() => {
            let pairs = a.iter().zip(b).enumerate();
            pairs.into_iter().find_map(|(n, (a, b))| value_difference(&format!("{path}[{n}]"), a, b))
        }
        (Value::Object(a), Value::Object(b)) if a.keys().eq(b.keys()) => {
            a.iter().find_map(|(name, a)| value_difference(&format!("{path}.{name}"), a, &b[name]))
        }
        (a, b) if a == b => None,
        _ => differ(),
    }
}

fn fits(shown: &[String], printed: &[String]) -> bool {
    match shown.split_first() {
        None => printed.is_empty(),
        Some((line, rest)) if line == "…" => {
            (0..=printed.len()).any(|skipped| fits(rest, &printed[skipped..]))
        }
        Some((line, rest)) => match printed.split_first() {
            Some((first, others)) => line_fits(line, first) && fits(rest, others),
            None => false,
        },
    }
}

fn line_fits(shown: &str, printed: &str) -> bool {
    let mut parts = shown.split('…');
    let Some(mut rest) = printed.strip_prefix(parts.next().unwrap_or_default()) else { return false };
    let mut parts: Vec<&str> = parts.collect();
    let Some(last) = parts.pop() else { return rest.is_empty() };
    for part in parts {
        let Some(at) = rest.find(part) else { return false };
        rest = &rest[at + part.len()..];
    }
    rest.ends_with(last)
}

fn normal(text: &str) -> Vec<String> {
    let lines = text.lines().map(|line| masked(line).split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|line| !line.is_empty()).collect()
}

/// Replaces parts that differ from run to run by the name of their kind.
fn masked(line: &str) -> String {
    let mut out = String::new();
    let mut word = String::new();
    for c in line.chars().chain(['\0']) {
        if c.is_ascii_alphanumeric() || "-:.+".contains(c) {
            word.push(c);
            continue;
        }
        // Punctuation at the end belongs to the sentence.
        let bare = word.trim_end_matches(['.', ':']);
        out.push_str(kind_of(bare).unwrap_or(bare));
        out.push_str(&word[bare.len()..]);
        word.clear();
        out.extend((c != '\0').then_some(c));
    }
    out
}

fn kind_of(word: &str) -> Option<&'static str> {
    let shape: String = word.chars().map(|c| if c.is_ascii_digit() { '0' } else { c }).collect();
    if shape.starts_with("0000-00-00T00:00:00") {
        return Some("TIME");
    }
    let hex = |part: &str, length| part.len() == length && part.chars().all(|c| c.is_ascii_hexdigit());
    let parts: Vec<&str> = word.split('-').collect();
    if parts.len() == 5 && parts.iter().zip([8, 4, 4, 4, 12]).all(|(part, length)| hex(part, length)) {
        return Some("UUID");
    }
    let units: String = word.chars().filter(|c| !c.is_ascii_digit() && *c != '.').collect();
    let begins = word.starts_with(|c: char| c.is_ascii_digit());
    match units.as_str() {
        "ms" | "s" | "m" | "h" | "d" | "hm" | "dh" if begins => Some("AGE"),
        "Ki" | "Mi" | "Gi" | "Ti" if begins => Some("SIZE"),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_varies_is_not_compared() {
        let shown = "State:  parked for 3s (since 2026-01-01T00:00:00Z)\nid 00000000-0000-4000-8000-000000000000, 1.5Ki";
        let printed = "State: parked for 2m12s (since 2027-02-03T04:05:06.789Z)\n\nid 9b2f0c1e-1111-4222-8333-abcdefabcdef, 12Mi";
        assert_eq!(difference(shown, printed), None);
        assert!(difference("2 events", "3 events").is_some());
        assert!(difference("a\nb", "a\nb\nc").is_some());
    }

    #[test]
    fn json_is_compared_by_value() {
        let shown = r#"{"a": "…", "logBytes": 1, "at": "2026-01-01T00:00:00Z", "b": [1, null]}"#;
        let printed = r#"{"b":[1,null],"logBytes":99,"at":"2027-01-01T00:00:00.5Z","a":{"any":1}}"#;
        assert_eq!(difference_of_json(shown, printed), None);
        assert!(difference_of_json(r#"{"a": 1}"#, r#"{"a": 1, "b": 2}"#).is_some());
        assert!(difference_of_json(r#"{"a": 1}"#, r#"{"a": 2}"#).is_some());
    }

    #[test]
    fn dots_stand_for_anything() {
        assert_eq!(difference("a\n…\nd", "a\nb\nc\nd"), None);
        assert_eq!(difference("to … of …", "to 3 of 4"), None);
        assert!(difference("a\n…\nd", "a\nb").is_some());
        assert_eq!(difference_within("b", "a\nb\nc"), None);
        assert!(difference_within("b\nd", "a\nb\nc").is_some());
    }
}
