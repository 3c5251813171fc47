//! The circuit breaker of one endpoint. Pure: the caller reports outcomes and asks whether a call may start.

use crate::time::Millis;
use std::collections::VecDeque;

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Limits {
    /// The breaker opens after this many consecutive failures from as many different lanes. Refused connections count
    /// from any lane.
    pub consecutive: u32,
    /// The breaker also opens when this share of the calls in the window fails …
    pub ratio: f64,
    /// … and the window contains at least this many calls.
    pub calls_min: u32,
    pub window_ms: u64,
    pub half_open_after_ms: u64,
}

impl Default for Limits {
    fn default() -> Self {
        Limits { consecutive: 3, ratio: 0.5, calls_min: 20, window_ms: 10_000, half_open_after_ms: 30_000 }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Closed,
    /// No call may start before `probe_at`.
    Open {
        probe_at: Millis,
    },
    /// One probe is in flight.
    HalfOpen,
}

/// Identifies a lane, so that one failing lane cannot open the breaker for all.
pub type LaneTag = u64;

#[derive(Clone, Debug)]
pub struct Breaker {
    limits: Limits,
    state: State,
    refused_in_row: u32,
    failed_lanes: Vec<LaneTag>,
    /// (second, calls, failures), oldest first: at most one bucket per second of the window.
    window: VecDeque<(u64, u32, u32)>,
    last_probe: Option<LaneTag>,
}

impl Breaker {
    pub fn new(limits: Limits) -> Breaker {
        Breaker {
            limits,
            state: State::Closed,
            refused_in_row: 0,
            failed_lanes: Vec::new(),
            window: VecDeque::new(),
            last_probe: None,
        }
    }

    pub fn state(&self) -> State {
        self.state
    }

    pub fn is_closed(&self) -> bool {
        self.state == State::Closed
    }

    /// True if a call may start now. In the open state, this is the probe once it is due.
    pub fn allows(&self, now: Millis) -> bool {
        match self.state {
            State::Closed => true,
            State::Open { probe_at } => now >= probe_at,
            State::HalfOpen => false,
        }
    }

    /// The lane of the last probe, so that the next probe can use another lane.
    pub fn last_probe(&self) -> Option<LaneTag> {
        self.last_probe
    }

    pub fn started(&mut self, lane: LaneTag, now: Millis) {
        if let State::Open { probe_at } = self.state
            && now >= probe_at
        {
            self.state = State::HalfOpen;
            self.last_probe = Some(lane);
        }
    }

    /// The probe ended without an outcome.
    pub fn abandoned(&mut self, now: Millis) {
        if self.state == State::HalfOpen {
            self.state = State::Open { probe_at: now };
        }
    }

    pub fn succeeded(&mut self, now: Millis) {
        self.refused_in_row = 0;
        self.failed_lanes.clear();
        if self.is_closed() {
            self.count(now, false);
        } else {
            self.state = State::Closed;
            self.window.clear();
        }
    }

    /// Records a failure that is the endpoint's fault. Returns true if it opened the breaker.
    pub fn failed(&mut self, lane: LaneTag, refused: bool, now: Millis) -> bool {
        match self.state {
            // This call started before the breaker opened.
            State::Open { .. } => return false,
            State::HalfOpen => {
                self.open(now);
                return false;
            }
            State::Closed => {}
        }
        self.count(now, true);
        self.refused_in_row = if refused { self.refused_in_row + 1 } else { 0 };
        if !self.failed_lanes.contains(&lane) {
            self.failed_lanes.push(lane);
        }
        let in_row = self.refused_in_row.max(self.failed_lanes.len() as u32) >= self.limits.consecutive;
        if in_row || self.over_ratio() {
            self.open(now);
            return true;
        }
        false
    }

    fn open(&mut self, now: Millis) {
        self.state = State::Open { probe_at: now + self.limits.half_open_after_ms };
        self.refused_in_row = 0;
        self.failed_lanes.clear();
        self.window.clear();
    }

