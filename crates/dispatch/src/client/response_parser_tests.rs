use super::response_parser::{Progress, ResponseParser, Wanted};
use klambda_core::outcome::CallOutcome;
use proptest::prelude::*;

const BODY_BYTES_MAX: usize = 4096;

struct Read {
    outcome: CallOutcome,
    keeps_alive: bool,
}

/// The result for these pieces, followed by the end of the connection.
fn read<'a>(pieces: impl IntoIterator<Item = &'a [u8]>) -> Result<Read, &'static str> {
    let mut answer = ResponseParser::new(BODY_BYTES_MAX, Wanted::Nothing);
    for piece in pieces {
        if answer.read(piece).map_err(|malformed| malformed.0)? == Progress::Done {
            return Ok(finished(answer));
        }
    }
    answer.end().map_err(|malformed| malformed.0)?;
    Ok(finished(answer))
}

fn finished(mut answer: ResponseParser) -> Read {
    let keeps_alive = answer.keeps_alive();
    Read { outcome: answer.take_reply().into_outcome(), keeps_alive }
}

fn whole(text: &str) -> Result<(u16, bool), &'static str> {
    read([text.as_bytes()]).map(|read| match read.outcome {
        CallOutcome::Status { code, .. } => (code, read.keeps_alive),
        other => panic!("{other:?}"),
    })
}

#[test]
fn responses_are_separated_by_their_framing() {
    for (text, expected) in [
        ("HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n", (200, true)),
        ("HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nhi", (200, true)),
        ("HTTP/1.1 200\r\ncontent-length: 2\r\nconnection: foo, Close\r\n\r\nhi", (200, false)),
        ("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nhiHTTP/1.1 500", (200, false)),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nhi", (200, false)),
        ("HTTP/1.0 200 OK\r\ncontent-length: 2\r\nconnection: keep-alive\r\n\r\nhi", (200, true)),
        ("HTTP/1.1 200 OK\r\n\r\nuntil the end", (200, false)),
        ("HTTP/1.1 204 No Content\r\n\r\n", (204, true)),
        ("HTTP/1.1 204 No Content\r\ncontent-length: 5\r\n\r\n", (204, false)),
        ("HTTP/1.1 304 Not Modified\r\n\r\n", (304, true)),
        ("HTTP/1.1 302 Found\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n", (302, true)),
        ("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n", (200, true)),
        (
            "HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n2;a=\"b\"\r\nhi\r\n00A  \r\n0123456789\r\n0\r\nx: y\r\n\r\n",
            (200, true),
        ),
        (
            "HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\nHTTP/1.1 202 Accepted\r\ncontent-length: 0\r\n\r\n",
            (202, true),
        ),
    ] {
        assert_eq!(whole(text), Ok(expected), "{text}");
    }
}

#[test]
fn an_ambiguous_response_is_rejected() {
    for text in [
        "",
        "SSH-2.0-OpenSSH_9.6\r\n",
        "HTTP/2.0 200 OK\r\n\r\n",
        "HTTP/1.1 099 Low\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 600 High\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 101 Switching Protocols\r\nupgrade: websocket\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length: 1, 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length: +1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length: 0x1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length:\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length: 99999999999999999999\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length : 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\nx: y\r\n content-length: 1\r\n\r\nx",
        "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: xchunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.0 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n-1\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0x0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1 2\r\nx\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\r\nxy\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;a\nb\r\nx\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1\nx\n0\n\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nffffffffffffffff\r\nx",
        "HTTP/1.1 200 OK\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\n\r\n",
        "HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\n",
        "\r\nHTTP/1.1 200 OK\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked, chunked\r\n\r\n0\r\n\r\n",
        "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\na b: c\r\n\r\n",
        "HTTP/1.1 103 Early Hints\r\ncontent-length: 3\r\n\r\nabcHTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
    ] {
        assert!(whole(text).is_err(), "{text}");
    }
    let endless = "HTTP/1.1 100 Continue\r\n\r\n".repeat(40) + "HTTP/1.1 204 x\r\n\r\n";
    assert!(whole(&endless).is_err());
    let long = format!("HTTP/1.1 200 OK\r\nx: {}\r\ncontent-length: 0\r\n\r\n", "y".repeat(20_000));
    assert!(whole(&long).is_err());
    let many = format!("HTTP/1.1 200 OK\r\n{}content-length: 0\r\n\r\n", "x: y\r\n".repeat(200));
    assert!(whole(&many).is_err());
}

