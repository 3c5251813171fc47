//! An independent reader of the log: for each subscription, which events were routed to it and which of them left.
//!
//! The ledger knows nothing of lanes and their rules. It proves the order of a key by one rule: an event that arrived
//! first and has the lower sequence is delivered first. An overtaken event may only be delivered by a recorded
//! replay. Without one it must be a dead letter, or a recorded decision must have removed it; `compare` checks that
//! against the engine's state.
//!
//! History before the oldest segment is unknown, so steps that concern it are counted but not checked.

use super::account::{Account, Aside, Why};
use super::line::{Delivered, Waiting};
use super::report::{Findings, ProblemKind, Report};
use crate::rows;
use hashbrown::{HashMap, HashSet};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::subscription::Document;
use klambda_store::address::LogAddress;
use klambda_store::record::{Change, DocumentChange, LaneRef, Record, Route, Step, To};
use klambda_store::segment::{FRAME_HEADER, HEADER};
use std::hash::BuildHasher;

pub(super) struct Ledger {
    /// The address of the first record of the log.
    start: LogAddress,
    /// No part of the log was ever deleted.
    is_whole: bool,
    pub first_position: Position,
    pub subscriptions: HashMap<SubscriptionId, Account>,
    removed: HashSet<SubscriptionId>,
    /// Events that were acknowledged while not pending. A second pass finds the reason.
    suspects: HashMap<(SubscriptionId, Position), bool>,
    /// The current version of each document by row; `None` if the document was deleted.
    pub documents: HashMap<Vec<u8>, Option<u64>>,
    /// The number of the last edit of each dead letter, whether it still exists or not.
    pub edits: HashMap<(SubscriptionId, Position), u64>,
    counts: Counts,
    hasher: foldhash::fast::FixedState,
}

#[derive(Default)]
struct Counts {
    events: u64,
    lanes: u64,
    delivered: u64,
    purged: u64,
    late: u64,
    gaps: u64,
    before_log: u64,
}

impl Ledger {
    pub fn new(start: LogAddress, first_position: Position) -> Ledger {
        Ledger {
            start,
            is_whole: start == LogAddress(HEADER + FRAME_HEADER as u64),
            first_position,
            subscriptions: HashMap::new(),
            removed: HashSet::new(),
            suspects: HashMap::new(),
            documents: HashMap::new(),
            edits: HashMap::new(),
            counts: Counts::default(),
            hasher: foldhash::fast::FixedState::default(),
        }
    }

    /// Enters one record. `position` is the position of the event, or of the next event for other records.
    pub fn read(&mut self, record: &Record<'_>, position: Position, findings: &mut Findings) {
        match record {
            Record::Event { routes, .. } => {
                self.counts.events += 1;
                routes.iter().for_each(|route| self.route(position, route, findings));
            }
            Record::Routed { position, route, .. } => self.route(*position, route, findings),
            Record::Step { subscription, lane, previous, running, step, .. } => {
                if self.removed.contains(subscription) {
                    return;
                }
                match lane {
                    LaneRef::Key(key) => {
                        self.touch(*subscription, key, *previous);
                        self.step(*subscription, key, step, running.is_some(), findings);
                    }
                    LaneRef::Alone(position) => self.step_alone(*subscription, *position, step),
                    LaneRef::Unordered => self.step_unordered(*subscription, step),
                }
            }
            Record::Subscription { subscription, change, .. } => {
                self.change(*subscription, change, position, findings);
            }
            Record::DeadLetterGone { subscription, position, .. } => self.gone(*subscription, *position),
            Record::Moved { from, position, route, .. } => self.moved(*from, *position, route),
            Record::Edited { subscription, position, number, .. } => {
                self.edits.insert((*subscription, *position), *number);
            }
            Record::Replay { .. } | Record::Kept { .. } | Record::Documents { .. } => {}
        }
    }

