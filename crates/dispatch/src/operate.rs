//! Requests of operators: changes of subscriptions, and actions on lanes and dead letters. Each is checked, logged
//! and applied. The caller answers when the change is durable.

use crate::dead_letters::Selector;
use crate::engine::{Engine, Failure, InFlight};
use crate::lanes::Resident;
use crate::residency::PART_EVENTS;
use crate::rows;
use crate::subscription::Subscription;
use crate::views::counted;
use klambda_core::fault::Fault;
use klambda_core::ids::{Position, Sequence, SubscriptionId, plain_number};
use klambda_core::lane::{Input, State};
use klambda_core::namespace;
use klambda_core::planted::{self, Bug};
use klambda_core::subscription::Document;
use klambda_store::record::{Change, Gone, Record, Step};

#[derive(Debug, thiserror::Error)]
pub enum Refused {
    #[error("{0}")]
    NotFound(String),
    #[error("{detail}")]
    EventsWaiting { detail: String, waiting: u64 },
    #[error("{detail}")]
    LanesParked { detail: String, lanes: Vec<String> },
    #[error("{0}")]
    Conflict(String),
    #[error("{0}")]
    Immutable(String),
    /// Someone else changed it since the caller looked.
    #[error("{0}")]
    Outdated(String),
    #[error("{0}")]
    Limit(String),
    #[error("{0}")]
    TooLarge(String),
    #[error("the request is not valid")]
    Invalid(Vec<Fault>),
    #[error("the disk is full; no change can be written until there is free space")]
    DiskFull,
    #[error("{0}")]
    Unavailable(String),
}

