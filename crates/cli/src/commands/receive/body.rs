//! The body of a delivery: text as it is, binary data as hex.

use crate::output::{bytes as size, one_line, shorten};
use serde_json::{Value, json};

const CHARS_MAX: usize = 120;
const BYTES_MAX: usize = 40;

#[derive(Debug, PartialEq, Eq)]
pub enum Body {
    Hidden,
    Text(String),
    Binary(Vec<u8>),
}

impl Body {
    pub fn new(bytes: &[u8]) -> Body {
        let is_plain = |text: &&str| !text.chars().any(|c| c.is_control() && !c.is_whitespace());
        match std::str::from_utf8(bytes).ok().filter(is_plain) {
            Some(text) => Body::Text(text.to_owned()),
            None => Body::Binary(bytes.to_vec()),
        }
    }

    /// On one line. A long body is cut and ends with its size, unless `is_whole`.
    pub fn shown(&self, is_whole: bool) -> String {
        match self {
            Body::Hidden => String::new(),
            Body::Text(text) if is_whole || text.chars().count() <= CHARS_MAX => one_line(text),
            Body::Text(text) => format!("{} ({})", one_line(&shorten(text, CHARS_MAX)), length(text.len())),
            Body::Binary(bytes) if is_whole || bytes.len() <= BYTES_MAX => hex(bytes),
            Body::Binary(bytes) => format!("{}… ({})", hex(&bytes[..BYTES_MAX]), length(bytes.len())),
        }
    }

    /// The member of the JSON output, whole. Text stays text, so that numbers keep all their digits.
    pub fn member(&self) -> Option<(&'static str, Value)> {
        match self {
            Body::Hidden => None,
            Body::Text(text) => Some(("body", json!(text))),
            Body::Binary(bytes) => Some(("bodyHex", json!(hex(bytes)))),
        }
    }
}

fn length(count: usize) -> String {
    match count {
        0..1024 => format!("{count} bytes"),
        _ => size(count as u64),
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_one_line_and_binary_is_hex() {
        assert_eq!(Body::new(b"{\"total\": 7}").shown(false), "{\"total\": 7}");
        assert_eq!(Body::new(b"a\nb").shown(false), "a\\nb");
        assert_eq!(Body::new(&[0xff, 0x00]).shown(false), "ff00");
        assert_eq!(Body::new(b"\x1b[31m").shown(false), "1b5b33316d");
        assert_eq!(Body::new(b"").shown(false), "");
        assert_eq!(Body::Hidden.shown(true), "");
    }

    #[test]
    fn long_bodies_are_cut_unless_asked_for() {
        let long = Body::new("ä".repeat(2_000).as_bytes());
        assert_eq!(long.shown(false), format!("{}… (3.9 KiB)", "ä".repeat(120)));
        assert_eq!(long.shown(true), "ä".repeat(2_000));
        let binary = Body::new(&[0xff; 100]);
        assert_eq!(binary.shown(false), format!("{}… (100 bytes)", "ff".repeat(40)));
        assert_eq!(binary.shown(true).len(), 200);
        assert_eq!(binary.member().expect("a member").0, "bodyHex");
        assert_eq!(Body::Hidden.member(), None);
    }
}
