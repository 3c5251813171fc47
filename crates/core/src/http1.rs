//! Message framing, shared by our HTTP/1.1 parsers.
//!
//! The parsers are stricter than the standard. If two parsers could disagree on where a message ends, an attacker
//! could smuggle one request inside another, so such a message is refused.

mod chunked;
mod requests;

use crate::scan;

pub use chunked::{Chunked, Item};
pub use requests::{Refused, Requests};

/// The input is not HTTP/1.1 as accepted here; the text gives the reason.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The number of line ends (CRLF). A head has one for its first line, one for each header and one for the empty line.
/// If it has fewer, one of its lines ends without a carriage return.
pub fn line_ends(head: &[u8]) -> usize {
    scan::count_pairs(head, *b"\r\n")
}

/// True if a line feed comes without a carriage return.
pub fn has_bare_line_feed(bytes: &[u8]) -> bool {
    let line_feeds = bytes.iter().filter(|byte| **byte == b'\n').count();
    line_feeds != line_ends(bytes)
}

/// Accepts digits only. Other parsers may interpret a sign, a list or a prefix differently.
pub fn content_length(value: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 18;
    let digits = !value.is_empty() && value.len() <= DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// Chunked is the only supported transfer coding, alone and once.
pub fn is_chunked(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"chunked")
}

/// The characters of a header name.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// The characters of a header value: no control character except tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

/// A header value without leading and trailing spaces and tabs. No other character counts as space.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