impl From<Failure> for Refused {
    fn from(failure: Failure) -> Refused {
        Refused::Unavailable(failure.to_string())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LaneAction {
    Resume,
    Skip,
    Purge,
    Pause,
    Reset { expected: Sequence },
}

impl LaneAction {
    fn word(self) -> &'static str {
        match self {
            LaneAction::Resume => "resume",
            LaneAction::Skip => "skip",
            LaneAction::Purge => "purge",
            LaneAction::Pause => "pause",
            LaneAction::Reset { .. } => "reset",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Put {
    Created,
    Changed,
    Unchanged,
    /// The new ordering rules take effect when all pending events have drained.
    Draining,
}

/// What happens to the pending events of a deleted subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Leftover {
    Refuse,
    Drain,
    Discard,
}

impl Engine {
    pub(crate) fn must_write(&self) -> Result<(), Refused> {
        match &self.condition.failed {
            Some(why) => Err(Refused::Unavailable(why.clone())),
            None if !self.store.log.has_room_for_steps(16 << 10) => Err(Refused::DiskFull),
            None => Ok(()),
        }
    }

    pub fn subscription_id(&self, name: &str) -> Result<SubscriptionId, Refused> {
        let id = self.subscriptions.named(name);
        id.ok_or_else(|| Refused::NotFound(format!("subscription {:?} not found", namespace::split(name).1)))
    }

    // ---- subscriptions ------------------------------------------------------------------------------------

    pub fn put_subscription(&mut self, document: Document, discard: bool) -> Result<Put, Refused> {
        self.must_write()?;
        let put = self.check_put(&document, discard)?;
        if put == Put::Unchanged {
            return Ok(Put::Unchanged);
        }
        let known = self.subscriptions.named(&document.full_name());
        let id = known.unwrap_or_else(|| self.subscriptions.next());
        if discard && put != Put::Created && self.is_new_epoch(id, &document) {
            self.discard_waiting(id)?;
        }
        let text = document.to_stored_json().to_string();
        self.commit_change(id, Change::Put { document: &text })?;
        Ok(put)
    }

    /// Returns the result that `put_subscription` would have. Changes nothing.
    pub fn check_put(&self, document: &Document, discard: bool) -> Result<Put, Refused> {
        if let Some(id) = self.subscriptions.named(&document.full_name()) {
            return self.check_change(id, document, discard);
        }
        self.namespace_id(&document.namespace)?;
        // Subscriptions of functions are limited by the number of functions.
        if !Document::is_managed(&document.name) {
            self.check_subscriptions_max(&document.namespace)?;
        }
        Ok(Put::Created)
    }

    /// Checks the limits of the server and of the namespace.
    fn check_subscriptions_max(&self, namespace: &str) -> Result<(), Refused> {
        let own = || self.subscriptions.names().filter(|name| !Document::is_managed(name));
        let max = self.config.subscriptions_max;
        if own().count() >= max {
            return Err(Refused::Limit(format!(
                "the limit of {max} subscriptions is reached (limits.subscriptions)"
            )));
        }
        let Some(max) = self.namespace_limits(namespace).subscriptions else { return Ok(()) };
        if own().filter(|name| namespace::split(name).0 == namespace).count() as u64 >= max {
            return Err(Refused::Limit(format!(
                "namespace {namespace:?} has reached its limit of {max} subscriptions (limits.subscriptions of the namespace)"
            )));
        }
        Ok(())
    }

    fn is_new_epoch(&self, id: SubscriptionId, document: &Document) -> bool {
        self.subscriptions.get(id).is_some_and(|s| s.document.epoch_differs(document))
    }

    fn check_change(&self, id: SubscriptionId, document: &Document, discard: bool) -> Result<Put, Refused> {
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(Put::Created) };
        if subscription.is_leaving() {
            return Err(Refused::Conflict(format!(
                "subscription {:?} is being deleted; wait until its pending events are delivered",
                document.name
            )));
        }
        if subscription.document.spec.from != document.spec.from {
            return Err(Refused::Immutable(
                "spec.from cannot be changed; delete the subscription and create it again".into(),
            ));
        }
        if *subscription.document == *document && subscription.next_rules.document.is_none() {
            return Ok(Put::Unchanged);
        }
        if !subscription.document.epoch_differs(document) || subscription.is_drained() {
            return Ok(Put::Changed);
        }
        let parked = self.parked_lanes(id, 10)?;
        if !parked.is_empty() && !discard {
            let detail = "a change of ordering, key or sequence waits until all pending events are delivered, and parked lanes do \
                          not deliver; resume, skip or purge them, or drop the pending events with ?discard=true";
            return Err(Refused::LanesParked { detail: detail.into(), lanes: parked });
        }
        Ok(if discard { Put::Changed } else { Put::Draining })
    }

    pub(crate) fn commit_change(&mut self, id: SubscriptionId, change: Change<'_>) -> Result<(), Refused> {
        self.commit(&Record::Subscription { time: self.now, subscription: id, change })?;
        Ok(())
    }

    pub fn delete_subscription(&mut self, name: &str, leftover: Leftover) -> Result<bool, Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let Some(subscription) = self.subscriptions.get(id) else { return Ok(true) };
        let waiting = subscription.tally.owed();
        let reads_past = subscription.is_reading() && !subscription.is_behind();
        match leftover {
            // Events that the subscription accepted but has not reached yet are not counted as pending.
            Leftover::Refuse | Leftover::Drain if reads_past => Err(Refused::EventsWaiting {
                detail: "the subscription is still reading older events from the log; wait until it has caught up, or delete with ?discard=true".into(),
                waiting,
            }),
            Leftover::Refuse if waiting > 0 => {
                Err(Refused::EventsWaiting { detail: still_pending(waiting), waiting })
            }
            Leftover::Drain if waiting > 0 && subscription.is_paused() => {
                let Document { namespace, name, .. } = &*subscription.document;
                let flag = namespace::flag(namespace);
                Err(Refused::Conflict(format!(
                    "subscription {name:?} is paused, so its pending events ({waiting}) cannot be delivered; resume it first \
                     (klambda subscription resume {name}{flag}), or delete with ?discard=true to drop them"
                )))
            }
            Leftover::Drain if waiting > 0 => {
                let lanes = self.parked_lanes(id, 10)?;
                if !lanes.is_empty() {
                    let detail =
                        "parked lanes do not deliver their pending events; resume, skip or purge them, or delete with ?discard=true";
                    return Err(Refused::LanesParked { detail: detail.into(), lanes });
                }
                self.commit_change(id, Change::Drain)?;
                Ok(false)
            }
            // Dead letters outlive the subscription, unless they are to be discarded.
            Leftover::Refuse | Leftover::Drain if subscription.tally.dead > 0 => {
                self.commit_change(id, Change::Retired)?;
                Ok(true)
            }
            _ => {
                self.commit_change(id, Change::Remove)?;
                Ok(true)
            }
        }
    }

    pub fn pause_subscription(&mut self, name: &str, pause: bool) -> Result<(), Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let is_so = |subscription: &Subscription| {
            let next = subscription.next_rules.document.as_ref();
            subscription.document.spec.paused == pause && next.is_none_or(|next| next.spec.paused == pause)
        };
        // A request that changes nothing is not recorded.
        if self.subscriptions.get(id).is_some_and(is_so) {
            return Ok(());
        }
        self.commit_change(id, if pause { Change::Pause } else { Change::Resume })
    }

