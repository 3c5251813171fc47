//! A lock around state that several tasks share.

use crate::LOCKS;
use std::ops::{Deref, DerefMut};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// State behind a lock. A panic while it is locked ends the process, wherever it happens: nobody sees half a change.
#[derive(Debug, Default)]
pub struct Lock<T>(Mutex<T>);

impl<T> Lock<T> {
    pub const fn new(value: T) -> Lock<T> {
        Lock(Mutex::new(value))
    }

    pub fn lock(&self) -> Guard<'_, T> {
        // Poisoned only where `install` was not called, that is in tests; those see the first panic anyway.
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
