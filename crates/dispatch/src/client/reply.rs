//! The parts of a response that are kept, for every protocol.

use super::content::Content;
use klambda_core::outcome::CallOutcome;
use std::time::{Duration, SystemTime};

#[derive(Debug, Default)]
pub struct Reply {
    pub code: u16,
    pub retry_after: Option<RetryAfter>,
    pub excerpt: Excerpt,
    /// Set if a function answered with events.
    pub content: Option<Box<Content>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfter {
    Delay(Duration),
    At(SystemTime),
}

/// The beginning of an error's body, if it is text, to be shown to people.
#[derive(Debug, Default)]
pub struct Excerpt {
    bytes: Vec<u8>,
    wanted: bool,
}

/// Room for `CHARS_MAX` characters of any length, and for whitespace that is collapsed.
const BYTES_MAX: usize = 1024;
const CHARS_MAX: usize = 200;

impl Reply {
    pub fn into_outcome(self) -> CallOutcome {
        if let Some(content) = self.content {
            return content.into_outcome();
        }
        CallOutcome::Status {
            code: self.code,
            retry_after_ms: self.retry_after.map(|after| after.delay_ms(SystemTime::now)),
            detail: self.excerpt.line(),
        }
    }
}

impl RetryAfter {
    /// Parses seconds or an HTTP date; anything else is ignored.
    pub fn parse(value: &[u8]) -> Option<RetryAfter> {
        let text = std::str::from_utf8(value).ok()?.trim();
        if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
            // More digits than fit into a number still mean a very long time.
            return Some(RetryAfter::Delay(Duration::from_secs(text.parse().unwrap_or(u64::MAX))));
        }
        httpdate::parse_http_date(text).ok().map(RetryAfter::At)
    }

    pub fn delay_ms(self, now: impl FnOnce() -> SystemTime) -> u64 {
        let delay = match self {
            RetryAfter::Delay(delay) => delay,
            RetryAfter::At(at) => at.duration_since(now()).unwrap_or_default(),
        };
        u64::try_from(delay.as_millis()).unwrap_or(u64::MAX)
    }
}

impl Excerpt {
    /// The body of a success is never shown.
    pub fn of(code: u16) -> Excerpt {
        Excerpt { bytes: Vec::new(), wanted: !(200..300).contains(&code) }
    }

    pub fn content_type(&mut self, value: &[u8]) {
        let value = value.to_ascii_lowercase();
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let is_text = essence.starts_with(b"text/")
            || [b"json".as_slice(), b"xml"].iter().any(|suffix| essence.ends_with(suffix));
        self.wanted &= is_text;
    }

    pub fn content_encoding(&mut self, value: &[u8]) {
        self.wanted &= value.trim_ascii().eq_ignore_ascii_case(b"identity");
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.wanted {
            let room = BYTES_MAX - self.bytes.len();
            self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
        }
    }

    /// One line without control characters, short enough for a log and a table.
    fn line(&self) -> String {
        let text = String::from_utf8_lossy(&self.bytes);
        let mut line = String::with_capacity(text.len().min(CHARS_MAX));
        let mut chars = 0;
        for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty())
        {
            let space = (!line.is_empty()).then_some(' ');
            for c in space.into_iter().chain(word.chars()) {
                if chars == CHARS_MAX {
                    line.push('…');
                    return line;
                }
                line.push(c);
                chars += 1;
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn excerpt(content_type: &[u8], body: &[u8]) -> String {
        let mut excerpt = Excerpt::of(500);
        excerpt.content_type(content_type);
        excerpt.push(body);
        excerpt.line()
    }

    #[test]
    fn an_excerpt_is_one_line_of_text() {
        assert_eq!(excerpt(b"text/plain", b"  no\r\n\tstock\x07left \n"), "no stock left");
        assert_eq!(excerpt(b"application/problem+json; charset=utf-8", b"{\"a\":1}"), "{\"a\":1}");
        assert_eq!(excerpt(b"application/octet-stream", b"text"), "");
        assert_eq!(excerpt(b"text/html", &[b'x'; 4096]), format!("{}…", "x".repeat(200)));
        assert_eq!(excerpt(b"text/plain", "é".repeat(2000).as_bytes()), format!("{}…", "é".repeat(200)));
    }

    #[test]
    fn retry_after_is_seconds_or_a_date() {
        let now = || SystemTime::UNIX_EPOCH + Duration::from_secs(784_111_777);
        let delay_ms = |value: &str| RetryAfter::parse(value.as_bytes()).map(|after| after.delay_ms(now));
        assert_eq!(delay_ms("120"), Some(120_000));
        assert_eq!(delay_ms("99999999999999999999999"), Some(u64::MAX));
        assert_eq!(delay_ms("Sun, 06 Nov 1994 08:50:37 GMT"), Some(60_000));
        assert_eq!(delay_ms("Sun, 06 Nov 1994 08:00:00 GMT"), Some(0));
        assert_eq!(delay_ms("soon"), None);
        assert_eq!(delay_ms("-5"), None);
        assert_eq!(delay_ms(""), None);
    }
}
