//! Tells a plain post from everything else. Pure: bytes in, a verdict out.
//!
//! Strict, since whatever two readers could understand in two ways lets one request be taken for two: in any doubt it
//! is not ours.

use crate::posts::Place;
use httparse::{Header, ParserConfig, Request, Status};
use klambda_core::{http1, scan};
use klambda_functions::defaults;
use klambda_functions::name::is_label;
use klambda_functions::resource::Kind;
use std::mem::MaybeUninit;

/// The head of a post without anything unusual about it.
#[derive(Debug)]
pub(crate) struct Post<'h, 'b> {
    pub place: Place<'b>,
    pub headers: &'h [Header<'b>],
    pub host: &'b str,
    pub origin: Option<&'b str>,
    pub authorization: Option<&'b [u8]>,
    pub content_type: Option<&'b str>,
    /// Of the body.
    pub length: usize,
    /// Of the head.
    pub bytes: usize,
}

#[derive(Debug)]
pub(super) enum Verdict<'h, 'b> {
    /// May become a post.
    Part,
    Post(Post<'h, 'b>),
    Other,
}

/// Room for the headers of one head.
pub(super) struct Slots<'b>([MaybeUninit<Header<'b>>; HEADERS_MAX]);

const HEADERS_MAX: usize = 64;
/// Of the first line. Names are at most 63 letters long, so everything that is ours is shorter.
const LINE_BYTES_MAX: usize = 256;
const POST: &[u8] = b"POST /api/v1/";
const END: &str = " HTTP/1.1";

impl<'b> Slots<'b> {
    pub fn new() -> Slots<'b> {
        Slots([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }

    /// Reads the head that `bytes` begin with; of one that is longer than `bytes_max` others decide.
    pub fn read<'h>(&'h mut self, bytes: &'b [u8], bytes_max: usize) -> Verdict<'h, 'b> {
        let place = match FirstLine::read(bytes) {
            FirstLine::Part => return Verdict::Part,
            FirstLine::Other => return Verdict::Other,
            FirstLine::Place(place) => place,
        };
        let mut request = Request::new(&mut []);
        let parsed =
            ParserConfig::default().parse_request_with_uninit_headers(&mut request, bytes, &mut self.0);
        match parsed {
            Ok(Status::Complete(length))
                if length <= bytes_max && has_all_ends(&bytes[..length], &request) =>
            {
                Plain::read(request.headers).and_then(|plain| plain.post(place, request.headers, length))
            }
            Ok(Status::Partial) if bytes.len() < bytes_max && !http1::has_bare_line_feed(bytes) => {
                Some(Verdict::Part)
            }
            _ => None,
        }
        .unwrap_or(Verdict::Other)
    }
}

/// Whether every line ends with CRLF: the parser takes a line feed alone, too.
fn has_all_ends(head: &[u8], request: &Request<'_, '_>) -> bool {
    http1::line_ends(head) == request.headers.len() + 2
}

enum FirstLine<'b> {
    Part,
    Place(Place<'b>),
    Other,
}

impl<'b> FirstLine<'b> {
    fn read(bytes: &'b [u8]) -> FirstLine<'b> {
        let begun = bytes.len().min(POST.len());
        if bytes[..begun] != POST[..begun] {
            return FirstLine::Other;
        }
        let line = &bytes[..bytes.len().min(LINE_BYTES_MAX)];
        match line.iter().position(|byte| matches!(byte, b'\r' | b'\n')) {
            Some(end) if line[end] == b'\n' => FirstLine::Other,
            Some(end) => Self::place(&bytes[POST.len()..end]).map_or(FirstLine::Other, FirstLine::Place),
            None if bytes.len() < LINE_BYTES_MAX => FirstLine::Part,
            None => FirstLine::Other,
        }
    }

    fn place(line: &'b [u8]) -> Option<Place<'b>> {
        let path = std::str::from_utf8(line).ok()?.strip_suffix(END)?;
        if path == "events" {
            return Some(Place::Events { namespace: defaults::NAMESPACE });
        }
        match path.strip_prefix("namespaces/") {
            Some(below) => {
                let (namespace, path) = below.split_once('/')?;
                Self::place_in(path, Some(namespace))
            }
            None => Self::place_in(path, None),
        }
    }

    /// A path below the namespace that its beginning names, or one that may name it at its end.
    fn place_in(path: &'b str, namespace: Option<&'b str>) -> Option<Place<'b>> {
        if let Some(rest) = path.strip_prefix("events") {
            return Some(Place::Events { namespace: named(namespace, rest)? });
        }
        let (kind, rest) = match path.strip_prefix("lambda/")?.split_once('/')? {
            ("functions", rest) => (Kind::LambdaFunction, rest),
            ("agents", rest) => (Kind::LambdaAgent, rest),
            _ => return None,
        };
        let (name, rest) = rest.split_once('/')?;
        let namespace = named(namespace, rest.strip_prefix("invoke")?)?;
        is_name(name).then_some(Place::Function { kind, namespace, name })
    }
}

/// The namespace by what the beginning of a path and its query say.
fn named<'b>(given: Option<&'b str>, query: &'b str) -> Option<&'b str> {
    let namespace = match (given, query) {
        (Some(given), "") => given,
        (Some(_), _) => return None,
        (None, "") => return Some(defaults::NAMESPACE),
        (None, query) => query.strip_prefix("?namespace=")?,
    };
    is_label(namespace).then_some(namespace)
}

/// Written as it is, without anything that stands for something else.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// The headers that decide.
#[derive(Default)]
struct Plain<'b> {
    host: Option<&'b [u8]>,
    origin: Option<&'b [u8]>,
    authorization: Option<&'b [u8]>,
    content_type: Option<&'b [u8]>,
    content_length: Option<&'b [u8]>,
}

