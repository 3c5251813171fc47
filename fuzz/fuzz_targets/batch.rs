//! `application/cloudevents-batch+json`: events in order, each checked as if it had been sent alone.
#![no_main]

use bytes::Bytes;
use klambda_core::binding::{self, Mode, Parsed, Refusal};
use klambda_fuzz::event::{BATCH, STRUCTURED, check, limits};
use libfuzzer_sys::fuzz_target;
use serde_json::value::RawValue;

fuzz_target!(|data: &[u8]| {
    let limits = limits();
    let read = |media: &str, body: &[u8]| {
        binding::parse(Some(media), std::iter::empty(), Bytes::copy_from_slice(body), &limits)
    };
    let elements = serde_json::from_slice::<Vec<&RawValue>>(data);
    match read(BATCH, data) {
        Ok(Parsed { mode, events, .. }) => {
            assert_eq!(mode, Mode::Batch);
            let elements = elements.expect("a batch is an array");
            assert_eq!(events.len(), elements.len());
            assert!(events.len() <= limits.batch_events_max);
            for (event, raw) in events.iter().zip(elements) {
                check(event, &limits);
                match (event, read(STRUCTURED, raw.get().as_bytes())) {
                    (Ok(event), Ok(alone)) => assert_eq!(alone.events, [Ok(event.clone())]),
                    (Err(_), Ok(alone)) => assert!(alone.events[0].is_err()),
                    (event, Err(_)) => assert!(event.is_err()),
                }
            }
        }
        Err(Refusal::TooLarge { limit, .. }) => {
            assert!(elements.is_ok_and(|elements| elements.len() > limit));
        }
        Err(Refusal::BadRequest(faults)) => assert!(!faults.is_empty() && elements.is_err()),
        Err(other) => panic!("{other:?}"),
    }
});
