//! Records of the log and the events in them: decoding and encoding are inverse.
#![no_main]

use klambda_core::event_codec::EventView;
use klambda_core::ids::{NamespaceId, Position, Sequence, SubscriptionId};
use klambda_core::lane::Turn;
use klambda_core::outcome::Reason;
use klambda_core::time::Millis;
use klambda_fuzz::event::check_encoding;
use klambda_fuzz::input::Input;
use klambda_store::address::LogAddress;
use klambda_store::record::{
    Attempt, Change, DocumentChange, Gone, LaneRef, Missed, Record, ReplayChange, Route, Step, To,
    WhyDisabled, is_emitted, is_event,
};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Some((mode, body)) = data.split_first() else { return };
    match mode % 3 {
        0 => decode(body),
        1 => drop(encode(&record(&mut Input::new(body)))),
        _ => event(body),
    }
});

fn decode(body: &[u8]) {
    let Ok(record) = Record::decode(body) else { return };
    assert_eq!(is_event(body), matches!(record, Record::Event { .. }));
    let emitted = matches!(record, Record::Event { emitted: true, .. } | Record::Kept { emitted: true, .. });
    assert_eq!(is_emitted(body), emitted);
    let bytes = encode(&record);
    assert!(bytes.len() <= body.len(), "our encoding must not be longer");
    if let Record::Event { event: bytes, .. }
    | Record::Kept { event: bytes, .. }
    | Record::Edited { event: bytes, .. } = record
    {
        event(bytes);
    }
}

fn encode(record: &Record<'_>) -> Vec<u8> {
    let mut bytes = Vec::new();
    record.encode(&mut bytes);
    assert_eq!(Record::decode(&bytes).as_ref(), Ok(record));
    let decoded = Record::decode(&bytes).expect("the bytes decode");
    assert_eq!(decoded.time(), record.time());
    // A truncated record is rejected, unless it ends with an event, whose bytes extend to the end of the record.
    let ends_in_event = matches!(record, Record::Event { .. } | Record::Kept { .. } | Record::Edited { .. });
    if let Some((_, cut)) = bytes.split_last() {
        assert!(ends_in_event || Record::decode(cut).is_err(), "a truncated record was accepted");
    }
    bytes
}

fn event(bytes: &[u8]) {
    if let Ok(view) = EventView::decode(bytes) {
        check_encoding(&view.to_event());
    }
}

fn record<'a>(input: &mut Input<'a>) -> Record<'a> {
    let time = Millis(input.number());
    match input.byte() % 9 {
        0 => {
            let (namespace, emitted) = (namespace(input), input.flag());
            Record::Event { namespace, time, routes: routes(input), event: input.rest(), emitted }
        }
        1 => Record::Routed {
            time,
            position: Position(input.number()),
            at: LogAddress(input.number()),
            accepted: Millis(input.number()),
            bytes: input.number() as u32,
            route: route(input),
        },
        2 => Record::Step {
            time,
            subscription: subscription(input),
            lane: lane(input),
            previous: LogAddress(input.number()),
            running: [None, Some(Turn::Queue), Some(Turn::Aside)][input.below(3)],
            step: step(input),
        },
        3 => Record::Subscription { time, subscription: subscription(input), change: change(input) },
        4 => Record::DeadLetterGone {
            time,
            subscription: subscription(input),
            position: Position(input.number()),
            why: [Gone::Deleted, Gone::Expired, Gone::Overflow][input.below(3)],
        },
        5 => Record::Replay {
            time,
            id: input.number(),
            change: match input.below(3) {
                0 => ReplayChange::Created { job: input.text() },
                1 => ReplayChange::Planned { job: input.text() },
                _ => ReplayChange::Ended { job: input.text() },
            },
        },
        6 => Record::Documents { time, changes: (0..input.byte() % 4).map(|_| document(input)).collect() },
        7 => Record::Moved {
            time,
            from: subscription(input),
            position: Position(input.number()),
            at: LogAddress(input.number()),
            accepted: Millis(input.number()),
            bytes: input.number() as u32,
            route: route(input),
            job: input.number(),
        },
        _ => Record::Kept {
            namespace: namespace(input),
            emitted: input.flag(),
            from: LogAddress(input.number()),
            time,
            position: Position(input.number()),
            routes: routes(input),
            event: input.rest(),
        },
    }
}