    /// Some keys of lanes that wait for an operator.
    pub(crate) fn parked_lanes(&self, id: SubscriptionId, limit: usize) -> Result<Vec<String>, Failure> {
        let parked = |state: State| matches!(state, State::Parked | State::Paused);
        let resident = self.lanes.iter().filter(|(_, r)| r.subscription == id && r.lane.depth() > 0);
        let mut keys: Vec<String> = resident
            .filter(|(_, resident)| parked(resident.lane.state()))
            .map(|(_, resident)| resident.key.to_string())
            .take(limit)
            .collect();
        let prefix = rows::of_subscription(rows::PARKED, id);
        for (row, _) in self.store.rows.scan(&prefix, &prefix, limit)? {
            let key = rows::lane_of(&row);
            if self.lanes.find(id, key).is_none() && keys.len() < limit {
                keys.push(key.to_owned());
            }
        }
        Ok(keys)
    }

    /// Discards a part of the pending events, starting at a key, before a change that discards them all. Returns
    /// where there may be more. Discards nothing if the change would be refused.
    pub fn discard_part(&mut self, document: &Document, from: &str) -> Result<Option<String>, Refused> {
        const LANES: usize = 1024;
        let Some(id) = self.subscriptions.named(&document.full_name()) else { return Ok(None) };
        let is_kept = self.check_change(id, document, true)? == Put::Unchanged;
        if is_kept || !self.is_new_epoch(id, document) {
            return Ok(None);
        }
        self.must_write()?;
        let is_long = |s: &Subscription| s.unordered.queue.len() > PART_EVENTS as u64;
        if self.discard_unread(id, PART_EVENTS)?
            || (self.subscriptions.get(id).is_some_and(is_long) && self.purge_unordered_part(id)?)
        {
            return Ok(Some(from.to_owned()));
        }
        let (keys, up_to) = self.waiting_keys_from(id, from, LANES)?;
        let mut gone = 0;
        for key in keys {
            if gone >= PART_EVENTS as u64 || self.purge_part(id, &key)? {
                return Ok(Some(key));
            }
            gone += self.discard_lane(id, &key)?;
        }
        Ok(up_to.map(|key| key + "\0"))
    }

    /// Discards all pending events, lane by lane, except those in flight.
    fn discard_waiting(&mut self, id: SubscriptionId) -> Result<(), Refused> {
        while self.discard_unread(id, PART_EVENTS)? {
            // Without room in the log no event can be discarded, so retrying would not help.
            if !self.store.log.has_room_for_many() {
                return Err(Refused::DiskFull);
            }
        }
        for key in self.waiting_keys(id)? {
            while self.purge_part(id, &key)? {}
            self.discard_lane(id, &key)?;
        }
        while self.purge_unordered_part(id)? {}
        Ok(())
    }

    /// Discards the events of a lane except the one in flight. Returns how many.
    fn discard_lane(&mut self, id: SubscriptionId, key: &str) -> Result<u64, Refused> {
        self.must_write()?;
        let slot = self.resident(id, key)?;
        let Some(resident) = self.lanes.get(slot) else { return Ok(0) };
        let events = resident.lane.purgeable();
        if events > 0 {
            self.step_lane(id, key, Step::Purge { events })?;
        }
        Ok(events)
    }

    /// The keys of all lanes with pending events.
    pub(crate) fn waiting_keys(&self, id: SubscriptionId) -> Result<Vec<String>, Failure> {
        Ok(self.waiting_keys_from(id, "", usize::MAX)?.0)
    }

