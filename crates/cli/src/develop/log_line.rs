//! Lines that the loggers of handlers write, for people.

use crate::output::text;
use serde_json::Value;

/// Members that are the same in every line, or that are shown elsewhere.
const LEFT_OUT: [&str; 9] =
    ["time", "level", "message", "function", "namespace", "event_id", "trace_id", "error", "retry"];

/// Level, message and own fields, then the stack of an error. Lines in another format stay as they are.
pub fn readable(line: &str) -> Vec<String> {
    let parsed: Value = serde_json::from_str(line).unwrap_or_default();
    let (Some(level), Some(message)) = (text(&parsed, "/level"), text(&parsed, "/message")) else {
        return vec![line.to_owned()];
    };
    let mut first = format!("{level} {message}");
    let fields = parsed.as_object().into_iter().flatten();
    for (name, value) in fields.filter(|(name, _)| !LEFT_OUT.contains(&name.as_str())) {
        let value = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        first.push_str(&format!(" {name}={value}"));
    }
    let stack = text(&parsed, "/error/stack").unwrap_or_default();
    // Node.js repeats the message.
    let stack = stack.lines().filter(|line| !line.ends_with(&message)).map(|line| format!("  {line}"));
    [first].into_iter().chain(stack).collect()
}

#[cfg(test)]
mod tests {
    use super::readable;

    #[test]
    fn lines_of_loggers_are_short() {
        let line = r#"{"time":"t","level":"info","message":"paid","function":"f","event_id":"1","total":6,"by":"Ada"}"#;
        assert_eq!(readable(line), ["info paid by=Ada total=6"]);
        let line = r#"{"level":"error","message":"no x","error":{"type":"E","stack":"E: no x\n    at f"},"retry":true}"#;
        assert_eq!(readable(line), ["error no x", "      at f"]);
        assert_eq!(readable("{\"a\": 1"), ["{\"a\": 1"]);
    }
}
