//! All subscriptions: by number, by name, by filters, and by pending work.
//!
//! An idle subscription costs memory, but no work per event or per round. Callers change a subscription through
//! `get_mut`, which notes it. Only noted subscriptions are sorted again, measured, and stored by a checkpoint.

use crate::accept::FormerSubscriptions;
use crate::subscription::Subscription;
use hashbrown::HashMap;
use klambda_core::event::Event;
use klambda_core::filter::Index;
use klambda_core::ids::{NamespaceId, SubscriptionId};
use klambda_core::subscription::Document;
use std::collections::{BTreeMap, BTreeSet, btree_map};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

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
    /// Subscriptions whose memory may have changed since it was measured.
    unmeasured: Vec<SubscriptionId>,
    /// The memory of all subscriptions, as last measured.
    measured_bytes: usize,
    /// How many subscriptions have each id window.
    windows: BTreeMap<u64, usize>,
    /// How many subscriptions were visited in walks through all of them.
    walked: AtomicU64,
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
    /// Retention must keep events or edits for the subscription.
    Keeping,
    /// The subscription has dead letters outside lanes, which may expire.
    Expiring,
    /// The subscription is checked in every round: it is being deleted, or it is a disabled webhook endpoint.
    Checked,
    /// The subscription has a feed, whose old events are removed.
    Feeding,
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

const WORKS: [Work; 9] = [
    Work::Ready,
    Work::Cold,
    Work::Reading,
    Work::Overflowing,
    Work::Suspended,
    Work::Keeping,
    Work::Expiring,
    Work::Checked,
    Work::Feeding,
];

impl Work {
    fn is_due(self, subscription: &Subscription) -> bool {
        match self {
            Work::Ready => subscription.has_ready(),
            Work::Cold => subscription.on_disk.waiting > 0,
            Work::Reading => subscription.is_reading(),
            Work::Overflowing => subscription.dead_letters_over() > 0,
            Work::Suspended => subscription.flow.suspension.is_some(),
            Work::Keeping => subscription.tally.has_pins() || !subscription.on_disk.edits.is_empty(),
            Work::Expiring => subscription.tally.dead > 0,
            Work::Checked => subscription.needs_check(),
            Work::Feeding => subscription.on_disk.feed.is_some(),
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
            unmeasured: Vec::new(),
            measured_bytes: 0,
            windows: BTreeMap::new(),
            walked: AtomicU64::new(0),
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

    /// Walks through all subscriptions, for requests and restarts. Events and rounds use `with` and `each_with`.
    pub fn values(&self) -> btree_map::Values<'_, SubscriptionId, Subscription> {
        self.walked.fetch_add(self.all.len() as u64, Relaxed);
        self.all.values()
    }

    pub fn ids(&self) -> Vec<SubscriptionId> {
        self.walked.fetch_add(self.all.len() as u64, Relaxed);
        self.all.keys().copied().collect()
    }

    pub fn walked(&self) -> u64 {
        self.walked.load(Relaxed)
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
        *self.windows.entry(subscription.window_ms()).or_default() += 1;
        self.noted.push(id);
        self.unstored.push(id);
        self.all.insert(id, subscription);
    }

    pub fn set_document(&mut self, id: SubscriptionId, document: Document) {
        let Some(subscription) = self.get_mut(id) else { return };
        let is_other = subscription.document.spec.filters != document.spec.filters;
        let before_ms = subscription.window_ms();
        subscription.set_document(document);
        let now_ms = subscription.window_ms();
        *self.windows.entry(now_ms).or_default() += 1;
        self.forget_window(before_ms);
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
        self.forget_window(subscription.window_ms());
        self.measured_bytes -= subscription.noted.measured_bytes;
        for list in [&mut self.noted, &mut self.unstored, &mut self.unmeasured] {
            list.retain(|other| *other != id);
        }
        self.removed.push(id);
        Some(subscription)
    }

    fn forget_window(&mut self, window_ms: u64) {
        if let Some(users) = self.windows.get_mut(&window_ms) {
            *users -= 1;
            if *users == 0 {
                self.windows.remove(&window_ms);
            }
        }
    }

    /// The longest id window of any subscription.
    pub fn window_ms_max(&self) -> u64 {
        self.windows.last_key_value().map_or(0, |(window_ms, _)| *window_ms)
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

    // ---- memory -------------------------------------------------------------------------------------------

    /// Approximate memory of all subscriptions.
    pub fn memory_bytes(&self) -> usize {
        let noted = self.noted.iter().filter_map(|id| self.all.get(id)).filter(|s| !s.noted.to_measure);
        let unmeasured = self.unmeasured.iter().filter_map(|id| self.all.get(id));
        let changed = noted.chain(unmeasured);
        changed.fold(self.measured_bytes, |all, s| all + s.memory_bytes() - s.noted.measured_bytes)
    }

    /// Measures the memory of subscriptions that changed.
    pub fn measure(&mut self) {
        self.sort_noted();
        for id in self.unmeasured.drain(..) {
            let Some(subscription) = self.all.get_mut(&id) else { continue };
            subscription.noted.to_measure = false;
            let bytes = subscription.memory_bytes();
            let before = std::mem::replace(&mut subscription.noted.measured_bytes, bytes);
            self.measured_bytes = self.measured_bytes + bytes - before;
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

    /// The first of them from a number on.
    pub fn first_with(&mut self, work: Work, from: SubscriptionId, limit: usize) -> Vec<SubscriptionId> {
        self.sort_noted();
        self.by_work[work as usize].range(from..).take(limit).copied().collect()
    }

    /// All subscriptions with this kind of work for reading, in no order.
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
            if !std::mem::replace(&mut subscription.noted.to_measure, true) {
                self.unmeasured.push(id);
            }
            for work in WORKS {
                let (set, bit) = (&mut self.by_work[work as usize], 1 << work as u16);
                let is_due = work.is_due(subscription);
                if is_due == (subscription.noted.works & bit != 0) {
                    continue;
                }
                subscription.noted.works ^= bit;
                match is_due {
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
