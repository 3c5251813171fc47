//! Plans a replay in parts, so that other work does not wait for all of it.

use super::Queue;
use crate::dead_letters::{self, DeadLetter, Selector};
use crate::engine::{Engine, Failure};
use crate::rows;
use hashbrown::HashMap;
use klambda_core::ids::{LaneNumber, Position, SubscriptionId};
use klambda_core::kinds::Strategy;
use klambda_core::planted::{self, Bug};
use klambda_core::time::Millis;
use std::collections::{BTreeMap, VecDeque};

/// Dead letters checked per part.
pub const PART: usize = 256;

/// The selected dead letters as queues. Complete when `is_done`.
pub struct Plan {
    selector: Selector,
    failed_before: Millis,
    /// The rows that are still to be scanned: subscription and kind. Dead letters that park lanes come first: one
    /// that leaves its lane meanwhile is then found again outside it, not missed.
    todo: VecDeque<(SubscriptionId, u8)>,
    /// Where to continue in the first of them.
    from: Position,
    /// By the age of the oldest dead letter of each queue.
    pub(crate) queues: BTreeMap<(Millis, u64), Queue>,
    places: HashMap<(SubscriptionId, Option<String>, Position), (Millis, u64)>,
    pub(crate) letters: u64,
    /// How many the strategy of their type leaves out, by reason; and those that it discards.
    pub(crate) left_out: BTreeMap<&'static str, u64>,
    pub(super) discards: VecDeque<(SubscriptionId, Position)>,
}

impl Plan {
    pub fn is_done(&self) -> bool {
        self.todo.is_empty()
    }

    /// True if there are more dead letters to check or to discard.
    pub(super) fn has_more(&self) -> bool {
        !self.is_done() || !self.discards.is_empty()
    }

    pub(super) fn memory_bytes(&self) -> usize {
        let places =
            self.places.capacity() * size_of::<((SubscriptionId, Option<String>, Position), (Millis, u64))>();
        let keys: usize = self.places.keys().filter_map(|(_, key, _)| key.as_ref()).map(String::len).sum();
        let queues: usize = self.queues.values().map(Queue::memory_bytes).sum();
        places + keys + queues + self.discards.capacity() * size_of::<(SubscriptionId, Position)>()
    }

    fn leave_out(&mut self, reason: &'static str) {
        *self.left_out.entry(reason).or_default() += 1;
    }

    /// Adds a dead letter to the queue of its lane, in the lane's order. Dead letters that never had a place in the
    /// lane come last.
    fn add(&mut self, own: Position, key: Option<String>, letter: &DeadLetter) {
        let (entry, serial) = (letter.entry, self.places.len() as u64);
        let name = (letter.subscription, key, own);
        let place = self.places.get(&name).copied();
        let mut queue = place.and_then(|place| self.queues.remove(&place)).unwrap_or_else(|| Queue {
            subscription: name.0,
            key: name.1.clone(),
            letters: VecDeque::new(),
            current: None,
        });
        let order = |(position, number): &(Position, LaneNumber)| match number {
            LaneNumber(0) => (u64::MAX, *position),
            number => (number.0, *position),
        };
        let new = (entry.position, entry.number);
        let at = queue.letters.partition_point(|other| order(other) < order(&new));
        if queue.letters.get(at).is_none_or(|other| other.0 != entry.position) {
            let at = if planted::is_on(Bug::ReplayBackwards) { 0 } else { at };
            queue.letters.insert(at, new);
            self.letters += 1;
        }
        let place = place.unwrap_or((Millis::NEVER, serial));
        let place = (place.0.min(entry.accepted), place.1);
        self.queues.insert(place, queue);
        self.places.insert(name, place);
    }
}

impl Engine {
    pub(super) fn new_plan(&self, selector: &Selector, failed_before: Millis) -> Plan {
        let ids: Vec<SubscriptionId> = match &selector.subscription {
            Some(name) => self.subscriptions_named(name),
            None => self.subscriptions_in(selector.namespace.as_deref()),
        };
        let both = |id| [(id, rows::HELD), (id, rows::DEAD)];
        Plan {
            selector: selector.clone(),
            failed_before,
            todo: ids.into_iter().flat_map(both).collect(),
            from: Position(0),
            queues: BTreeMap::new(),
            places: HashMap::new(),
            letters: 0,
            left_out: BTreeMap::new(),
            discards: VecDeque::new(),
        }
    }

    /// Processes the next part: of one subscription, or of several with few dead letters.
    pub(super) fn plan_part(&self, plan: &mut Plan) -> Result<(), Failure> {
        let mut left = PART;
        while left > 0
            && let Some((id, kind)) = plan.todo.front().copied()
        {
            // A scan that finds nothing counts as work as well.
            left = left.saturating_sub(1 + self.plan_page(plan, id, kind, left)?);
        }
        Ok(())
    }

    /// Returns how many rows there were.
    fn plan_page(
        &self,
        plan: &mut Plan,
        id: SubscriptionId,
        kind: u8,
        limit: usize,
    ) -> Result<usize, Failure> {
        let first = Position(plan.from.0.saturating_sub(1));
        let from = rows::at_position(kind, id, self.first_after(kind, id, first).max(plan.from));
        let page = match self.subscriptions.contains(id) {
            true => self.store.rows.scan(&rows::of_subscription(kind, id), &from, limit)?,
            false => Vec::new(),
        };
        for (row, value) in &page {
            let position = Position(rows::number_of(row));
            plan.from = Position(position.0 + 1);
            let letter = dead_letters::decode(kind, id, position, value)?;
            if letter.failed < plan.failed_before && plan.selector.matches(&letter, self.name_of(id)) {
                self.plan_letter(plan, letter)?;
            }
        }
        if page.len() < limit {
            plan.todo.pop_front();
            plan.from = Position(0);
        }
        Ok(page.len())
    }

    fn plan_letter(&self, plan: &mut Plan, mut letter: DeadLetter) -> Result<(), Failure> {
        let strategy = self.strategy(&letter.kind);
        match strategy {
            Strategy::Manual if plan.selector.ids.is_none() => {
                plan.leave_out("manual");
                return Ok(());
            }
            Strategy::Discard if !letter.holds_lane => {
                plan.leave_out("discarded");
                plan.discards.push_back((letter.subscription, letter.entry.position));
                return Ok(());
            }
            _ => {}
        }
        let key = self.lane_of_letter(letter.subscription, &letter)?;
        letter.entry.number = key.as_deref().map_or(LaneNumber(0), |key| letter.number_in(key));
        let alone = key.is_none() && strategy != Strategy::Ordered;
        let own = if alone { letter.entry.position } else { Position(0) };
        plan.add(own, key, &letter);
        Ok(())
    }
}
