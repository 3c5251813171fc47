//! The binary mode: headers and body. The input is header lines, an empty line, and the body.
#![no_main]

use bytes::Bytes;
use klambda_core::binding::{self, Mode, Parsed, Refusal};
use klambda_fuzz::event::{check, limits};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let limits = limits();
    let (head, body) = split(data);
    let headers: Vec<(&str, &[u8])> = head.split(|byte| *byte == b'\n').filter_map(header).collect();
    let given = |wanted: &str| headers.iter().find(|(name, _)| name.eq_ignore_ascii_case(wanted));
    let media = given("content-type").and_then(|(_, value)| std::str::from_utf8(value).ok());
    let read = binding::parse(media, headers.iter().copied(), Bytes::copy_from_slice(body), &limits);
    match read {
        Ok(Parsed { mode: Mode::Binary, events, .. }) => {
            assert_eq!(events.len(), 1);
            assert!(headers.iter().any(|(name, _)| name.to_ascii_lowercase().starts_with("ce-")));
            check(&events[0], &limits);
            if let Ok(event) = &events[0] {
                let bytes = event.data.as_ref().map_or(&[][..], |data| &data.bytes);
                assert_eq!(bytes, body, "the data equals the body");
            }
        }
        Ok(Parsed { events, .. }) => events.iter().for_each(|event| check(event, &limits)),
        Err(Refusal::BadRequest(faults)) => assert!(!faults.is_empty()),
        Err(Refusal::TooLarge { .. } | Refusal::UnsupportedMediaType(_)) => {}
    }
});

fn split(data: &[u8]) -> (&[u8], &[u8]) {
    match data.windows(2).position(|pair| pair == b"\n\n") {
        Some(at) => (&data[..at], &data[at + 2..]),
        None => (data, &[]),
    }
}

/// Accepts the names that an HTTP library would accept.
fn header(line: &[u8]) -> Option<(&str, &[u8])> {
    let colon = line.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&line[..colon]).ok()?;
    Some((name, line[colon + 1..].trim_ascii()))
}
