//! Parses HTTP/1.1 responses, regardless of how they are split into pieces. Pure: bytes in, a reply out.
//!
//! The parser is strict wherever leniency could split one response into two, or accept half a response. Such a
//! response is malformed, and its connection is not reused.

use super::content::Content;
use super::reply::{Excerpt, Reply, RetryAfter};
use httparse::{Header, ParserConfig, Response, Status};
use klambda_core::http1::{self, Chunked, Item, Malformed};
use std::mem::MaybeUninit;
use std::task::{Context, Poll};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Progress {
    More,
    Done,
}

pub struct ResponseParser {
    phase: Phase,
    /// The beginning of an incomplete head.
    held: Vec<u8>,
    began: bool,
    keeps_alive: bool,
    interim: u8,
    body_bytes: usize,
    body_bytes_max: usize,
    wanted: Wanted,
    reply: Reply,
}

/// How much of a body is kept, besides the beginning that is shown to people.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    Nothing,
    /// Of a success, if it contains events.
    Events,
    /// Of a success.
    Success,
    All,
}

#[derive(Debug)]
enum Phase {
    Head,
    /// The number of missing bytes of the body.
    Length(u64),
    Chunked(Chunked),
    UntilClose,
    Done,
}

/// The headers that determine how the response is framed.
#[derive(Default)]
struct Framing {
    length: Option<u64>,
    chunked: bool,
    close: bool,
    keep_alive: bool,
}

const HEAD_BYTES_MAX: usize = 16 << 10;
const HEADERS_MAX: usize = 100;
const INTERIM_MAX: u8 = 32;
/// Enough bytes of a head to detect a protocol other than HTTP without waiting for the end of a line.
const SNIFF_BYTES: usize = 64;

impl ResponseParser {
    pub fn new(body_bytes_max: usize, wanted: Wanted) -> ResponseParser {
        ResponseParser {
            phase: Phase::Head,
            held: Vec::new(),
            began: false,
            keeps_alive: false,
            interim: 0,
            body_bytes: 0,
            body_bytes_max,
            wanted,
            reply: Reply::default(),
        }
    }

    /// Reads the next piece. After `Done` the reply is complete.
    pub fn read(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
        self.began |= !bytes.is_empty();
        match self.phase {
            Phase::Head if self.held.is_empty() => self.read_heads(bytes),
            Phase::Head => self.read_held(bytes),
            _ => self.read_body(bytes),
        }
    }

    /// The server closed the connection.
    pub fn end(&mut self) -> Result<(), Malformed> {
        self.keeps_alive = false;
        match self.phase {
            Phase::UntilClose | Phase::Done => {
                self.phase = Phase::Done;
                Ok(())
            }
            Phase::Head => Err(Malformed("connection closed before the response")),
            Phase::Length(_) | Phase::Chunked(_) => {
                Err(Malformed("connection closed in the middle of the response"))
            }
        }
    }

    /// True if at least one byte has arrived.
    pub fn has_begun(&self) -> bool {
        self.began
    }

    /// True if the connection can carry another response.
    pub fn keeps_alive(&self) -> bool {
        self.keeps_alive && matches!(self.phase, Phase::Done)
    }

    pub fn is_whole(&self) -> bool {
        matches!(self.phase, Phase::Done)
    }

    pub fn reply(&self) -> &Reply {
        &self.reply
    }

