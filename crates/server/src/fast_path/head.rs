//! Recognizes plain POST requests. Pure: bytes in, a verdict out.
//!
//! It is strict, because a request that two parsers read differently can be taken for two requests. Ambiguous requests are
//! not handled here.

use crate::post_handler::PostTarget;
use httparse::{Header, ParserConfig, Request, Status};
use klambda_core::{http1, scan};
use klambda_functions::defaults;
use klambda_functions::name::is_label;
use klambda_functions::resource::ResourceKind;
use std::mem::MaybeUninit;

/// The head of a plain POST request.
#[derive(Debug)]
pub(crate) struct Post<'h, 'b> {
    pub place: PostTarget<'b>,
    pub headers: &'h [Header<'b>],
    pub host: &'b str,
    pub origin: Option<&'b str>,
    pub authorization: Option<&'b [u8]>,
    pub content_type: Option<&'b str>,
    /// Length of the body.
    pub length: usize,
    /// Length of the head.
    pub bytes: usize,
}

#[derive(Debug)]
pub(super) enum Verdict<'h, 'b> {
    /// May become a POST request.
    Part,
    Post(Post<'h, 'b>),
    Other,
}

/// Storage for the headers of one head.
pub(super) struct Slots<'b>([MaybeUninit<Header<'b>>; HEADERS_MAX]);

const HEADERS_MAX: usize = 64;
/// Limit of the first line. Names have at most 63 characters, so all paths handled here are shorter.
const LINE_BYTES_MAX: usize = 256;
const POST: &[u8] = b"POST /api/v1/";
const END: &str = " HTTP/1.1";

impl<'b> Slots<'b> {
    pub fn new() -> Slots<'b> {
        Slots([const { MaybeUninit::uninit() }; HEADERS_MAX])
    }

    /// Reads the head at the beginning of `bytes`. A head longer than `bytes_max` is not handled here.
    pub fn read<'h>(&'h mut self, bytes: &'b [u8], bytes_max: usize) -> Verdict<'h, 'b> {
        let place = match FirstLine::read(bytes) {
            FirstLine::Part => return Verdict::Part,
            FirstLine::Other => return Verdict::Other,
            FirstLine::PostTarget(place) => place,
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

/// Whether every line ends with CRLF. The parser also accepts a line feed alone.
fn has_all_ends(head: &[u8], request: &Request<'_, '_>) -> bool {
    http1::line_ends(head) == request.headers.len() + 2
}

enum FirstLine<'b> {
    Part,
    PostTarget(PostTarget<'b>),
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
            Some(end) => Self::place(&bytes[POST.len()..end]).map_or(FirstLine::Other, FirstLine::PostTarget),
            None if bytes.len() < LINE_BYTES_MAX => FirstLine::Part,
            None => FirstLine::Other,
        }
    }

    fn place(line: &'b [u8]) -> Option<PostTarget<'b>> {
        let path = std::str::from_utf8(line).ok()?.strip_suffix(END)?;
        if path == "events" {
            return Some(PostTarget::Events { namespace: defaults::NAMESPACE });
        }
        match path.strip_prefix("namespaces/") {
            Some(below) => {
                let (namespace, path) = below.split_once('/')?;
                Self::place_in(path, Some(namespace))
            }
            None => Self::place_in(path, None),
        }
    }

    /// A path below the namespace that the prefix names, or a path with a namespace in its query.
    fn place_in(path: &'b str, namespace: Option<&'b str>) -> Option<PostTarget<'b>> {
        if let Some(rest) = path.strip_prefix("events") {
            return Some(PostTarget::Events { namespace: named(namespace, rest)? });
        }
        let (kind, rest) = match path.strip_prefix("lambda/")?.split_once('/')? {
            ("functions", rest) => (ResourceKind::LambdaFunction, rest),
            ("agents", rest) => (ResourceKind::LambdaAgent, rest),
            _ => return None,
        };
        let (name, rest) = rest.split_once('/')?;
        let namespace = named(namespace, rest.strip_prefix("invoke")?)?;
        is_name(name).then_some(PostTarget::Function { kind, namespace, name })
    }
}

/// The namespace in the prefix of a path or in its query.
fn named<'b>(given: Option<&'b str>, query: &'b str) -> Option<&'b str> {
    let namespace = match (given, query) {
        (Some(given), "") => given,
        (Some(_), _) => return None,
        (None, "") => return Some(defaults::NAMESPACE),
        (None, query) => query.strip_prefix("?namespace=")?,
    };
    is_label(namespace).then_some(namespace)
}

/// Whether a name is written without escapes.
fn is_name(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'.'))
}

/// The headers that matter here.
#[derive(Default)]
struct Plain<'b> {
    host: Option<&'b [u8]>,
    origin: Option<&'b [u8]>,
    authorization: Option<&'b [u8]>,
    content_type: Option<&'b [u8]>,
    content_length: Option<&'b [u8]>,
}

impl<'b> Plain<'b> {
    /// `None` if a header is not allowed in a plain POST request, or is repeated.
    fn read(headers: &[Header<'b>]) -> Option<Plain<'b>> {
        let mut plain = Plain::default();
        for Header { name, value } in headers {
            // Compare lengths first, because most headers are not relevant here.
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

    fn post<'h>(
        self,
        place: PostTarget<'b>,
        headers: &'h [Header<'b>],
        bytes: usize,
    ) -> Option<Verdict<'h, 'b>> {
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
        let function = |kind: ResourceKind, namespace: &str, name: &str| {
            format!("{:?}", PostTarget::Function { kind, namespace, name })
        };
        let events = |namespace: &str| format!("{:?}", PostTarget::Events { namespace });
        assert_eq!(place("events"), events("default"));
        assert_eq!(place("events?namespace=shop"), events("shop"));
        assert_eq!(place("namespaces/shop/events"), events("shop"));
        assert_eq!(
            place("namespaces/c/lambda/agents/b/invoke"),
            function(ResourceKind::LambdaAgent, "c", "b")
        );
        assert_eq!(
            place("lambda/functions/a-1/invoke"),
            function(ResourceKind::LambdaFunction, "default", "a-1")
        );
        assert_eq!(
            place("lambda/agents/b/invoke?namespace=c"),
            function(ResourceKind::LambdaAgent, "c", "b")
        );
    }
}
