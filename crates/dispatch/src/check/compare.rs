//! Compares the ledger with the engine's state: both must have the same open events.

use super::account::{Account, Why};
use super::ledger::Ledger;
use super::report::{Findings, ProblemKind, Report};
use crate::dead_letters::Selector;
use crate::engine::{Engine, Failure};
use crate::rows;
use crate::subscription::{Subscription, Tally};
use klambda_core::ids::{Position, SubscriptionId};
use klambda_core::lane::Entry;
use klambda_store::address::{Kept, LogAddress};
use klambda_store::record::Record;

/// An event that has not left, according to the ledger.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Open {
    position: Position,
    place: Place,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Line,
    Overtaken,
    Replayed,
    Invalid,
}

/// The events of a subscription according to the engine, sorted.
struct Held {
    waiting: Vec<Position>,
    /// Dead letters outside the lanes.
    dead: Vec<Position>,
    holders: Vec<Position>,
}

pub(super) fn compare(
    engine: &Engine,
    mut ledger: Ledger,
    report: &mut Report,
    findings: &mut Findings,
) -> Result<(), Failure> {
    compare_documents(engine, &ledger, findings)?;
    report.subscriptions = engine.subscriptions.len() as u64;
    for subscription in engine.subscriptions.values() {
        let id = &subscription.id;
        let held = Held::of(engine, *id)?;
        report.waiting += held.waiting.len() as u64;
        report.dead_letters += (held.dead.len() + held.holders.len()) as u64;
        let account = ledger.subscriptions.remove(id).unwrap_or_default();
        held.prove_counters(*id, &subscription.tally, &account, findings);
        prove_copies(engine, *id, findings)?;
        prove_edits(engine, subscription, &held, &ledger, findings)?;
        if subscription.on_disk.lists_ages {
            prove_ages(engine, *id, findings)?;
        }
        Comparison { id: *id, first_position: ledger.first_position, held: &held, report, findings }
            .run(account);
    }
    for id in ledger.subscriptions.keys() {
        findings.add(
            ProblemKind::State,
            Some(*id),
            "the log contains this subscription but the state does not".into(),
        );
    }
    Ok(())
}

fn compare_documents(engine: &Engine, ledger: &Ledger, findings: &mut Findings) -> Result<(), Failure> {
    for (row, says) in &ledger.documents {
        let found = engine.store.rows.get(row)?;
        let is = found.as_deref().and_then(|row| row.first_chunk()).map(|bytes| u64::from_be_bytes(*bytes));
        if is != *says {
            let name = String::from_utf8_lossy(&row[1..]).replace('\0', " ");
            let text = format!("document {name} has version {is:?} but the log says {says:?}");
            findings.add(ProblemKind::State, None, text);
        }
    }
    Ok(())
}

impl Held {
    fn of(engine: &Engine, id: SubscriptionId) -> Result<Held, Failure> {
        let mut waiting = Vec::new();
        engine.for_each_waiting(id, &mut |entry| waiting.push(entry.position))?;
        if let Some(subscription) = engine.subscriptions.get(id) {
            waiting.extend(subscription.unordered.under_way.keys());
        }
        waiting.sort_unstable();
        Ok(Held {
            waiting,
            dead: positions(engine, rows::DEAD, id)?,
            holders: positions(engine, rows::HELD, id)?,
        })
    }

    fn has(&self, position: Position) -> bool {
        [&self.waiting, &self.dead, &self.holders].iter().any(|list| list.binary_search(&position).is_ok())
    }

    fn prove_counters(&self, id: SubscriptionId, tally: &Tally, account: &Account, findings: &mut Findings) {
        let counted = [
            ("pending events", tally.waiting, self.waiting.len() as u64),
            ("dead letters outside lanes", tally.dead, self.dead.len() as u64),
            ("dead letters that park lanes", tally.held, self.holders.len() as u64),
            ("unread events", tally.later, account.later.len() as u64),
        ];
        let delivered = ("delivered events", tally.delivered, account.delivered);
        for (what, says, is) in counted.into_iter().chain(account.is_whole.then_some(delivered)) {
            if says != is {
                let text = format!("the counter shows {says} {what}, but there are {is}");
                findings.add(ProblemKind::State, Some(id), text);
            }
        }
        let mut twice = self.waiting.windows(2).filter(|pair| pair[0] == pair[1]).map(|pair| pair[0]);
        if let Some(position) = twice.next() {
            findings.add(ProblemKind::State, Some(id), format!("event {position} is pending twice"));
        }
        let lost = self.holders.iter().find(|position| self.waiting.binary_search(position).is_err());
        if let Some(position) = lost {
            findings.add(
                ProblemKind::State,
                Some(id),
                format!("dead letter {position} parks a lane that does not contain it"),
            );
        }
    }
}