    /// Waits until there is room for more of the kept body.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        self.reply.content.as_ref().map_or(Poll::Ready(()), |content| content.poll_room(context))
    }

    /// The part of the body that is kept.
    pub fn body(&self) -> &[u8] {
        self.reply.content.as_ref().map_or(&[], |content| &content.body)
    }

    /// Takes the kept part, to make room for the rest.
    pub fn drain_body(&mut self) -> Vec<u8> {
        self.reply.content.as_mut().map(|content| std::mem::take(&mut content.body)).unwrap_or_default()
    }

    /// The number of missing bytes of the body, if the length is known.
    pub fn missing(&self) -> Option<u64> {
        match self.phase {
            Phase::Length(missing) => Some(missing),
            _ => None,
        }
    }

    pub fn take_reply(&mut self) -> Reply {
        std::mem::take(&mut self.reply)
    }

    // ---- head ---------------------------------------------------------------------------------------------

    /// A head cannot be parsed further before its next line ends; parsing after every byte would be quadratic.
    fn read_held(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
        let mut held = std::mem::take(&mut self.held);
        held.extend_from_slice(bytes);
        if held.len() > SNIFF_BYTES && held.len() <= HEAD_BYTES_MAX && !bytes.contains(&b'\n') {
            self.held = held;
            return Ok(Progress::More);
        }
        self.read_heads(&held)
    }

    /// Reads interim heads, the final head, and the bytes that follow it.
    fn read_heads(&mut self, mut bytes: &[u8]) -> Result<Progress, Malformed> {
        while let Some(length) = self.read_head(bytes)? {
            bytes = &bytes[length..];
            if !matches!(self.phase, Phase::Head) {
                return self.read_body(bytes);
            }
        }
        self.held.extend_from_slice(bytes);
        Ok(Progress::More)
    }

    /// The length of the head, if it is complete.
    fn read_head(&mut self, bytes: &[u8]) -> Result<Option<usize>, Malformed> {
        let mut headers = [const { MaybeUninit::<Header<'_>>::uninit() }; HEADERS_MAX];
        let mut response = Response::new(&mut []);
        let parsed =
            ParserConfig::default().parse_response_with_uninit_headers(&mut response, bytes, &mut headers);
        let (length, whole) = match parsed.map_err(why)? {
            Status::Complete(length) => (length, true),
            Status::Partial => (bytes.len(), false),
        };
        if length > HEAD_BYTES_MAX {
            return Err(Malformed("response headers too long"));
        }
        let (Some(code), Some(version), true) = (response.code, response.version, whole) else {
            return Ok(None);
        };
        // The parser skips empty lines before the first one, and accepts a bare line feed as the end of a line.
        let lines = response.headers.len() + 2;
        if !bytes.starts_with(b"HTTP/") || http1::line_ends(&bytes[..length]) != lines {
            return Err(Malformed("header line without a carriage return"));
        }
        self.take_head(code, version, response.headers)?;
        Ok(Some(length))
    }

    fn take_head(&mut self, code: u16, version: u8, headers: &[Header<'_>]) -> Result<(), Malformed> {
        let mut framing = Framing::default();
        let mut excerpt = Excerpt::of(code);
        let mut retry_after = None;
        for Header { name, value } in headers {
            // Comparing lengths first is faster: most header names are of no interest.
            match name.len() {
                10 if name.eq_ignore_ascii_case("connection") => framing.connection(value),
                11 if name.eq_ignore_ascii_case("retry-after") => retry_after = RetryAfter::parse(value),
                12 if name.eq_ignore_ascii_case("content-type") => excerpt.content_type(value),
                14 if name.eq_ignore_ascii_case("content-length") => framing.content_length(value)?,
                16 if name.eq_ignore_ascii_case("content-encoding") => excerpt.content_encoding(value),
                17 if name.eq_ignore_ascii_case("transfer-encoding") => framing.transfer_encoding(value)?,
                _ => {}
            }
        }
        self.phase = match code {
            101 => return Err(Malformed("unexpected protocol switch (status 101)")),
            100..=199 => return self.skip_interim(&framing),
            200..=599 => framing.phase(code, version)?,
            _ => return Err(Malformed("invalid status code")),
        };
        self.keeps_alive = framing.keeps_alive(code, version);
        let headers = headers.iter().map(|header| (header.name, header.value));
        let content = match self.wanted {
            Wanted::Events if matches!(code, 200..=299) => Content::of_events(headers),
            Wanted::Success if matches!(code, 200..=299) => Some(Content::of_answer()),
            Wanted::Events | Wanted::Success | Wanted::Nothing => None,
            Wanted::All => Some(Content::of_all(headers)),
        };
        self.reply = Reply { code, retry_after, excerpt, content };
        Ok(())
    }

    fn skip_interim(&mut self, framing: &Framing) -> Result<(), Malformed> {
        self.interim += 1;
        if framing.has_body() {
            return Err(Malformed("interim response with a body"));
        }
        if self.interim > INTERIM_MAX {
            return Err(Malformed("too many interim responses"));
        }
        Ok(())
    }

    // ---- body ---------------------------------------------------------------------------------------------

    fn read_body(&mut self, bytes: &[u8]) -> Result<Progress, Malformed> {
        match &mut self.phase {
            Phase::Head => Ok(Progress::More),
            Phase::Done => Ok(self.done(bytes)),
            Phase::UntilClose => Ok(self.take_body(bytes)),
            Phase::Length(left) => {
                let ours = bytes.len().min(usize::try_from(*left).unwrap_or(usize::MAX));
                *left -= ours as u64;
                let whole = *left == 0;
                let (ours, rest) = bytes.split_at(ours);
                if self.take_body(ours) == Progress::Done || !whole {
                    return Ok(self.progress());
                }
                Ok(self.done(rest))
            }
            Phase::Chunked(_) => self.read_chunks(bytes),
        }
    }

    fn read_chunks(&mut self, mut bytes: &[u8]) -> Result<Progress, Malformed> {
        while let Phase::Chunked(chunked) = &mut self.phase {
            match chunked.next(&mut bytes)? {
                Item::Data(data) => {
                    self.take_body(data);
                }
                Item::End => return Ok(self.done(bytes)),
                Item::More => return Ok(Progress::More),
            }
        }
        Ok(self.progress())
    }

    /// Keeps the beginning. A body beyond the limit ends the response and costs the connection.
    fn take_body(&mut self, bytes: &[u8]) -> Progress {
        self.reply.excerpt.push(bytes);
        if let Some(content) = &mut self.reply.content {
            content.push(bytes);
        }
        self.body_bytes += bytes.len();
        if self.body_bytes > self.body_bytes_max {
            self.reply.content.iter_mut().for_each(|content| content.cut(self.body_bytes_max));
            self.keeps_alive = false;
            self.phase = Phase::Done;
        }
        self.progress()
    }

    /// Bytes after the end of the response are unexpected, so the connection cannot be reused.
    fn done(&mut self, rest: &[u8]) -> Progress {
        self.keeps_alive &= rest.is_empty();
        self.phase = Phase::Done;
        Progress::Done
    }

    fn progress(&self) -> Progress {
        if matches!(self.phase, Phase::Done) { Progress::Done } else { Progress::More }
    }
}

impl Framing {
    fn connection(&mut self, value: &[u8]) {
        for option in value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii) {
            self.close |= option.eq_ignore_ascii_case(b"close");
            self.keep_alive |= option.eq_ignore_ascii_case(b"keep-alive");
        }
    }

    fn content_length(&mut self, value: &[u8]) -> Result<(), Malformed> {
        let length = http1::content_length(value).ok_or(Malformed("content-length is not a number"))?;
        if self.length.replace(length).is_some() {
            return Err(Malformed("two content-length headers"));
        }
        Ok(())
    }

    fn transfer_encoding(&mut self, value: &[u8]) -> Result<(), Malformed> {
        if self.chunked || !http1::is_chunked(value) {
            return Err(Malformed("transfer-encoding other than chunked"));
        }
        self.chunked = true;
        Ok(())
    }

    fn phase(&self, code: u16, version: u8) -> Result<Phase, Malformed> {
        if self.chunked && (self.length.is_some() || version == 0) {
            return Err(Malformed("chunked together with content-length, or chunked in HTTP/1.0"));
        }
        Ok(match self.length {
            _ if is_without_body(code) => Phase::Done,
            _ if self.chunked => Phase::Chunked(Chunked::default()),
            Some(0) => Phase::Done,
            Some(length) => Phase::Length(length),
            None => Phase::UntilClose,
        })
    }

    fn keeps_alive(&self, code: u16, version: u8) -> bool {
        let wanted = !self.close && (version == 1 || self.keep_alive);
        // The status forbids a body, but the headers announce one: its bytes may or may not come.
        let certain =
            if is_without_body(code) { !self.has_body() } else { self.length.is_some() || self.chunked };
        wanted && certain
    }

    fn has_body(&self) -> bool {
        self.chunked || self.length.is_some_and(|length| length > 0)
    }
}

fn is_without_body(code: u16) -> bool {
    matches!(code, 204 | 304)
}

fn why(error: httparse::Error) -> Malformed {
    Malformed(match error {
        httparse::Error::TooManyHeaders => "too many headers",
        httparse::Error::Version | httparse::Error::Token => "not an HTTP/1 response",
        httparse::Error::Status => "invalid status line",
        _ => "invalid header",
    })
}
