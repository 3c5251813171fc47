//! The fast path's parser of request heads. Everything that it accepts, a simple line-based parser accepts with the
//! same result.
#![no_main]
#![allow(dead_code)]

// This module is private to the server. This includes its source and not a copy.
#[path = "../../crates/server/src/fast_path/head.rs"]
mod head;
mod post_handler {
    pub use klambda_server::post_handler::PostTarget;
}

use head::{Post, Slots, Verdict};
use klambda_core::http1::Requests;
use klambda_functions::resource::ResourceKind;
use klambda_fuzz::library::{self, Body};
use libfuzzer_sys::fuzz_target;
use post_handler::PostTarget;

const BYTES_MAX: usize = 600;
const FIRST: [&[u8]; 4] = [
    b"POST /api/v1/events HTTP/1.1\r\n",
    b"POST /api/v1/lambda/functions/hello/invoke HTTP/1.1\r\n",
    b"POST /api/v1/lambda/agents/hello/invoke?namespace=shop HTTP/1.1\r\n",
    b"POST /api/v1/namespaces/shop/events HTTP/1.1\r\n",
];

fuzz_target!(|data: &[u8]| {
    let Some((mode, rest)) = data.split_first() else { return };
    // Usually starts after the first line, which has few forms.
    let bytes = match FIRST.get(usize::from(mode % 8)) {
        Some(first) => [first, rest].concat(),
        None if mode % 8 < 6 => [FIRST[0], rest].concat(),
        None => rest.to_vec(),
    };
    let mut slots = Slots::new();
    match slots.read(&bytes, BYTES_MAX) {
        Verdict::Post(post) => check_post(&bytes, &post),
        Verdict::Part => check_part(&bytes),
        Verdict::Other => {}
    }
});

fn check_post(bytes: &[u8], post: &Post<'_, '_>) {
    assert!(post.bytes <= bytes.len() && post.bytes <= BYTES_MAX);
    let head = &bytes[..post.bytes];
    assert!(head.ends_with(b"\r\n\r\n"));
    let first = head.iter().position(|byte| *byte == b'\n').expect("a line") + 1;
    let line = std::str::from_utf8(&head[..first]).expect("text");
    assert!(first_lines(post.place).iter().any(|one| one == line), "{line:?} for {:?}", post.place);
    let lines = lines(head);
    assert_eq!(lines.len(), post.headers.len(), "one header per line");
    for (line, header) in lines.iter().zip(post.headers) {
        assert_eq!(*line, (header.name.as_bytes(), header.value.trim_ascii()));
    }
    let of = |name: &[u8]| -> Vec<&[u8]> {
        lines.iter().filter(|(given, _)| given.eq_ignore_ascii_case(name)).map(|(_, value)| *value).collect()
    };
    assert!(of(b"transfer-encoding").is_empty() && of(b"expect").is_empty() && of(b"upgrade").is_empty());
    assert_eq!(of(b"content-length").len(), 1);
    let length = std::str::from_utf8(of(b"content-length")[0]).ok().and_then(|text| text.parse().ok());
    assert_eq!(Some(post.length), length);
    assert_eq!(of(b"host"), [post.host.trim().as_bytes()]);
    assert_eq!(of(b"authorization").first().copied(), post.authorization.map(<[u8]>::trim_ascii));
    assert!(of(b"origin").len() <= 1 && of(b"content-type").len() <= 1 && of(b"authorization").len() <= 1);
    // An incomplete request must not get another verdict.
    for end in [0, 1, first, post.bytes / 2, post.bytes - 1] {
        assert!(matches!(Slots::new().read(&bytes[..end], BYTES_MAX), Verdict::Part), "{end}");
    }
    let alone =
        matches!(Slots::new().read(head, BYTES_MAX), Verdict::Post(alone) if alone.length == post.length);
    assert!(alone, "the bytes after a head must not affect it");
    compare(head, post);
}

/// The HTTP library and the framing of the normal path see the same request.
fn compare(head: &[u8], post: &Post<'_, '_>) {
    if post.length > BYTES_MAX {
        return;
    }
    let whole = [head, &vec![b'x'; post.length]].concat();
    let mut requests = Requests::new(BYTES_MAX);
    assert_eq!(requests.pass(&whole), Ok(whole.len()));
    assert!(requests.is_between());
    let seen = library::requests(&whole);
    assert_eq!(seen.len(), 1, "{:?}", String::from_utf8_lossy(head));
    assert_eq!((seen[0].method.as_str(), &seen[0].body), ("POST", &Body::Whole(vec![b'x'; post.length])));
    // The library groups headers of the same name.
    let mut ours: Vec<(String, Vec<u8>)> =
        post.headers.iter().map(|header| (header.name.to_ascii_lowercase(), header.value.to_vec())).collect();
    let mut theirs = seen[0].headers.clone();
    ours.sort();
    theirs.sort();
    assert_eq!(ours, theirs);
}

/// All possible first lines for this place.
fn first_lines(place: PostTarget<'_>) -> Vec<String> {
    let (path, namespace) = match place {
        PostTarget::Events { namespace } => ("events".to_owned(), namespace),
        PostTarget::Function { kind, namespace, name } => {
            let kinds = if kind == ResourceKind::LambdaAgent { "agents" } else { "functions" };
            (format!("lambda/{kinds}/{name}/invoke"), namespace)
        }
    };
    let mut paths = vec![format!("namespaces/{namespace}/{path}"), format!("{path}?namespace={namespace}")];
    if namespace == "default" {
        paths.push(path);
    }
    paths.iter().map(|path| format!("POST /api/v1/{path} HTTP/1.1\r\n")).collect()
}

/// The headers according to a simple parser.
fn lines(head: &[u8]) -> Vec<(&[u8], &[u8])> {
    let mut lines = Vec::new();
    for line in head.split(|byte| *byte == b'\n').skip(1).map(|line| line.strip_suffix(b"\r").expect("CRLF"))
    {
        if line.is_empty() {
            break;
        }
        let colon = line.iter().position(|byte| *byte == b':').expect("a header has a colon");
        lines.push((&line[..colon], line[colon + 1..].trim_ascii()));
    }
    lines
}

fn check_part(bytes: &[u8]) {
    assert!(bytes.len() < BYTES_MAX);
    let start = bytes.len().min(13);
    assert_eq!(bytes[..start], b"POST /api/v1/"[..start]);
}
