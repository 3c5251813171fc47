//! Writes one call: CloudEvents binary mode, with the event's place in its lane.

use super::call_trace::CallTrace;
use super::connection::Message;
use super::own_headers::Rendered;
use super::target::Prepared;
use crate::engine::Delivery;
use bytes::Bytes;
use klambda_core::event_codec::EventView;
use klambda_core::header_value;
use klambda_core::lane::Flag;
use klambda_core::scan;
use klambda_core::trace::{TRACEPARENT, TRACESTATE};
use std::ops::Range;

pub struct Request<'a> {
    pub delivery: &'a Delivery,
    pub event: EventView<'a>,
    pub target: &'a Prepared,
    pub own: &'a Rendered,
    /// If the server exports traces.
    pub trace: Option<&'a CallTrace>,
}

impl Message for Request<'_> {
    fn write_head(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.target.start);
        out.extend_from_slice(&self.own.block);
        self.event_headers(&mut |name, value| write_header(out, name, value));
        write_length(out, self.body().len());
    }

    fn body(&self) -> &[u8] {
        self.event.data()
    }

    fn body_bytes(&self) -> Bytes {
        let Range { start, end } = self.event.data_range();
        let offset = self.delivery.event.start;
        self.delivery.record.slice(offset + start..offset + end)
    }
}

impl Request<'_> {
    /// All headers that come from the event and its place. Values are checked, so that none can end its line.
    pub fn event_headers(&self, f: &mut dyn FnMut(&str, &str)) {
        let (mut traceparent, mut tracestate) = (false, false);
        self.event.headers(&mut |name, value| {
            traceparent |= name == "ce-traceparent";
            tracestate |= name == "ce-tracestate";
            if is_sendable(value) {
                f(name, value);
            }
        });
        if !self.target.own_trace {
            self.trace_headers(traceparent, tracestate, f);
        }
        self.place_headers(f);
        if self.target.is_function {
            f("klambda-attempt", Decimal::of(u64::from(self.delivery.attempt)).as_str());
        }
    }

    /// The context of this call under the names that tracing libraries expect. A server without traces passes the
    /// producer's on.
    fn trace_headers(&self, has_parent: bool, has_state: bool, f: &mut dyn FnMut(&str, &str)) {
        let keeps_state = match self.trace {
            Some(trace) => {
                f(TRACEPARENT, trace.context.header().as_str());
                trace.keeps_state
            }
            None if has_parent => {
                self.plain(TRACEPARENT, f);
                true
            }
            None => false,
        };
        if has_state && keeps_state {
            self.plain(TRACESTATE, f);
        }
    }

    /// Sends an attribute also as a header without the prefix.
    fn plain(&self, attribute: &str, f: &mut dyn FnMut(&str, &str)) {
        if let Some(value) = self.event.attribute(attribute).filter(|value| is_sendable(value)) {
            f(attribute, &value);
        }
    }

    fn place_headers(&self, f: &mut dyn FnMut(&str, &str)) {
        let Some(place) = &self.delivery.place else { return };
        f("ce-lanesequence", Decimal::of(place.number.0).as_str());
        if let Some(previous) = &place.previous_id {
            f("ce-previousid", &header_value(previous));
        }
        match place.flag {
            Flag::None => {}
            Flag::Late => f("ce-orderstatus", "late"),
            Flag::Gap => f("ce-orderstatus", "gap"),
        }
    }
}

#[inline]
pub fn write_header(out: &mut Vec<u8>, name: &str, value: &str) {
    out.reserve(name.len() + value.len() + 4);
    out.extend_from_slice(name.as_bytes());
    out.extend_from_slice(b": ");
    out.extend_from_slice(value.as_bytes());
    out.extend_from_slice(b"\r\n");
}

/// Writes the last header and the end of the head.
pub fn write_length(out: &mut Vec<u8>, length: usize) {
    out.extend_from_slice(b"content-length: ");
    out.extend_from_slice(Decimal::of(length as u64).as_str().as_bytes());
    out.extend_from_slice(b"\r\n\r\n");
}

fn is_sendable(value: &str) -> bool {
    scan::all(value.as_bytes(), |byte| (byte >= b' ') & (byte != 0x7f))
}

/// The digits of a number, on the stack.
struct Decimal {
    digits: [u8; 20],
    start: usize,
}

impl Decimal {
    fn of(mut number: u64) -> Decimal {
        let (mut digits, mut start) = ([b'0'; 20], 20);
        loop {
            start -= 1;
            digits[start] = b'0' + (number % 10) as u8;
            number /= 10;
            if number == 0 {
                return Decimal { digits, start };
            }
        }
    }

    fn as_str(&self) -> &str {
        std::str::from_utf8(&self.digits[self.start..]).expect("digits are ASCII")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_they_are() {
        for number in [0, 7, 10, 1024, u64::MAX] {
            assert_eq!(Decimal::of(number).as_str(), number.to_string());
        }
    }
}
