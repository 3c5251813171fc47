//! The little HTTP/1.1 that the bench needs: whole messages with a `content-length`.

use std::mem::MaybeUninit;

use anyhow::{Context, bail};
use httparse::{Header, Status};

const HEADERS_MAX: usize = 48;

type Headers<'b> = [MaybeUninit<Header<'b>>; HEADERS_MAX];

/// One event as a request carries it in binary mode.
pub struct Request<'b> {
    pub headers: &'b [Header<'b>],
    pub body: &'b [u8],
    pub total_bytes: usize,
}

#[derive(Debug, PartialEq, Eq)]
pub struct Response {
    pub status: u16,
    pub head_bytes: usize,
    pub total_bytes: usize,
}

pub fn headers<'b>() -> Headers<'b> {
    [const { MaybeUninit::uninit() }; HEADERS_MAX]
}

/// The request at the start of `bytes`, once all of it is there.
pub fn request<'b>(bytes: &'b [u8], room: &'b mut Headers<'b>) -> anyhow::Result<Option<Request<'b>>> {
    let mut request = httparse::Request::new(&mut []);
    let parsed = request.parse_with_uninit_headers(bytes, room).context("a request is no HTTP")?;
    let Status::Complete(head_bytes) = parsed else { return Ok(None) };
    let headers: &'b [Header<'b>] = request.headers;
    let total_bytes = head_bytes + body_bytes(headers)?;
    if bytes.len() < total_bytes {
        return Ok(None);
    }
    Ok(Some(Request { headers, body: &bytes[head_bytes..total_bytes], total_bytes }))
}

/// The response at the start of `bytes`, once all of it is there.
pub fn response(bytes: &[u8]) -> anyhow::Result<Option<Response>> {
    let mut room = headers();
    let mut response = httparse::Response::new(&mut []);
    let parsed = httparse::ParserConfig::default()
        .parse_response_with_uninit_headers(&mut response, bytes, &mut room)
        .context("an answer is no HTTP")?;
    let Status::Complete(head_bytes) = parsed else { return Ok(None) };
    let status = response.code.context("an answer has no status")?;
    let total_bytes = head_bytes + if status == 204 { 0 } else { body_bytes(response.headers)? };
    Ok((bytes.len() >= total_bytes).then_some(Response { status, head_bytes, total_bytes }))
}

impl<'b> Request<'b> {
    pub fn header(&self, name: &str) -> Option<&'b [u8]> {
        find(self.headers, name)
    }
}

fn body_bytes(headers: &[Header]) -> anyhow::Result<usize> {
    if find(headers, "transfer-encoding").is_some() {
        bail!("the bench reads bodies by content-length only");
    }
    let Some(length) = find(headers, "content-length") else { return Ok(0) };
    decimal(length).map(|bytes| bytes as usize).context("a content-length is no number")
}

fn find<'b>(headers: &[Header<'b>], name: &str) -> Option<&'b [u8]> {
    headers.iter().find(|header| header.name.eq_ignore_ascii_case(name)).map(|header| header.value)
}

pub fn decimal(digits: &[u8]) -> Option<u64> {
    if digits.is_empty() || digits.len() > 19 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    Some(digits.iter().fold(0, |number, digit| number * 10 + u64::from(digit - b'0')))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_message_counts_once_it_is_whole() {
        let whole = b"HTTP/1.1 202 Accepted\r\ncontent-length: 2\r\n\r\n{}";
        assert_eq!(response(&whole[..whole.len() - 1]).expect("valid"), None);
        let read = response(whole).expect("valid").expect("whole");
        assert_eq!((read.status, read.total_bytes), (202, whole.len()));

        let whole = b"POST / HTTP/1.1\r\nCE-Id: 7\r\nContent-Length: 3\r\n\r\nabcPOST";
        let mut room = headers();
        let read = request(whole, &mut room).expect("valid").expect("whole");
        assert_eq!((read.header("ce-id"), read.body), (Some(&b"7"[..]), &b"abc"[..]));
        assert_eq!(read.total_bytes, whole.len() - 4);
    }
}
