//! The client's reader of answers: the same however it is cut, never half an answer for a whole one, and nothing that the
//! HTTP library refuses or reads in another way.
#![no_main]
#![allow(dead_code)]

// The client keeps these to itself: this is their source, not a copy.
#[path = "../../crates/dispatch/src/client/answer.rs"]
mod answer;
#[path = "../../crates/dispatch/src/client/content.rs"]
mod content;
#[path = "../../crates/dispatch/src/held.rs"]
mod held;
#[path = "../../crates/dispatch/src/client/reply.rs"]
mod reply;

use answer::{Answer, Progress, Wanted};
use klambda_core::event::Event;
use klambda_core::outcome::Outcome;
use klambda_fuzz::input::Input;
use klambda_fuzz::library::{self, Body};
use libfuzzer_sys::fuzz_target;

/// More than is ever shown of a body, as everywhere.
const BODY_BYTES_MAX: usize = 1100;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let cuts: Vec<usize> = (0..input.byte() % 5).map(|_| usize::from(input.byte())).collect();
    let bytes = input.rest();
    for of_function in [false, true] {
        let whole = read(&[bytes], of_function);
        assert_eq!(whole, read(&pieces(bytes, &cuts), of_function), "in pieces {cuts:?}");
        assert_eq!(whole, read(&bytes.chunks(1).collect::<Vec<_>>(), of_function), "byte by byte");
        if let Some(read) = whole {
            check(bytes, &read, of_function);
        }
    }
    compare(bytes);
});

/// What we take the library takes too, with the same status and the same body.
fn compare(bytes: &[u8]) {
    let mut answer = Answer::new(BODY_BYTES_MAX, Wanted::All);
    let is_whole = match answer.read(bytes) {
        Ok(Progress::Done) => true,
        Ok(Progress::More) => answer.end().is_ok(),
        Err(_) => false,
    };
    if !is_whole {
        return;
    }
    let reply = answer.take_reply();
    let content = reply.content.expect("all is kept");
    match library::answer(bytes) {
        None => panic!("the library refuses {:?}", String::from_utf8_lossy(bytes)),
        // What is too long is not read to its end.
        Some((code, _)) if content.cut_at.is_some() => assert_eq!(code, reply.code),
        Some(taken) => assert_eq!(taken, (reply.code, Body::Whole(content.body))),
    }
}

#[derive(Debug, PartialEq)]
struct Read {
    code: u16,
    detail: String,
    retries: bool,
    /// A next answer may follow on its connection: so its end was certain.
    by_framing: bool,
    /// Of a function: the events in it, or what is wrong with them.
    replies: Option<Result<Vec<Event>, String>>,
}

fn read(pieces: &[&[u8]], of_function: bool) -> Option<Read> {
    let wanted = if of_function { Wanted::Events } else { Wanted::Nothing };
    let mut answer = Answer::new(BODY_BYTES_MAX, wanted);
    for (n, piece) in pieces.iter().enumerate() {
        if answer.read(piece).ok()? == Progress::Done {
            // Bytes after the answer cost the connection, wherever they are cut.
            let rest = pieces[n + 1..].iter().any(|piece| !piece.is_empty());
            return Some(finish(answer, rest));
        }
    }
    answer.end().ok()?;
    Some(finish(answer, false))
}

fn finish(mut answer: Answer, rest: bool) -> Read {
    let by_framing = answer.keeps_alive() && !rest;
    let (code, detail, retries, replies) = match answer.take_reply().into_outcome() {
        Outcome::Status { code, retry_after_ms, detail } => (code, detail, retry_after_ms.is_some(), None),
        Outcome::Replied { replies } => (200, String::new(), false, Some(Ok(replies))),
        Outcome::BadReplies(why) => (200, String::new(), false, Some(Err(why))),
        other => panic!("{other:?} is no answer"),
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
    assert!(whole.detail.chars().count() <= 201 && !whole.detail.contains(char::is_control));
    assert!(bytes.starts_with(b"HTTP/1."));
    // An answer whose end is certain is nothing before its last byte.
    if whole.by_framing
        && let Some((_, cut)) = bytes.split_last()
    {
        assert_eq!(read(&[cut], of_function), None, "half an answer was taken for a whole one");
    }
}
