//! The lock around the state, and two rules that keep the time under the lock short.
//!
//! - The lock is never taken inside a step of the engine, because the engine would then wait for the holder of the lock.
//!   Instead, a step sends each stored change over a channel ([`Stored`]), and taking the lock reads the channel first.
//!   So no reader sees a state that is older than what the engine has stored.
//! - The lock is never held during a call of the platform, which may read files.
//!
//! Debug builds check both rules.

use crate::state::{State, Stored};
use klambda_crash::{Guard, Lock};
use std::ops::{Deref, DerefMut};
use std::sync::mpsc::{self, Sender};

pub struct SharedState {
    lock: Lock<State>,
    stored: Sender<Stored>,
}

pub struct Held<'a> {
    guard: Guard<'a, State>,
    _marked: rules::Marked,
}

impl SharedState {
    pub fn new() -> SharedState {
        let (stored, taken_over) = mpsc::channel();
        SharedState { lock: Lock::new(State::new(taken_over)), stored }
    }

    pub fn lock(&self) -> Held<'_> {
        rules::assert_outside_of_steps();
        let mut guard = self.lock.lock();
        guard.catch_up();
        Held { guard, _marked: rules::mark_lock() }
    }

    /// For steps of the engine. Never blocks.
    pub fn send(&self, stored: Stored) {
        // The receiver lives as long as the sender.
        let _ = self.stored.send(stored);
    }
}

impl Deref for Held<'_> {
    type Target = State;

    fn deref(&self) -> &State {
        &self.guard
    }
}

impl DerefMut for Held<'_> {
    fn deref_mut(&mut self) -> &mut State {
        &mut self.guard
    }
}

#[cfg(debug_assertions)]
pub mod rules {
    //! Tracks whether this thread runs a step of the engine and whether it holds the lock.

    use std::cell::Cell;

    thread_local! {
        static STEPS: Cell<u32> = const { Cell::new(0) };
        static LOCKS: Cell<u32> = const { Cell::new(0) };
    }

    pub struct Marked(&'static std::thread::LocalKey<Cell<u32>>);

    fn mark(what: &'static std::thread::LocalKey<Cell<u32>>) -> Marked {
        what.set(what.get() + 1);
        Marked(what)
    }

    impl Drop for Marked {
        fn drop(&mut self) {
            self.0.set(self.0.get() - 1);
        }
    }

    pub fn mark_step() -> Marked {
        mark(&STEPS)
    }

    pub fn mark_lock() -> Marked {
        mark(&LOCKS)
    }

    pub fn assert_outside_of_steps() {
        assert_eq!(STEPS.get(), 0, "the control plane lock was taken inside a step of the engine");
    }

    pub fn assert_unlocked() {
        assert_eq!(LOCKS.get(), 0, "the platform was used while the control plane lock was held");
    }
}

#[cfg(not(debug_assertions))]
pub mod rules {
    pub struct Marked;

    pub fn mark_step() -> Marked {
        Marked
    }

    pub fn mark_lock() -> Marked {
        Marked
    }

    pub fn assert_outside_of_steps() {}

    pub fn assert_unlocked() {}
}

#[cfg(all(test, debug_assertions))]
mod tests {
    use super::*;

    #[test]
    #[should_panic = "inside a step of the engine"]
    fn taking_the_lock_inside_a_step_is_caught() {
        let _step = rules::mark_step();
        SharedState::new().lock();
    }

    #[test]
    #[should_panic = "while the control plane lock was held"]
    fn using_the_platform_under_the_lock_is_caught() {
        let state = SharedState::new();
        let _held = state.lock();
        rules::assert_unlocked();
    }

    #[test]
    fn what_a_step_stored_is_there_when_the_lock_is_taken_next() {
        let state = SharedState::new();
        let step = rules::mark_step();
        let resource = std::sync::Arc::new(klambda_functions::resource::Resource::default());
        state.send(Stored::Written { resource, version: 7 });
        drop(step);
        assert_eq!(state.lock().functions.values().map(|entry| entry.version).collect::<Vec<_>>(), [7]);
    }
}
