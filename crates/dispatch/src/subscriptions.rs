//! All subscriptions: by number, by name, by filters, and by pending work.
//!
//! An idle subscription costs memory, but no work per event or per round. Callers change a subscription through
//! `get_mut`, which notes it. Only noted subscriptions are sorted again and stored by a checkpoint.

use crate::accept::FormerSubscriptions;
use crate::subscription::Subscription;
use hashbrown::HashMap;
use klambda_core::event::Event;
use klambda_core::filter::Index;
use klambda_core::ids::{NamespaceId, SubscriptionId};
use klambda_core::subscription::Document;
use std::collections::{BTreeMap, BTreeSet, btree_map};

pub struct Subscriptions {
    all: BTreeMap<SubscriptionId, Subscription>,
    names: HashMap<String, SubscriptionId>,
    /// The number of the next subscription. Numbers are never reused.
    next: SubscriptionId,
    /// Removed subscriptions whose rows are still in some table.
    removed: Vec<SubscriptionId>,
    by_filters: HashMap<NamespaceId, Index<SubscriptionId>>,
    by_work: [BTreeSet<SubscriptionId>; WORKS.len()],
    /// Subscriptions that recently stopped accepting some events. The log may know those events only by their marks.
    pub parted: FormerSubscriptions,
    /// Owed events per namespace, as of the last sorting.
    owed: Owed,
    /// Subscriptions to be sorted again by their work.
    noted: Vec<SubscriptionId>,
    /// Subscriptions that differ from their rows.
    unstored: Vec<SubscriptionId>,
}

/// A kind of work for a subscription.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// A lane or an event is ready to be called.
    Ready,
    /// Lanes on disk wait to be loaded.
    Cold,
    /// The subscription reads the log.
    Reading,
    /// The subscription has too many dead letters.
    Overflowing,
    /// The subscription is suspended for a while.
    Suspended,
}

/// The number of owed events per namespace, if not 0.
#[derive(Default)]
struct Owed(HashMap<NamespaceId, u64>);

impl Owed {
    fn of(&self, namespace: NamespaceId) -> u64 {
        self.0.get(&namespace).copied().unwrap_or(0)
    }

    /// Updates the count of a namespace after the count of one of its subscriptions changed.
    fn recount(&mut self, namespace: NamespaceId, before: u64, now: u64) {
        if before == now {
            return;
        }
        match self.of(namespace) + now - before {
            0 => self.0.remove(&namespace),
            owed => self.0.insert(namespace, owed),
        };
    }
}

const WORKS: [Work; 5] = [Work::Ready, Work::Cold, Work::Reading, Work::Overflowing, Work::Suspended];

impl Work {
    fn is_due(self, subscription: &Subscription) -> bool {
        match self {
            Work::Ready => subscription.has_ready(),
            Work::Cold => subscription.on_disk.waiting > 0,
            Work::Reading => subscription.is_reading(),
            Work::Overflowing => subscription.dead_letters_over() > 0,
            Work::Suspended => subscription.flow.suspension.is_some(),
        }
    }
}

impl Default for Subscriptions {
    fn default() -> Subscriptions {
        Subscriptions {
            all: BTreeMap::new(),
            names: HashMap::new(),
            next: SubscriptionId(1),
            removed: Vec::new(),
            by_filters: HashMap::new(),
            by_work: Default::default(),
            parted: FormerSubscriptions::default(),
            owed: Owed::default(),
            noted: Vec::new(),
            unstored: Vec::new(),
        }
    }
}

impl Subscriptions {
    pub fn get(&self, id: SubscriptionId) -> Option<&Subscription> {
        self.all.get(&id)
    }

    /// For any change except of the document.
    pub fn get_mut(&mut self, id: SubscriptionId) -> Option<&mut Subscription> {
        let subscription = self.all.get_mut(&id)?;
        if !std::mem::replace(&mut subscription.noted.to_sort, true) {
            self.noted.push(id);
        }
        if !std::mem::replace(&mut subscription.noted.to_store, true) {
            self.unstored.push(id);
        }
        Some(subscription)
    }

