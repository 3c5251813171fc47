//! The trace id and correlation id of an event, for log lines.

use klambda_core::filter::Attributes;
use std::borrow::Cow;

/// The trace id of a W3C `traceparent`, if the event has one.
pub fn trace_id(event: &impl Attributes) -> Option<String> {
    let parent = event.attribute("traceparent")?;
    parent.split('-').nth(1).filter(|id| id.len() == 32).map(str::to_owned)
}

pub fn correlation_id(event: &impl Attributes) -> Option<Cow<'_, str>> {
    event.attribute("correlationid")
}

#[cfg(test)]
mod tests {
    use super::*;
    use klambda_core::event::{Attribute, Event, Value};

    fn event(name: &str, value: &str) -> Event {
        let value = Value::String(value.into());
        let attributes = vec![Attribute { name: name.into(), value }];
        Event { id: "e1".into(), source: "/s".into(), kind: "t".into(), attributes, data: None }
    }

    #[test]
    fn the_trace_id_is_the_second_field_of_the_parent() {
        let parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01";
        let traced = event("traceparent", parent);
        assert_eq!(trace_id(&traced).as_deref(), Some("4bf92f3577b34da6a3ce929d0e0e4736"));
        assert_eq!(trace_id(&event("traceparent", "rubbish")), None);
        assert_eq!(correlation_id(&event("correlationid", "c1")).as_deref(), Some("c1"));
    }
}
