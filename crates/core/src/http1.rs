//! What our readers of HTTP/1.1 have in common: how a message is framed.
//!
//! They are stricter than the standard. Wherever two readers could disagree on where a message ends, one request can
//! be taken for two, so such a message is refused.

mod chunked;
mod requests;

use crate::scan;

pub use chunked::{Chunked, Item};
pub use requests::{Refused, Requests};

/// This is not HTTP/1.1 as it is accepted here; the text says why.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Malformed(pub &'static str);

/// The number of line ends. A head has one for its first line, one for each header and one for the empty line; if it
/// has fewer, one of its lines ends without a carriage return.
pub fn line_ends(head: &[u8]) -> usize {
    scan::count_pairs(head, *b"\r\n")
}

/// Whether a line feed comes without its carriage return.
pub fn has_bare_line_feed(bytes: &[u8]) -> bool {
    let line_feeds = bytes.iter().filter(|byte| **byte == b'\n').count();
    line_feeds != line_ends(bytes)
}

/// Digits and nothing else. Other readers may understand a sign, a list or a prefix in another way.
pub fn content_length(value: &[u8]) -> Option<u64> {
    const DIGITS_MAX: usize = 18;
    let digits = !value.is_empty() && value.len() <= DIGITS_MAX && value.iter().all(u8::is_ascii_digit);
    digits.then(|| value.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

/// The only transfer coding that is read, alone and once.
pub fn is_chunked(value: &[u8]) -> bool {
    value.eq_ignore_ascii_case(b"chunked")
}

/// What a header's name is made of.
fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

/// What a header's value is made of: no control character but the tab.
fn is_text(byte: u8) -> bool {
    byte == b'\t' || byte >= b' ' && byte != 0x7f
}

/// A header's value without the space around it. Nothing else counts as space.
fn trim(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}
