//! The events in a function's answer.

use bytes::Bytes;
use klambda_core::binding::{self, Limits, Refusal};
use klambda_core::event::Event;
use klambda_core::fault::Fault;
use klambda_core::outcome::Outcome;

/// The body of an answer that holds events, and what its head says of them.
#[derive(Debug, Default)]
pub struct Content {
    content_type: Option<String>,
    headers: Vec<(String, Vec<u8>)>,
    body: Vec<u8>,
    /// The limit it exceeded.
    cut_at: Option<usize>,
}

impl Content {
    /// Nothing, if the head does not speak of events.
    pub fn of<'h>(headers: impl Iterator<Item = (&'h str, &'h [u8])> + Clone) -> Option<Box<Content>> {
        let is = |name: &str, wanted: &str| name.eq_ignore_ascii_case(wanted);
        let content_type = headers.clone().find(|(name, _)| is(name, "content-type"));
        let content_type = content_type.and_then(|(_, value)| std::str::from_utf8(value).ok());
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
            ..Content::default()
        }))
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.body.extend_from_slice(bytes);
    }

    /// The rest is more than is read.
    pub fn cut(&mut self, bytes_max: usize) {
        self.cut_at = Some(bytes_max);
        self.body = Vec::new();
    }

    pub fn into_outcome(self) -> Outcome {
        if let Some(bytes_max) = self.cut_at {
            return Outcome::BadReplies(format!("the answer is longer than {bytes_max} bytes"));
        }
        match self.events() {
            Ok(replies) => Outcome::Replied { replies },
            Err(why) => Outcome::BadReplies(why),
        }
    }

    fn events(self) -> Result<Vec<Event>, String> {
        let limits = Limits { may_lack_identity: true, ..Limits::default() };
        let headers = self.headers.iter().map(|(name, value)| (name.as_str(), value.as_slice()));
        let parsed = binding::parse(self.content_type.as_deref(), headers, Bytes::from(self.body), &limits);
        let (_, events) = parsed.map_err(|refusal| match refusal {
            Refusal::BadRequest(faults) => said(&faults),
            other => other.to_string(),
        })?;
        events.into_iter().map(|event| event.map_err(|rejected| said(&rejected.faults))).collect()
    }
}

fn said(faults: &[Fault]) -> String {
    const SAID_MAX: usize = 5;
    let said: Vec<String> = faults.iter().take(SAID_MAX).map(Fault::to_string).collect();
    said.join("; ")
}
