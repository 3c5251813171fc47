//! Edited dead letters: what the next delivery of a dead letter sends instead of its event.
//!
//! An edit belongs to one subscription and one event. The event itself stays as it is: it decides the lane, the
//! sequence and the identity, and other subscriptions get it unchanged. So an edit must keep all of these. It exists
//! until its event leaves the subscription, and retention writes it again before its segment is deleted.

use crate::accept::{Wanted, place};
use crate::apply::event_of;
use crate::dead_letters::{DeadLetter, Named};
use crate::engine::{Engine, Failure, if_readable};
use crate::operate::Refused;
use crate::residency::{from_json, to_json};
use crate::rows;
use crate::subscription::Subscription;
use bytes::Bytes;
use klambda_core::event::Event;
use klambda_core::event_codec::EventView;
use klambda_core::fault::Fault;
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_core::quantity::shown_bytes;
use klambda_core::time::Millis;
use klambda_core::wire::Malformed;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::Record;
use klambda_store::rows::Rows;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// Maximum number of edited dead letters of a subscription.
const EDITS_MAX: usize = 10_000;
/// Maximum size of the record of an edit without its event.
const HEAD_BYTES_MAX: usize = 64 + BY_BYTES_MAX;
const BY_BYTES_MAX: usize = 256;

/// Who edited a dead letter, and where the edit is in the log.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Edit {
    pub at: LogAddress,
    /// The length of the edited event.
    bytes: u32,
    /// How often the dead letter was edited.
    pub number: u64,
    pub by: Box<str>,
    pub time: Millis,
}

/// The edits of a subscription, by the position of their event. The same as its rows, so that a delivery reads none.
#[derive(Default)]
pub(crate) struct Edits(BTreeMap<Position, Edit>);

impl Edits {
    pub fn get(&self, position: Position) -> Option<&Edit> {
        self.0.get(&position)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn iter(&self) -> impl Iterator<Item = (Position, &Edit)> {
        self.0.iter().map(|(position, edit)| (*position, edit))
    }

    /// The event has left, so its edit is no longer needed.
    pub fn forget(&mut self, id: SubscriptionId, position: Position, rows: &mut Rows) -> Option<Edit> {
        let edit = self.0.remove(&position)?;
        rows.delete(&rows::at_position(rows::EDITED, id, position));
        Some(edit)
    }

    fn put(
        &mut self,
        id: SubscriptionId,
        position: Position,
        edit: Edit,
        rows: &mut Rows,
    ) -> Result<(), Failure> {
        rows.put(&rows::at_position(rows::EDITED, id, position), &to_json(&edit)?);
        self.0.insert(position, edit);
        Ok(())
    }

    /// The first address in the log that an edit needs.
    pub fn first(&self) -> Option<LogAddress> {
        self.0.values().map(|edit| edit.at).min()
    }

    pub fn any_between(&self, from: LogAddress, to: LogAddress) -> bool {
        self.0.values().any(|edit| (from..to).contains(&edit.at))
    }

    pub fn memory_bytes(&self) -> usize {
        self.0.values().map(|edit| 2 * size_of::<(Position, Edit)>() + edit.by.len()).sum()
    }
}

impl Engine {
    /// Replaces what the next delivery of a dead letter sends. `seen` is the number of edits that the caller knows of;
    /// any other number refuses the edit.
    pub fn edit_dead_letter(
        &mut self,
        id: &str,
        event: &Event,
        by: &str,
        seen: Option<u64>,
    ) -> Result<(), Refused> {
        let (holder, position) = self.dead_letter_id(id)?;
        self.must_write()?;
        let Some(letter) = self.find_dead_letter(holder, position)? else {
            return Err(self.no_dead_letter(id, holder, position));
        };
        let number = self.edit(holder, position).map_or(0, |edit| edit.number);
        if seen.is_some_and(|seen| seen != number) {
            return Err(Refused::Outdated(format!(
                "dead letter {id:?} was edited meanwhile (edit {number}); look at it and edit it again"
            )));
        }
        self.must_be_editable(id, holder, position)?;
        let faults = self.faults_of_edit(&letter, event)?;
        if !faults.is_empty() {
            return Err(Refused::Invalid(faults));
        }
        self.must_fit(event)?;
        let mut bytes = Vec::new();
        event.encode(&mut bytes);
        let by = &by[..by.floor_char_boundary(BY_BYTES_MAX)];
        let (time, number) = (self.now, number + 1);
        self.commit(&Record::Edited { time, subscription: holder, position, number, by, event: &bytes })?;
        Ok(())
    }

    fn faults_of_edit(&self, letter: &DeadLetter, event: &Event) -> Result<Vec<Fault>, Failure> {
        let original = self.read_event(letter.entry.address())?;
        let original = EventView::decode(event_of(&original)?.1).map_err(|_| Malformed("event"))?;
        let subscription = self.subscriptions.get(letter.subscription).ok_or(Malformed("subscription"))?;
        Ok(changed_identity(subscription, &original, event))
    }

    fn must_be_editable(&self, id: &str, holder: SubscriptionId, position: Position) -> Result<(), Refused> {
        if self.is_controller(holder) {
            return Err(Refused::Conflict(format!(
                "dead letter {id:?} is a command, and commands cannot be edited; send a new one"
            )));
        }
        let edits = self.subscriptions.get(holder).map(|s| &s.on_disk.edits);
        if edits.is_some_and(|edits| edits.0.len() >= EDITS_MAX && edits.get(position).is_none()) {
            return Err(Refused::Limit(format!(
                "subscription {:?} has {EDITS_MAX} edited dead letters, which is the limit; replay or delete some of them",
                self.name_of(holder)
            )));
        }
        Ok(())
    }

