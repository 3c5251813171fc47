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
    let stack = own_frames(&stack).into_iter().filter(|line| !line.ends_with(&message));
    [first].into_iter().chain(stack.map(|line| format!("  {line}"))).collect()
}

/// The stack without frames of the runtime, with paths relative to the folder of the function.
fn own_frames(stack: &str) -> Vec<String> {
    let (mut own, mut is_foreign) = (Vec::new(), false);
    for line in stack.lines() {
        let is_frame = line.trim_start().starts_with("at ") || line.trim_start().starts_with("File \"");
        // In Python, the lines after a frame are its source.
        let is_part = is_foreign && line.starts_with("    ");
        is_foreign = if is_frame { line.contains("/runtimes/") || line.contains("node:") } else { is_part };
        if !is_foreign {
            own.push(shortened(line));
        }
    }
    own
}

/// `(/tmp/…/artifacts/…/code/index.js:4:9)` as `(index.js:4:9)`.
fn shortened(line: &str) -> String {
    let code = line.find("/artifacts/").and_then(|at| Some(at + line[at..].find("/code/")? + "/code/".len()));
    let Some(end) = code else { return line.to_owned() };
    let begin = line[..end].rfind(['(', '"', ' ']).map_or(0, |at| at + 1);
    format!("{}{}", &line[..begin], &line[end..])
}

#[cfg(test)]
mod tests {
    use super::{own_frames, readable};

    #[test]
    fn lines_of_loggers_are_short() {
        let line = r#"{"time":"t","level":"info","message":"paid","function":"f","event_id":"1","total":6,"by":"Ada"}"#;
        assert_eq!(readable(line), ["info paid by=Ada total=6"]);
        let line = r#"{"level":"error","message":"no x","error":{"type":"E","stack":"E: no x\n    at f"},"retry":true}"#;
        assert_eq!(readable(line), ["error no x", "      at f"]);
        assert_eq!(readable("{\"a\": 1"), ["{\"a\": 1"]);
    }

    #[test]
    fn a_stack_shows_the_code_of_the_function() {
        let node = "Error: x\n    at exports.handler (/tmp/d/artifacts/ab/code/lib/index.js:4:9)\n    \
            at invoke (/tmp/d/runtimes/cd/nodejs/main.js:195:13)\n    at Socket.emit (node:events:524:28)";
        assert_eq!(own_frames(node), ["Error: x", "    at exports.handler (lib/index.js:4:9)"]);
        let python = "Traceback (most recent call last):\n  File \"/tmp/d/runtimes/cd/python/klambda.py\", line 9, in call\n    \
            run()\n    ~~~^^\n  File \"/tmp/d/artifacts/ab/code/main.py\", line 3, in handler\n    raise ValueError('x')\nValueError: x";
        assert_eq!(
            own_frames(python),
            [
                "Traceback (most recent call last):",
                "  File \"main.py\", line 3, in handler",
                "    raise ValueError('x')",
                "ValueError: x",
            ]
        );
    }
}
