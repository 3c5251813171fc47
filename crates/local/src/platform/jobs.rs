//! Jobs that many functions can share: a job that is already running is not started again.

use klambda_build::Cancel;
use klambda_crash::{Guard, Lock};
use klambda_functions::name::Name;
use klambda_functions::resource::BuildOutcome;
use std::collections::HashMap;

/// The requesting function, and the number of its request.
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
    /// Number of jobs ahead of it, if it waits.
    waits: Option<usize>,
    /// The outcome to report if it is cancelled.
    called_off: BuildOutcome,
}

/// A started job, for the task that runs it.
#[derive(Clone)]
pub struct Begun {
    what: String,
    number: u64,
    pub cancel: Cancel,
}

impl Jobs {
    /// If the job is already running, returns the number of jobs ahead of it if it waits.
    pub fn join(&self, what: &str, asker: Asker) -> Result<Begun, Option<usize>> {
        let mut running = self.lock();
        // A job without askers was cancelled and produces no result.
        if let Some(job) = running.jobs.get_mut(what).filter(|job| !job.askers.is_empty()) {
            job.askers.push(asker);
            return Err(job.waits);
        }
        running.begun += 1;
        let (number, cancel) = (running.begun, Cancel::default());
        let called_off = BuildOutcome::Cancelled;
        let job = Job { number, askers: vec![asker], cancel: cancel.clone(), waits: None, called_off };
        running.jobs.insert(what.to_owned(), job);
        Ok(Begun { what: what.to_owned(), number, cancel })
    }

    /// Records whether the job waits. If that changed, returns the askers to notify.
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

    /// The functions that wait for the job now.
    pub fn askers(&self, begun: &Begun) -> Vec<Asker> {
        let running = self.lock();
        let job = running.jobs.get(&begun.what).filter(|job| job.number == begun.number);
        job.map(|job| job.askers.clone()).unwrap_or_default()
    }

    /// Returns the askers to notify, and the outcome to report if the job was cancelled.
    pub fn end(&self, begun: &Begun) -> (Vec<Asker>, BuildOutcome) {
        let mut running = self.lock();
        let ended = match running.jobs.get(&begun.what).is_some_and(|job| job.number == begun.number) {
            true => running.jobs.remove(&begun.what),
            false => None,
        };
        ended.map_or((Vec::new(), BuildOutcome::Cancelled), |job| (job.askers, job.called_off))
    }

    /// Removes an asker. A job without askers is cancelled.
    pub fn leave(&self, name: &Name, called_off: BuildOutcome) {
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
        assert_eq!(jobs.waits(&first, Some(3)), Vec::new(), "no change to report");
        assert_eq!(jobs.waits(&first, None).len(), 2);
        jobs.leave(&one, BuildOutcome::Stopped);
        jobs.leave(&other, BuildOutcome::Stopped);
        let second = jobs.join("x", (one.clone(), 2)).expect("begun anew");
        assert_eq!(jobs.end(&first).0, Vec::new());
        assert_eq!(jobs.waits(&first, Some(1)), Vec::new());
        jobs.leave(&one, BuildOutcome::Stopped);
        assert_eq!(jobs.end(&second), (Vec::new(), BuildOutcome::Stopped));
    }
}