    /// Some of the keys, in order from a key on, and the last one checked if there may be more.
    pub(crate) fn waiting_keys_from(
        &self,
        id: SubscriptionId,
        from: &str,
        limit: usize,
    ) -> Result<(Vec<String>, Option<String>), Failure> {
        let waits = |r: &&Resident| r.subscription == id && r.lane.depth() > 0 && &*r.key >= from;
        let resident = self.lanes.iter().map(|(_, resident)| resident).filter(waits);
        let mut keys: Vec<String> = resident.map(|resident| resident.key.to_string()).collect();
        let mut up_to: Option<String> = None;
        for letter in [rows::WAITING, rows::PARKED] {
            let prefix = rows::of_subscription(letter, id);
            let found = self.store.rows.scan(&prefix, &rows::of_lane(letter, id, from), limit)?;
            if let Some((row, _)) = found.last().filter(|_| found.len() == limit) {
                let last = rows::lane_of(row).to_owned();
                up_to = Some(up_to.map_or(last.clone(), |up_to| up_to.min(last)));
            }
            let cold = found.iter().map(|(row, _)| rows::lane_of(row));
            keys.extend(cold.filter(|key| self.lanes.find(id, key).is_none()).map(str::to_owned));
        }
        keys.retain(|key| up_to.as_ref().is_none_or(|up_to| key <= up_to));
        keys.sort_unstable();
        keys.dedup();
        if keys.len() > limit {
            keys.truncate(limit);
            up_to = keys.last().cloned();
        }
        Ok((keys, up_to))
    }

    // ---- lanes --------------------------------------------------------------------------------------------

    pub fn act_on_lane(&mut self, name: &str, key: &str, action: LaneAction) -> Result<(), Refused> {
        let id = self.subscription_id(name)?;
        self.must_write()?;
        let slot = self.known_lane(id, name, key)?;
        if action == LaneAction::Purge {
            while self.purge_part(id, key)? {}
        }
        let events = self.lanes.get(slot).map_or(0, |resident| resident.lane.purgeable());
        let (step, input) = match action {
            LaneAction::Resume => (Step::Resume, Input::Resume),
            LaneAction::Skip => (Step::Skip, Input::Skip),
            // If nothing is pending, there is nothing to record.
            LaneAction::Purge if events == 0 && !planted::is_on(Bug::PurgeFlags) => return Ok(()),
            LaneAction::Purge => (Step::Purge { events }, Input::Purge),
            LaneAction::Pause => (Step::Pause, Input::Pause),
            LaneAction::Reset { expected } => (Step::Reset { expected }, Input::Reset { expected }),
        };
        // Tried on a copy first, because a logged step must be applicable.
        if let (Some(resident), Some(subscription)) = (self.lanes.get(slot), self.subscriptions.get(id)) {
            let (mut lane, mut actions) = (resident.lane.clone(), Vec::new());
            lane.apply(input, &subscription.policy, self.now, &mut actions)
                .map_err(|refused| Refused::Conflict(format!("lane {key:?} of {name}: {refused}")))?;
            let is_idle = resident.lane.state() == State::Open && resident.lane.depth() == 0;
            let has_no_effect = lane == resident.lane && actions.is_empty();
            // Otherwise, one client could push all other entries out of the audit log.
            if has_no_effect || (action == LaneAction::Resume && is_idle) {
                self.scratch.audit = None;
            }
            if action == LaneAction::Resume && is_idle {
                return Ok(());
            }
        }
        self.step_lane(id, key, step)?;
        let purged = (action == LaneAction::Purge).then_some(events);
        let expected = match action {
            LaneAction::Reset { expected } => Some(expected.0),
            _ => None,
        };
        tracing::info!(
            subscription = name,
            key,
            action = action.word(),
            expected,
            purged,
            "Operator action on lane"
        );
        Ok(())
    }

    /// Purges a part of a lane that is too long for one step. Returns true if there was such a part.
    pub fn purge_lane_part(&mut self, name: &str, key: &str) -> Result<bool, Refused> {
        let id = self.subscription_id(name)?;
        self.known_lane(id, name, key)?;
        self.purge_part(id, key)
    }

