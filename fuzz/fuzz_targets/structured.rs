//! `application/cloudevents+json`: accepted events are within the limits and can be read back, and a batch of one
//! gives the same result.
#![no_main]

use bytes::Bytes;
use klambda_core::binding::{self, Mode, Parsed, Refusal};
use klambda_fuzz::event::{BATCH, STRUCTURED, check, limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = limits();
    let read = |media: &str, body: Vec<u8>| {
        binding::parse(Some(media), std::iter::empty(), Bytes::from(body), &limits)
    };
    let alone = read(STRUCTURED, data.to_vec());
    let in_batch = read(BATCH, [b"[", data, b"]"].concat());
    match &alone {
        Ok(Parsed { mode, events, unversioned }) => {
            assert_eq!((*mode, events.len()), (Mode::Structured, 1));
            check(&events[0], &limits);
            let in_batch = in_batch.expect("a batch of one");
            let batch = &in_batch.events;
            assert_eq!((in_batch.mode, batch.len()), (Mode::Batch, 1));
            assert_eq!(in_batch.unversioned, *unversioned);
            match (&events[0], &batch[0]) {
                (Ok(alone), Ok(in_batch)) => assert_eq!(alone, in_batch),
                (Err(alone), Err(in_batch)) => {
                    assert_eq!((&alone.id, &alone.source), (&in_batch.id, &in_batch.source));
                    assert_eq!(alone.faults.len(), in_batch.faults.len());
                    assert!(in_batch.faults.iter().all(|fault| fault.path.starts_with("[0]")));
                }
                (alone, in_batch) => panic!("{alone:?}, but in a batch {in_batch:?}"),
            }
        }
        Err(Refusal::BadRequest(faults)) => assert!(!faults.is_empty()),
        Err(other) => panic!("{other:?}"),
    }
});