    pub fn values(&self) -> btree_map::Values<'_, SubscriptionId, Subscription> {
        self.all.values()
    }

    pub fn ids(&self) -> Vec<SubscriptionId> {
        self.all.keys().copied().collect()
    }

    pub fn contains(&self, id: SubscriptionId) -> bool {
        self.all.contains_key(&id)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    // ---- names --------------------------------------------------------------------------------------------

    /// The current subscription with this name. Deleted ones with the same name may have left dead letters.
    pub fn named(&self, name: &str) -> Option<SubscriptionId> {
        self.names.get(name).copied()
    }

    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.names.keys().map(String::as_str)
    }

    pub fn names_len(&self) -> usize {
        self.names.len()
    }

    /// Allows another subscription to take the name.
    pub fn free_name(&mut self, id: SubscriptionId) {
        let Some(subscription) = self.all.get(&id) else { return };
        if self.names.get(subscription.name()) == Some(&id) {
            self.names.remove(subscription.name());
        }
    }

    // ---- adding and removing ------------------------------------------------------------------------------

    pub fn next(&self) -> SubscriptionId {
        self.next
    }

    pub fn set_next(&mut self, next: SubscriptionId) {
        self.next = next;
    }

    pub fn add(&mut self, mut subscription: Subscription) {
        let id = subscription.id;
        if !subscription.is_retired() {
            self.names.insert(subscription.name().to_owned(), id);
        }
        let by_filters = self.by_filters.entry(subscription.namespace).or_default();
        by_filters.put(id, &subscription.document.spec.filters);
        self.next = self.next.max(SubscriptionId(id.0 + 1));
        (subscription.noted.to_sort, subscription.noted.to_store) = (true, true);
        self.noted.push(id);
        self.unstored.push(id);
        self.all.insert(id, subscription);
    }

    pub fn set_document(&mut self, id: SubscriptionId, document: Document) {
        let Some(subscription) = self.get_mut(id) else { return };
        let is_other = subscription.document.spec.filters != document.spec.filters;
        subscription.set_document(document);
        if is_other && let Some(subscription) = self.all.get(&id) {
            let by_filters = self.by_filters.entry(subscription.namespace).or_default();
            by_filters.put(id, &subscription.document.spec.filters);
        }
    }

    /// Removes the subscription; only rows in tables are left.
    pub fn remove(&mut self, id: SubscriptionId) -> Option<Subscription> {
        self.free_name(id);
        let subscription = self.all.remove(&id)?;
        if let Some(by_filters) = self.by_filters.get_mut(&subscription.namespace) {
            by_filters.remove(id);
            if by_filters.is_empty() {
                self.by_filters.remove(&subscription.namespace);
            }
        }
        self.owed.recount(subscription.namespace, subscription.noted.owed, 0);
        for set in &mut self.by_work {
            set.remove(&id);
        }
        self.noted.retain(|other| *other != id);
        self.unstored.retain(|other| *other != id);
        self.removed.push(id);
        Some(subscription)
    }

    pub fn removed(&self) -> &[SubscriptionId] {
        &self.removed
    }

    /// No table has rows of these subscriptions any more.
    pub fn forget_removed(&mut self, gone: &[SubscriptionId]) {
        self.removed.retain(|id| !gone.contains(id));
    }

    pub fn set_removed(&mut self, removed: Vec<SubscriptionId>) {
        self.removed = removed;
    }

    // ---- rows ---------------------------------------------------------------------------------------------

    /// Subscriptions that differ from their rows.
    pub fn unstored(&self) -> &[SubscriptionId] {
        &self.unstored
    }

    /// The rows of all subscriptions are up to date.
    pub fn all_stored(&mut self) {
        for id in self.unstored.drain(..) {
            if let Some(subscription) = self.all.get_mut(&id) {
                subscription.noted.to_store = false;
            }
        }
    }

    // ---- selection ----------------------------------------------------------------------------------------

    /// Adds the subscriptions of the namespace that match the event, ordered by number.
    pub fn wanting(&self, namespace: NamespaceId, event: &Event, wanting: &mut Vec<SubscriptionId>) {
        let Some(by_filters) = self.by_filters.get(&namespace) else { return };
        by_filters.find(event, wanting);
        let wants = |subscription: &Subscription| subscription.wants(namespace, event);
        wanting.retain(|id| self.all.get(id).is_some_and(wants));
    }

    /// Events accepted in a namespace that have not reached their subscriptions.
    pub fn owed_in(&mut self, namespace: NamespaceId) -> u64 {
        self.sort_noted();
        self.owed.of(namespace)
    }

    /// Subscriptions with this kind of work, ordered by number.
    pub fn with(&mut self, work: Work) -> Vec<SubscriptionId> {
        self.sort_noted();
        self.by_work[work as usize].iter().copied().collect()
    }

    /// The same for reading, in no order.
    pub fn each_with(&self, work: Work) -> impl Iterator<Item = &Subscription> {
        let sorted = self.by_work[work as usize].iter().filter_map(|id| self.all.get(id));
        let sorted = sorted.filter(|subscription| !subscription.noted.to_sort);
        let noted = self.noted.iter().filter_map(|id| self.all.get(id));
        sorted.chain(noted.filter(move |subscription| work.is_due(subscription)))
    }

    fn sort_noted(&mut self) {
        for id in self.noted.drain(..) {
            let Some(subscription) = self.all.get_mut(&id) else { continue };
            subscription.noted.to_sort = false;
            let owed = subscription.tally.owed();
            let before = std::mem::replace(&mut subscription.noted.owed, owed);
            self.owed.recount(subscription.namespace, before, owed);
            for work in WORKS {
                let set = &mut self.by_work[work as usize];
                match work.is_due(subscription) {
                    true => set.insert(id),
                    false => set.remove(&id),
                };
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::subscription::Phase;
    use klambda_core::time::Millis;
    use serde_json::json;

    fn subscription(id: u32, name: &str, kind: &str) -> Subscription {
        let document = json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": name},
            "spec": {"target": {"url": "http://127.0.0.1:1/"}, "filters": [{"exact": {"type": kind}}]},
        });
        let document = Document::parse(&document).expect("a document");
        Subscription::new(SubscriptionId(id), NamespaceId(0), document, Millis(1), Phase::Live)
    }

    fn ids(subscriptions: &mut Subscriptions, work: Work) -> Vec<u32> {
        let mut seen: Vec<u32> = subscriptions.each_with(work).map(|s| s.id.0).collect();
        seen.sort_unstable();
        let sorted: Vec<u32> = subscriptions.with(work).into_iter().map(|id| id.0).collect();
        assert_eq!(seen, sorted, "same result before and after sorting");
        sorted
    }

    fn wanting(subscriptions: &Subscriptions, kind: &str) -> Vec<u32> {
        let (id, source, kind) = ("1".into(), "/s".into(), kind.into());
        let mut wanting = Vec::new();
        let event = Event { id, source, kind, attributes: vec![], data: None };
        subscriptions.wanting(NamespaceId(0), &event, &mut wanting);
        wanting.into_iter().map(|id| id.0).collect()
    }

    #[test]
    fn a_changed_subscription_is_sorted_again() {
        let mut subscriptions = Subscriptions::default();
        (1..=5).for_each(|n| subscriptions.add(subscription(n, &format!("s{n}"), "a")));
        assert!(ids(&mut subscriptions, Work::Cold).is_empty());
        for id in [4, 2] {
            subscriptions.get_mut(SubscriptionId(id)).expect("exists").on_disk.waiting = 1;
        }
        assert_eq!(ids(&mut subscriptions, Work::Cold), [2, 4]);
        subscriptions.get_mut(SubscriptionId(2)).expect("exists").on_disk.waiting = 0;
        subscriptions.get_mut(SubscriptionId(3)).expect("exists").on_disk.waiting = 7;
        assert_eq!(ids(&mut subscriptions, Work::Cold), [3, 4]);
        subscriptions.all_stored();
        subscriptions.get_mut(SubscriptionId(5)).expect("exists").on_disk.waiting = 0;
        subscriptions.get_mut(SubscriptionId(4)).expect("exists").on_disk.waiting = 2;
        assert_eq!(subscriptions.unstored(), [SubscriptionId(5), SubscriptionId(4)]);
        subscriptions.remove(SubscriptionId(4));
        assert_eq!(subscriptions.unstored(), [SubscriptionId(5)]);
        assert_eq!(ids(&mut subscriptions, Work::Cold), [3]);
        assert_eq!(subscriptions.removed(), [SubscriptionId(4)]);
    }

    #[test]
    fn names_and_filters_follow_changes() {
        let mut subscriptions = Subscriptions::default();
        subscriptions.add(subscription(1, "one", "a"));
        subscriptions.add(subscription(2, "two", "a"));
        assert_eq!(subscriptions.next(), SubscriptionId(3));
        assert_eq!(wanting(&subscriptions, "a"), [1, 2]);
        let other = subscription(2, "two", "b").document;
        subscriptions.set_document(SubscriptionId(2), (*other).clone());
        assert_eq!((wanting(&subscriptions, "a"), wanting(&subscriptions, "b")), (vec![1], vec![2]));
        subscriptions.free_name(SubscriptionId(1));
        assert_eq!(subscriptions.named("one"), None);
        subscriptions.add(subscription(3, "one", "a"));
        subscriptions.free_name(SubscriptionId(1));
        subscriptions.remove(SubscriptionId(1));
        assert_eq!(subscriptions.named("one"), Some(SubscriptionId(3)));
        assert_eq!(wanting(&subscriptions, "a"), [3]);
    }
}