    fn known_lane(
        &mut self,
        id: SubscriptionId,
        name: &str,
        key: &str,
    ) -> Result<crate::lanes::Slot, Refused> {
        let unknown = || Refused::NotFound(format!("subscription {name:?} has no lane {key:?}"));
        if !self.subscriptions.get(id).is_some_and(|s| s.is_ordered()) {
            return Err(unknown());
        }
        if self.lanes.find(id, key).is_none() && self.peek_lane(id, key)?.is_none() {
            return Err(unknown());
        }
        Ok(self.resident(id, key)?)
    }

    // ---- dead letters -------------------------------------------------------------------------------------

    /// Parses an id such as `orders.1042` into the subscription and the position.
    pub fn dead_letter_id(&self, id: &str) -> Result<(SubscriptionId, Position), Refused> {
        let unknown = || Refused::NotFound(format!("dead letter {id:?} not found"));
        let (name, position) = id.rsplit_once('.').ok_or_else(unknown)?;
        let position = Position(plain_number(position).ok_or_else(unknown)?);
        let named = self.subscriptions_named(name);
        // The current subscription with this name comes first. The id refers to a deleted one only if the current one
        // has no such dead letter.
        let first = named.first().copied().ok_or_else(unknown)?;
        for id in &named[1..] {
            if self.find_dead_letter(first, position)?.is_none()
                && self.find_dead_letter(*id, position)?.is_some()
            {
                return Ok((*id, position));
            }
        }
        Ok((first, position))
    }

    /// Deletes a dead letter. If it parks its lane, the lane continues and the next event is flagged.
    pub fn delete_dead_letter(&mut self, id: &str) -> Result<(), Refused> {
        let (subscription, position) = self.dead_letter_id(id)?;
        self.must_write()?;
        let Some(letter) = self.find_dead_letter(subscription, position)? else {
            return Err(self.no_dead_letter(id, subscription, position));
        };
        if letter.holds_lane {
            let key = letter.key.as_deref().unwrap_or_default();
            if planted::is_on(Bug::DeleteHitsTurn) {
                let name = self.name_of(subscription).to_owned();
                self.act_on_lane(&name, key, LaneAction::Skip)?;
            } else {
                self.step_lane(subscription, key, Step::Discard { position })?;
                return Ok(());
            }
        }
        let gone = Record::DeadLetterGone { time: self.now, subscription, position, why: Gone::Deleted };
        self.commit(&gone)?;
        Ok(())
    }

    /// Why the dead letter cannot be changed: it does not exist, or it is in flight.
    pub(crate) fn no_dead_letter(&self, name: &str, id: SubscriptionId, position: Position) -> Refused {
        let is_open = |flight: &InFlight| {
            flight.subscription == id && self.entry_of(flight).is_some_and(|entry| entry.position == position)
        };
        if self.calls.iter().any(|(_, flight)| is_open(flight)) {
            return Refused::Conflict(format!(
                "dead letter {name:?} is being delivered; wait for the outcome"
            ));
        }
        if self.replays.is_open(id, position) {
            return Refused::Conflict(format!(
                "dead letter {name:?} is being replayed; wait for the outcome"
            ));
        }
        Refused::NotFound(format!("dead letter {name:?} not found"))
    }

    /// Deletes all selected dead letters; those that park lanes only if `holders` is true.
    pub fn purge_dead_letters(&mut self, selector: &Selector, holders: bool) -> Result<u64, Refused> {
        self.must_write()?;
        let ids: Vec<SubscriptionId> = match &selector.subscription {
            Some(name) => match self.subscriptions_named(name) {
                named if named.is_empty() => vec![self.subscription_id(name)?],
                named => named,
            },
            None => self.subscriptions_in(selector.namespace.as_deref()),
        };
        let mut purged = 0;
        for id in ids {
            let letters = self.select_dead_letters(id, selector, Position(0), usize::MAX)?;
            let name = self.subscriptions.get(id).map(|s| s.name().to_owned()).unwrap_or_default();
            for letter in letters.into_iter().filter(|letter| holders || !letter.holds_lane) {
                self.must_write()?;
                self.delete_dead_letter(&letter.id(&name))?;
                purged += 1;
            }
        }
        Ok(purged)
    }
}

fn still_pending(waiting: u64) -> String {
    let (are, them) = if waiting == 1 { ("is", "it") } else { ("are", "them") };
    format!(
        "{} {are} pending; delete with ?drain=true to deliver {them} first, or with ?discard=true to drop {them}",
        counted(waiting, "event")
    )
}