    /// The steps of a lane are chained: the first one in this log names an earlier step, or none.
    fn touch(&mut self, id: SubscriptionId, key: &str, previous: LogAddress) {
        self.counts.lanes += u64::from(previous < self.start);
        if previous < self.start && previous != LogAddress(0) {
            self.subscriptions.entry(id).or_default().older.insert(self.hasher.hash_one(key));
        }
    }

    fn route(&mut self, position: Position, route: &Route<'_>, findings: &mut Findings) {
        if self.removed.contains(&route.subscription) {
            return;
        }
        let account = self.subscriptions.entry(route.subscription).or_default();
        if route.to == To::Later {
            account.later.insert(position);
            return;
        }
        account.later.remove(&position);
        if position <= account.last_routed {
            let text = format!("event {position} was routed again, or after event {}", account.last_routed);
            return findings.add(ProblemKind::Unaccounted, Some(route.subscription), text);
        }
        account.last_routed = position;
        match &route.to {
            To::Lane { key, sequence } => {
                account.line(key).push(Waiting::new(position, *sequence));
                self.touch(route.subscription, key, route.previous);
            }
            To::Alone => {
                account.alone.insert(position);
            }
            To::Invalid { .. } => {
                let aside = Aside { why: Why::Invalid, lane: 0, sequence: None, is_passed: true };
                account.aside.insert(position, aside);
            }
            To::Missed { .. } => self.counts.purged += 1,
            To::Later => {}
        }
    }

    fn step(
        &mut self,
        id: SubscriptionId,
        key: &str,
        step: &Step<'_>,
        in_flight: bool,
        findings: &mut Findings,
    ) {
        match step {
            Step::Delivered { position, .. } | Step::Acknowledged { position } => {
                return self.delivered(id, key, *position, findings);
            }
            Step::Replay { position, .. } => return self.replayed(id, key, *position),
            _ => {}
        }
        let lane = self.hasher.hash_one(key);
        let account = self.subscriptions.entry(id).or_default();
        match step {
            Step::DropOldest { position } | Step::Discard { position } => {
                account.dropped(key, *position);
                self.counts.purged += 1;
            }
            // The log counts the event in flight as purged, but it stays and counts as restored when its call ends.
            Step::Purge { events } => {
                self.counts.purged += account.purge(key, lane, *events + u64::from(in_flight));
            }
            Step::PurgePart { positions, .. } => {
                positions.iter().for_each(|position| account.dropped(key, *position));
                self.counts.purged += positions.len() as u64;
            }
            Step::Reset { .. } => account.set_apart(key, lane),
            _ => {}
        }
        account.forget_if_over(key);
    }

    fn delivered(&mut self, id: SubscriptionId, key: &str, position: Position, findings: &mut Findings) {
        let lane = self.hasher.hash_one(key);
        let account = self.subscriptions.entry(id).or_default();
        account.delivered += 1;
        self.counts.delivered += 1;
        let taken = account.lines.get_mut(key).and_then(|line| line.deliver(position));
        let Some(Delivered { event, overtaken, is_late }) = taken else {
            return self.delivered_aside(id, key, position, findings);
        };
        // If an event from before this log had the same sequence, this event was late and overtook no other.
        let may_be_late = event.sequence().is_some() && account.older.contains(&lane);
        let why = if may_be_late { Why::Replayed } else { Why::Overtaken };
        for overtaken in overtaken {
            if !account.gone.remove(&overtaken.position) {
                let aside = Aside { why, lane, sequence: overtaken.sequence(), is_passed: true };
                account.aside.insert(overtaken.position, aside);
            }
        }
        account.forget_if_over(key);
        let (late, gap) = if is_late { (true, false) } else { account.pass(lane, event.sequence()) };
        self.counts.late += u64::from(late);
        self.counts.gaps += u64::from(gap);
    }

