//! Follows the requests on a connection, so that the next parser receives only bytes that can be read in one way.

use super::chunked::{Chunked, Item};
use super::{Malformed, content_length, is_chunked, is_text, is_token, trim};

/// The requests of one connection, from its first byte. Bodies are followed but not stored.
#[derive(Debug)]
pub struct Requests {
    state: State,
    head_bytes_max: usize,
}

#[derive(Debug)]
enum State {
    Head(Head),
    /// Number of body bytes that have not arrived yet.
    Length(u64),
    Chunked(Chunked),
    Refused(Refused),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    Head(Malformed),
    HeadTooLarge,
    Body(Malformed),
}

/// The result of the header lines read so far.
#[derive(Debug, Default)]
struct Head {
    /// Start of the current, incomplete line.
    line: usize,
    /// The current line has no line feed before this offset.
    searched: usize,
    version: Option<Version>,
    length: Option<u64>,
    chunked: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Version {
    Http10,
    Http11,
}

impl Requests {
    /// `head_bytes_max`: the maximum length of a head.
    pub fn new(head_bytes_max: usize) -> Requests {
        Requests { state: State::Head(Head::default()), head_bytes_max }
    }

    /// Returns how many of these bytes may be passed on. A head is passed on only as a whole, so the caller presents
    /// the remaining bytes again, together with the bytes that follow. Returns an error only when no valid byte
    /// precedes the malformed part.
    pub fn pass(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        let mut passed = 0;
        loop {
            let rest = &bytes[passed..];
            match self.step(rest) {
                Ok(0) => return Ok(passed),
                Ok(count) => passed += count,
                Err(refused) => {
                    self.state = State::Refused(refused);
                    return if passed == 0 { Err(refused) } else { Ok(passed) };
                }
            }
        }
    }

    /// True if a request has ended and no byte of the next one has arrived.
    pub fn is_between(&self) -> bool {
        matches!(&self.state, State::Head(head) if head.searched == 0)
    }

    /// Returns how many bytes of the next head or body may be passed on; zero if more input is needed.
    fn step(&mut self, bytes: &[u8]) -> Result<usize, Refused> {
        match &mut self.state {
            State::Refused(refused) => Err(*refused),
            State::Head(head) => {
                // Only the bytes within the limit are parsed, so the result does not depend on how they arrive.
                let within = &bytes[..bytes.len().min(self.head_bytes_max)];
                let Some(end) = head.read(within).map_err(Refused::Head)? else {
                    let is_too_large = bytes.len() > within.len();
                    return if is_too_large { Err(Refused::HeadTooLarge) } else { Ok(0) };
                };
                self.state = head.body().map_err(Refused::Head)?;
                Ok(end)
            }
            State::Length(left) => {
                let count = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= count as u64;
                if *left == 0 {
                    self.state = State::Head(Head::default());
                }
                Ok(count)
            }
            State::Chunked(chunked) => {
                let mut rest = bytes;
                while !rest.is_empty() {
                    match chunked.next(&mut rest).map_err(Refused::Body)? {
                        Item::Data(_) => {}
                        Item::More => break,
                        Item::End => {
                            self.state = State::Head(Head::default());
                            break;
                        }
                    }
                }
                Ok(bytes.len() - rest.len())
            }
        }
    }
}

impl Head {
    /// Returns the offset after the head if the head is complete. `bytes` starts with the head.
    fn read(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        while let Some(found) = bytes[self.searched..].iter().position(|byte| *byte == b'\n') {
            let end = self.searched + found;
            let Some(line) = bytes[self.line..end].strip_suffix(b"\r") else {
                return Err(Malformed("a line of the head ends without a carriage return"));
            };
            (self.line, self.searched) = (end + 1, end + 1);
            match (self.version, line) {
                // Some clients send an extra line end after a body. It comes before the next request and is ignored.
                (None, []) => {}
                (None, line) => self.version = Some(first_line(line)?),
                (Some(_), []) => return Ok(Some(end + 1)),
                (Some(_), line) => self.header(line)?,
            }
        }
        self.searched = bytes.len();
        Ok(None)
    }

