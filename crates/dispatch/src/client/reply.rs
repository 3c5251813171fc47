//! The parts of a response that are kept, for every protocol.

use super::content::Content;
use klambda_core::outcome::{CallOutcome, answer_bytes_max};
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

/// The beginning of a body, if it is text, to be shown to people.
#[derive(Debug, Default)]
pub struct Excerpt {
    bytes: Vec<u8>,
    /// How many bytes of the body are kept; 0 if it is not text.
    bytes_max: usize,
    line_bytes_max: usize,
}

/// The kept part has room for whitespace that is collapsed.
const BYTES_PER_LINE_BYTE: usize = 4;

impl Reply {
    pub fn into_outcome(self) -> CallOutcome {
        if let Some(content) = self.content {
            return content.into_outcome(self.code);
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
    pub fn of(code: u16) -> Excerpt {
        let line_bytes_max = answer_bytes_max(code);
        Excerpt { bytes: Vec::new(), bytes_max: line_bytes_max * BYTES_PER_LINE_BYTE, line_bytes_max }
    }

    pub fn content_type(&mut self, value: &[u8]) {
        let essence = value.split(|byte| *byte == b';').next().unwrap_or_default().trim_ascii();
        let starts = |with: &[u8]| essence.get(..with.len()).is_some_and(|s| s.eq_ignore_ascii_case(with));
        let ends = |with: &[u8]| {
            let start = essence.len().checked_sub(with.len());
            start.is_some_and(|start| essence[start..].eq_ignore_ascii_case(with))
        };
        if !starts(b"text/") && !ends(b"json") && !ends(b"xml") {
            self.bytes_max = 0;
        }
    }

    pub fn content_encoding(&mut self, value: &[u8]) {
        if !value.trim_ascii().eq_ignore_ascii_case(b"identity") {
            self.bytes_max = 0;
        }
    }

    pub fn push(&mut self, bytes: &[u8]) {
        let room = self.bytes_max.saturating_sub(self.bytes.len());
        self.bytes.extend_from_slice(&bytes[..bytes.len().min(room)]);
    }

    /// One line without control characters, short enough for a log and a table.
    pub fn line(&self) -> String {
        const CUT: char = '…';
        if self.bytes.is_empty() {
            return String::new();
        }
        let text = String::from_utf8_lossy(whole_chars(&self.bytes));
        let mut line = String::with_capacity(text.len().min(self.line_bytes_max));
        // Where the line ends if it turns out to be too long.
        let mut end = 0;
        for word in text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty())
        {
            let space = (!line.is_empty()).then_some(' ');
            for c in space.into_iter().chain(word.chars()) {
                if line.len() + c.len_utf8() > self.line_bytes_max {
                    line.truncate(end);
                    line.push(CUT);
                    return line;
                }
                line.push(c);
                if line.len() + CUT.len_utf8() <= self.line_bytes_max {
                    end = line.len();
                }
            }
        }
        line
    }
}

/// Without the beginning of a character whose rest was not kept.
fn whole_chars(bytes: &[u8]) -> &[u8] {
    match std::str::from_utf8(bytes) {
        Err(error) if error.error_len().is_none() => &bytes[..error.valid_up_to()],
        _ => bytes,
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
        assert_eq!(excerpt(b"text/html", &[b'x'; 256]), "x".repeat(256));
        assert_eq!(excerpt(b"text/html", &[b'x'; 4096]), format!("{}…", "x".repeat(253)));
        assert_eq!(excerpt(b"Text/Plain", "é".repeat(2000).as_bytes()), format!("{}…", "é".repeat(126)));
    }

    /// Less than for an error, and no half character at the end of the kept bytes.
    #[test]
    fn the_excerpt_of_a_success_is_short() {
        for (body, expected) in [
            ("done".to_owned(), "done".to_owned()),
            ("x".repeat(64), "x".repeat(64)),
            ("x".repeat(65), format!("{}…", "x".repeat(61))),
            (format!("{}é", " ".repeat(255)), String::new()),
        ] {
            let mut excerpt = Excerpt::of(200);
            body.as_bytes().chunks(7).for_each(|piece| excerpt.push(piece));
            assert_eq!(excerpt.line(), expected);
        }
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
