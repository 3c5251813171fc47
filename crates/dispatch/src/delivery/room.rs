//! Limits the memory of events in flight: bytes count from the start of a call until they are sent.
//!
//! A delivery that waits for room has not started, so it holds no slot and uses no attempt. The rule is that of
//! [`held_memory`](crate::held_memory): a subscription may start another event if that event and the bytes that the subscription
//! already holds fit into the free memory. A subscription whose target does not read waits before the others do.

use crate::calls::{COUNTED_BYTES_MIN, Ticket};
use crate::engine::Engine;
use crate::lanes::Slot;
use klambda_core::ids::SubscriptionId;

impl Engine {
    /// All bytes of a call were sent, or are no longer needed. The call itself stays open.
    pub fn sent(&mut self, ticket: Ticket) {
        if let Some((id, bytes)) = self.calls.sent(ticket)
            && let Some(subscription) = self.subscriptions.get_mut(id)
        {
            subscription.flow.unsent_bytes -= bytes;
        }
    }

    /// Bytes of events in flight that are not sent yet.
    pub fn unsent_bytes(&self) -> usize {
        self.calls.unsent_bytes()
    }

    /// Counts the bytes of an event that starts.
    pub(super) fn hold_unsent(&mut self, id: SubscriptionId, bytes: u32) -> usize {
        let unsent = counted(bytes);
        if let Some(subscription) = self.subscriptions.get_mut(id) {
            subscription.flow.unsent_bytes += unsent;
            subscription.flow.lacks_room = false;
        }
        unsent
    }

    /// True if an event of this size may start. If not, the wait is counted once, because every round asks again.
    pub(super) fn has_room(&mut self, id: SubscriptionId, bytes: u32) -> bool {
        let bytes = counted(bytes);
        let free = self.config.unsent_bytes_max.saturating_sub(self.calls.unsent_bytes());
        let Some(subscription) = self.subscriptions.get_mut(id) else { return true };
        // An event larger than the limit is sent alone.
        let fits =
            bytes == 0 || self.calls.unsent_bytes() == 0 || subscription.flow.unsent_bytes + bytes <= free;
        if !fits && !subscription.flow.lacks_room {
            subscription.flow.lacks_room = true;
            self.metrics.room_waits += 1;
        }
        fits
    }

    /// The size of an event that may start now.
    pub(super) fn room_bytes(&self, id: SubscriptionId) -> usize {
        let free = self.config.unsent_bytes_max.saturating_sub(self.calls.unsent_bytes());
        free.saturating_sub(
            self.subscriptions.get(id).map_or(0, |subscription| subscription.flow.unsent_bytes),
        )
    }

    pub(super) fn has_room_for_lane(&mut self, id: SubscriptionId, slot: Slot) -> bool {
        let head = self.lanes.get(slot).and_then(|resident| resident.lane.head());
        let bytes = head.map_or(0, |(_, entry)| self.bytes_to_send(id, entry));
        self.has_room(id, bytes)
    }
}

fn counted(bytes: u32) -> usize {
    let bytes = bytes as usize;
    if bytes >= COUNTED_BYTES_MIN { bytes } else { 0 }
}
