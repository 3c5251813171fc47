//! Checks a history: the answers that producers got, and the calls that the target saw. It knows only the promises of the
//! server: every accepted event arrives. The events of a lane arrive in order, with one open call at a time. An
//! acknowledged event arrives again only if the server or the target was disturbed in between. Only after a power cut, a
//! lane may go back: events that were acknowledged since the last sync arrive again, in order.

use crate::producer::Sent;
use crate::target::{Call, Verdict};
use std::collections::{BTreeMap, BTreeSet};

/// The events that each subscription should receive.
pub struct Receiver {
    pub subscription: &'static str,
    /// None: all.
    pub kind: Option<&'static str>,
    pub is_ordered: bool,
}

/// A time in which answers may have been lost on their way, in microseconds since 1970. A server's death needs none:
/// each call says which server made it.
#[derive(Clone, Copy, Debug)]
pub struct Disturbance {
    pub from: u64,
    pub to: u64,
}

/// How servers ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// The kernel keeps everything that was written.
    Killed,
    /// Data that was not synced may be lost.
    PowerLost,
}

#[derive(Debug, Default)]
pub struct Verdicts {
    pub events: usize,
    pub calls: usize,
    pub refused: usize,
    pub hung: usize,
    /// Came again after they were acknowledged, as allowed.
    pub repeats: usize,
    pub lost: usize,
    pub doubled: usize,
    pub disordered: usize,
    /// The first few, in words.
    wrongs: Vec<String>,
}

const WRONGS_MAX: usize = 10;

impl std::fmt::Display for Verdicts {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Verdicts { events, calls, refused, hung, repeats, lost, doubled, disordered, .. } = self;
        write!(
            f,
            "{events} events, {calls} calls ({refused} refused, {hung} hung, {repeats} repeats): {lost} lost, {doubled} doubled, {disordered} disordered"
        )
    }
}

impl Verdicts {
    pub fn of(
        sent: &[Sent],
        calls: &[Call],
        receivers: &[Receiver],
        end: End,
        disturbances: &[Disturbance],
    ) -> Verdicts {
        let count = |verdict| calls.iter().filter(|call| call.verdict == verdict).count();
        let mut verdicts = Verdicts {
            events: sent.len(),
            calls: calls.len(),
            refused: count(Verdict::Refused),
            hung: count(Verdict::Hung),
            ..Verdicts::default()
        };
        let known: BTreeSet<&str> = receivers.iter().map(|receiver| receiver.subscription).collect();
        for call in calls {
            if call.overlaps || call.order_status.is_some() || !known.contains(call.subscription.as_str()) {
                verdicts.disorder(format!("{call:?}"));
            }
        }
        for receiver in receivers {
            let wanted = sent.iter().filter(|event| receiver.kind.is_none_or(|kind| kind == event.kind));
            let seen = calls.iter().filter(|call| call.subscription == receiver.subscription);
            let (wanted, seen): (Vec<&Sent>, Vec<&Call>) = (wanted.collect(), seen.collect());
            match receiver.is_ordered {
                true => verdicts.judge_lanes(&wanted, &seen, end, disturbances),
                false => verdicts.judge_singles(&wanted, &seen, disturbances),
            }
        }
        verdicts
    }

    pub fn assert_clean(&self) {
        let all = self.lost + self.doubled + self.disordered;
        assert_eq!(all, 0, "{self}\n{}", self.wrongs.join("\n"));
    }

    fn lose(&mut self, what: String) {
        self.lost += 1;
        self.tell("lost", what);
    }

    fn double(&mut self, what: String) {
        self.doubled += 1;
        self.tell("doubled", what);
    }

    fn disorder(&mut self, what: String) {
        self.disordered += 1;
        self.tell("disordered", what);
    }

    fn tell(&mut self, how: &str, what: String) {
        if self.wrongs.len() < WRONGS_MAX {
            self.wrongs.push(format!("{how}: {what}"));
        }
    }

    fn judge_lanes(&mut self, wanted: &[&Sent], seen: &[&Call], end: End, disturbances: &[Disturbance]) {
        let mut lanes: BTreeMap<&str, (Vec<&Sent>, Vec<&Call>)> = BTreeMap::new();
        wanted.iter().for_each(|event| lanes.entry(&event.key).or_default().0.push(event));
        seen.iter().for_each(|call| lanes.entry(&call.key).or_default().1.push(call));
        for (events, calls) in lanes.values_mut() {
            // Its producer sent a key's events in order of their numbers, or said that this is the order.
            events.sort_by_key(|event| event.sequence);
            self.judge_lane(events, calls, end, disturbances);
        }
    }

    /// Each call is for the event of the call before it, which was not acknowledged or was disturbed, or for the one
    /// that follows it.
    fn judge_lane(&mut self, events: &[&Sent], calls: &[&Call], end: End, disturbances: &[Disturbance]) {
        let mut place = 0;
        let mut last: Option<&Call> = None;
        for call in calls {
            let is_same = last.is_some_and(|last| last.id == call.id);
            place += usize::from(!is_same);
            if end == End::PowerLost && last.is_some_and(|last| last.epoch < call.epoch) {
                let back = events.iter().take(place).position(|event| event.id == call.id);
                self.repeats += back.map_or(0, |back| place - 1 - back);
                place = back.map_or(place, |back| back + 1);
            }
            let previous =
                (place > 1).then(|| events.get(place - 2).map(|event| event.id.as_str())).flatten();
            let is_in_turn = events.get(place - 1).is_some_and(|event| event.id == call.id)
                && call.lane_sequence == Some(place as u64)
                && call.previous_id.as_deref() == previous;
            if !is_in_turn {
                self.disorder(format!("{call:?} after {last:?}"));
            }
            if let Some(last) = last.filter(|last| is_same && last.verdict == Verdict::Acknowledged) {
                self.judge_repeat(last, call, disturbances);
            }
            last = Some(call);
        }
        let acknowledged: BTreeSet<&str> = acknowledged(calls).collect();
        for event in events.iter().filter(|event| !acknowledged.contains(event.id.as_str())) {
            self.lose(format!("{event:?}"));
        }
    }