    /// The event was not in its line: it was replayed, or it had already left.
    fn delivered_aside(
        &mut self,
        id: SubscriptionId,
        key: &str,
        position: Position,
        findings: &mut Findings,
    ) {
        let lane = self.hasher.hash_one(key);
        let account = self.subscriptions.entry(id).or_default();
        let Some(aside) = account.aside.remove(&position) else {
            return self.acknowledged_unknown(id, position);
        };
        if aside.why != Why::Replayed {
            let text = format!(
                "event {position} of key {key:?} was overtaken in its lane and delivered later without a replay"
            );
            findings.add(ProblemKind::OrderViolation, Some(id), text);
        }
        let (late, gap) = account.pass(lane, aside.sequence);
        self.counts.late += u64::from(late || (aside.sequence.is_none() && aside.is_passed));
        self.counts.gaps += u64::from(gap);
    }

    fn acknowledged_unknown(&mut self, id: SubscriptionId, position: Position) {
        let account = self.subscriptions.entry(id).or_default();
        if position < self.first_position {
            self.counts.before_log += 1;
        } else if account.is_back(position) {
            self.counts.purged = self.counts.purged.saturating_sub(1);
        } else {
            self.suspects.insert((id, position), false);
        }
    }

    fn step_alone(&mut self, id: SubscriptionId, position: Position, step: &Step<'_>) {
        let account = self.subscriptions.entry(id).or_default();
        if let Step::Replay { .. } = step
            && (account.aside.remove(&position).is_some() || account.leaves_line(position))
        {
            // The event never had a lane, or its subscription no longer has lanes.
            account.alone.insert(position);
        }
        if let Step::DropOldest { .. } = step
            && account.alone.remove(&position)
        {
            self.counts.purged += 1;
        }
        if let Step::Delivered { .. } | Step::Acknowledged { .. } = step {
            account.delivered += 1;
            self.counts.delivered += 1;
            if !account.alone.remove(&position) && account.aside.remove(&position).is_none() {
                self.acknowledged_unknown(id, position);
            }
        }
    }

    fn step_unordered(&mut self, id: SubscriptionId, step: &Step<'_>) {
        let Step::PurgePart { positions, .. } = step else { return };
        let account = self.subscriptions.entry(id).or_default();
        for position in positions {
            account.alone.remove(position);
        }
        self.counts.purged += positions.len() as u64;
    }

    fn replayed(&mut self, id: SubscriptionId, key: &str, position: Position) {
        let (first_position, lane) = (self.first_position, self.hasher.hash_one(key));
        let account = self.subscriptions.entry(id).or_default();
        let waiting = account.lines.get_mut(key).and_then(|line| line.take(position));
        account.forget_if_over(key);
        // An event that parks its lane has kept its place.
        let is_passed = waiting.is_none();
        let sequence = match (waiting, account.aside.get(&position).copied()) {
            (Some(waiting), _) => waiting.sequence(),
            (None, Some(aside)) => aside.sequence,
            // The event failed before its subscription had lanes, or in another lane.
            (None, None) if account.alone.remove(&position) || account.leaves_line(position) => None,
            (None, None) if position < first_position => {
                self.counts.before_log += 1;
                return;
            }
            (None, None) if account.is_back(position) => None,
            // The delivery is checked when it comes.
            (None, None) => return,
        };
        account.aside.insert(position, Aside { why: Why::Replayed, lane, sequence, is_passed });
    }

