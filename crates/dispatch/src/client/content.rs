//! The body of a function's response, and the events in it.

use crate::held_memory::{Holder, Part};
use bytes::Bytes;
use klambda_core::binding::{self, Limits, Refusal};
use klambda_core::event::Event;
use klambda_core::fault::Fault;
use klambda_core::outcome::CallOutcome;
use std::sync::{Arc, LazyLock};
use std::task::{Context, Poll, ready};

/// Limits for responses that are kept until they are complete: for all of them together, and the default for one. Over the
/// first limit, the longest responses are not read further until others have finished.
const COLLECTED_BYTES_MAX: usize = 16 << 20;
const ONE_BYTES_MAX: usize = 1 << 20;

static COLLECTED: LazyLock<Arc<Part>> = LazyLock::new(|| Part::new(COLLECTED_BYTES_MAX, ONE_BYTES_MAX));

/// A body, and the headers that describe it.
#[derive(Debug, Default)]
pub struct Content {
    pub content_type: Option<String>,
    /// The headers of an event in binary mode.
    headers: Vec<(String, Vec<u8>)>,
    pub body: Vec<u8>,
    /// The limit that the body exceeded.
    pub cut_at: Option<usize>,
    /// Counts the memory of a body that is kept until it is complete.
    held: Option<Holder>,
}

impl Content {
    /// Accepts any content.
    pub fn of_all<'h>(headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Box<Content> {
        let content_type = content_type(headers).map(str::to_owned);
        Box::new(Content { content_type, ..Content::default() })
    }

    /// An answer that is read when it is complete.
    pub fn of_answer() -> Box<Content> {
        Box::new(Content { held: Some(COLLECTED.holder()), ..Content::default() })
    }

    /// Returns `None` if the headers do not announce events.
    pub fn of_events<'h>(headers: impl Iterator<Item = (&'h str, &'h [u8])> + Clone) -> Option<Box<Content>> {
        let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
        let content_type = content_type(headers.clone());
        let is_event = |media: &str| {
            media.get(..23).is_some_and(|start| start.eq_ignore_ascii_case("application/cloudevents"))
        };
        let is_binary = headers.clone().any(|(name, _)| is(name, "ce-type") || is(name, "ce-specversion"));
        if !is_binary && !content_type.is_some_and(is_event) {
            return None;
        }
        let own = headers.filter(|(name, _)| name.get(..3).is_some_and(|start| is(start, "ce-")));
        Some(Box::new(Content {
            content_type: content_type.map(str::to_owned),
            headers: own.map(|(name, value)| (name.to_owned(), value.to_vec())).collect(),
            held: Some(COLLECTED.holder()),
            ..Content::default()
        }))
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.held.iter().for_each(|held| held.grow(bytes.len()));
        self.body.extend_from_slice(bytes);
    }

    /// Waits until there is room for more of the body.
    pub fn poll_room(&self, context: &mut Context<'_>) -> Poll<()> {
        if let Some(held) = &self.held {
            ready!(held.poll_room(context));
        }
        Poll::Ready(())
    }

    /// The body exceeds the limit, so the rest is not read.
    pub fn cut(&mut self, bytes_max: usize) {
        self.cut_at = Some(bytes_max);
        (self.body, self.held) = (Vec::new(), None);
    }

    pub fn into_outcome(self, status: u16) -> CallOutcome {
        if let Some(bytes_max) = self.cut_at {
            let why = format!("the response is longer than {bytes_max} bytes");
            return CallOutcome::BadReplies { status, why };
        }
        match self.events() {
            Ok(replies) => CallOutcome::Replied { status, replies },
            Err(why) => CallOutcome::BadReplies { status, why },
        }
    }

    fn events(self) -> Result<Vec<Event>, String> {
        let limits = Limits { may_lack_identity: true, ..Limits::default() };
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let parsed = binding::parse(self.content_type.as_deref(), headers, Bytes::from(self.body), &limits);
        let parsed = parsed.map_err(|refusal| match refusal {
            Refusal::BadRequest(faults) => said(&faults),
            other => other.to_string(),
        })?;
        parsed.events.into_iter().map(|event| event.map_err(|rejected| said(&rejected.faults))).collect()
    }
}

fn content_type<'h>(mut headers: impl Iterator<Item = (&'h str, &'h [u8])>) -> Option<&'h str> {
    let found = headers.find(|(name, _)| name.eq_ignore_ascii_case("content-type"));
    found.and_then(|(_, value)| std::str::from_utf8(value).ok())
}

fn said(faults: &[Fault]) -> String {
    const SAID_MAX: usize = 5;
    let said: Vec<String> = faults.iter().take(SAID_MAX).map(Fault::to_string).collect();
    said.join("; ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn content(part: &Arc<Part>, bytes: usize) -> Content {
        let mut content = Content { held: Some(part.holder()), ..Content::default() };
        content.push(&vec![b'x'; bytes]);
        content
    }

    fn has_room(content: &Content) -> bool {
        content.poll_room(&mut Context::from_waker(Waker::noop())).is_ready()
    }

    #[test]
    fn long_answers_wait_for_each_other_and_one_may_finish() {
        let part = Part::new(100_000, 20_000);
        let mut long: Vec<Content> = (0..4).map(|_| content(&part, 15_000)).collect();
        let short = content(&part, 100);
        assert!(has_room(&short), "a short response continues");
        long.push(content(&part, 15_000));
        let going_on: Vec<bool> = long.iter().map(has_room).collect();
        assert_eq!(going_on, [true, false, false, false, false], "the first response may use the reserve");
        long[0].cut(15_000);
        assert_eq!(part.used(), 60_100);
        assert!(has_room(&long[1]));
    }
}