/// An event whose segment is gone needs a copy; otherwise it can never be delivered.
fn prove_copies(engine: &Engine, id: SubscriptionId, findings: &mut Findings) -> Result<(), Failure> {
    let oldest = engine.store.log.oldest();
    let mut copied: Vec<Entry> = Vec::new();
    engine.for_each_waiting(id, &mut |entry| copied.extend((entry.at < oldest.into()).then_some(*entry)))?;
    let singles = engine.subscriptions.get(id).into_iter().flat_map(|s| s.unordered.under_way.values());
    copied.extend(singles.map(|single| single.entry).filter(|entry| entry.at < oldest.into()));
    let letters = engine.select_dead_letters(id, &Selector::default(), Position(0), usize::MAX)?;
    copied.extend(letters.into_iter().map(|letter| letter.entry).filter(|entry| entry.at < oldest.into()));
    for entry in copied {
        if !has_copy(engine, &entry)? {
            let text = format!("event {} is older than the log and has no copy", entry.position);
            findings.add(ProblemKind::Lost, Some(id), text);
        }
    }
    Ok(())
}

/// A dead letter must send its last edit, also while it is replayed. No edit outlives its event.
fn prove_edits(
    engine: &Engine,
    subscription: &Subscription,
    held: &Held,
    ledger: &Ledger,
    findings: &mut Findings,
) -> Result<(), Failure> {
    let id = subscription.id;
    for (position, edit) in subscription.on_disk.edits.iter() {
        if !held.has(position) {
            let text = format!("event {position} has left, but its edit has not");
            findings.add(ProblemKind::State, Some(id), text);
        }
        if !is_edit_of(engine, edit.at, position)? {
            let text = format!("the edit of dead letter {position} is not in the log");
            findings.add(ProblemKind::Lost, Some(id), text);
        }
    }
    for ((_, position), says) in ledger.edits.iter().filter(|((of, at), _)| *of == id && held.has(*at)) {
        let is = subscription.on_disk.edits.get(*position).map(|edit| edit.number);
        if is != Some(*says) {
            let text = format!("dead letter {position} has edit {is:?}, but the log says {says}");
            findings.add(ProblemKind::State, Some(id), text);
        }
    }
    Ok(())
}

fn is_edit_of(engine: &Engine, at: LogAddress, event: Position) -> Result<bool, Failure> {
    match engine.store.log.read(at).map_err(Failure::from) {
        Err(failure) if failure.is_damage() => Ok(false),
        record => {
            Ok(matches!(Record::decode(&record?)?, Record::Edited { position, .. } if position == event))
        }
    }
}

/// When the oldest event is dropped, a lane on disk that is not listed by age would be skipped.
fn prove_ages(engine: &Engine, id: SubscriptionId, findings: &mut Findings) -> Result<(), Failure> {
    for letter in [rows::WAITING, rows::PARKED] {
        let prefix = rows::of_subscription(letter, id);
        for (row, _) in engine.store.rows.scan(&prefix, &prefix, usize::MAX)? {
            let key = rows::lane_of(&row);
            let lane = match engine.lanes.find(id, key) {
                Some(_) => None,
                None => engine.peek_lane(id, key)?,
            };
            let Some(entry) = lane.as_ref().and_then(|lane| lane.lane.first_droppable()) else { continue };
            let listed = engine.store.rows.get(&rows::at_position(rows::BY_AGE, id, entry.position))?;
            if listed.as_deref() != Some(key.as_bytes()) {
                let text = format!("key {key:?} is missing from the list by age at event {}", entry.position);
                findings.add(ProblemKind::State, Some(id), text);
            }
        }
    }
    Ok(())
}

fn has_copy(engine: &Engine, entry: &Entry) -> Result<bool, Failure> {
    let record = match engine.read_event(entry.address()) {
        Err(failure) if failure.is_damage() => return Ok(false),
        record => record?,
    };
    let is_it = |from, position| from == entry.address() && position == entry.position;
    Ok(matches!(Record::decode(&record), Ok(Record::Kept { from, position, .. }) if is_it(from, position)))
}

fn positions(engine: &Engine, letter: u8, id: SubscriptionId) -> Result<Vec<Position>, Failure> {
    const PAGE: usize = 10_000;
    let prefix = rows::of_subscription(letter, id);
    let mut from = prefix.clone();
    let mut found = Vec::new();
    loop {
        let page = engine.store.rows.scan(&prefix, &from, PAGE)?;
        found.extend(page.iter().map(|(key, _)| Position(rows::number_of(key))));
        match page.last() {
            Some((key, _)) if page.len() == PAGE => from = [key.as_slice(), &[0]].concat(),
            _ => return Ok(found),
        }
    }
}

struct Comparison<'a> {
    id: SubscriptionId,
    first_position: Position,
    held: &'a Held,
    report: &'a mut Report,
    findings: &'a mut Findings,
}