impl<'b> Plain<'b> {
    /// None if there is one among them that a plain post has not, or has but once.
    fn read(headers: &[Header<'b>]) -> Option<Plain<'b>> {
        let mut plain = Plain::default();
        for Header { name, value } in headers {
            // Lengths first: most names of a post are none of ours.
            let place = match name.len() {
                4 if name.eq_ignore_ascii_case("host") => &mut plain.host,
                6 if name.eq_ignore_ascii_case("origin") => &mut plain.origin,
                6 if name.eq_ignore_ascii_case("expect") => return None,
                7 if name.eq_ignore_ascii_case("upgrade") => return None,
                10 if name.eq_ignore_ascii_case("connection") => {
                    value.eq_ignore_ascii_case(b"keep-alive").then_some(())?;
                    continue;
                }
                12 if name.eq_ignore_ascii_case("content-type") => &mut plain.content_type,
                13 if name.eq_ignore_ascii_case("authorization") => &mut plain.authorization,
                14 if name.eq_ignore_ascii_case("content-length") => &mut plain.content_length,
                17 if name.eq_ignore_ascii_case("transfer-encoding") => return None,
                _ => continue,
            };
            if place.replace(value).is_some() {
                return None;
            }
        }
        Some(plain)
    }

    fn post<'h>(self, place: Place<'b>, headers: &'h [Header<'b>], bytes: usize) -> Option<Verdict<'h, 'b>> {
        let optional = |value: Option<&'b [u8]>| match value {
            Some(value) => text(value).map(Some),
            None => Some(None),
        };
        Some(Verdict::Post(Post {
            place,
            headers,
            host: text(self.host?)?,
            origin: optional(self.origin)?,
            authorization: self.authorization,
            content_type: optional(self.content_type)?,
            length: usize::try_from(http1::content_length(self.content_length?)?).ok()?,
            bytes,
        }))
    }
}