    /// Events without a lane: nothing comes after an acknowledgement unless there was a disturbance.
    fn judge_singles(&mut self, wanted: &[&Sent], seen: &[&Call], disturbances: &[Disturbance]) {
        let mut calls: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        seen.iter().for_each(|call| calls.entry(&call.id).or_default().push(call));
        for event in wanted {
            let of_event = calls.remove(event.id.as_str()).unwrap_or_default();
            if acknowledged(&of_event).next().is_none() {
                self.lose(format!("{event:?}"));
            }
            for pair in of_event.windows(2).filter(|pair| pair[0].verdict == Verdict::Acknowledged) {
                self.judge_repeat(pair[0], pair[1], disturbances);
            }
            if of_event.iter().any(|call| call.lane_sequence.is_some() || call.previous_id.is_some()) {
                self.disorder(format!("{of_event:?}"));
            }
        }
        for invented in calls.into_values() {
            self.disorder(format!("never sent: {invented:?}"));
        }
    }

    fn judge_repeat(&mut self, first: &Call, again: &Call, disturbances: &[Disturbance]) {
        let is_within = |time: &Disturbance| time.from <= again.at && first.at <= time.to;
        match first.epoch < again.epoch || disturbances.iter().any(is_within) {
            true => self.repeats += 1,
            false => self.double(format!("{again:?} after {first:?}")),
        }
    }
}

fn acknowledged<'a>(calls: &'a [&Call]) -> impl Iterator<Item = &'a str> {
    calls.iter().filter(|call| call.verdict == Verdict::Acknowledged).map(|call| call.id.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    const LANES: [Receiver; 1] = [Receiver { subscription: "lanes", kind: None, is_ordered: true }];

    fn sent(sequence: u64) -> Sent {
        let (id, key) = (format!("e{sequence}"), "k".to_owned());
        Sent { id, kind: "event", key, sequence, position: Some(sequence) }
    }

    fn call(at: u64, epoch: u64, number: u64, verdict: Verdict) -> Call {
        Call {
            at,
            epoch,
            subscription: "lanes".into(),
            key: "k".into(),
            id: format!("e{number}"),
            lane_sequence: Some(number),
            previous_id: (number > 1).then(|| format!("e{}", number - 1)),
            order_status: None,
            verdict,
            overlaps: false,
        }
    }

    /// Lost, doubled, disordered and repeats of three events that were called for in this order, each by the server
    /// of that epoch.
    fn judge(calls: &[(u64, u64)], end: End, disturbances: &[Disturbance]) -> [usize; 4] {
        let sent: Vec<Sent> = (1..=3).map(sent).collect();
        let calls: Vec<Call> = calls
            .iter()
            .enumerate()
            .map(|(at, (epoch, number))| call(at as u64, *epoch, *number, Verdict::Acknowledged))
            .collect();
        let found = Verdicts::of(&sent, &calls, &LANES, end, disturbances);
        [found.lost, found.doubled, found.disordered, found.repeats]
    }

    #[test]
    fn what_is_wrong_is_seen() {
        let killed = |calls: &[(u64, u64)]| judge(calls, End::Killed, &[]);
        assert_eq!(killed(&[(0, 1), (0, 2), (0, 3)]), [0, 0, 0, 0]);
        assert_eq!(killed(&[(0, 1), (0, 2)]), [1, 0, 0, 0]);
        assert_eq!(killed(&[(0, 1), (0, 2), (0, 2), (0, 3)]), [0, 1, 0, 0]);
        assert_eq!(killed(&[(0, 1), (0, 2), (1, 2), (1, 3)]), [0, 0, 0, 1]);
        assert!(killed(&[(0, 1), (0, 3), (0, 2)])[2] > 0);
        // Two steps back: more than was in flight.
        let back = [(0, 1), (0, 2), (1, 1), (1, 2), (1, 3)];
        assert!(killed(&back)[2] > 0);
        assert_eq!(judge(&back, End::PowerLost, &[]), [0, 0, 0, 2]);
        let repeat = [(0, 1), (0, 1), (0, 2), (0, 3)];
        assert_eq!(judge(&repeat, End::Killed, &[Disturbance { from: 0, to: 1 }]), [0, 0, 0, 1]);
        assert_eq!(judge(&repeat, End::Killed, &[Disturbance { from: 2, to: 9 }]), [0, 1, 0, 0]);
    }

    #[test]
    fn two_calls_open_at_once_are_seen() {
        let mut calls = vec![call(0, 0, 1, Verdict::Hung), call(1, 0, 1, Verdict::Acknowledged)];
        calls[1].overlaps = true;
        let found = Verdicts::of(&[sent(1)], &calls, &LANES, End::Killed, &[]);
        assert_eq!((found.disordered, found.lost, found.hung), (1, 0, 1));
    }
}
