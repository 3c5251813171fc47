//! Watches the memory of processes without a control group: one thread reads all of them from `/proc` ten times a second
//! while there are any.

use super::super::proc;
use rustix::process::{Pid, Signal, kill_process_group};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;

const EVERY: Duration = Duration::from_millis(100);

#[derive(Clone, Debug, Default)]
pub(crate) struct Watch {
    shared: Arc<Shared>,
}

#[derive(Debug, Default)]
struct Shared {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Debug, Default)]
struct State {
    watched: Vec<Watched>,
    running: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Watched {
    pub pid: Pid,
    pub memory_bytes: u64,
    /// Set when the process was killed for its memory use.
    pub ended: Arc<AtomicBool>,
}

impl Watch {
    pub fn add(&self, watched: Watched) {
        let mut state = self.shared.lock();
        state.watched.push(watched);
        if !state.running {
            let shared = self.shared.clone();
            let thread = std::thread::Builder::new().name("klambda-memory".into());
            state.running = thread.spawn(move || shared.run()).is_ok();
        }
        self.shared.wake.notify_one();
    }

    pub fn remove(&self, pid: Pid) {
        self.shared.lock().watched.retain(|watched| watched.pid != pid);
    }
}

impl Shared {
    /// Sleeps while there is nothing to watch. Lives as long as the program.
    fn run(&self) {
        let page = rustix::param::page_size() as u64;
        let mut state = self.lock();
        loop {
            while state.watched.is_empty() {
                state = self.wake.wait(state).expect("no panic while holding the lock");
            }
            let all = proc::all();
            for watched in &state.watched {
                let used = proc::resident_pages(watched.pid.as_raw_nonzero().get(), &all) * page;
                if used > watched.memory_bytes && !watched.ended.swap(true, Ordering::Relaxed) {
                    // Under the lock: an ended process is removed from the list within moments, long before its pid is reused.
                    let _ = kill_process_group(watched.pid, Signal::KILL);
                }
            }
            drop(state);
            std::thread::sleep(EVERY);
            state = self.lock();
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic while holding the lock")
    }
}
