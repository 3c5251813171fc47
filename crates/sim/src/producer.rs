//! Producers: they make events, send them late, twice, shuffled and in batches, leave some out, and resend events
//! that were not answered or were rejected.

use crate::event::{EventNo, KINDS, ProducedEvent, SOURCES};
use crate::history::SubNo;
use crate::mix::{Mix, Trouble};
use crate::rng::Rng;
use std::collections::BTreeMap;

const SENT_AT_ONCE: usize = 400;

#[derive(Default)]
pub struct Producer {
    /// Number of events made so far.
    pub made: u64,
    /// By namespace and key.
    next_sequence: BTreeMap<(bool, u64), u64>,
    /// Sequences that were left out. Some of them are sent late.
    left_out: BTreeMap<(bool, u64), Vec<u64>>,
    /// By the round in which they are sent.
    outbox: BTreeMap<(u64, u64), EventNo>,
    next: u64,
    turned_away: Vec<EventNo>,
    /// How often the rejected events were sent again.
    tries: u32,
    /// The replies of a receiver to an event. They are the same for every call.
    replies: BTreeMap<(SubNo, EventNo), Vec<EventNo>>,
    /// All events, by namespace, source and id.
    ids: BTreeMap<(bool, usize, String), EventNo>,
}

impl Producer {
    pub fn find(&self, elsewhere: bool, source: &str, id: &str) -> Option<EventNo> {
        let source = SOURCES.iter().position(|name| *name == source)?;
        self.ids.get(&(elsewhere, source, id.to_owned())).copied()
    }

    pub fn is_done(&self, mix: &Mix) -> bool {
        self.made >= mix.events && self.outbox.is_empty()
    }

    /// The event was rejected. It is kept until an operator resolves the cause.
    pub fn gives_up(&mut self, event: EventNo) {
        self.turned_away.push(event);
    }

    /// Sends rejected events again, with a limited number of retries, because a small backlog accepts few at a time.
    /// Returns true if there were any.
    pub fn tries_again(&mut self, round: u64) -> bool {
        const TRIES_MAX: u32 = 10;
        let events = std::mem::take(&mut self.turned_away);
        let some = !events.is_empty() && self.tries < TRIES_MAX;
        if !some {
            return false;
        }
        self.tries += 1;
        events.into_iter().for_each(|event| self.later(event, round));
        some
    }

    pub fn later(&mut self, event: EventNo, round: u64) {
        self.outbox.insert((round, self.next), event);
        self.next += 1;
    }

    /// Makes new events and puts them into the outbox.
    pub fn make(&mut self, mix: &Mix, round: u64, events: &mut Vec<ProducedEvent>, rng: &mut Rng) {
        for _ in 0..rng.below(mix.pace + 1) {
            if self.made >= mix.events {
                return;
            }
            self.made += 1;
            let elsewhere = mix.has(Trouble::Namespaces) && rng.one_in(2);
            let made = self.one(mix, elsewhere, events, rng);
            let no = made.no;
            self.ids.insert((elsewhere, made.source, made.id.clone()), no);
            events.push(made);
            let due = if mix.has(Trouble::Shuffle) { round + rng.below(5) } else { round };
            self.later(no, due);
            if mix.has(Trouble::Duplicates) && rng.one_in(6) {
                self.later(no, round + rng.below(60));
            }
        }
    }

    pub fn has_replies(&self, sub: SubNo, cause: EventNo) -> bool {
        self.replies.contains_key(&(sub, cause))
    }

