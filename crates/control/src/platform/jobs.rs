//! Work that many may wait for: the same thing asked for while it is being done is not done twice.

use crate::names::Name;
use klambda_build::Cancel;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who asked, and by which number.
pub type Asker = (Name, u64);

pub struct Jobs<T> {
    running: Mutex<HashMap<String, Job>>,
    done: std::marker::PhantomData<fn() -> T>,
}

struct Job {
    askers: Vec<Asker>,
    cancel: Cancel,
}

impl<T> Default for Jobs<T> {
    fn default() -> Jobs<T> {
        Jobs { running: Mutex::default(), done: std::marker::PhantomData }
    }
}

impl<T> Jobs<T> {
    /// What calls it off, if it is to be begun now; else it runs already.
    pub fn join(&self, what: &str, asker: Asker) -> Option<Cancel> {
        let mut running = self.lock();
        if let Some(job) = running.get_mut(what) {
            job.askers.push(asker);
            return None;
        }
        let cancel = Cancel::default();
        running.insert(what.to_owned(), Job { askers: vec![asker], cancel: cancel.clone() });
        Some(cancel)
    }

    /// Those who are to be told.
    pub fn end(&self, what: &str) -> Vec<Asker> {
        self.lock().remove(what).map(|job| job.askers).unwrap_or_default()
    }

    /// This one waits no longer. What nobody waits for is called off.
    pub fn leave(&self, name: &Name) {
        for job in self.lock().values_mut() {
            let before = job.askers.len();
            job.askers.retain(|(asker, _)| asker != name);
            if job.askers.is_empty() && before > 0 {
                job.cancel.cancel();
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Job>> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
