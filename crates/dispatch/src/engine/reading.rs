//! Reads events that are in the log.

use super::{Engine, Failure, if_readable};
use crate::apply::event_of;
use crate::rows;
use bytes::Bytes;
use klambda_core::event_codec::EventView;
use klambda_core::ids::NamespaceId;
use klambda_core::wire::Malformed;
use klambda_store::address::LogAddress;
use klambda_store::log;
use klambda_store::record::namespace_of;

impl Engine {
    /// The body of an event's record, or of the copy that retention made.
    pub(crate) fn read_event(&self, at: LogAddress) -> Result<Bytes, Failure> {
        match self.store.log.read(at) {
            Err(log::Error::Gone(_)) => {
                Ok(self.store.log.read(self.copy_of(at)?.ok_or(log::Error::Gone(at))?)?)
            }
            other => Ok(other?),
        }
    }

    /// The address of the copy of an event whose segment was deleted.
    pub(crate) fn copy_of(&self, at: LogAddress) -> Result<Option<LogAddress>, Failure> {
        let row = self.store.rows.get(&rows::kept(at))?;
        Ok(row.and_then(|row| row.try_into().ok()).map(u64::from_be_bytes).map(LogAddress))
    }

    /// Decodes an event in the log and passes it to `read` with its namespace. Returns `None` if the event can no
    /// longer be read.
    pub(crate) fn read_back<T>(
        &mut self,
        at: LogAddress,
        read: impl FnOnce(NamespaceId, &EventView<'_>) -> T,
    ) -> Result<Option<T>, Failure> {
        let said = self.read_event(at).and_then(|record| {
            let (_, event) = event_of(&record)?;
            let event = EventView::decode(event).map_err(|_| Malformed("event"))?;
            Ok(read(namespace_of(&record)?, &event))
        });
        let said = if_readable(said)?;
        self.metrics.damaged += u64::from(said.is_none());
        Ok(said)
    }
}
