//! Compares where requests end, according to our parser and the HTTP library. Our parser may reject requests that the
//! library accepts. If both accept a request, they see the same request with the same body and the same end.
#![no_main]

use klambda_core::http1::{Chunked, Item, Refused, Requests};
use klambda_fuzz::input::Input;
use klambda_fuzz::library::{self, Body, Seen};
use libfuzzer_sys::fuzz_target;

const HEAD_BYTES_MAX: usize = 600;
/// Follows each request. If the library does not see it, the library found a different end.
const NEXT: &[u8] = b"GET /next HTTP/1.1\r\nhost: n\r\n\r\n";
const STARTS: [&[u8]; 3] = [
    b"POST / HTTP/1.1\r\nhost: a\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ntransfer-encoding: chunked\r\n\r\n",
    b"POST / HTTP/1.1\r\nhost: a\r\ncontent-length: 5\r\n",
];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let start = STARTS.get(input.below(4)).copied().unwrap_or_default();
    let cuts: Vec<usize> = (0..input.byte() % 5).map(|_| usize::from(input.byte())).collect();
    let bytes = [start, input.rest()].concat();
    let (ends, passed, refused) = ends(&bytes);
    let pieces = in_pieces(&bytes, &cuts);
    assert_eq!(refused, pieces.1, "the result depends on the split at {cuts:?}");
    // If a body is refused, the number of bytes passed on may differ.
    assert!(passed == pieces.0 || matches!(refused, Some(Refused::Body(_))), "{passed} {pieces:?}");
    let mut from = 0;
    for end in ends {
        check(&bytes[from..end]);
        from = end;
    }
});

/// Passes the bytes one at a time. Returns the ends of the requests, the number of bytes passed on, and the reason
/// for stopping.
fn ends(bytes: &[u8]) -> (Vec<usize>, usize, Option<Refused>) {
    let mut requests = Requests::new(HEAD_BYTES_MAX);
    let (mut ends, mut passed) = (Vec::new(), 0);
    for to in 1..=bytes.len() {
        match requests.pass(&bytes[passed..to]) {
            Ok(0) => {}
            Ok(count) => {
                passed += count;
                assert!(passed == to, "either all bytes are passed on or none");
                if requests.is_between() {
                    ends.push(passed);
                }
            }
            Err(refused) => return (ends, passed, Some(refused)),
        }
    }
    (ends, passed, None)
}

fn in_pieces(bytes: &[u8], cuts: &[usize]) -> (usize, Option<Refused>) {
    let mut requests = Requests::new(HEAD_BYTES_MAX);
    let (mut passed, mut to) = (0, 0);
    for cut in cuts.iter().copied().chain([bytes.len()]) {
        to = (to + cut).min(bytes.len());
        loop {
            match requests.pass(&bytes[passed..to]) {
                Ok(0) => break,
                Ok(count) => passed += count,
                Err(refused) => return (passed, Some(refused)),
            }
        }
    }
    (passed, None)
}

/// Checks one complete request according to our parser.
fn check(request: &[u8]) {
    let seen = library::requests(&[request, NEXT].concat());
    let Some(first) = seen.first() else { return };
    match &first.body {
        Body::Refused => assert_eq!(seen.len(), 1, "no request may follow a refused one"),
        Body::Cut => panic!("the library expects more bytes after {:?}", String::from_utf8_lossy(request)),
        Body::Whole(body) => {
            assert_eq!(*body, own_body(request, first), "{:?}", String::from_utf8_lossy(request));
            assert!(seen.len() <= 2);
            assert!(
                seen.get(1).is_none_or(|next| next.target == "/next" && next.method == "GET"),
                "{seen:?}"
            );
        }
    }
}

fn own_body(request: &[u8], seen: &Seen) -> Vec<u8> {
    // Empty lines may precede the first line.
    let skipped = request.chunks(2).take_while(|line| *line == b"\r\n").count() * 2;
    let end = request[skipped..].windows(4).position(|bytes| bytes == b"\r\n\r\n").expect("a head") + skipped;
    let mut rest = &request[end + 4..];
    if !seen.headers.iter().any(|(name, _)| name == "transfer-encoding") {
        return rest.to_vec();
    }
    let (mut chunked, mut body) = (Chunked::default(), Vec::new());
    loop {
        match chunked.next(&mut rest).expect("the body is valid") {
            Item::Data(data) => body.extend_from_slice(data),
            Item::End => return body,
            Item::More => panic!("the body is incomplete"),
        }
    }
}
