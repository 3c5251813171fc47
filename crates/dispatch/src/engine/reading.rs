//! Events that are in the log already.

use super::{Engine, Failure, if_readable};
use crate::apply::event_of;
use crate::rows;
use bytes::Bytes;
use klambda_core::event_codec::EventView;
use klambda_core::ids::{Address, NamespaceId};
use klambda_core::wire::Malformed;
use klambda_store::log;
use klambda_store::record::namespace_of;

impl Engine {
    /// The body of an event's record, wherever retention has put it.
    pub(crate) fn read_event(&self, at: Address) -> Result<Bytes, Failure> {
        match self.store.log.read(at) {
            Err(log::Error::Gone(_)) => {
                Ok(self.store.log.read(self.copy_of(at)?.ok_or(log::Error::Gone(at))?)?)
            }
            other => Ok(other?),
        }
    }

    /// Where retention has put the event of a segment that is gone.
    pub(crate) fn copy_of(&self, at: Address) -> Result<Option<Address>, Failure> {
        let row = self.store.rows.get(&rows::kept(at))?;
        Ok(row.and_then(|row| row.try_into().ok()).map(u64::from_be_bytes).map(Address))
    }

    /// What an event in the log says, and its namespace; nothing of one that cannot be read back any more.
    pub(crate) fn read_back<T>(
        &mut self,
        at: Address,
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
