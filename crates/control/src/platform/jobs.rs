//! Work that many may wait for: the same thing asked for while it is being done is not done twice.

use crate::names::Name;
use klambda_build::Cancel;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Who asked, and by which number.
pub type Asker = (Name, u64);

#[derive(Default)]
pub struct Jobs {
    running: Mutex<Running>,
}

#[derive(Default)]
struct Running {
    jobs: HashMap<String, Job>,
    begun: u64,
}

struct Job {
    number: u64,
    askers: Vec<Asker>,
    cancel: Cancel,
}

/// A job that was begun, for the one that does it.
pub struct Begun {
    what: String,
    number: u64,
    pub cancel: Cancel,
}

impl Jobs {
    /// None if it is being done already.
    pub fn join(&self, what: &str, asker: Asker) -> Option<Begun> {
        let mut running = self.lock();
        // One that nobody waits for any more was called off, and comes to nothing.
        if let Some(job) = running.jobs.get_mut(what).filter(|job| !job.askers.is_empty()) {
            job.askers.push(asker);
            return None;
        }
        running.begun += 1;
        let (number, cancel) = (running.begun, Cancel::default());
        let job = Job { number, askers: vec![asker], cancel: cancel.clone() };
        running.jobs.insert(what.to_owned(), job);
        Some(Begun { what: what.to_owned(), number, cancel })
    }

    /// Those who are to be told.
    pub fn end(&self, begun: &Begun) -> Vec<Asker> {
        let mut running = self.lock();
        match running.jobs.get(&begun.what).is_some_and(|job| job.number == begun.number) {
            true => running.jobs.remove(&begun.what).map(|job| job.askers).unwrap_or_default(),
            false => Vec::new(),
        }
    }

    /// This one waits no longer. What nobody waits for is called off.
    pub fn leave(&self, name: &Name) {
        for job in self.lock().jobs.values_mut() {
            let before = job.askers.len();
            job.askers.retain(|(asker, _)| asker != name);
            if job.askers.is_empty() && before > 0 {
                job.cancel.cancel();
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().jobs.is_empty()
    }

    fn lock(&self) -> MutexGuard<'_, Running> {
        self.running.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_share_one_and_what_was_called_off_is_begun_anew() {
        let jobs = Jobs::default();
        let [one, other] = ["one", "other"].map(|name| Name::new("default", name));
        let first = jobs.join("x", (one.clone(), 1)).expect("begun");
        assert!(jobs.join("x", (other.clone(), 1)).is_none());
        jobs.leave(&one);
        jobs.leave(&other);
        let second = jobs.join("x", (one.clone(), 2)).expect("begun anew");
        assert_eq!(jobs.end(&first), Vec::new());
        assert_eq!(jobs.end(&second), vec![(one, 2)]);
    }
}
