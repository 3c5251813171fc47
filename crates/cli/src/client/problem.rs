//! Errors of the server, in the words of the command line.

use crate::output::{counted, number, one_line};
use serde_json::Value;
use std::fmt;

/// An RFC 9457 problem document, or an error response without one.
#[derive(Debug)]
pub struct Problem {
    pub status: u16,
    pub body: Value,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is("events-waiting") {
            return write!(f, "{}", pending(number(&self.body, "/waiting")));
        }
        let detail = in_flags(self.body["detail"].as_str().unwrap_or_default());
        if self.is("not-found") && !detail.is_empty() {
            // The title would repeat it.
            return write!(f, "{detail}");
        }
        // An error that a function throws is not a problem document.
        let thrown = &self.body["error"];
        match (self.body["title"].as_str(), thrown["message"].as_str()) {
            (Some(title), _) => write!(f, "{title}")?,
            (None, Some(message)) => write!(f, "{}: {message}", thrown["type"].as_str().unwrap_or("Error"))?,
            (None, None) => write!(f, "the server responded with status {}", self.status)?,
        }
        if !detail.is_empty() {
            write!(f, ": {detail}")?;
        }
        if self.is("unauthorized") {
            write!(f, "; use --token-file to name the file with your token")?;
        }
        for fault in self.body["faults"].as_array().into_iter().flatten() {
            let path = fault["path"].as_str().unwrap_or_default();
            let message = fault["message"].as_str().unwrap_or_default();
            let colon = if path.is_empty() { "" } else { ": " };
            let fault = in_flags(&format!("{path}{colon}{message}"));
            // The detail of a single fault contains it already.
            if !detail.ends_with(&fault) && detail != message {
                write!(f, "\n  {fault}")?;
            }
        }
        for (member, title) in [("lanes", "parked lanes"), ("sources", "sources")] {
            let listed = self.body[member].as_array().into_iter().flatten();
            let listed: Vec<&str> = listed.filter_map(Value::as_str).collect();
            if !listed.is_empty() {
                write!(f, "\n  {title}: {}", one_line(&listed.join(", ")))?;
            }
        }
        Ok(())
    }
}

impl Problem {
    /// What follows `not found` in the message, such as the namespace. `None` for other problems.
    pub fn not_found(&self) -> Option<String> {
        let detail = self.body["detail"].as_str().filter(|_| self.is("not-found"))?;
        detail.split_once(" not found").map(|(_, rest)| in_flags(rest))
    }

    /// Whether the last part of its type is this.
    fn is(&self, slug: &str) -> bool {
        self.body["type"].as_str().and_then(|kind| kind.rsplit('/').next()) == Some(slug)
    }
}

fn pending(count: u64) -> String {
    let (is, it) = if count == 1 { ("is", "it") } else { ("are", "them") };
    let events = counted(count, "event");
    format!("{events} {is} pending. Use --drain to deliver {it} first or --discard to drop {it}")
}

/// Replaces REST parameters in a message of the server by the flags of the commands.
fn in_flags(text: &str) -> String {
    let flags = [
        ("?drain=true", "--drain"),
        ("?discard=true", "--discard"),
        ("?force=true", "--force"),
        ("?source=", "--source"),
        ("use after=0 ", "use --after 0 "),
        (": Authorization: Bearer <token>", ""),
    ];
    flags.iter().fold(text.to_owned(), |text, (parameter, flag)| text.replace(parameter, flag))
}