impl Comparison<'_> {
    fn run(mut self, mut account: Account) {
        let mut open = open_events(&mut account);
        open.sort_unstable();
        let is_open =
            |position: &Position| open.binary_search_by_key(position, |event| event.position).is_ok();
        let held = self.held;
        for position in held.waiting.iter().chain(&held.dead).filter(|position| !is_open(position)) {
            self.judge_unknown(*position, &mut account);
        }
        for event in &open {
            let waits = held.waiting.binary_search(&event.position).is_ok();
            let is_dead = held.dead.binary_search(&event.position).is_ok();
            self.judge(event, waits, is_dead, &mut account);
        }
    }

    fn judge(&mut self, event: &Open, waits: bool, is_dead: bool, account: &mut Account) {
        let position = event.position;
        let problem = match (waits, is_dead, event.place) {
            (true, true, _) => {
                Some((ProblemKind::State, "is both pending and a dead letter outside its lane"))
            }
            (true, _, Place::Overtaken) => Some((
                ProblemKind::OrderViolation,
                "is still pending in its lane, but later events of the lane were delivered",
            )),
            (true, _, Place::Invalid) => {
                Some((ProblemKind::State, "has no key or sequence but is pending in a lane"))
            }
            (false, false, _) if !account.gone.remove(&position) => {
                Some((ProblemKind::Lost, "is not delivered, not pending and not a dead letter"))
            }
            _ => None,
        };
        if let Some((kind, what)) = problem {
            self.findings.add(kind, Some(self.id), format!("event {position} {what}"));
        }
    }

    fn judge_unknown(&mut self, position: Position, account: &mut Account) {
        if position < self.first_position {
            self.report.before_log += 1;
        } else if account.is_back(position) {
            self.report.purged = self.report.purged.saturating_sub(1);
        } else {
            let text = format!(
                "event {position} is pending or a dead letter, but the log says that it left or never arrived"
            );
            self.findings.add(ProblemKind::Unaccounted, Some(self.id), text);
        }
    }
}

fn open_events(account: &mut Account) -> Vec<Open> {
    let lines = std::mem::take(&mut account.lines);
    let (alone, aside) = (std::mem::take(&mut account.alone), std::mem::take(&mut account.aside));
    let in_line = lines.values().flat_map(|line| line.iter().map(|waiting| waiting.position));
    let mut open: Vec<Open> =
        in_line.chain(alone).map(|position| Open { position, place: Place::Line }).collect();
    open.extend(aside.into_iter().map(|(position, aside)| Open {
        position,
        place: match aside.why {
            Why::Overtaken => Place::Overtaken,
            Why::Replayed => Place::Replayed,
            Why::Invalid => Place::Invalid,
        },
    }));
    open
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Config;
    use klambda_core::subscription::Document;
    use klambda_core::time::Millis;
    use klambda_store::faulty_disk::MemoryDisk;
    use klambda_store::log::Options;
    use klambda_store::record::{Route, To};
    use std::sync::Arc;

    #[test]
    fn an_event_that_left_the_log_and_has_no_copy_is_lost() {
        let disk = Arc::new(MemoryDisk::new());
        let log = Options { segment_bytes: 64 << 10, reserve_bytes: 4 << 10, tail_bytes: 4 << 10 };
        let config = Config { log, ..Config::default() };
        let (mut engine, _) = Engine::open(disk, config, Millis(1), [0; 16]).expect("opens");
        let document = serde_json::json!({
            "apiVersion": "lambda.knative.io/v1alpha1", "kind": "Subscription", "metadata": {"name": "s"},
            "spec": {"target": {"url": "http://127.0.0.1:9000/"}, "ordering": "ordered"},
        });
        engine.put_subscription(Document::parse(&document).expect("a valid document"), false).expect("put");
        let id = engine.subscription_id("s").expect("exists");
        let to = To::Lane { key: "k", sequence: None };
        let record = Record::Routed {
            time: Millis(1),
            position: Position(1),
            at: LogAddress(0),
            accepted: Millis(1),
            bytes: 1,
            route: Route { subscription: id, previous: LogAddress(0), to },
        };
        engine.commit(&record).expect("committed");
        let lost = |engine: &Engine| {
            let mut findings = Findings::default();
            prove_copies(engine, id, &mut findings).expect("read");
            findings.count(ProblemKind::Lost)
        };
        assert_eq!(lost(&engine), 0, "no event is older than the log");
        for n in 0.. {
            if engine.store.log.segments().len() == 2 {
                break;
            }
            engine.pause_subscription("s", n % 2 == 0).expect("changed");
            engine.flush();
            engine.run_prepare();
        }
        engine.when_durable(crate::Token(1));
        engine.flush();
        engine.run_sync();
        engine.store.log.drop_oldest().expect("a segment");
        assert_eq!(lost(&engine), 1);
    }
}
