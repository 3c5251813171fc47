//! How much of what is on its way to targets may be in memory: bytes count from the start of a call until they are sent.
//!
//! Whoever waits for room has not started, so it holds no slot and spends no attempt. The rule is that of
//! [`held`](crate::held): a subscription starts another event as long as what it holds already, and the event, fit into
//! what is free. One whose target does not read waits before the others do.

use crate::calls::{COUNTED_BYTES_MIN, Ticket};
use crate::engine::Engine;
use crate::lanes::Slot;
use klambda_core::ids::SubscriptionId;

impl Engine {
    /// All bytes of a call have been sent, or are not needed any more. It is open all the same.
    pub fn sent(&mut self, ticket: Ticket) {
        if let Some((id, bytes)) = self.calls.sent(ticket)
            && let Some(subscription) = self.subscriptions.get_mut(id)
        {
            subscription.flow.unsent_bytes -= bytes;
        }
    }

    /// Bytes of events that are on their way and not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        self.calls.unsent_bytes()
    }

    /// Counts an event of so many bytes that starts.
    pub(super) fn hold_unsent(&mut self, id: SubscriptionId, bytes: u32) -> usize {
        let unsent = counted(bytes);
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.unsent_bytes += unsent;
            subscription.flow.lacks_room = false;
        }
        unsent
    }

    /// Whether an event of so many bytes may start. If not, that is noted: it is asked again in every round.
    pub(super) fn has_room(&mut self, id: SubscriptionId, bytes: u32) -> bool {
        let bytes = counted(bytes);
        let free = self.config.unsent_bytes_max.saturating_sub(self.calls.unsent_bytes());
        let Some(subscription) = self.subscriptions.get_mut(id) else { return true };
        // What is larger than all of it goes alone.
        let fits =
            bytes == 0 || self.calls.unsent_bytes() == 0 || subscription.flow.unsent_bytes + bytes <= free;
        if !fits && !subscription.flow.lacks_room {
            subscription.flow.lacks_room = true;
            self.metrics.room_waits += 1;
        }
        fits
    }

    pub(super) fn has_room_for_lane(&mut self, id: SubscriptionId, slot: Slot) -> bool {
        let head = self.lanes.get(slot).and_then(|resident| resident.lane.head());
        let bytes = head.map_or(0, |(_, entry)| entry.bytes);
        self.has_room(id, bytes)
    }
}

fn counted(bytes: u32) -> usize {
    let bytes = bytes as usize;
    if bytes >= COUNTED_BYTES_MIN { bytes } else { 0 }
}