    fn count(&mut self, now: Millis, failed: bool) {
        let second = now.0 / 1000;
        let oldest = second.saturating_sub(self.limits.window_ms / 1000);
        while self.window.front().is_some_and(|bucket| bucket.0 < oldest) {
            self.window.pop_front();
        }
        match self.window.back_mut() {
            Some(bucket) if bucket.0 == second => {
                bucket.1 += 1;
                bucket.2 += u32::from(failed);
            }
            _ => self.window.push_back((second, 1, u32::from(failed))),
        }
    }

    fn over_ratio(&self) -> bool {
        let calls: u32 = self.window.iter().map(|bucket| bucket.1).sum();
        let failures: u32 = self.window.iter().map(|bucket| bucket.2).sum();
        calls >= self.limits.calls_min && f64::from(failures) >= self.limits.ratio * f64::from(calls)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: Millis = Millis(1_000_000);

    fn breaker() -> Breaker {
        Breaker::new(Limits::default())
    }

    #[test]
    fn one_sick_lane_does_not_open_it_but_three_lanes_do() {
        let mut b = breaker();
        for _ in 0..10 {
            assert!(!b.failed(7, false, T));
        }
        b.failed(8, false, T);
        assert!(b.failed(9, false, T));
        assert_eq!(b.state(), State::Open { probe_at: T + 30_000 });
    }

    #[test]
    fn refused_connections_count_from_any_lane() {
        let mut b = breaker();
        b.failed(7, true, T);
        b.failed(7, true, T);
        assert!(b.failed(7, true, T));
    }

    #[test]
    fn a_success_between_starts_the_row_anew_but_half_of_twenty_opens_it() {
        let mut b = breaker();
        let mut opened = false;
        for n in 0..20 {
            b.succeeded(T + n * 100);
            opened = b.failed(7, false, T + n * 100);
            if opened {
                assert!(n >= 9);
                break;
            }
        }
        assert!(opened);
    }

    #[test]
    fn a_probe_at_a_time_and_one_success_closes_it() {
        let mut b = breaker();
        (0..3).for_each(|lane| {
            b.failed(lane, false, T);
        });
        assert!(!b.allows(T + 29_999));
        let probe = T + 30_000;
        assert!(b.allows(probe));
        b.started(5, probe);
        assert!(!b.allows(probe));
        b.failed(5, false, probe);
        assert!(!b.allows(probe + 29_999));
        b.started(6, probe + 30_000);
        b.succeeded(probe + 30_001);
        assert!(b.is_closed());
    }

    #[test]
    fn calls_of_longer_ago_than_the_window_do_not_count() {
        let mut b = Breaker::new(Limits { consecutive: 1000, ..Limits::default() });
        // One failure in eight calls is far below half, both over all seconds and within one.
        for n in 0..80 {
            assert!(!b.failed(7, false, T) || n >= 19, "opened with fewer than 20 calls");
            (0..7).for_each(|_| b.succeeded(T));
        }
        assert!(b.is_closed());
        // After eleven seconds, only the new failures are in the window.
        let later = T + 11_000;
        let opened: Vec<bool> = (0..20).map(|_| b.failed(7, false, later)).collect();
        assert_eq!(opened.iter().position(|opened| *opened), Some(19));

        let mut b = Breaker::new(Limits { consecutive: 1000, ..Limits::default() });
        (0..30).for_each(|_| b.succeeded(T));
        assert!((0..29).all(|_| !b.failed(7, false, T + 9_000)), "calls of nine seconds ago still count");
        assert!(b.failed(7, false, T + 9_000));
    }

    #[test]
    fn a_probe_that_is_abandoned_is_made_again_at_once() {
        let mut b = breaker();
        assert_eq!(b.last_probe(), None);
        (0..3).for_each(|lane| {
            b.failed(lane, false, T);
        });
        let probe = T + 30_000;
        b.started(5, probe);
        assert_eq!((b.state(), b.last_probe()), (State::HalfOpen, Some(5)));
        b.abandoned(probe + 7);
        assert_eq!(b.state(), State::Open { probe_at: probe + 7 });
        b.started(6, probe + 7);
        b.succeeded(probe + 8);
        b.abandoned(probe + 9);
        assert!(b.is_closed(), "without a probe, abandoned() changes nothing");
    }
}