    pub fn read_documents(&mut self, at: LogAddress, changes: &[DocumentChange<'_>]) {
        for change in changes {
            let version = change.content.map(|_| at.0);
            self.documents.insert(rows::document(change.kind, change.key), version);
        }
    }

    /// A dead letter moved from one subscription to another with the same name.
    fn moved(&mut self, from: SubscriptionId, position: Position, route: &Route<'_>) {
        if self.subscriptions.contains_key(&from) {
            self.gone(from, position);
            self.counts.purged -= 1;
        }
        if let Some(number) = self.edits.remove(&(from, position)) {
            self.edits.insert((route.subscription, position), number);
        }
        let lane = match &route.to {
            To::Lane { key, .. } => self.hasher.hash_one(*key),
            _ => 0,
        };
        let account = self.subscriptions.entry(route.subscription).or_default();
        let aside = match &route.to {
            To::Lane { sequence, .. } => {
                Aside { why: Why::Replayed, lane, sequence: *sequence, is_passed: false }
            }
            To::Invalid { .. } => Aside { why: Why::Invalid, lane, sequence: None, is_passed: true },
            To::Alone | To::Later | To::Missed { .. } => {
                account.alone.insert(position);
                return;
            }
        };
        account.aside.insert(position, aside);
    }

    fn gone(&mut self, id: SubscriptionId, position: Position) {
        let Some(account) = self.subscriptions.get_mut(&id) else { return };
        self.counts.purged += 1;
        // An event from before this log may have been routed within it.
        if account.aside.remove(&position).is_none() && !account.alone.remove(&position) {
            account.gone.insert(position);
        }
    }

    fn change(&mut self, id: SubscriptionId, change: &Change<'_>, next: Position, findings: &mut Findings) {
        match change {
            Change::Put { document } => {
                let parsed = serde_json::from_str(document).ok().and_then(|json| Document::parse(&json).ok());
                let is_new = !self.subscriptions.contains_key(&id);
                let account = self.subscriptions.entry(id).or_default();
                if let Some(document) = parsed {
                    account.is_whole |= is_new && self.is_whole;
                    findings.name_subscriptions(std::iter::once((id, document.name)));
                }
            }
            Change::Caught { up_to } if up_to.0 + 1 == next.0 => self.caught_up(id, findings),
            Change::Remove => {
                let account = self.subscriptions.remove(&id).unwrap_or_default();
                self.counts.purged += account.open() as u64;
                self.removed.insert(id);
            }
            Change::Drain
            | Change::Retire { .. }
            | Change::Retired
            | Change::Disabled { .. }
            | Change::Enabled
            | Change::Pause
            | Change::Resume
            | Change::Caught { .. } => {}
        }
    }

    /// The subscription is live from here on, so every postponed event must have been routed.
    fn caught_up(&mut self, id: SubscriptionId, findings: &mut Findings) {
        let account = self.subscriptions.entry(id).or_default();
        for position in account.later.drain() {
            let text =
                format!("event {position} was left for the subscription to read later, but was never read");
            findings.add(ProblemKind::Lost, Some(id), text);
        }
    }

    // ---- second pass --------------------------------------------------------------------------------------

    pub fn has_suspects(&self) -> bool {
        !self.suspects.is_empty()
    }

    /// Finds out whether an event with one acknowledgement too many was ever routed.
    pub fn look_for_suspects(&mut self, record: &Record<'_>, position: Position) {
        let mut saw = |position: Position, route: &Route<'_>| {
            if let Some(routed) = self.suspects.get_mut(&(route.subscription, position)) {
                *routed |= route.to != To::Later;
            }
        };
        match record {
            Record::Event { routes, .. } => routes.iter().for_each(|route| saw(position, route)),
            Record::Routed { position, route, .. } | Record::Moved { position, route, .. } => {
                saw(*position, route)
            }
            _ => {}
        }
    }

    pub fn judge_suspects(&mut self, findings: &mut Findings) {
        let mut suspects: Vec<_> = self.suspects.drain().collect();
        suspects.sort_unstable();
        for ((id, position), routed) in suspects {
            let (kind, text) = match routed {
                true => (
                    ProblemKind::DuplicateAcknowledgement,
                    format!("event {position} was acknowledged twice, or after it left"),
                ),
                false => (
                    ProblemKind::Unaccounted,
                    format!("event {position} was acknowledged but never routed to this subscription"),
                ),
            };
            findings.add(kind, Some(id), text);
        }
    }

    pub fn add_counts(&self, report: &mut Report) {
        let Counts { events, lanes, delivered, purged, late, gaps, before_log } = self.counts;
        report.subscriptions = self.subscriptions.len() as u64;
        report.events = events;
        report.lanes = lanes;
        report.delivered = delivered;
        report.purged = purged;
        report.late = late;
        report.gaps = gaps;
        report.before_log = before_log;
    }
}
