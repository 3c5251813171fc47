//! Prebuilt requests: sending an event writes a few digits into bytes that are already there.

use std::net::SocketAddr;

pub const BODY_BYTES: usize = 1024;
const KEY_DIGITS: usize = 8;
const NUMBER_DIGITS: usize = 10;
const SENT_DIGITS: usize = 19;
const EVENTS: &str = "/api/v1/events";

/// The `number`-th event of a key, counted from 1, sent at `sent_ns`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Mark {
    pub key: u32,
    pub number: u32,
    pub sent_ns: u64,
}

/// A request of one event in binary mode, or of several as a batch.
pub struct Template {
    bytes: Vec<u8>,
    slots: Vec<Slot>,
}

/// The positions of the digits of one event.
struct Slot {
    id_key: usize,
    id_number: usize,
    key: usize,
    sent: usize,
}

impl Template {
    pub fn single(target: SocketAddr, run: &str, long_way: bool) -> Self {
        // The fast path accepts only this path.
        let path = if long_way { "/api/v1/events?" } else { EVENTS };
        let mut bytes = head(path, target, "application/json", BODY_BYTES);
        bytes.extend_from_slice(b"ce-specversion: 1.0\r\nce-type: bench.measured\r\nce-source: /bench\r\n");
        let slot = Slot::append(
            &mut bytes,
            run,
            ["ce-id: ", "\r\nce-partitionkey: ", "\r\nce-sentns: ", "\r\n\r\n"],
        );
        bytes.extend_from_slice(&payload());
        Self { bytes, slots: vec![slot] }
    }

    pub fn batch(target: SocketAddr, run: &str, events: usize) -> Self {
        let mut body = Vec::new();
        let mut slots = Vec::with_capacity(events);
        for _ in 0..events {
            body.push(if body.is_empty() { b'[' } else { b',' });
            slots.push(structured(&mut body, run));
        }
        body.push(b']');
        let mut bytes = head(EVENTS, target, "application/cloudevents-batch+json", body.len());
        bytes.extend_from_slice(b"\r\n");
        let before = bytes.len();
        bytes.extend_from_slice(&body);
        slots.iter_mut().for_each(|slot| slot.shift(before));
        Self { bytes, slots }
    }

    pub fn events(&self) -> usize {
        self.slots.len()
    }

    pub fn stamp(&mut self, index: usize, mark: Mark) {
        let slot = &self.slots[index];
        write_digits(&mut self.bytes[slot.id_key..][..KEY_DIGITS], u64::from(mark.key));
        write_digits(&mut self.bytes[slot.id_number..][..NUMBER_DIGITS], u64::from(mark.number));
        write_digits(&mut self.bytes[slot.key..][..KEY_DIGITS], u64::from(mark.key));
        write_digits(&mut self.bytes[slot.sent..][..SENT_DIGITS], mark.sent_ns);
    }

    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }
}

impl Slot {
    /// Appends id, key and send time, each behind the text that introduces it.
    fn append(bytes: &mut Vec<u8>, run: &str, [id, key, sent, end]: [&str; 4]) -> Self {
        bytes.extend_from_slice(format!("{id}{run}-").as_bytes());
        let id_key = zeros(bytes, KEY_DIGITS);
        bytes.push(b'-');
        let id_number = zeros(bytes, NUMBER_DIGITS);
        bytes.extend_from_slice(format!("{key}k").as_bytes());
        let key = zeros(bytes, KEY_DIGITS);
        bytes.extend_from_slice(sent.as_bytes());
        let sent = zeros(bytes, SENT_DIGITS);
        bytes.extend_from_slice(end.as_bytes());
        Self { id_key, id_number, key, sent }
    }

    fn shift(&mut self, by: usize) {
        for at in [&mut self.id_key, &mut self.id_number, &mut self.key, &mut self.sent] {
            *at += by;
        }
    }
}

fn head(path: &str, target: SocketAddr, content_type: &str, body_bytes: usize) -> Vec<u8> {
    format!(
        "POST {path} HTTP/1.1\r\nhost: {target}\r\ncontent-type: {content_type}\r\n\
         content-length: {body_bytes}\r\n"
    )
    .into_bytes()
}

fn structured(body: &mut Vec<u8>, run: &str) -> Slot {
    body.extend_from_slice(br#"{"specversion":"1.0","type":"bench.measured","source":"/bench","#);
    let slot = Slot::append(body, run, [r#""id":""#, r#"","partitionkey":""#, r#"","sentns":""#, r#"","#]);
    body.extend_from_slice(br#""datacontenttype":"application/json","data":"#);
    body.extend_from_slice(&payload());
    body.push(b'}');
    slot
}

/// An order of exactly 1 KiB, as JSON.
fn payload() -> Vec<u8> {
    let mut json = br#"{"order":{"customer":"c-1881","currency":"EUR","total":129.90,"lines":["#.to_vec();
    let end = br#"{"sku":"last"}]},"note":""}"#.len();
    let line = br#"{"sku":"AB-1024-XL","quantity":2,"price":64.95},"#;
    while json.len() + line.len() + end <= BODY_BYTES {
        json.extend_from_slice(line);
    }
    json.extend_from_slice(br#"{"sku":"last"}]},"note":""#);
    json.resize(BODY_BYTES - 2, b'x');
    json.extend_from_slice(b"\"}");
    json
}

fn zeros(bytes: &mut Vec<u8>, count: usize) -> usize {
    let at = bytes.len();
    bytes.resize(at + count, b'0');
    at
}

fn write_digits(slot: &mut [u8], mut number: u64) {
    for digit in slot.iter_mut().rev() {
        *digit = b'0' + (number % 10) as u8;
        number /= 10;
    }
}

/// Key and number out of an id of the form `run-key-number`.
pub fn read_id(id: &[u8]) -> Option<(u32, u32)> {
    let mut parts = id.rsplitn(3, |byte| *byte == b'-');
    let number = super::http::decimal(parts.next()?)?;
    let key = super::http::decimal(parts.next()?)?;
    Some((key.try_into().ok()?, number.try_into().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bench::wire::http;

    fn target() -> SocketAddr {
        "127.0.0.1:8080".parse().expect("an address")
    }

    #[test]
    fn a_single_event_is_what_the_sink_reads() {
        let mut template = Template::single(target(), "run7", false);
        template.stamp(0, Mark { key: 42, number: 7, sent_ns: 123_456 });
        let mut room = http::headers();
        let request = http::request(template.bytes(), &mut room).expect("valid").expect("whole");
        assert_eq!(request.header("ce-partitionkey"), Some(&b"k00000042"[..]));
        assert_eq!(request.header("ce-id").and_then(read_id), Some((42, 7)));
        assert_eq!(request.header("ce-sentns").and_then(http::decimal), Some(123_456));
        assert_eq!(request.body.len(), BODY_BYTES);
        serde_json::from_slice::<serde_json::Value>(request.body).expect("the body is JSON");
    }

    #[test]
    fn a_batch_is_json_with_every_event_stamped() {
        let mut template = Template::batch(target(), "run7", 3);
        for index in 0..3 {
            template.stamp(index, Mark { key: index as u32, number: 9, sent_ns: 5 });
        }
        let mut room = http::headers();
        let request = http::request(template.bytes(), &mut room).expect("valid").expect("whole");
        assert_eq!(request.total_bytes, template.bytes().len());
        let events: serde_json::Value = serde_json::from_slice(request.body).expect("the body is JSON");
        assert_eq!(events[2]["id"], "run7-00000002-0000000009");
        assert_eq!(events[2]["partitionkey"], "k00000002");
    }
}
