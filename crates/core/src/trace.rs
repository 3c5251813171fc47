//! Traces: contexts of the W3C, and the trace of an event.
//!
//! Nothing about a trace is stored. The producer's context is an attribute of the event, and everything else follows from it
//! or from the identity of the event. So a delivery after a crash, days later, continues the trace that accepting the event
//! began, and makes the same decision about sampling.

mod event;
mod sampler;
mod span;

pub use event::{Attempt, EventTrace, Identity, LATER_MS};
pub use sampler::Sampler;
pub use span::{Kind, Span, Subject, Value};

use siphasher::sip128::{Hasher128, SipHasher13};
use std::fmt;
use std::hash::Hasher;

/// The attribute of an event, and the header of a request, that contain the context.
pub const TRACEPARENT: &str = "traceparent";
pub const TRACESTATE: &str = "tracestate";

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct TraceId(pub [u8; 16]);

#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct SpanId(pub [u8; 8]);

/// A span, as other services know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Context {
    pub trace: TraceId,
    pub span: SpanId,
    pub is_sampled: bool,
}

const HEADER_BYTES: usize = 55;
const SAMPLED: u8 = 1;

/// A context as text, on the stack.
pub struct Header([u8; HEADER_BYTES]);

impl Header {
    pub fn as_str(&self) -> &str {
        std::str::from_utf8(&self.0).expect("digits and dashes are ASCII")
    }
}

impl Context {
    /// Reads a `traceparent`. A later version may have more fields, which are ignored.
    pub fn parse(text: &str) -> Option<Context> {
        let bytes = text.as_bytes();
        let (head, rest) = bytes.split_at_checked(HEADER_BYTES)?;
        let version: [u8; 1] = hex(&head[..2])?;
        let is_framed = head[2] == b'-' && head[35] == b'-' && head[52] == b'-';
        let is_whole = rest.is_empty() || version[0] > 0 && rest[0] == b'-';
        if !is_framed || !is_whole || version[0] == 0xff {
            return None;
        }
        let (trace, span, [flags]) = (hex(&head[3..35])?, hex(&head[36..52])?, hex(&head[53..])?);
        let is_valid = trace != [0; 16] && span != [0; 8];
        is_valid.then_some(Context {
            trace: TraceId(trace),
            span: SpanId(span),
            is_sampled: flags & SAMPLED != 0,
        })
    }

    /// The value of a `traceparent`.
    pub fn header(&self) -> Header {
        let mut text = *b"00-00000000000000000000000000000000-0000000000000000-00";
        write_hex(&self.trace.0, &mut text[3..35]);
        write_hex(&self.span.0, &mut text[36..52]);
        write_hex(&[u8::from(self.is_sampled)], &mut text[53..]);
        Header(text)
    }
}

/// Lower-case digits only, as the specification demands.
fn hex<const N: usize>(text: &[u8]) -> Option<[u8; N]> {
    let digit = |byte: u8| match byte {
        b'0'..=b'9' => Some(byte - b'0'),
        b'a'..=b'f' => Some(byte - b'a' + 10),
        _ => None,
    };
    let mut out = [0; N];
    for (byte, pair) in out.iter_mut().zip(text.chunks_exact(2)) {
        *byte = digit(pair[0])? << 4 | digit(pair[1])?;
    }
    Some(out)
}

fn write_hex(bytes: &[u8], out: &mut [u8]) {
    const DIGITS: &[u8; 16] = b"0123456789abcdef";
    for (byte, pair) in bytes.iter().zip(out.chunks_exact_mut(2)) {
        pair[0] = DIGITS[usize::from(byte >> 4)];
        pair[1] = DIGITS[usize::from(byte & 15)];
    }
}

fn write_id(bytes: &[u8], f: &mut fmt::Formatter<'_>) -> fmt::Result {
    let mut text = [0; 32];
    let text = &mut text[..bytes.len() * 2];
    write_hex(bytes, text);
    f.write_str(std::str::from_utf8(text).map_err(|_| fmt::Error)?)
}

impl fmt::Display for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_id(&self.0, f)
    }
}

impl fmt::Display for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write_id(&self.0, f)
    }
}

impl fmt::Debug for TraceId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl fmt::Debug for SpanId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Derives ids from texts and numbers. The same input gives the same ids on every server. They need not be hard to guess.
pub struct Derivation(SipHasher13);

impl Derivation {
    /// `purpose` keeps ids for different purposes apart.
    pub fn new(purpose: u8) -> Derivation {
        Derivation(SipHasher13::new_with_keys(0x6b6c_616d_6264_6121, u64::from(purpose)))
    }

    pub fn text(mut self, text: &str) -> Derivation {
        self.0.write_u64(text.len() as u64);
        self.0.write(text.as_bytes());
        self
    }

    pub fn number(mut self, number: u64) -> Derivation {
        self.0.write_u64(number);
        self
    }

    pub fn trace(mut self, trace: TraceId) -> Derivation {
        self.0.write(&trace.0);
        self
    }

    pub fn trace_id(&self) -> TraceId {
        let id = self.0.finish128();
        // An id must not be zero.
        TraceId((u128::from(id.h1) << 64 | u128::from(id.h2)).max(1).to_be_bytes())
    }

    pub fn span_id(&self) -> SpanId {
        SpanId(self.0.finish128().h1.max(1).to_be_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";

    #[test]
    fn a_context_is_written_as_it_was_read() {
        for text in [TEXT, "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-00"] {
            let context = Context::parse(text).expect("a context");
            assert_eq!(context.header().as_str(), text);
            assert_eq!(context.is_sampled, text.ends_with('1'));
        }
        let later = "cc-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-03-more";
        assert_eq!(Context::parse(later), Context::parse(TEXT), "a later version");
    }

    #[test]
    fn an_invalid_context_is_none() {
        for text in [
            "",
            "rubbish",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01-more",
            "ff-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-00000000000000000000000000000000-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-0000000000000000-01",
            "00-0AF7651916CD43DD8448EB211C80319C-b7ad6b7169203331-01",
            "00_0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-0",
            "00-0af7651916cd43dd8448eb211c80319c-b7ad6b716920333ä-1",
        ] {
            assert_eq!(Context::parse(text), None, "{text}");
        }
    }

    #[test]
    fn derived_ids_depend_on_every_part() {
        let id = |purpose, a: &str, b: &str| Derivation::new(purpose).text(a).text(b).trace_id();
        assert_eq!(id(0, "a", "bc"), id(0, "a", "bc"));
        assert_ne!(id(0, "a", "bc"), id(0, "ab", "c"));
        assert_ne!(id(0, "a", "bc"), id(1, "a", "bc"));
        assert_eq!(id(0, "", "").to_string().len(), 32);
    }
}