fn document<'a>(input: &mut Input<'a>) -> DocumentChange<'a> {
    let content = input.flag().then(|| input.text().as_bytes());
    DocumentChange { kind: input.text(), key: input.text(), content }
}

fn namespace(input: &mut Input<'_>) -> NamespaceId {
    NamespaceId(input.number())
}

fn subscription(input: &mut Input<'_>) -> SubscriptionId {
    SubscriptionId(input.number() as u32)
}

fn routes<'a>(input: &mut Input<'a>) -> Vec<Route<'a>> {
    (0..input.byte() % 4).map(|_| route(input)).collect()
}

fn route<'a>(input: &mut Input<'a>) -> Route<'a> {
    let (subscription, previous) = (subscription(input), LogAddress(input.number()));
    let to = match input.byte() % 7 {
        0 => To::Lane { key: input.text(), sequence: None },
        1 => To::Lane { key: input.text(), sequence: Some(Sequence(input.number())) },
        2 => To::Alone,
        3 => To::Invalid { what: input.text() },
        4 => To::Missed { key: input.text(), why: Missed::Retention },
        5 => To::Missed { key: input.text(), why: Missed::Discarded },
        _ => To::Later,
    };
    Route { subscription, previous, to }
}

fn lane<'a>(input: &mut Input<'a>) -> LaneRef<'a> {
    match input.byte() % 3 {
        0 => LaneRef::Key(input.text()),
        1 => LaneRef::Alone(Position(input.number())),
        _ => LaneRef::Unordered,
    }
}

fn step<'a>(input: &mut Input<'a>) -> Step<'a> {
    match input.byte() % 15 {
        0 => Step::Delivered { position: Position(input.number()), attempt: attempt(input) },
        1 => Step::Failed {
            position: Position(input.number()),
            fatal: input.flag(),
            retry_at: Millis(input.number()),
            reason: Reason::ALL[input.below(Reason::ALL.len())],
            error: input.text(),
            attempt: attempt(input),
        },
        2 => Step::GapExpired,
        3 => Step::Resume,
        4 => Step::Skip,
        5 => Step::Purge { events: input.number() },
        6 => Step::Pause,
        7 => Step::Reset { expected: Sequence(input.number()) },
        8 => Step::Replay { position: Position(input.number()), job: input.number() },
        9 => Step::DropOldest { position: Position(input.number()) },
        10 => Step::PurgePart {
            early: input.flag(),
            positions: (0..input.byte() % 4).map(|_| Position(input.number())).collect(),
        },
        11 => Step::GiveUpPart { events: input.number() },
        12 => Step::Discard { position: Position(input.number()) },
        13 => Step::Acknowledged { position: Position(input.number()) },
        _ => Step::GiveUp,
    }
}

fn attempt<'a>(input: &mut Input<'a>) -> Attempt<'a> {
    Attempt {
        number: input.number() as u32,
        duration_ms: input.number(),
        status: input.number() as u16,
        answer: input.text(),
    }
}

fn change<'a>(input: &mut Input<'a>) -> Change<'a> {
    match input.byte() % 10 {
        0 => Change::Put { document: input.text() },
        1 => Change::Pause,
        2 => Change::Resume,
        3 => Change::Drain,
        4 => Change::Remove,
        5 => Change::Caught { up_to: Position(input.number()) },
        6 => Change::Retire { until: Millis(input.number()) },
        7 => Change::Retired,
        8 => Change::Enabled,
        _ => Change::Disabled {
            why: [WhyDisabled::Request, WhyDisabled::Gone, WhyDisabled::NoSuccess][input.below(3)],
        },
    }
}
