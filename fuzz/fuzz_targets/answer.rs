//! The client's parser of responses. The result does not depend on how the input is split. A truncated response is
//! never accepted as complete. Everything that the parser accepts, the HTTP library accepts with the same result.
#![no_main]
#![allow(dead_code)]

// These modules are private to the client. This includes their source and not a copy.
#[path = "../../crates/dispatch/src/client/content.rs"]
mod content;
#[path = "../../crates/dispatch/src/held_memory.rs"]
mod held_memory;
#[path = "../../crates/dispatch/src/client/reply.rs"]
mod reply;
#[path = "../../crates/dispatch/src/client/response_parser.rs"]
mod response_parser;

use klambda_core::event::Event;
use klambda_core::outcome::{CallOutcome, answer_bytes_max};
use klambda_fuzz::input::Input;
use klambda_fuzz::library::{self, Body};
use libfuzzer_sys::fuzz_target;
use response_parser::{Progress, ResponseParser, Wanted};

/// Larger than the part of a body that is shown in messages.
const BODY_BYTES_MAX: usize = 1100;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let cuts: Vec<usize> = (0..input.byte() % 5).map(|_| usize::from(input.byte())).collect();
    let bytes = input.rest();
    for of_function in [false, true] {
        let whole = read(&[bytes], of_function);
        assert_eq!(whole, read(&pieces(bytes, &cuts), of_function), "split at {cuts:?}");
        assert_eq!(whole, read(&bytes.chunks(1).collect::<Vec<_>>(), of_function), "one byte at a time");
        if let Some(read) = whole {
            check(bytes, &read, of_function);
        }
    }
    compare(bytes);
});

/// The library accepts every response that we accept, with the same status and body.
fn compare(bytes: &[u8]) {
    let mut answer = ResponseParser::new(BODY_BYTES_MAX, Wanted::All);
    let is_whole = match answer.read(bytes) {
        Ok(Progress::Done) => true,
        Ok(Progress::More) => answer.end().is_ok(),
        Err(_) => false,
    };
    if !is_whole {
        return;
    }
    let reply = answer.take_reply();
    let content = reply.content.expect("the whole body is kept");
    match library::answer(bytes) {
        None => panic!("the library rejects {:?}", String::from_utf8_lossy(bytes)),
        // The rest of a body that is too long is not read.
        Some((code, _)) if content.cut_at.is_some() => assert_eq!(code, reply.code),
        Some(taken) => assert_eq!(taken, (reply.code, Body::Whole(content.body))),
    }
}

#[derive(Debug, PartialEq)]
struct Read {
    code: u16,
    detail: String,
    retries: bool,
    /// Another response may follow on the connection, so the end of this one was certain.
    by_framing: bool,
    /// For a function: the events in the response, or the error.
    replies: Option<Result<Vec<Event>, String>>,
}

fn read(pieces: &[&[u8]], of_function: bool) -> Option<Read> {
    let wanted = if of_function { Wanted::Events } else { Wanted::Nothing };
    let mut answer = ResponseParser::new(BODY_BYTES_MAX, wanted);
    for (n, piece) in pieces.iter().enumerate() {
        if answer.read(piece).ok()? == Progress::Done {
            // Bytes after the response cost the connection, wherever the input is split.
            let rest = pieces[n + 1..].iter().any(|piece| !piece.is_empty());
            return Some(finish(answer, rest));
        }
    }
    answer.end().ok()?;
    Some(finish(answer, false))
}

fn finish(mut answer: ResponseParser, rest: bool) -> Read {
    let by_framing = answer.keeps_alive() && !rest;
    let (code, detail, retries, replies) = match answer.take_reply().into_outcome() {
        CallOutcome::Status { code, retry_after_ms, detail } => {
            (code, detail, retry_after_ms.is_some(), None)
        }
        CallOutcome::Replied { status, replies } => (status, String::new(), false, Some(Ok(replies))),
        CallOutcome::BadReplies { status, why } => (status, String::new(), false, Some(Err(why))),
        other => panic!("{other:?} is not the outcome of a response"),
    };
    Read { code, detail, retries, by_framing, replies }
}

fn pieces<'a>(bytes: &'a [u8], cuts: &[usize]) -> Vec<&'a [u8]> {
    let (mut pieces, mut rest) = (Vec::new(), bytes);
    for cut in cuts {
        let (piece, after) = rest.split_at((*cut).min(rest.len()));
        pieces.push(piece);
        rest = after;
    }
    pieces.push(rest);
    pieces
}

fn check(bytes: &[u8], whole: &Read, of_function: bool) {
    assert!(of_function || whole.replies.is_none());
    assert!((200..600).contains(&whole.code));
    assert!(whole.detail.len() <= answer_bytes_max(whole.code) && !whole.detail.contains(char::is_control));
    assert!(bytes.starts_with(b"HTTP/1."));
    // If the end of a response is certain, the response is incomplete without its last byte.
    if whole.by_framing
        && let Some((_, cut)) = bytes.split_last()
    {
        assert_eq!(read(&[cut], of_function), None, "a truncated response was accepted");
    }
}