    /// The replies of a receiver to an event. They are made on the first call.
    pub fn replies(
        &mut self,
        sub: SubNo,
        cause: EventNo,
        mix: &Mix,
        events: &mut Vec<ProducedEvent>,
        rng: &mut Rng,
    ) -> Vec<EventNo> {
        if let Some(replies) = self.replies.get(&(sub, cause)) {
            return replies.clone();
        }
        let mut replies = Vec::new();
        for _ in 0..rng.between(1, 3) {
            let elsewhere = events[cause as usize].elsewhere;
            let made = ProducedEvent { reply: true, ..self.one(mix, elsewhere, events, rng) };
            self.ids.insert((elsewhere, made.source, made.id.clone()), made.no);
            replies.push(made.no);
            events.push(made);
        }
        self.replies.insert((sub, cause), replies.clone());
        replies
    }

    fn one(&mut self, mix: &Mix, elsewhere: bool, events: &[ProducedEvent], rng: &mut Rng) -> ProducedEvent {
        let no = events.len() as EventNo;
        // Some keys are busier than others.
        let key = if rng.one_in(3) { rng.below(mix.keys.min(3)) } else { rng.below(mix.keys) };
        let sequence = self.sequence(mix, (elsewhere, key), rng);
        let (source, id) = self.name(mix, no, elsewhere, events, rng);
        ProducedEvent {
            no,
            elsewhere,
            id,
            source,
            kind: rng.below(KINDS.len() as u64) as usize,
            key: (!rng.one_in(150)).then_some(key),
            subject: (!rng.one_in(60)).then_some(key % 7),
            sequence: sequence_text(sequence, rng),
            data_len: rng.below(mix.data_max + 1) as usize,
            poison: rng.one_in(80),
            reply: false,
        }
    }

    /// The next sequence of the key, or one that was left out before, any time ago.
    fn sequence(&mut self, mix: &Mix, key: (bool, u64), rng: &mut Rng) -> u64 {
        let next = self.next_sequence.entry(key).or_insert(1);
        if mix.has(Trouble::Gaps) {
            let left_out = self.left_out.entry(key).or_default();
            if !left_out.is_empty() && rng.one_in(mix.gap_every * 3) {
                // Some are sent in the order in which the lane waits for them.
                let n = if rng.one_in(2) { 0 } else { rng.below(left_out.len() as u64) };
                return left_out.remove(n as usize);
            }
            if rng.one_in(mix.gap_every) {
                let from = *next;
                *next += rng.between(1, 3);
                left_out.extend(from..*next);
            }
        }
        let sequence = *next;
        *next += 1;
        sequence
    }

    /// A source and an id. Two producers may use the same id, and a producer in another namespace may have the same
    /// source as well.
    fn name(
        &self,
        mix: &Mix,
        no: EventNo,
        elsewhere: bool,
        events: &[ProducedEvent],
        rng: &mut Rng,
    ) -> (usize, String) {
        let source = rng.below(SOURCES.len() as u64) as usize;
        let is_free = |source: usize, other: &ProducedEvent| {
            !self.ids.contains_key(&(elsewhere, source, other.id.clone()))
        };
        if !events.is_empty() && rng.one_in(30) {
            let other = rng.pick(events);
            if other.source != source && is_free(source, other) {
                return (source, other.id.clone());
            }
        }
        if mix.has(Trouble::Namespaces) && !events.is_empty() && rng.one_in(2) {
            let other = rng.pick(events);
            if other.elsewhere != elsewhere && is_free(other.source, other) {
                return (other.source, other.id.clone());
            }
        }
        (source, format!("e{no}"))
    }

    /// The events that are sent in this round. The number of connections, and of requests per connection, is limited.
    pub fn due(&mut self, round: u64) -> Vec<EventNo> {
        let due = self.outbox.range(..(round + 1, 0)).take(SENT_AT_ONCE).count();
        (0..due).filter_map(|_| self.outbox.pop_first()).map(|(_, event)| event).collect()
    }
}

fn sequence_text(sequence: u64, rng: &mut Rng) -> Option<String> {
    match rng.below(120) {
        0 => None,
        1 => Some("soon".into()),
        2 => Some(format!("{sequence:012}")),
        3 => Some(u64::MAX.to_string()),
        _ => Some(sequence.to_string()),
    }
}
