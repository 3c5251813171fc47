//! Work that many may wait for: the same thing asked for while it is being done is not done twice.

use klambda_build::Cancel;
use klambda_crash::{Guard, Lock};
use klambda_functions::name::Name;
use klambda_functions::resource::Outcome;
use std::collections::HashMap;

/// Who asked, and by which number.
pub type Asker = (Name, u64);

#[derive(Default)]
pub struct Jobs {
    running: Lock<Running>,
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
    /// How many are before it, if it only waits.
    waits: Option<usize>,
    /// What its end is called if it is called off.
    called_off: Outcome,
}

/// A job that was begun, for the one that does it.
pub struct Begun {
    what: String,
    number: u64,
    pub cancel: Cancel,
}

impl Jobs {
    /// If it is being done already, how many are before it if it only waits.
    pub fn join(&self, what: &str, asker: Asker) -> Result<Begun, Option<usize>> {
        let mut running = self.lock();
        // One that nobody waits for any more was called off, and comes to nothing.
        if let Some(job) = running.jobs.get_mut(what).filter(|job| !job.askers.is_empty()) {
            job.askers.push(asker);
            return Err(job.waits);
        }
        running.begun += 1;
        let (number, cancel) = (running.begun, Cancel::default());
        let called_off = Outcome::Cancelled;
        let job = Job { number, askers: vec![asker], cancel: cancel.clone(), waits: None, called_off };
        running.jobs.insert(what.to_owned(), job);
        Ok(Begun { what: what.to_owned(), number, cancel })
    }

    /// Notes whether it only waits. Those who are to be told, if that is new.
    pub fn waits(&self, begun: &Begun, waits: Option<usize>) -> Vec<Asker> {
        let mut running = self.lock();
        match running.jobs.get_mut(&begun.what).filter(|job| job.number == begun.number) {
            Some(job) if job.waits != waits => {
                job.waits = waits;
                job.askers.clone()
            }
            _ => Vec::new(),
        }
    }

    /// Those who are to be told, and what its end is called if it was called off.
    pub fn end(&self, begun: &Begun) -> (Vec<Asker>, Outcome) {
        let mut running = self.lock();
        let ended = match running.jobs.get(&begun.what).is_some_and(|job| job.number == begun.number) {
            true => running.jobs.remove(&begun.what),
            false => None,
        };
        ended.map_or((Vec::new(), Outcome::Cancelled), |job| (job.askers, job.called_off))
    }

    /// This one waits no longer. What nobody waits for is called off.
    pub fn leave(&self, name: &Name, called_off: Outcome) {
        for job in self.lock().jobs.values_mut() {
            let before = job.askers.len();
            job.askers.retain(|(asker, _)| asker != name);
            if job.askers.is_empty() && before > 0 {
                job.called_off = called_off;
                job.cancel.cancel();
            }
        }
    }

    pub fn is_empty(&self) -> bool {
        self.lock().jobs.is_empty()
    }

    fn lock(&self) -> Guard<'_, Running> {
        self.running.lock()
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
        assert_eq!(jobs.waits(&first, Some(3)), vec![(one.clone(), 1)]);
        assert_eq!(jobs.join("x", (other.clone(), 1)).err(), Some(Some(3)));
        assert_eq!(jobs.waits(&first, Some(3)), Vec::new(), "they know");
        assert_eq!(jobs.waits(&first, None).len(), 2);
        jobs.leave(&one, Outcome::Stopped);
        jobs.leave(&other, Outcome::Stopped);
        let second = jobs.join("x", (one.clone(), 2)).expect("begun anew");
        assert_eq!(jobs.end(&first).0, Vec::new());
        assert_eq!(jobs.waits(&first, Some(1)), Vec::new());
        jobs.leave(&one, Outcome::Stopped);
        assert_eq!(jobs.end(&second), (Vec::new(), Outcome::Stopped));
    }
}
