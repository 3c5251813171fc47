//! Tests of the exact record format: future versions must read the logs of today.

use super::*;
use klambda_core::ids::{LaneNumber, Sequence};
use klambda_core::outcome::Reason;

const TIME: Millis = Millis(300);
/// The encoding of `TIME`.
const T: [u8; 2] = [0xac, 0x02];

fn route(to: To<'_>) -> Route<'_> {
    Route { subscription: SubscriptionId(5), previous: LogAddress(64), to }
}

fn step(step: Step<'_>) -> Record<'_> {
    let (subscription, lane) = (SubscriptionId(5), LaneRef::Key("k"));
    Record::Step { time: TIME, subscription, lane, previous: LogAddress(64), running: None, step }
}

fn change(change: Change<'_>) -> Record<'_> {
    Record::Subscription { time: TIME, subscription: SubscriptionId(5), change }
}

fn gone(why: Gone) -> Record<'static> {
    Record::DeadLetterGone { time: TIME, subscription: SubscriptionId(5), position: Position(9), why }
}

/// Checks that the record encodes to these bytes, that they decode to the record, and that truncated bytes do not
/// decode.
fn check(record: &Record<'_>, parts: &[&[u8]]) {
    let expected = parts.concat();
    let mut bytes = vec![0xee];
    record.encode(&mut bytes);
    assert_eq!(bytes[1..], expected, "{record:?}");
    assert_eq!(Record::decode(&expected).as_ref(), Ok(record));
    assert_eq!(record.time(), TIME);
    assert_eq!(is_event(&expected), matches!(record, Record::Event { .. }));
    match record {
        Record::Event { event, .. } | Record::Kept { event, .. } => {
            assert_eq!(event_of(&expected), Ok(*event));
            assert_eq!(namespace_of(&expected), Ok(NamespaceId(150)));
        }
        Record::Edited { event, .. } => {
            assert_eq!(event_of(&expected), Ok(*event));
            assert!(namespace_of(&expected).is_err());
        }
        _ => assert!(event_of(&expected).is_err() && namespace_of(&expected).is_err()),
    }
    if !matches!(record, Record::Event { .. } | Record::Kept { .. } | Record::Edited { .. }) {
        for end in 0..expected.len() {
            assert!(Record::decode(&expected[..end]).is_err(), "{record:?} cut at {end}");
        }
    }
}

fn check_step(one: Step<'_>, name: &str, bytes: &[u8]) {
    assert_eq!(one.name(), name);
    check(&step(one), &[&[3], &T, &[5, 64, 0, 1, b'k', 0], bytes]);
}

#[test]
fn events_with_every_kind_of_route() {
    let routes = vec![
        route(To::Lane { key: "k", sequence: None }),
        route(To::Lane { key: "", sequence: Some(Sequence(7)) }),
        route(To::Alone),
        route(To::Invalid { what: "no" }),
        route(To::Later),
        route(To::Missed { key: "k", why: Missed::Retention }),
        route(To::Missed { key: "", why: Missed::Discarded }),
    ];
    let bytes: &[&[u8]] = &[
        &[7],
        &[5, 64, 0, 1, b'k', 0],
        &[5, 64, 0, 0, 8],
        &[5, 64, 1],
        &[5, 64, 2, 2, b'n', b'o'],
        &[5, 64, 3],
        &[5, 64, 4, 1, b'k'],
        &[5, 64, 5, 0],
    ];
    let bytes = bytes.concat();
    let (namespace, from, position) = (NamespaceId(150), LogAddress(32), Position(9));
    for (emitted, event_kind, kept_kind) in [(false, 1, 7), (true, 9, 10)] {
        check(
            &Record::Event { namespace, time: TIME, routes: routes.clone(), event: b"e", emitted },
            &[&[event_kind, 0x96, 1], &T, &bytes, b"e"],
        );
        check(
            &Record::Event { namespace, time: TIME, routes: Vec::new(), event: b"", emitted },
            &[&[event_kind, 0x96, 1], &T, &[0]],
        );
        check(
            &Record::Kept {
                namespace,
                from,
                time: TIME,
                position,
                routes: routes.clone(),
                event: b"e",
                emitted,
            },
            &[&[kept_kind, 0x96, 1, 32], &T, &[9], &bytes, b"e"],
        );
        assert_eq!([is_emitted(&[event_kind]), is_emitted(&[kept_kind])], [emitted; 2]);
    }
    let (at, accepted, bytes) = (LogAddress(32), Millis(2), 6);
    check(
        &Record::Routed { time: TIME, position, at, accepted, bytes, route: route(To::Alone) },
        &[&[2], &T, &[9, 32, 2, 6, 5, 64, 1]],
    );
    let from = SubscriptionId(3);
    let moved =
        |job| Record::Moved { time: TIME, from, position, at, accepted, bytes, route: route(To::Alone), job };
    check(&moved(0), &[&[11], &T, &[3, 9, 32, 2, 6, 5, 64, 1]]);
    check(&moved(7), &[&[12], &T, &[3, 9, 32, 2, 6, 5, 64, 1, 7]]);
    let subscription = SubscriptionId(5);
    let edited = Record::Edited { time: TIME, subscription, position, number: 2, by: "ann", event: b"e" };
    check(&edited, &[&[13], &T, &[5, 9, 2, 3], b"ann", b"e"]);
}

#[test]
fn documents_written_and_removed() {
    let changes = vec![
        DocumentChange { kind: "f", key: "a", content: Some(b"xy") },
        DocumentChange { kind: "f", key: "b", content: None },
        DocumentChange { kind: "g", key: "c", content: Some(b"") },
    ];
    check(
        &Record::Documents { time: TIME, changes },
        &[&[8], &T, &[3, 1, b'f', 1, b'a', 1, 2, b'x', b'y', 1, b'f', 1, b'b', 0, 1, b'g', 1, b'c', 1, 0]],
    );
    check(&Record::Documents { time: TIME, changes: Vec::new() }, &[&[8], &T, &[0]]);
}

#[test]
fn every_step() {
    let attempt = Attempt { number: 2, duration_ms: 300, status: 422, answer: "no" };
    let of_attempt = [2, 0xac, 2, 0xa6, 3, 2, b'n', b'o'];
    let delivered = [&[0, 9][..], &of_attempt].concat();
    check_step(Step::Delivered { position: Position(9), attempt }, "delivered", &delivered);
    let unanswered = Step::Delivered { position: Position(9), attempt: Attempt::default() };
    check_step(unanswered, "delivered", &[0, 9, 0, 0, 0, 0]);
    for (fatal, byte) in [(false, 0), (true, 1)] {
        let failed = Step::Failed {
            position: Position(9),
            fatal,
            retry_at: Millis(4),
            reason: Reason::Timeout,
            error: "x",
            attempt,
        };
        let bytes = [&[1, 9, byte, 4, Reason::Timeout.code(), 1, b'x'][..], &of_attempt].concat();
        check_step(failed, "failed", &bytes);
    }
    check_step(Step::GapExpired, "gap expired", &[2]);
    check_step(Step::Resume, "resumed", &[3]);
    check_step(Step::Skip, "skipped", &[4]);
    check_step(Step::Purge { events: 3 }, "purged", &[5, 3]);
    check_step(Step::Pause, "paused", &[6]);
    check_step(Step::Reset { expected: Sequence(8) }, "reset", &[7, 8]);
    check_step(Step::Replay { position: Position(9), job: 2 }, "replayed", &[8, 9, 2]);
    check_step(Step::DropOldest { position: Position(7) }, "dropped", &[9, 7]);
    check_step(Step::GiveUp, "given up", &[10]);
    let positions = vec![Position(9), Position(10), Position(8), Position(8)];
    check_step(Step::PurgePart { early: false, positions }, "purged", &[11, 0, 4, 18, 2, 3, 0]);
    check_step(Step::PurgePart { early: true, positions: Vec::new() }, "purged", &[11, 1, 0]);
    let far = vec![Position(u64::MAX), Position(0), Position(u64::MAX / 2)];
    let mut bytes = Vec::new();
    let step = Step::PurgePart { early: false, positions: far };
    step.encode(&mut bytes);
    assert_eq!(Step::decode(&mut Reader::new(&bytes)), Ok(step));
    check_step(Step::GiveUpPart { events: 3 }, "given up", &[12, 3]);
    check_step(Step::Discard { position: Position(7) }, "deleted", &[13, 7]);
    let attempt = Attempt { number: 0, duration_ms: 5, status: 204, answer: "ok" };
    let (event, number) = (LogAddress(64), LaneNumber(3));
    let resent = Step::Resent { position: Position(7), event, number, attempt, error: "" };
    check_step(resent, "resent", &[15, 7, 64, 3, 0, 5, 204, 1, 2, b'o', b'k', 0]);
    check_step(Step::Acknowledged { position: Position(7) }, "acknowledged", &[14, 7]);
}

#[test]
fn steps_of_single_events_and_of_open_requests() {
    for (running, byte) in [(None, 0), (Some(Turn::Queue), 1), (Some(Turn::Aside), 2)] {
        let (subscription, previous) = (SubscriptionId(5), LogAddress(64));
        for (lane, bytes) in [(LaneRef::Alone(Position(9)), &[1, 9][..]), (LaneRef::Unordered, &[2])] {
            let record = Record::Step { time: TIME, subscription, lane, previous, running, step: Step::Skip };
            check(&record, &[&[3], &T, &[5, 64], bytes, &[byte, 4]]);
        }
    }
}

#[test]
fn changes_dead_letters_and_replays() {
    check(&change(Change::Put { document: "{}" }), &[&[4], &T, &[5, 0, 2, b'{', b'}']]);
    for (plain, byte) in [(Change::Pause, 1), (Change::Resume, 2), (Change::Drain, 3), (Change::Remove, 4)] {
        check(&change(plain), &[&[4], &T, &[5, byte]]);
    }
    check(&change(Change::Caught { up_to: Position(9) }), &[&[4], &T, &[5, 5, 9]]);
    check(&change(Change::Retire { until: Millis(4) }), &[&[4], &T, &[5, 6, 4]]);
    check(&change(Change::Retired), &[&[4], &T, &[5, 7]]);
    for (why, byte) in [(WhyDisabled::Request, 0), (WhyDisabled::Gone, 1), (WhyDisabled::NoSuccess, 2)] {
        check(&change(Change::Disabled { why }), &[&[4], &T, &[5, 8, byte]]);
    }
    check(&change(Change::Enabled), &[&[4], &T, &[5, 9]]);
    for (why, byte) in [(Gone::Deleted, 0), (Gone::Expired, 1), (Gone::Overflow, 2)] {
        check(&gone(why), &[&[5], &T, &[5, 9, byte]]);
    }
    let job = "j";
    let changes = [
        (ReplayChange::Created { job }, 0),
        (ReplayChange::Ended { job }, 1),
        (ReplayChange::Planned { job }, 2),
    ];
    for (made, byte) in changes {
        check(&Record::Replay { time: TIME, id: 3, change: made }, &[&[6], &T, &[3, byte, 1, b'j']]);
    }
}

#[test]
fn what_nothing_writes_is_malformed() {
    let unknown: [&[u8]; 15] = [
        &[],
        &[0],
        &[12, 1],
        // More documents than bytes left, and an invalid presence flag.
        &[8, 9, 5, 1, b'f', 1],
        &[8, 9, 1, 1, b'f', 1, b'k', 2],
        &[1, 9, 1, 5, 64, 4],
        // More routes than bytes left.
        &[1, 0, 9, 9, 5, 64, 1],
        &[3, 9, 5, 64, 2, 9, 0, 4],
        &[3, 9, 5, 64, 0, 0, 3, 4],
        &[3, 9, 5, 64, 0, 0, 0, 13],
        // More positions than bytes left.
        &[3, 9, 5, 64, 0, 0, 0, 11, 0, 3, 2, 2],
        &[4, 9, 5, 6],
        &[4, 9, 5, 8],
        &[5, 9, 5, 9, 3],
        &[6, 9, 3, 3, 0],
    ];
    for bytes in unknown {
        assert!(Record::decode(bytes).is_err(), "{bytes:?}");
    }
    assert_eq!(Record::decode(&[1, 0, 9, 9, 5, 64, 1]), Err(Malformed("route count")));
    // With as many routes as bytes left, decoding fails later, when the bytes run out.
    assert_eq!(Record::decode(&[1, 0, 9, 3, 5, 64, 1]), Err(Malformed("length")));
}