fn text(value: &[u8]) -> Option<&str> {
    let plain = scan::all(value, |byte| (b' '..=b'~').contains(&byte));
    plain.then(|| std::str::from_utf8(value).ok()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const MAX: usize = 1000;

    fn verdict(head: &str) -> String {
        match Slots::new().read(head.as_bytes(), MAX) {
            Verdict::Part => "part".into(),
            Verdict::Other => "other".into(),
            Verdict::Post(post) => format!("{} of {}", post.length, post.bytes),
        }
    }

    fn with(headers: &str) -> String {
        verdict(&format!("POST /api/v1/events HTTP/1.1\r\nHost: a\r\n{headers}\r\n"))
    }

    #[test]
    fn a_plain_post_is_ours_once_it_is_whole() {
        let head = "POST /api/v1/events HTTP/1.1\r\nhost: a\r\nConnection: Keep-Alive\r\nce-id: \u{fc}\r\n\
                    Content-Length: 012\r\n\r\n";
        for (end, _) in head.char_indices() {
            assert_eq!(verdict(&head[..end]), "part", "{end}");
        }
        assert_eq!(verdict(head), format!("12 of {}", head.len()));
        assert_eq!(verdict(&format!("{head}0123456789abPOST")), format!("12 of {}", head.len()));
    }

    #[test]
    fn in_doubt_it_is_not_ours() {
        for other in [
            "",
            "content-length: 1\r\ncontent-length: 1\r\n",
            "content-length: 1, 1\r\n",
            "content-length: +1\r\n",
            "content-length: -1\r\n",
            "content-length: 0x1\r\n",
            "content-length:\r\n",
            "content-length: 9999999999999999999\r\n",
            "content-length : 1\r\n",
            "content-length: 1\r\n continued: 1\r\n",
            "content-length: 1\nx: y\r\n",
            "content-length: 1\r\nx: y\n",
            "content-length: 1\r\n\n",
            "content-length: 1\r\nx: a\rb\r\n",
            "content-length: 1\r\nx: a\0b\r\n",
            "content-length: 1\r\ntransfer-encoding: chunked\r\n",
            "content-length: 1\r\nTransfer-Encoding: identity\r\n",
            "content-length: 1\r\nexpect: 100-continue\r\n",
            "content-length: 1\r\nupgrade: h2c\r\n",
            "content-length: 1\r\nconnection: close\r\n",
            "content-length: 1\r\nconnection: keep-alive, upgrade\r\n",
            "content-length: 1\r\nhost: b\r\n",
            "content-length: 1\r\norigin: http://a\r\norigin: http://a\r\n",
            "content-length: 1\r\nauthorization: a\r\nauthorization: b\r\n",
            "content-length: 1\r\ncontent-type: \u{fc}\r\n",
        ] {
            assert_eq!(with(other), "other", "{other:?}");
        }
        assert_eq!(with(&format!("content-length: 1\r\n{}", "x: y\r\n".repeat(63))), "other");
        assert_eq!(with(&format!("content-length: 1\r\nx: {}\r\n", "y".repeat(MAX))), "other");
    }

    #[test]
    fn another_first_line_shows_as_soon_as_it_ends() {
        for other in [
            "G",
            "\r\n",
            "post",
            "POST  /",
            "POST /api/v2/events",
            "POST /api/v1/events? HTTP/1.1\r\n",
            "POST /api/v1/events/ HTTP/1.1\r\n",
            "POST /api/v1/events HTTP/1.0\r\n",
            "POST /api/v1/events HTTP/1.1\n",
            "POST /api/v1/events HTTP/1.1\r\nhost: a\n",
            "POST /api/v1/lambda/functions HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions/a/rebuild HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions/a/invoke/ HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions/a%62/invoke HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions//invoke HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions/a/invoke?namespace= HTTP/1.1\r\n",
            "POST /api/v1/lambda/functions/a/invoke?namespace=b&x=y HTTP/1.1\r\n",
            "POST /api/v1/lambda/others/a/invoke HTTP/1.1\r\n",
            "POST /api/v1/events?namespace=* HTTP/1.1\r\n",
            "POST /api/v1/events?namespace=Shop HTTP/1.1\r\n",
            "POST /api/v1/namespaces/a/events?namespace=a HTTP/1.1\r\n",
            "POST /api/v1/namespaces/%61/events HTTP/1.1\r\n",
            "POST /api/v1/namespaces//events HTTP/1.1\r\n",
            "POST /api/v1/namespaces/a HTTP/1.1\r\n",
            "POST /api/v1/namespaces/a/namespaces/b/events HTTP/1.1\r\n",
        ] {
            assert_eq!(verdict(other), "other", "{other:?}");
        }
        assert_eq!(verdict(&format!("POST /api/v1/{}", "x".repeat(300))), "other");
        for part in ["", "POST /api", "POST /api/v1/events/", "POST /api/v1/lambda/functions/a/inv"] {
            assert_eq!(verdict(part), "part", "{part:?}");
        }
    }

    #[test]
    fn the_first_line_says_what_a_post_is_for() {
        let place = |path: &str| {
            let head = format!("POST /api/v1/{path} HTTP/1.1\r\nhost: a\r\ncontent-length: 0\r\n\r\n");
            match Slots::new().read(head.as_bytes(), MAX) {
                Verdict::Post(post) => format!("{:?}", post.place),
                other => format!("{other:?}"),
            }
        };
        let function = |kind: Kind, namespace: &str, name: &str| {
            format!("{:?}", Place::Function { kind, namespace, name })
        };
        let events = |namespace: &str| format!("{:?}", Place::Events { namespace });
        assert_eq!(place("events"), events("default"));
        assert_eq!(place("events?namespace=shop"), events("shop"));
        assert_eq!(place("namespaces/shop/events"), events("shop"));
        assert_eq!(place("namespaces/c/lambda/agents/b/invoke"), function(Kind::LambdaAgent, "c", "b"));
        assert_eq!(place("lambda/functions/a-1/invoke"), function(Kind::LambdaFunction, "default", "a-1"));
        assert_eq!(place("lambda/agents/b/invoke?namespace=c"), function(Kind::LambdaAgent, "c", "b"));
    }
}