#[test]
fn an_oversize_body_costs_the_connection_only() {
    let body = "x".repeat(BODY_BYTES_MAX + 1);
    let length = format!("HTTP/1.1 200 OK\r\ncontent-length: 99999999\r\n\r\n{body}");
    let until_close = format!("HTTP/1.1 200 OK\r\n\r\n{body}");
    let chunked =
        format!("HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n{:x}\r\n{body}garbage", body.len());
    for text in [length, until_close, chunked] {
        assert_eq!(whole(&text), Ok((200, false)));
    }
}

/// Valid and invalid responses, built from fragments that matter to a parser.
fn bytes() -> impl Strategy<Value = Vec<u8>> {
    let fragment = prop::sample::select(vec![
        "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 503 Busy\r\n",
        "HTTP/1.0 200 OK\r\n",
        "HTTP/1.1 204 \r\n",
        "HTTP/1.1 100 Continue\r\n\r\n",
        "content-length: 0\r\n",
        "content-length: 5\r\n",
        "content-length: 5000\r\n",
        "transfer-encoding: chunked\r\n",
        "content-type: text/plain\r\n",
        "retry-after: 7\r\n",
        "connection: close\r\n",
        "x-y: z\r\n",
        "\r\n",
        "\n",
        "\r",
        "5\r\nhello\r\n",
        "0\r\n\r\n",
        "0\r\n",
        "a;b=c\r\n0123456789\r\n",
        "hello",
        " ",
        "\0",
    ]);
    let fragment = prop_oneof![
        20 => fragment.prop_map(|text| text.as_bytes().to_vec()),
        1 => prop::collection::vec(any::<u8>(), 0..8),
        1 => (1usize..9000).prop_map(|length| vec![b'x'; length]),
    ];
    prop::collection::vec(fragment, 0..12).prop_map(|fragments| fragments.concat())
}

fn cut<'a>(bytes: &'a [u8], cuts: &[prop::sample::Index]) -> Vec<&'a [u8]> {
    let mut at: Vec<usize> = cuts.iter().map(|cut| cut.index(bytes.len() + 1)).collect();
    at.extend([0, bytes.len()]);
    at.sort_unstable();
    at.windows(2).map(|ends| &bytes[ends[0]..ends[1]]).filter(|piece| !piece.is_empty()).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(4000))]

    #[test]
    fn splitting_a_response_does_not_change_the_result(
        bytes in bytes(),
        head in any::<bool>(),
        cuts in prop::collection::vec(any::<prop::sample::Index>(), 0..12),
    ) {
        let bytes = if head { [b"HTTP/1.1 200 OK\r\n", &bytes[..]].concat() } else { bytes };
        let at_once = read([&bytes[..]]).ok().map(|read| read.outcome);
        let in_pieces = read(cut(&bytes, &cuts)).ok().map(|read| read.outcome);
        let byte_by_byte = read(bytes.chunks(1)).ok().map(|read| read.outcome);
        prop_assert_eq!(&at_once, &in_pieces);
        prop_assert_eq!(&at_once, &byte_by_byte);
    }

    #[test]
    fn an_incomplete_response_is_rejected(chunks in prop::collection::vec(1usize..300, 0..5), chunked in any::<bool>(), at in any::<prop::sample::Index>()) {
        let mut bytes = b"HTTP/1.1 200 OK\r\nx-request: 1\r\n".to_vec();
        if chunked {
            bytes.extend_from_slice(b"transfer-encoding: chunked\r\n\r\n");
            for length in &chunks {
                bytes.extend_from_slice(format!("{length:x}\r\n{}\r\n", "y".repeat(*length)).as_bytes());
            }
            bytes.extend_from_slice(b"0\r\n\r\n");
        } else {
            let length: usize = chunks.iter().sum();
            bytes.extend_from_slice(format!("content-length: {length}\r\n\r\n{}", "y".repeat(length)).as_bytes());
        }
        prop_assert!(read([&bytes[..]]).is_ok_and(|read| read.keeps_alive));
        let half = &bytes[..at.index(bytes.len())];
        prop_assert!(read([half]).is_err());
        prop_assert!(read(half.chunks(1)).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_not_a_success(bytes in prop::collection::vec(any::<u8>(), 0..400)) {
        prop_assert!(read([&bytes[..]]).is_err());
    }
}
