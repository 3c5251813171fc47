//! A complete response to a POST request. It is sent as a response of the HTTP library or written directly.

use crate::response_memory::Counted;
use crate::stream::ByteStream;
use http::{HeaderValue, Response, StatusCode, header};
use httpdate::HttpDate;
use std::borrow::Cow;
use std::cell::RefCell;
use std::io::Write;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Debug)]
pub struct RawResponse {
    pub status: StatusCode,
    pub content_type: Option<Cow<'static, str>>,
    /// In seconds.
    pub retry_after: Option<u64>,
    /// The whole body, or the beginning of a long one.
    pub body: Vec<u8>,
    /// The rest of a long body.
    pub rest: Option<Box<ByteStream>>,
}

impl RawResponse {
    /// Length of the body. `None` if it is long and its length is unknown.
    pub(crate) fn length(&self) -> Option<u64> {
        let begun = self.body.len() as u64;
        self.rest.as_ref().map_or(Some(begun), |rest| rest.length().map(|length| length + begun))
    }

    /// Converts to a response of the HTTP library, with the rest of the body.
    pub(crate) fn into_response(mut self) -> Response<axum::body::Body> {
        let (length, rest) = (self.length(), self.rest.take());
        let Some(rest) = rest else { return self.into() };
        let body = (*rest).after(std::mem::take(&mut self.body)).of_length(length);
        let head: Response<Vec<u8>> = self.into();
        let mut response = head.map(|_| axum::body::Body::new(body));
        response.extensions_mut().insert(Counted);
        response
    }

    /// Appends the response in HTTP/1.1 format. If it is the `last` one, the connection closes after it.
    pub(crate) fn write(&self, last: bool, out: &mut Vec<u8>) {
        const WRITES: &str = "writing to a Vec cannot fail";
        out.extend_from_slice(b"HTTP/1.1 ");
        out.extend_from_slice(self.status.as_str().as_bytes());
        out.push(b' ');
        out.extend_from_slice(self.status.canonical_reason().unwrap_or_default().as_bytes());
        if let Some(content_type) = &self.content_type {
            out.extend_from_slice(b"\r\ncontent-type: ");
            out.extend_from_slice(content_type.as_bytes());
        }
        // These statuses have no body, so they must not have a length.
        if self.status != StatusCode::NO_CONTENT && self.status != StatusCode::NOT_MODIFIED {
            match self.length() {
                Some(length) => write!(out, "\r\ncontent-length: {length}").expect(WRITES),
                None => out.extend_from_slice(b"\r\ntransfer-encoding: chunked"),
            }
        }
        if let Some(seconds) = self.retry_after {
            write!(out, "\r\nretry-after: {seconds}").expect(WRITES);
        }
        if last {
            out.extend_from_slice(b"\r\nconnection: close");
        }
        out.extend_from_slice(b"\r\ndate: ");
        write_date(out, SystemTime::now());
        out.extend_from_slice(b"\r\n\r\n");
        match self.length() {
            Some(_) => out.extend_from_slice(&self.body),
            None => write_chunk(&self.body, out),
        }
    }
}

/// Appends a chunk of a body with unknown length.
pub(crate) fn write_chunk(part: &[u8], out: &mut Vec<u8>) {
    write!(out, "{:x}\r\n", part.len()).expect("writing to a Vec cannot fail");
    out.extend_from_slice(part);
    out.extend_from_slice(b"\r\n");
}

pub(crate) const LAST_CHUNK: &[u8] = b"0\r\n\r\n";

impl<B: From<Vec<u8>>> From<RawResponse> for Response<B> {
    fn from(answer: RawResponse) -> Response<B> {
        let mut response = Response::new(B::from(answer.body));
        *response.status_mut() = answer.status;
        let headers = response.headers_mut();
        let content_type = answer.content_type.and_then(|text| HeaderValue::from_str(&text).ok());
        headers.extend(content_type.map(|value| (header::CONTENT_TYPE, value)));
        if let Some(seconds) = answer.retry_after {
            headers.insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

/// Caches the date, which changes once per second, because responses are more frequent.
fn write_date(out: &mut Vec<u8>, now: SystemTime) {
    thread_local! {
        static WRITTEN: RefCell<(u64, String)> = const { RefCell::new((0, String::new())) };
    }
    let second = now.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs());
    WRITTEN.with_borrow_mut(|(at, text)| {
        if *at != second || text.is_empty() {
            (*at, *text) = (second, HttpDate::from(now).to_string());
        }
        out.extend_from_slice(text.as_bytes());
    });
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn is_written_in_one_piece() {
        let answer = RawResponse {
            status: StatusCode::SERVICE_UNAVAILABLE,
            content_type: Some("text/plain".into()),
            retry_after: Some(3),
            body: b"later".to_vec(),
            rest: None,
        };
        let mut out = Vec::new();
        answer.write(true, &mut out);
        let text = String::from_utf8(out).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        let lines: Vec<_> = head.split("\r\n").collect();
        assert_eq!(
            lines[..5],
            [
                "HTTP/1.1 503 Service Unavailable",
                "content-type: text/plain",
                "content-length: 5",
                "retry-after: 3",
                "connection: close",
            ]
        );
        assert_eq!(body, "later");
    }

    #[test]
    fn the_date_follows_the_clock() {
        for (second, date) in
            [(0, "Thu, 01 Jan 1970 00:00:00 GMT"), (784111777, "Sun, 06 Nov 1994 08:49:37 GMT")]
        {
            let mut out = Vec::new();
            write_date(&mut out, UNIX_EPOCH + Duration::from_secs(second));
            assert_eq!(String::from_utf8(out).unwrap(), date);
        }
    }
}
