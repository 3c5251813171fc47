//! A lock for state that several tasks share.

use crate::LOCKS;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State behind a lock. A panic while it is locked ends the process, so that no one sees a half-finished change.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        // The lock can be poisoned only if `install` was not called, as in tests, which report the first panic
        // anyway.
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        LOCKS.set(LOCKS.get() + 1);
        Guard(guard)
    }
}

pub struct Guard<'a, T>(MutexGuard<'a, T>);

impl<T> Deref for Guard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for Guard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

impl<T> Drop for Guard<'_, T> {
    fn drop(&mut self) {
        LOCKS.set(LOCKS.get() - 1);
    }
}
