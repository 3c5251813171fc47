//! Calls that return the whole response and are made only once.

use super::super::testing::{Server, Step, read_request, say};
use super::super::{Call, CallResponse, Caller, Options};
use bytes::Bytes;
use klambda_core::address::ReplicaAddress;
use klambda_core::outcome::CallOutcome;
use std::os::linux::net::SocketAddrExt;
use std::time::Duration;
use tokio::io::AsyncWriteExt;

const PATIENCE: Duration = Duration::from_secs(20);
const TEA: &str = "HTTP/1.1 418 Teapot\r\ncontent-type: text/tea\r\ncontent-length: 3\r\n\r\ntea";

fn a_call(body: &str) -> Call {
    Call { headers: b"ce-id: 1\r\n".to_vec(), body: Bytes::copy_from_slice(body.as_bytes()) }
}

async fn call(caller: &Caller, server: &Server) -> Result<CallResponse, CallOutcome> {
    caller.call(&server.address().into(), &a_call("hi"), PATIENCE).await
}

#[tokio::test]
async fn the_answer_comes_back_whole_and_its_connection_is_used_again() {
    let turns = vec![Step::Request, say(TEA), Step::Request, Step::Spell(TEA.into())];
    let server = Server::start(vec![turns]).await;
    let caller = Caller::new(Options::default());
    for _ in 0..2 {
        let answer = call(&caller, &server).await.expect("an answer");
        assert_eq!((answer.status, answer.content_type.as_deref()), (418, Some("text/tea")));
        assert_eq!(answer.body, b"tea");
    }
    let expected = "POST / HTTP/1.1\r\nhost: function\r\nce-id: 1\r\ncontent-length: 2\r\n\r\nhi";
    assert_eq!(server.requests(), [(0, expected.to_owned()), (0, expected.to_owned())]);
}

#[tokio::test]
async fn a_call_that_may_have_been_seen_is_not_made_again() {
    let first = vec![Step::Request, say(TEA), Step::Request, Step::Reset];
    let server = Server::start(vec![first, vec![Step::Request, say(TEA)]]).await;
    let caller = Caller::new(Options::default());
    call(&caller, &server).await.expect("an answer");
    let lost = call(&caller, &server).await;
    assert!(matches!(lost, Err(CallOutcome::Broken(_))), "{lost:?}");
    assert_eq!(server.requests().len(), 2, "the server received the second call, but its response is lost");
    call(&caller, &server).await.expect("an answer");
}

#[tokio::test]
async fn a_response_that_is_too_long_or_too_late_is_reported() {
    let caller = Caller::new(Options { answer_bytes_max: 2, ..Options::default() });
    let server = Server::start(vec![vec![Step::Request, say(TEA)], vec![Step::Request, Step::Hang]]).await;
    let long = call(&caller, &server).await;
    assert!(
        matches!(&long, Err(CallOutcome::Broken(why)) if why.contains("longer than 2 bytes")),
        "{long:?}"
    );
    let late = caller.call(&server.address().into(), &a_call("hi"), Duration::from_millis(50)).await;
    assert!(matches!(late, Err(CallOutcome::Timeout)), "{late:?}");
}

#[tokio::test]
async fn a_socket_of_the_machine_is_called_by_its_name() {
    let name = format!("klambda-test-{}", std::process::id());
    let bound = std::os::unix::net::SocketAddr::from_abstract_name(&name).expect("a name");
    let listener = std::os::unix::net::UnixListener::bind_addr(&bound).expect("bound");
    listener.set_nonblocking(true).expect("a socket");
    let listener = tokio::net::UnixListener::from_std(listener).expect("a socket");
    let serving = tokio::spawn(async move {
        let (mut stream, _) = listener.accept().await.expect("a caller");
        for _ in 0..2 {
            read_request(&mut stream).await.expect("a request");
            stream.write_all(TEA.as_bytes()).await.expect("written");
        }
    });
    let (caller, address) = (Caller::new(Options::default()), ReplicaAddress::Local(name.as_str().into()));
    for body in ["small".to_owned(), "large".repeat(100_000)] {
        let answer = caller.call(&address, &a_call(&body), PATIENCE).await.expect("an answer");
        assert_eq!(answer.status, 418);
    }
    serving.await.expect("served");
    let gone = caller.call(&address, &a_call("hi"), PATIENCE).await;
    assert!(matches!(&gone, Err(CallOutcome::Refused(why)) if why.contains(&name)), "{gone:?}");
}
