//! The open loop: which event is due when.

use super::Spec;

pub struct Schedule {
    start_ns: u64,
    rate: f64,
    keys: u32,
    hot_keys: u32,
    next: u64,
}

impl Schedule {
    pub fn new(rate: f64, spec: &Spec, start_ns: u64) -> Self {
        Self { start_ns, rate, keys: spec.keys, hot_keys: spec.hot_keys, next: 0 }
    }

    pub fn next_ns(&self) -> u64 {
        self.start_ns + (self.next as f64 / self.rate * 1e9) as u64
    }

    /// The key of the next event and when it was due, if it is.
    pub fn pop(&mut self, now_ns: u64) -> Option<(u32, u64)> {
        let due_ns = self.next_ns();
        if due_ns > now_ns {
            return None;
        }
        let key = self.key(self.next);
        self.next += 1;
        Some((key, due_ns))
    }

    /// Every second event goes to a hot key, the others take the rest in turn.
    fn key(&self, event: u64) -> u32 {
        if self.hot_keys == 0 {
            return (event % u64::from(self.keys)) as u32;
        }
        let turn = event / 2;
        if event.is_multiple_of(2) {
            return (turn % u64::from(self.hot_keys)) as u32;
        }
        self.hot_keys + (turn % u64::from(self.keys - self.hot_keys)) as u32
    }
}