    fn header(&mut self, line: &[u8]) -> Result<(), Malformed> {
        let colon = line.iter().position(|byte| *byte == b':').ok_or(Malformed("a header has no colon"))?;
        let (name, value) = (&line[..colon], trim(&line[colon + 1..]));
        if name.is_empty() || !name.iter().copied().all(is_token) {
            // For example a space before the colon, or a folded line.
            return Err(Malformed("the name of a header is malformed"));
        }
        if !value.iter().copied().all(is_text) {
            return Err(Malformed("the value of a header is malformed"));
        }
        if name.eq_ignore_ascii_case(b"content-length") {
            let length = content_length(value).ok_or(Malformed("content-length is not a number"))?;
            if self.length.replace(length).is_some() {
                return Err(Malformed("content-length appears more than once"));
            }
        } else if name.eq_ignore_ascii_case(b"transfer-encoding") {
            if self.chunked || !is_chunked(value) {
                return Err(Malformed("transfer-encoding must be chunked, once"));
            }
            self.chunked = true;
        }
        Ok(())
    }

    /// The state that follows the head.
    fn body(&self) -> Result<State, Malformed> {
        match (self.chunked, self.length) {
            (true, Some(_)) => {
                Err(Malformed("content-length and transfer-encoding must not both be present"))
            }
            (true, None) if self.version == Some(Version::Http10) => {
                Err(Malformed("HTTP/1.0 has no transfer-encoding"))
            }
            (true, None) => Ok(State::Chunked(Chunked::default())),
            (false, None | Some(0)) => Ok(State::Head(Head::default())),
            (false, Some(length)) => Ok(State::Length(length)),
        }
    }
}

/// Only the version matters here: the rest of the line does not affect where the request ends.
fn first_line(line: &[u8]) -> Result<Version, Malformed> {
    if line.contains(&b'\r') {
        return Err(Malformed("the first line contains a carriage return"));
    }
    match line.strip_suffix(b" HTTP/1.1") {
        Some(_) => Ok(Version::Http11),
        None if line.ends_with(b" HTTP/1.0") => Ok(Version::Http10),
        None => Err(Malformed("the first line is not an HTTP/1.1 request line")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD_BYTES_MAX: usize = 200;

    /// Passes all bytes at once. Returns the bytes passed on, and the reason for stopping.
    fn pass(bytes: &str) -> (String, Option<Refused>) {
        let mut requests = Requests::new(HEAD_BYTES_MAX);
        let (mut passed, mut refused) = (0, None);
        loop {
            match requests.pass(&bytes.as_bytes()[passed..]) {
                Ok(0) => break,
                Ok(count) => passed += count,
                Err(error) => {
                    refused = Some(error);
                    break;
                }
            }
        }
        (bytes[..passed].to_owned(), refused)
    }

    /// Passes the bytes one at a time.
    fn drip(bytes: &str) -> (String, Option<Refused>) {
        let mut requests = Requests::new(HEAD_BYTES_MAX);
        let mut passed = 0;
        for end in 1..=bytes.len() {
            match requests.pass(&bytes.as_bytes()[passed..end]) {
                Ok(count) => passed += count,
                Err(refused) => return (bytes[..passed].to_owned(), Some(refused)),
            }
        }
        (bytes[..passed].to_owned(), None)
    }

    #[test]
    fn requests_are_passed_on_one_after_the_other() {
        let get = "GET / HTTP/1.1\r\nhost: a\r\n\r\n";
        let post = "POST / HTTP/1.1\r\nContent-Length:  3 \r\n\r\nabc";
        let old = "GET / HTTP/1.0\r\n\r\n";
        let chunked =
            "POST / HTTP/1.1\r\nTransfer-Encoding: Chunked\r\n\r\n3;x=\"y\"\r\na\nb\r\n0\r\nt: u\r\n\r\n";
        let all = [get, post, "\r\n", chunked, old, get].concat();
        assert_eq!(pass(&all), (all.clone(), None));
        assert_eq!(drip(&all), (all, None));
        let begun = [get, "POST / HTTP/1.1\r\nhost"].concat();
        assert_eq!(pass(&begun), (get.to_owned(), None), "an incomplete head is not passed on");
    }

    #[test]
    fn what_can_be_read_in_two_ways_is_not_passed_on() {
        let line = "POST / HTTP/1.1\r\n";
        for head in [
            "GET / HTTP/1.1\n",
            "\nGET / HTTP/1.1\r\n\r\n",
            "GET / HTTP/1.1\rx: y\r\n\r\n",
            "GET /\r\n\r\n",
            "PRI * HTTP/2.0\r\n\r\n",
            &[line, "x: y\n"].concat(),
            &[line, "x: y\r\n\n"].concat(),
            &[line, "x: y\rz\r\n"].concat(),
            &[line, "x: y\0\r\n"].concat(),
            &[line, "x: y\r\n folded\r\n"].concat(),
            &[line, " x: y\r\n"].concat(),
            &[line, "x : y\r\n"].concat(),
            &[line, ": y\r\n"].concat(),
            &[line, "x\r\n"].concat(),
            &[line, "content-length: 1\r\ncontent-length: 1\r\n"].concat(),
            &[line, "content-length: 1, 1\r\n"].concat(),
            &[line, "content-length: +1\r\n"].concat(),
            &[line, "content-length: 0x1\r\n"].concat(),
            &[line, "content-length:\r\n"].concat(),
            &[line, "content-length: 1\r\ntransfer-encoding: chunked\r\n\r\n"].concat(),
            &[line, "transfer-encoding: chunked\r\ncontent-length: 1\r\n\r\n"].concat(),
            &[line, "transfer-encoding: gzip, chunked\r\n"].concat(),
            &[line, "transfer-encoding: chunked, chunked\r\n"].concat(),
            &[line, "transfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n"].concat(),
            &[line, "transfer-encoding: identity\r\n"].concat(),
            &[line, "transfer-encoding:\x0cchunked\r\n"].concat(),
            "POST / HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n",
        ] {
            let before = "GET / HTTP/1.1\r\n\r\n";
            for read in [pass, drip] {
                let (passed, refused) = read(&[before, head].concat());
                assert_eq!(passed, before, "{head:?}");
                assert!(matches!(refused, Some(Refused::Head(_))), "{head:?}: {refused:?}");
            }
        }
        let long = [line, "x: ", &"y".repeat(HEAD_BYTES_MAX)].concat();
        assert_eq!(drip(&long).1, Some(Refused::HeadTooLarge));
        for end in ["\r\n\r\n", "\r\n\tz\r\n\r\n", "\0\r\n\r\n"] {
            assert_eq!(pass(&[&long, end].concat()).1, Some(Refused::HeadTooLarge));
        }
    }

    #[test]
    fn a_chunked_body_is_strict_too() {
        let head = "POST / HTTP/1.1\r\ntransfer-encoding: chunked\r\n\r\n";
        for body in [
            "1\nx\n",
            "1\r\nx\n",
            "1;a\nb\r\n",
            "1;a\0\r\n",
            "1 2\r\n",
            "x\r\n",
            "-1\r\n",
            "ffffffffffffffff\r\n",
            "1\r\nxy\r\n",
            "0\r\nno trailer\r\n",
            "0\r\na : b\r\n",
            "0\r\n a: b\r\n",
            "0\r\na: b\nc: d\r\n",
            "0\r\na: \0\r\n",
            "0\r\n\n",
        ] {
            for read in [pass, drip] {
                let (passed, refused) = read(&[head, body].concat());
                assert!(passed.starts_with(head), "{body:?}");
                assert!(matches!(refused, Some(Refused::Body(_))), "{body:?}: {refused:?}");
            }
        }
    }
}
