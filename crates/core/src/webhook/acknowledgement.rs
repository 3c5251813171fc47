//! The answer to a call with several events: it may acknowledge only the first of them.

use super::EventId;
use serde_json::Value;

/// The member that names the last event that the receiver has.
pub const MEMBER: &str = "acknowledgedThrough";

/// How many of these events a successful answer acknowledges. An answer that does not name an event acknowledges all of
/// them. The error says what is wrong with the answer.
pub fn count(answer: &[u8], events: &[EventId]) -> Result<usize, String> {
    let named = match serde_json::from_slice(answer) {
        Ok(Value::Object(mut members)) => members.remove(MEMBER),
        _ => None,
    };
    let Some(named) = named else { return Ok(events.len()) };
    let text = named.as_str().ok_or_else(|| format!("{MEMBER} in the answer must be an eventId"))?;
    let place = text.parse().ok().and_then(|id: EventId| events.iter().position(|event| *event == id));
    match place {
        Some(place) => Ok(place + 1),
        None => {
            Err(format!("{MEMBER} in the answer names an event that is not in the call: {}", shown(text)))
        }
    }
}

/// Enough of a text to recognize it.
fn shown(text: &str) -> String {
    const SHOWN_CHARS: usize = 64;
    text.chars().filter(|c| !c.is_control()).take(SHOWN_CHARS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn an_answer_acknowledges_all_events_or_a_prefix() {
        let events = ["a", "b", "c"].map(|id| EventId::new("shop", "/orders", id));
        let of = |answer: &Value| count(answer.to_string().as_bytes(), &events);
        for (n, event) in events.iter().enumerate() {
            assert_eq!(of(&json!({ MEMBER: event.to_string(), "more": [1] })), Ok(n + 1));
        }
        for answer in [&b""[..], b"ok", b"{}", b"[]", b"null", b"{\"acknowledged", b"\xff\x00"] {
            assert_eq!(count(answer, &events), Ok(3), "{answer:?}");
        }
    }

    #[test]
    fn an_answer_must_name_an_event_of_the_call() {
        let events = [EventId::new("shop", "/orders", "a")];
        let other = EventId::new("shop", "/orders", "b").to_string();
        for named in [json!(other), json!("a"), json!(null), json!(3), json!([events[0].to_string()])] {
            let error = count(json!({ MEMBER: named }).to_string().as_bytes(), &events);
            assert!(error.expect_err("refused").contains(MEMBER), "{named}");
        }
    }
}