    fn must_fit(&self, event: &Event) -> Result<(), Refused> {
        let (length, max) = (event.encoded_len_max() + HEAD_BYTES_MAX, self.store.log.record_bytes_max());
        if length > max {
            let text =
                format!("the event does not fit into a log segment (at most {})", shown_bytes(max as u64));
            return Err(Refused::TooLarge(text));
        }
        match self.condition.disk_full || !self.store.log.has_room_for_events(length) {
            true => Err(Refused::DiskFull),
            false => Ok(()),
        }
    }

    /// `edited` is a record at this address in the log.
    pub(crate) fn apply_edited(&mut self, at: LogAddress, edited: &Record<'_>) -> Result<(), Failure> {
        let Record::Edited { time, subscription: id, position, number, by, event } = *edited else {
            return Ok(());
        };
        let Some(subscription) = self.subscriptions.get_mut(id) else { return Ok(()) };
        let edit = Edit { at, bytes: event.len() as u32, number, by: by.into(), time };
        subscription.on_disk.edits.put(id, position, edit, &mut self.store.rows)?;
        let (_, kind) = EventView::id_and_kind(event).map_err(|_| Malformed("event"))?;
        self.set_letter_type(id, position, kind)
    }

    /// A dead letter moves to another subscription, and its edit with it.
    pub(crate) fn move_edit(
        &mut self,
        from: SubscriptionId,
        to: SubscriptionId,
        position: Position,
    ) -> Result<(), Failure> {
        let rows = &mut self.store.rows;
        let edit =
            self.subscriptions.get_mut(from).and_then(|s| s.on_disk.edits.forget(from, position, rows));
        match (edit, self.subscriptions.get_mut(to)) {
            (Some(edit), Some(subscription)) => subscription.on_disk.edits.put(to, position, edit, rows),
            _ => Ok(()),
        }
    }

    pub(crate) fn load_edits(&mut self) -> Result<(), Failure> {
        for (key, row) in self.store.rows.scan(&[rows::EDITED], &[], usize::MAX)? {
            let (id, position) = (rows::subscription_of(&key), Position(rows::number_of(&key)));
            // The rows of a removed subscription stay until the next merge of the tables.
            if let Some(subscription) = self.subscriptions.get_mut(id) {
                subscription.on_disk.edits.0.insert(position, from_json(&row)?);
            }
        }
        Ok(())
    }

    /// The edit of a dead letter, or of an event that was one and is being replayed.
    pub(crate) fn edit(&self, id: SubscriptionId, position: Position) -> Option<&Edit> {
        self.subscriptions.get(id)?.on_disk.edits.get(position)
    }

    /// The record that holds what a delivery sends: the edit of a dead letter, otherwise the event.
    pub(crate) fn read_to_send(
        &self,
        subscription: &Subscription,
        position: Position,
        at: LogAddress,
    ) -> Result<Bytes, Failure> {
        match subscription.on_disk.edits.get(position) {
            Some(edit) => Ok(self.store.log.read(edit.at)?),
            None => self.read_event(at),
        }
    }

    pub(crate) fn bytes_to_send(&self, id: SubscriptionId, entry: &Entry) -> u32 {
        self.edit(id, entry.position).map_or(entry.bytes, |edit| edit.bytes)
    }

    /// The names of what a delivery sends. An event that cannot be read gets the name `unreadable`.
    pub(crate) fn names_to_send(&self, id: SubscriptionId, entry: &Entry) -> Result<Named, Failure> {
        let named = self.names_of(entry.address())?;
        let Some(edit) = self.edit(id, entry.position) else { return Ok(named) };
        // Only the event itself belongs to a namespace and a trace.
        let (ids, record) = (named.ids.clone(), self.store.log.read(edit.at).map_err(Failure::from));
        let edited = record.and_then(|record| Named::read(&record, |_| ids));
        Ok(if_readable(edited)?.unwrap_or(named))
    }
}

/// The attributes that an edit must keep and does not.
fn changed_identity(subscription: &Subscription, original: &EventView<'_>, event: &Event) -> Vec<Fault> {
    let mut faults = Vec::new();
    for (name, was, is) in [("id", original.id(), &*event.id), ("source", original.source(), &*event.source)]
    {
        if was != is {
            faults.push(Fault::new(name, format!("must stay {was:?}, because it identifies the event")));
        }
    }
    let (was, is) = (place(subscription, original), place(subscription, event));
    match (&was, &is) {
        (Wanted::Lane { key: was, sequence: first, .. }, Wanted::Lane { key: is, sequence: second, .. }) => {
            if was != is {
                faults.push(Fault::new("key", format!("must stay {was:?}, but the edited event has {is:?}")));
            }
            if let (Some(was), Some(is)) = (first, second)
                && was != is
            {
                faults
                    .push(Fault::new("sequence", format!("must stay {was}, but the edited event has {is}")));
            }
        }
        (Wanted::Lane { key, .. }, Wanted::Invalid(why)) => {
            faults.push(Fault::new("key", format!("must stay {key:?} with its sequence, but {why}")));
        }
        (Wanted::Invalid(why), Wanted::Lane { key, .. }) => {
            let text = format!(
                "must stay missing ({why}), but the edited event has {key:?}; send it as a new event"
            );
            faults.push(Fault::new("key", text));
        }
        _ => {}
    }
    faults
}
