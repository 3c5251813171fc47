//! The only way to change state: append a record to the log, then apply it.

use super::{Engine, Failure};
use crate::accept::ROUTE_BYTES_MAX;
use klambda_core::event::Event;
use klambda_core::ids::{NamespaceId, Position};
use klambda_store::address::LogAddress;
use klambda_store::marks::Identity;
use klambda_store::record::{EventHead, Record, Route};
use klambda_store::segment::RECORD_HEADER;

/// An event that is about to be appended, and its routes.
#[derive(Clone, Copy)]
pub(crate) struct NewEvent<'a> {
    pub namespace: NamespaceId,
    pub event: &'a Event,
    pub routes: &'a [Route<'a>],
    pub identity: Identity,
    /// This system emitted the event.
    pub is_emitted: bool,
}

impl NewEvent<'_> {
    /// Maximum size of an event in the log with this number of routes.
    pub fn length_max(event: &Event, routes: usize) -> usize {
        event.encoded_len_max() + 48 + routes * ROUTE_BYTES_MAX
    }
}

impl Engine {
    pub(crate) fn commit(&mut self, record: &Record<'_>) -> Result<LogAddress, Failure> {
        if self.scratch.audit.is_none() {
            return self.append(record);
        }
        let mut body = Vec::new();
        record.encode(&mut body);
        self.in_group(RECORD_HEADER + body.len(), |engine| engine.append(record))
    }

    pub(crate) fn append(&mut self, record: &Record<'_>) -> Result<LogAddress, Failure> {
        let mut body = std::mem::take(&mut self.scratch.body);
        body.clear();
        record.encode(&mut body);
        let position = self.store.log.next_position();
        let at = self.store.log.append(&body, matches!(record, Record::Event { .. }))?;
        self.commits.appended(self.now);
        let applied = self.apply_record(at, record, position);
        self.scratch.body = body;
        self.must_be_whole(applied).map(|()| at)
    }

    /// Encodes the event only once, directly into the frame that is written.
    pub(crate) fn commit_event(&mut self, new: NewEvent<'_>) -> Result<Position, Failure> {
        let NewEvent { namespace, event, routes, identity, is_emitted } = new;
        let (time, position) = (self.now, self.store.log.next_position());
        let mut length = 0;
        let at = self.store.log.append_with(NewEvent::length_max(event, routes.len()), true, &mut |out| {
            EventHead { namespace, time, routes, emitted: is_emitted }.encode(out);
            let start = out.len();
            event.encode(out);
            length = out.len() - start;
        })?;
        self.commits.appended(time);
        if let Some(known) = self.namespaces.get_mut(namespace) {
            known.accepted += 1;
        }
        if is_emitted {
            self.mark_emitted(identity, at, time);
        }
        let applied = self.place_event(at, position, time, routes, identity, length);
        self.must_be_whole(applied).map(|()| position)
    }

    /// If a record is logged but only partly applied, the engine stops. A restart applies the record completely.
    fn must_be_whole(&mut self, applied: Result<(), Failure>) -> Result<(), Failure> {
        if let Err(failure) = &applied
            && self.condition.failed.is_none()
        {
            tracing::error!(%failure, "Could not apply a logged step; nothing is acknowledged until a restart");
            self.condition.failed = Some(failure.to_string());
        }
        applied
    }
}
